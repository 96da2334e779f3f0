"""What pods used between two samples, in the units of profiles. Pure.

What is not known has no value; it is not 0. A counter that is smaller than before has begun anew. What counts
since before a pod was seen (its cgroup, a port that somebody else had) is its own from the second sample on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from koordra.kubelet_plugin.sampling.cgroups import CgroupUse
from koordra.kubelet_plugin.sampling.nic_counters import RECEIVED, TRANSMITTED
from koordra.kubelet_plugin.sampling.sample import NOBODY, Sample
from koordra.node_state.granted_claims import ContainerName
from koordra.profiles.series import Series

MILLI: Final = 1000


class PodKey(NamedTuple):
    namespace: str
    pod: str
    uid: str


Values = Mapping[Series, int]


def pod_use(before: Sample, after: Sample) -> dict[PodKey, Values]:
    """Of each pod that holds devices at the second one. Empty where no time lies between them."""
    seconds = after.at - before.at
    if seconds <= 0:
        return {}
    found = defaultdict[tuple[str, str], dict[Series, int]](dict)
    for series, values in (
        (Series.GPU, _gpus(after)),
        (Series.SM, _kernels(before, after, seconds)),
        (Series.GPU_MEMORY, _gpu_memory(after)),
        (Series.CPU, _processors(before, after, seconds)),
        (Series.MEMORY, _memory(after)),
        (Series.RDMA, _ports(before, after, seconds)),
    ):
        for pod, value in values:
            found[pod][series] = value
    return {
        PodKey(*pod, after.pod_uids.get(pod, "")): values
        for pod, values in found.items()
        if pod != NOBODY[:2]
    }


_Of = Iterator[tuple[tuple[str, str], int]]


def _gpus(after: Sample) -> _Of:
    """Of a pod all of whose GPUs are known."""
    held = defaultdict[tuple[str, str], set[str]](set)
    for name, uuid in after.of_containers:
        held[name[:2]].add(uuid)
    for pod, uuids in held.items():
        busy = [after.cards[uuid].busy if uuid in after.cards else None for uuid in uuids]
        known = [each for each in busy if each is not None]
        if len(known) == len(busy):
            yield pod, round(sum(known) * MILLI)


def _kernels(before: Sample, after: Sample, seconds: float) -> _Of:
    ran = defaultdict[tuple[tuple[str, str], str], float](float)
    for (name, uuid), total in after.device_seconds.items():
        ran[name[:2], uuid] += _grown(before.device_seconds.get((name, uuid), 0.0), total)
    yield from _highest({of: round(min(1.0, each / seconds) * MILLI) for of, each in ran.items()})


def _gpu_memory(after: Sample) -> _Of:
    used = defaultdict[tuple[tuple[str, str], str], int](int)
    for (name, uuid), on_card in after.of_containers.items():
        used[name[:2], uuid] += on_card.memory
    yield from _highest(used)


def _highest(of: Mapping[tuple[tuple[str, str], str], int]) -> _Of:
    """Of a pod's GPUs."""
    found = dict[tuple[str, str], int]()
    for (pod, _), value in of.items():
        found[pod] = max(value, found.get(pod, 0))
    yield from found.items()


def _processors(before: Sample, after: Sample, seconds: float) -> _Of:
    earlier = before.cgroups
    spent = defaultdict[tuple[str, str], float](float)
    for name, use in _of_pods(after.cgroups).items():
        old = earlier[name].cpu_seconds if name in earlier else None
        if old is not None and use.cpu_seconds is not None:
            spent[name[:2]] += _grown(old, use.cpu_seconds)
    yield from ((pod, round(each / seconds * MILLI)) for pod, each in spent.items())


def _memory(after: Sample) -> _Of:
    used = defaultdict[tuple[str, str], int](int)
    for name, use in _of_pods(after.cgroups).items():
        if use.memory is not None:
            used[name[:2]] += use.memory
    yield from used.items()


def _of_pods(cgroups: Mapping[ContainerName, CgroupUse]) -> dict[ContainerName, CgroupUse]:
    """A pod's own cgroup, which has all that is in it; its containers' where it has none."""
    return {
        name: use
        for name, use in cgroups.items()
        if not name.container or name._replace(container="") not in cgroups
    }


def _ports(before: Sample, after: Sample, seconds: float) -> _Of:
    moved = defaultdict[tuple[str, str], int](int)
    for port, values in after.ports.items():
        earlier = before.ports.get(port)
        if earlier is not None:
            for word in (RECEIVED, TRANSMITTED):
                if word in values and word in earlier:
                    moved[port.holder[:2]] += round(_grown(earlier[word], values[word]))
    yield from ((pod, round(each / seconds)) for pod, each in moved.items())


def _grown(before: float, after: float) -> float:
    return after - before if after >= before else after
