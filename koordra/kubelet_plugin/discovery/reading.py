"""One reading of a machine: GPUs, RDMA NICs and their places.

Everything is read below a root path, so that a captured or made-up machine is read by the same code as the
real one:

1. sysfs: the PCI tree, NUMA nodes and sockets (``pci_tree``);
2. NVML, or a recording of it, or /proc/driver/nvidia: the GPUs' identities and MIG instances (``nvml_gpus``, ``gpus``);
3. /sys/class/infiniband: RDMA devices of any vendor; /sys/bus/auxiliary: sub-functions of NICs (``rdma_devices``);
4. /dev: device nodes and their numbers (``machine_root``).

``watcher`` reads again when something changes.

Discovery never raises for what it finds: what is certain is in the machine, what is not becomes a
:class:`Problem`. Devices with problems stay in the machine, since their nodes must be guarded, but are not
``publishable``.

Two corrections follow a reading: the operator's topology overlay (topology/overlay.py) fills in what virtual machines and some
boards hide of switches and NUMA nodes and never overrides what the machine reports; a NIC that has moved into a pod's network
namespace, which the host then does not see, nor, where RDMA devices belong to namespaces, its RDMA device, stays as it was last
seen until its pod returns it.

``probe`` is a cheap fingerprint of everything that can change without an event: states of InfiniBand ports, MIG instances
(created by an ioctl), device nodes (created by udev or nvidia-modprobe) and a reloaded driver. It takes some milliseconds on a
machine with 16 NICs and 128 virtual functions, so it can be taken every few seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from koordra.kubelet_plugin.discovery.gpus import (
    GPU_CONTROL,
    gpu_management_nodes,
    gpus,
    is_gpu,
    proc_driver_version,
    proc_gpus,
)
from koordra.kubelet_plugin.discovery.machine_root import Discovery, MachineRoot, Problem
from koordra.kubelet_plugin.discovery.nvml_gpus import nvml_facts
from koordra.kubelet_plugin.discovery.nvml_query import GpuFactsSource, NvmlFacts
from koordra.kubelet_plugin.discovery.nvml_recording import FILE, recorded_facts
from koordra.kubelet_plugin.discovery.pci_tree import (
    PCI_DEVICES,
    bridges,
    locate,
    numa_nodes,
    pci_functions,
)
from koordra.kubelet_plugin.discovery.rdma_devices import (
    AUXILIARY,
    RDMA_CONTROL,
    rdma_names,
    rdma_nics,
    sub_function_parents,
    sub_functions,
    verbs_and_management,
)
from koordra.topology import overlay
from koordra.topology.machine import Location, Machine, Nic, NumaNode, bus_order


def discover(root: Path, *, nvml: GpuFactsSource | None = None) -> Discovery:
    """Read the machine below ``root`` (``Path("/")`` is this one).

    ``nvml`` replaces the source of GPU facts; by default it is the library on the real machine and
    ``nvml.json`` on a picture of one. The library is asked only where the PCI tree shows an NVIDIA GPU.
    """
    tree = MachineRoot(root)
    functions, nodes = pci_functions(tree), numa_nodes(tree)
    if not tree.names(PCI_DEVICES):
        tree.problem(
            "machine", PCI_DEVICES, "it is missing or empty", "check that the root path holds a mounted sysfs"
        )
    proc = proc_gpus(tree)
    cards = [function for function in functions if is_gpu(tree, function) or function.bus_id in proc]
    if nvml is None and cards:
        nvml = nvml_facts if tree.is_real else partial(recorded_facts, tree)
    facts = nvml() if nvml else NvmlFacts()
    known = {gpu.location.bus_id for gpu in facts.gpus}
    cards += [function for function in functions if function.bus_id in known and function not in cards]
    cards.sort(key=lambda function: bus_order(function.bus_id))

    rdma = {*rdma_names(tree).values(), *sub_function_parents(tree).values()}
    of_interest = cards + [
        function for function in functions if function.bus_id in rdma and function not in cards
    ]
    above = bridges(tree, of_interest)
    locations = {
        function.bus_id: locate(tree, function, bridges=above, numa_nodes=nodes) for function in of_interest
    }
    _report_unplaced(tree, locations, nodes)
    found_gpus = gpus(tree, functions=cards, locations=locations, nvml=facts, proc=proc)
    verbs, management = verbs_and_management(tree)
    nics = rdma_nics(
        tree,
        functions={function.bus_id: function for function in functions},
        locations=locations,
        verbs=verbs,
        management=management,
    )
    machine = Machine(
        numa_nodes=nodes,
        bridges=tuple(above.values()),
        gpus=found_gpus,
        nics=tuple(nic for nic in nics if nic.parent is None),
        vfs=tuple(nic for nic in nics if nic.parent is not None),
        driver_version=facts.driver_version or proc_driver_version(tree),
        cuda_version=facts.cuda_version,
        gpu_control=tree.device_nodes(GPU_CONTROL),
        rdma_control=tree.device_nodes(RDMA_CONTROL),
        boot_id=tree.line("proc/sys/kernel/random/boot_id"),
        gpu_management=gpu_management_nodes(tree, found_gpus),
        sub_functions=sub_functions(tree, locations=locations, verbs=verbs, management=management),
    )
    _report_missing_control_nodes(tree, machine)
    return Discovery(machine=machine, problems=tuple(sorted({*facts.problems, *tree.problems})))


def _report_unplaced(
    tree: MachineRoot, locations: Mapping[str, tuple[Location, frozenset[str]]], nodes: tuple[NumaNode, ...]
) -> None:
    for bus_id, (location, _) in locations.items():
        if location.numa is None:
            tree.problem(
                f"PCI device {bus_id}",
                "numaNode",
                f"its NUMA node is not known, of the {len(nodes)} that the machine shows",
                "enable NUMA (ACPI SRAT) in the firmware or the VM; the device counts as near to none",
            )


def _report_missing_control_nodes(tree: MachineRoot, machine: Machine) -> None:
    present = {node.path for node in machine.gpu_control}
    for path in ("/dev/nvidiactl", "/dev/nvidia-uvm"):
        if machine.gpus and path not in present:
            tree.problem("machine", path, "it does not exist", "run nvidia-modprobe -c 0 -u; CUDA needs it")
    if machine.nics and not machine.rdma_control:
        tree.problem("machine", *RDMA_CONTROL, "it does not exist", "load rdma_ucm; RDMA-CM needs it")


def apply_overlay(found: Discovery, places: Mapping[str, overlay.Place], *, file: str) -> Discovery:
    """`found` with the overlay applied; problems that it answers are dropped, contradictions are added."""
    machine, contradictions = overlay.apply(found.machine, places)
    known = {
        f"PCI device {device.location.bus_id}"
        for device in machine.devices()
        if device.location.numa is not None
    }
    unanswered = {one for one in found.problems if one.field != "numaNode" or one.object not in known}
    added = {
        Problem(
            one.device,
            one.field,
            f"the machine says {one.machine}, the overlay {one.overlay}",
            f"correct {file}; the machine is believed",
        )
        for one in contradictions
    }
    return Discovery(machine=machine, problems=tuple(sorted(unanswered | added)))


def with_moved(now: Machine, before: Machine | None, moved: Collection[str]) -> Machine:
    """`now` with the NICs named in `moved` as `before` had them, as far as `now` does not show them."""
    if before is None or not moved:
        return now
    return replace(
        now, nics=_still_known(now.nics, before.nics, moved), vfs=_still_known(now.vfs, before.vfs, moved)
    )


def _still_known(now: tuple[Nic, ...], before: tuple[Nic, ...], moved: Collection[str]) -> tuple[Nic, ...]:
    known = {nic.name: nic for nic in before if nic.name in moved}
    seen = {nic.name for nic in now}
    found = [
        replace(nic, netdev=nic.netdev or known[nic.name].netdev) if nic.name in known else nic for nic in now
    ]
    found += [nic for name, nic in known.items() if name not in seen]
    return tuple(sorted(found, key=lambda nic: (bus_order(nic.location.bus_id), nic.ib_device)))


_RDMA = "sys/class/infiniband"
_CAPABILITIES = "proc/driver/nvidia/capabilities"


def probe(directory: Path) -> Hashable:
    """The fingerprint of the machine below ``directory``; equal for machines that read alike."""
    root = MachineRoot(directory)
    recording = root.status(FILE)
    return (
        tuple(root.names(PCI_DEVICES)),
        tuple(root.names(AUXILIARY)),
        tuple(_ports(root)),
        tuple(_device_nodes(root)),
        root.text("proc/driver/nvidia/version"),
        tuple(root.names("proc/driver/nvidia/gpus")),
        tuple((card, tuple(root.names(f"{_CAPABILITIES}/{card}/mig"))) for card in root.names(_CAPABILITIES)),
        (recording.st_mtime_ns, recording.st_size) if recording else None,
    )


def _ports(root: MachineRoot) -> list[tuple[str, str | None]]:
    found = []
    for name in root.names(_RDMA):
        # The link, too: the same name on another function is another NIC.
        found.append((name, root.link(f"{_RDMA}/{name}")))
        ports = f"{_RDMA}/{name}/ports"
        found += [(port, root.line(f"{ports}/{port}/state")) for port in root.names(ports)]
    return found


def _device_nodes(root: MachineRoot) -> list[tuple[str, int, int]]:
    paths = [f"dev/{name}" for name in root.names("dev") if name.startswith("nvidia")]
    paths += [
        f"dev/{folder}/{name}"
        for folder in ("nvidia-caps", "infiniband")
        for name in root.names(f"dev/{folder}")
    ]
    found = []
    for path in paths:
        status = root.status(path)
        if status is not None:
            # A stand-in of a captured machine has its numbers in its text, so its time shows a change.
            found.append((path, status.st_rdev, 0 if status.st_rdev else status.st_mtime_ns))
    return found
