"""What a container's cgroup gets by the devices that it holds: a cpuset near its GPUs, limits of its NICs.

**Cpuset**, if a claim asks for it (GpuConfig `numaAffinity`): the kubelet plugin records, with each device,
the NUMA node and its processors; a device whose claim asks carries the variable KOORDRA_NUMA_AFFINITY. The
container gets the processors of all NUMA nodes of its GPUs, restricted to those online and to the cpuset of
the kubelet's CPU manager, if it set one. If nothing is left, the kubelet's cpuset stays: it has reserved
processors for other containers too. Memory follows the processors.

**rdma.max** (cgroup version 2), if the operator sets limits: a NIC's handles and objects (queue pairs, memory
regions) are few and shared by all its users, and the device file does not limit them. If the node has the
controller, every container that holds RDMA devices gets one line per device of the node:

    mlx5_0 hca_handle=64 hca_object=16384        a device that it holds
    mlx5_1 hca_handle=0 hca_object=0             every other: nothing can be opened, even by a leaked
                                                 descriptor

The runtime must write the file line by line (runc 1.2; older ones write it whole, and the kernel takes one
line a write), so limits are off by default. Cgroup version 1 has the controller too, but NRI has no field for
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from koordra.api import names
from koordra.errors import InvalidInput
from koordra.node_state.prepared_claim import NUMA_AFFINITY
from koordra.nri.hook.grants import Grants


def near(grants: Grants, *, chosen: str, online: frozenset[int], nodes: frozenset[int]) -> tuple[str, str]:
    """The cpusets of processors and of memory nodes, both empty where nothing is to be changed.

    `chosen` is the kubelet's cpuset (empty: none), `online` the processors and `nodes` the memory nodes of
    the machine.
    """
    asking = [
        grant.device
        for grant in grants.held
        if grant.device.type in names.GPU_TYPES
        and (NUMA_AFFINITY, "true") in grant.device.env
        and grant.device.cpus
    ]
    wanted = frozenset().union(*(numbers(device.cpus or "") for device in asking)) & online
    if chosen:
        wanted &= numbers(chosen)
    if not wanted:
        return "", ""
    memory = frozenset(device.numa_node for device in asking if device.numa_node is not None) & nodes
    return cpuset(wanted), cpuset(memory)


def numbers(text: str) -> frozenset[int]:
    """The numbers of a cpuset, `0-3,8`. Raises ValueError for what is none."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if part:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def cpuset(values: Iterable[int]) -> str:
    """The shortest cpuset of these numbers."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


@dataclass(frozen=True, slots=True)
class RdmaLimit:
    """The most handles and objects of one NIC that one container may have."""

    handles: int
    objects: int

    @classmethod
    def parse(cls, text: str) -> RdmaLimit:
        """From `HANDLES:OBJECTS`. Raises InvalidInput."""
        handles, _, objects = text.partition(":")
        if not (handles.isdecimal() and objects.isdecimal() and int(handles) and int(objects)):
            raise InvalidInput(
                repr(text), field="RDMA limit", remedy="write HANDLES:OBJECTS, for example 64:16384"
            )
        return cls(int(handles), int(objects))


def unified(
    grants: Grants, *, devices: Iterable[str], limit: RdmaLimit | None
) -> tuple[tuple[str, str], ...]:
    """The cgroup files for a container with these devices; `devices` are all RDMA devices of the node."""
    held = {grant.device.ib_device for grant in grants.held if grant.device.ib_device}
    if limit is None or not held:
        return ()
    allowed = f"hca_handle={limit.handles} hca_object={limit.objects}"
    closed = "hca_handle=0 hca_object=0"
    lines = (f"{name} {allowed if name in held else closed}" for name in sorted({*devices, *held}))
    return (("rdma.max", "\n".join(lines)),)


def has_controller(cgroups: Path) -> bool:
    """Whether the hierarchy is of version 2 and has the controller."""
    try:
        return "rdma" in (cgroups / "cgroup.controllers").read_text().split()
    except OSError:
        return False
