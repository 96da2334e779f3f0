"""The cpuset near the GPUs that a container holds, if its claim asks for it (GpuConfig `numaAffinity`).

The kubelet plugin records, with each device, the NUMA node and its processors; a device whose claim asks
carries the variable KOORDRA_NUMA_AFFINITY. The container gets the processors of all NUMA nodes of its GPUs,
restricted to those online and to the cpuset of the kubelet's CPU manager, if it set one. If nothing is left,
the kubelet's cpuset stays: it has reserved processors for other containers too. Memory follows the
processors.
"""

from __future__ import annotations

from collections.abc import Iterable

from koordra.api import names
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
