"""The device nodes of the GPUs, and who has them open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from koordra.kubelet_plugin.node_check.checks.driver import NO_GPU, has_gpus
from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.result import Fault, Outcome, judged, not_applicable, ok, problem

_NVIDIA_MAJOR: Final = 195
_CONTROL_MINOR: Final = 255
_SERVICES: Final = frozenset(
    {
        "nvidia-persiste",
        "nv-fabricmanage",
        "nvidia-imex",
        "nv-hostengine",
        "nvidia-smi",
        "nvidia-cuda-mps",
        "dcgm-exporter",
        "koordra",
    }
)
"""Programs that may have cards open outside of pods; the kernel keeps 15 characters of a name."""
_OTHERS_ACCESS: Final = 0o006
_GROUP_ACCESS: Final = 0o060
_SHOWN: Final = 8


def device_nodes(node: NodeReadings) -> Outcome:
    """Every card has its node with the driver's numbers, and so have the control nodes, without which CUDA
    does not start."""
    if not has_gpus(node):
        return not_applicable(NO_GPU)
    faults = list(_node_faults(node))
    return judged([f"{len(node.gpus.nodes)} nodes in {node.gpus.folder}"], faults)


def _node_faults(node: NodeReadings) -> Iterator[Fault]:
    gpus = node.gpus
    nvidia = gpus.majors.get("nvidia", gpus.majors.get("nvidia-frontend", _NVIDIA_MAJOR))
    expected: list[tuple[str, int | None, int | None]] = [
        (f"nvidia{minor}", nvidia, minor) for minor in gpus.minors.values() if minor is not None
    ]
    expected += [("nvidiactl", nvidia, _CONTROL_MINOR), ("nvidia-uvm", gpus.majors.get("nvidia-uvm"), 0)]
    for name, major, minor in expected:
        path, found = f"{gpus.folder}/{name}", gpus.nodes.get(name)
        uvm = " -u" if "uvm" in name else ""
        if found is None:
            yield Fault(f"{path} does not exist", f"nvidia-modprobe -c 0{uvm}, and start nvidia-persistenced")
        elif major is not None and (found.node.major, found.node.minor) != (major, minor):
            has = f"{found.node.major}:{found.node.minor}"
            yield Fault(
                f"{path} is {has}, the driver's is {major}:{minor}",
                "remove the stale node; nvidia-modprobe makes it anew",
            )
    for bus_id, minor in gpus.minors.items():
        if minor is None:
            yield Fault(
                f"the driver does not say the minor number of {bus_id}",
                "dmesg shows why the card did not start",
            )


def device_permissions(node: NodeReadings) -> Outcome:
    """Programs that do not run as root can open the nodes: everybody may, or a group, which koordra passes on
    as an additional group. The mode is a parameter of the module (NVreg_DeviceFileMode)."""
    if not node.gpus.nodes:
        return not_applicable("no device nodes of GPUs")
    closed = {
        f"{found.node.path} {found.mode:04o} gid {found.gid}"
        for found in node.gpus.nodes.values()
        if found.mode & _OTHERS_ACCESS != _OTHERS_ACCESS
        and (found.gid == 0 or found.mode & _GROUP_ACCESS != _GROUP_ACCESS)
    }
    if closed:
        remedy = (
            "options nvidia NVreg_DeviceFileMode=0666, or 0660 with NVreg_DeviceFileGID of a group, in "
            "/etc/modprobe.d; then make the nodes anew"
        )
        return problem(f"root alone may open {', '.join(sorted(closed)[:_SHOWN])}", remedy)
    made = node.gpus.params.get("DeviceFileMode")
    by_driver = "" if made is None else f"; the driver makes them {made:04o}"
    groups = {
        found.gid for found in node.gpus.nodes.values() if found.mode & _OTHERS_ACCESS != _OTHERS_ACCESS
    }
    if groups:
        shown = ", ".join(map(str, sorted(groups)))
        return ok(f"group {shown}, which containers get as an additional group{by_driver}")
    return ok(f"everybody may open them{by_driver}")


def char_links(node: NodeReadings) -> Outcome:
    """systemd looks a device of a cgroup up in /dev/char: without the link it forgets the device at its next
    `daemon-reload`, and running containers lose their GPUs (NVIDIA/nvidia-container-toolkit#48)."""
    if not node.gpus.nodes:
        return not_applicable("no device nodes of GPUs")
    systemd = node.runtime.systemd_cgroups if node.runtime else None
    if systemd is None and (node.runtime is None or node.runtime.kind == "containerd"):
        return not_applicable("the runtime does not keep cgroups by systemd")
    if systemd is not None and not systemd.value:
        return not_applicable(f"the runtime does not keep cgroups by systemd ({systemd.where})")
    numbers = {f"{one.node.major}:{one.node.minor}" for one in node.gpus.nodes.values()}
    missing = sorted(numbers - node.gpus.linked_numbers)
    if missing:
        what = f"/dev/char lacks {', '.join(missing[:_SHOWN])}: `systemctl daemon-reload` takes GPUs from containers"
        return problem(
            what, "nvidia-ctk system create-dev-char-symlinks --create-all, at every boot (a udev rule)"
        )
    return ok(f"{len(numbers)} links in /dev/char")


def holders(node: NodeReadings) -> Outcome:
    """No program outside of pods computes on cards that koordra gives out: it takes memory that claims were
    promised, and it keeps the driver from being unloaded."""
    if not has_gpus(node):
        return not_applicable(NO_GPU)
    strangers = [one for one in node.users.holders if one.pod is None and one.command not in _SERVICES]
    if strangers:
        shown = (f"{one.command} (pid {one.pid}: {', '.join(one.devices)})" for one in strangers[:_SHOWN])
        what = f"outside of pods GPUs are open in {'; '.join(shown)}"
        return problem(what, "stop it, or move it into a pod with a claim")
    names = [f"{one.command} (pid {one.pid})" for one in node.users.holders]
    if not names:
        return ok("; ".join(node.users.lines()) or "nobody has a card open")
    return ok(", ".join(names[:_SHOWN]))
