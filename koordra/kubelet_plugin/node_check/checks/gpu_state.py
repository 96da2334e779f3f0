"""The state of the GPUs: memory that needs a reset, MIG mode, NVLink fabric, IMEX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from koordra.kubelet_plugin.isolation.mps.daemon import CONTROL, V2, V3
from koordra.kubelet_plugin.node_check.checks.driver import NO_GPU, has_gpus
from koordra.kubelet_plugin.node_check.host_imex import REMEDY
from koordra.kubelet_plugin.node_check.readings.gpu_devices import IMEX_DRIVER
from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.readings.nvml_answers import COMPLETED, Fabric, NvmlGpu
from koordra.kubelet_plugin.node_check.result import Fault, Outcome, judged, not_applicable, ok, problem

_RESET: Final = (
    "drain the card (koordra cordon-device) and reset it: nvidia-smi -r -i GPU; or reboot the node"
)
_FABRIC_STATES: Final = {1: "not started", 2: "in progress"}
_FABRIC_FAULTS: Final = {
    0: "its bandwidth is degraded",
    2: "a route is being recovered",
    4: "a route is unhealthy",
    6: "an access timed out",
}
"""Shifts of the two-bit fields of nvmlGpuFabricInfo_v2_t.healthMask; 1 is true, 2 is false, 0 unsupported."""


def _cards(node: NodeReadings) -> tuple[NvmlGpu, ...]:
    return node.nvml.gpus if node.nvml else ()


def memory(node: NodeReadings) -> Outcome:
    """No card has rows of memory that are remapped only at its next reset, or could not be remapped."""
    known = [gpu for gpu in _cards(node) if gpu.rows_pending is not None]
    if not known:
        return not_applicable("no card reports remapped memory")
    pending = [gpu.bus_id for gpu in known if gpu.rows_pending]
    failed = [gpu.bus_id for gpu in known if gpu.rows_failed]
    faults = [Fault(f"remapped memory of {bus_id} waits for a reset", _RESET) for bus_id in pending]
    faults += [
        Fault(f"memory of {bus_id} could not be remapped", "have the card replaced (NVIDIA's RMA)")
        for bus_id in failed
    ]
    return judged([f"{len(known)} cards looked at"], faults)


def mig(node: NodeReadings) -> Outcome:
    """No change of the MIG mode waits for a reset: until then the card is neither whole nor divided."""
    modes = {gpu.bus_id: gpu for gpu in _cards(node) if gpu.mig_enabled is not None}
    if not modes:
        return not_applicable("no card reports a MIG mode" if has_gpus(node) else NO_GPU)
    waiting = [bus_id for bus_id, gpu in modes.items() if gpu.mig_enabled != gpu.mig_pending]
    if waiting:
        words = (
            f"{one} is {_on(modes[one].mig_enabled)}, and {_on(modes[one].mig_pending)} after a reset"
            for one in waiting
        )
        return problem("; ".join(words), _RESET)
    enabled = sum(bool(gpu.mig_enabled) for gpu in modes.values())
    return ok(f"on for {enabled} of {len(modes)} cards, nothing waits")


def _on(value: bool | None) -> str:
    return "on" if value else "off"


def mps(node: NodeReadings) -> Outcome:
    """What isolation `mps` would be on this node: it needs nothing but programs of the driver, and what they
    can do decides what a limit is worth."""
    if node.mps is None:
        return not_applicable("no driver" if has_gpus(node) else NO_GPU)
    if node.mps.missing or node.mps.protocol is None:
        lacking = f"the driver has no {' and no '.join(node.mps.missing)}, which isolation mps needs"
        why = lacking if node.mps.missing else f"{CONTROL} does not say which version of MPS it has"
        return problem(why, _PROGRAMS) if "mps" in node.koordra.allowed else not_applicable(why)
    version = node.driver.loaded_version or node.driver.module_version
    return ok(
        f"driver {version or 'of an unknown version'} has MPS v{node.mps.protocol}: {_LIMITS[node.mps.protocol]}"
    )


_PROGRAMS: Final = (
    "install the programs that come with the driver, or take mps from the plugin's --allowed-isolation"
)
_LIMITS: Final = {
    V2: "limits are those of the largest share on the card, and each container's own by variables that a program may remove; MPS v3 "
    "(driver 615) has limits of each claim",
    V3: "each claim has limits of its own, which a program cannot change, for each of its processes",
}


def fabricmanager(node: NodeReadings) -> Outcome:
    """Cards behind NVSwitches have joined their fabric. Before that every CUDA program fails with error 802
    (system not yet initialized)."""
    fabrics = {gpu.bus_id: gpu.fabric for gpu in _cards(node) if gpu.fabric and gpu.fabric.state}
    if not fabrics and not node.gpus.nvswitches:
        return not_applicable("no NVSwitch and no card with a fabric")
    faults = [fault for bus_id, fabric in fabrics.items() for fault in _fabric_faults(bus_id, fabric)]
    cliques = sorted({str(fabric.clique) for fabric in fabrics.values() if fabric.clique})
    if len(cliques) > 1:
        what = f"cards of this node are in several cliques: {', '.join(cliques)}; none is published"
        faults.append(Fault(what, "have the partitions of the NVLink fabric put right (NMX)"))
    running = node.running("nv-fabricmanager")
    if node.gpus.nvswitches and not running and not _joined(list(fabrics.values())):
        what = f"{len(node.gpus.nvswitches)} NVSwitches, and no fabricmanager runs"
        remedy = "systemctl enable --now nvidia-fabricmanager, of exactly the driver's version"
        faults.insert(0, Fault(what, remedy))
    switches = f"{len(node.gpus.nvswitches)} NVSwitches" if node.gpus.nvswitches else "switches elsewhere"
    clique = f", clique {cliques[0]}" if len(cliques) == 1 else ""
    return judged(
        [
            f"{len(fabrics)} cards in a fabric{clique}, {switches}, fabricmanager {'runs' if running else 'not here'}"
        ],
        faults,
    )


def _joined(fabrics: list[Fabric]) -> bool:
    return bool(fabrics) and all(fabric.state == COMPLETED and not fabric.status for fabric in fabrics)


def _fabric_faults(bus_id: str, fabric: Fabric) -> Iterator[Fault]:
    if fabric.state != COMPLETED:
        state = _FABRIC_STATES.get(fabric.state, f"in state {fabric.state}")
        yield Fault(f"{bus_id} has not joined the fabric: {state}", "look at the log of nvidia-fabricmanager")
        return
    if fabric.status:
        yield Fault(f"{bus_id} failed to join the fabric: NVML status {fabric.status}", _RESET)
    for shift, what in _FABRIC_FAULTS.items():
        if fabric.health_mask >> shift & 3 == 1:
            yield Fault(
                f"the fabric of {bus_id}: {what}",
                "check cables and switches; the log of nvidia-fabricmanager",
            )
    if fabric.health_mask >> 8 & 0xF > 1:
        yield Fault(
            f"the fabric of {bus_id} is configured wrongly",
            "check that all nodes of the domain have one driver version",
        )


def imex(node: NodeReadings) -> Outcome:
    """Cards whose fabric goes over several nodes share memory through IMEX channels, which need the driver's
    channel device and the daemon. Where koordra runs that, the host's own is in the way."""
    cliques = {gpu.fabric.clique for gpu in _cards(node) if gpu.fabric and gpu.fabric.clique}
    major = node.gpus.majors.get(IMEX_DRIVER)
    if not cliques:
        return not_applicable("no fabric over several nodes")
    channels = f"{len(node.gpus.imex_channels)} channels"
    if major is None:
        what = f"/proc/devices has no {IMEX_DRIVER}"
        return problem(what, "reload the driver; one that supports the fabric of these cards registers it")
    if node.koordra.runs_imex:
        if node.host_imex:
            return problem(f"{node.host_imex}; so koordra gives out no channels", REMEDY)
        return ok(f"major {major}, {channels}, koordra runs nvidia-imex for the gangs of claims")
    return ok(
        f"major {major}, {channels}, nvidia-imex {'runs' if node.running('nvidia-imex') else 'does not run here'}"
    )
