"""What pods used between two samples."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.kubelet_plugin.sampling.cgroups import CgroupUse
from koordra.kubelet_plugin.sampling.nvml_cards import CardState
from koordra.kubelet_plugin.sampling.pod_use import PodKey, pod_use
from koordra.kubelet_plugin.sampling.sample import NOBODY, OnCard, PortOf, Sample
from koordra.node_state.granted_claims import ContainerName
from koordra.profiles.series import Series

ONE, OTHER = ContainerName("team", "job-0", "train"), ContainerName("team", "job-0", "side")
POD = ContainerName("team", "job-0", "")
KEY = PodKey("team", "job-0", "uid-0")


def sample(at: float, **more: Any) -> Sample:
    return Sample(at=at, pod_uids={("team", "job-0"): "uid-0"}, **more)


def used(before: Sample, after: Sample) -> dict[Series, int]:
    return dict(pod_use(before, after).get(KEY, {}))


def test_a_pod_is_its_containers_on_all_of_its_gpus() -> None:
    before = sample(0, device_seconds={(ONE, "a"): 1.0, (OTHER, "a"): 0.0, (ONE, "b"): 0.0})
    after = sample(
        10,
        device_seconds={(ONE, "a"): 3.0, (OTHER, "a"): 1.0, (ONE, "b"): 2.5},
        of_containers={(ONE, "a"): OnCard(1, 100), (OTHER, "a"): OnCard(1, 50), (ONE, "b"): OnCard(1, 120)},
        cards={"a": CardState(0.5), "b": CardState(0.25), "c": CardState(1.0)},
    )
    assert used(before, after) == {Series.GPU: 750, Series.SM: 300, Series.GPU_MEMORY: 150}


def test_processes_at_once_are_no_more_than_all_of_the_time() -> None:
    found = used(sample(0, device_seconds={(ONE, "a"): 0.0}), sample(10, device_seconds={(ONE, "a"): 35.0}))
    assert found == {Series.SM: 1000}


def test_counters_that_began_anew_count_from_zero() -> None:
    before = sample(0, device_seconds={(ONE, "a"): 90.0}, cgroups={POD: CgroupUse(500.0, 7)})
    after = sample(10, device_seconds={(ONE, "a"): 2.0}, cgroups={POD: CgroupUse(20.0, 9)})
    assert used(before, after) == {Series.SM: 200, Series.CPU: 2000, Series.MEMORY: 9}


def test_what_counts_since_before_is_not_the_pods() -> None:
    port, nobodys = PortOf("nic0", 1, ONE), PortOf("nic0", 1, NOBODY)
    before = sample(0, ports={nobodys: {"received_bytes": 10**9}})
    after = sample(10, ports={port: {"received_bytes": 2 * 10**9}}, cgroups={POD: CgroupUse(500.0, None)})
    assert used(before, after) == {}
    later = sample(20, ports={port: {"received_bytes": 2 * 10**9 + 50, "transmitted_bytes": 7}})
    assert used(after, later) == {Series.RDMA: 5}


@pytest.mark.parametrize("own", [True, False], ids=["of the pod", "of its containers"])
def test_a_pods_own_cgroup_has_all_that_is_in_it(own: bool) -> None:
    pods = {POD: CgroupUse(9.0, 90)} if own else {}
    before = sample(
        0,
        cgroups={
            ONE: CgroupUse(0.0, 1),
            OTHER: CgroupUse(0.0, 1),
            **{name: CgroupUse(0.0, 1) for name in pods},
        },
    )
    after = sample(10, cgroups={ONE: CgroupUse(1.0, 30), OTHER: CgroupUse(2.0, 40), **pods})
    assert used(before, after) == (
        {Series.CPU: 900, Series.MEMORY: 90} if own else {Series.CPU: 300, Series.MEMORY: 70}
    )


def test_what_the_driver_does_not_tell_is_not_nothing() -> None:
    after = sample(
        10, of_containers={(ONE, "a"): OnCard(), (ONE, "b"): OnCard()}, cards={"a": CardState(0.5)}
    )
    assert used(sample(0), after) == {Series.GPU_MEMORY: 0}


def test_nobody_has_no_profile_and_no_time_no_use() -> None:
    rows = {(NOBODY, "a"): 5.0, (ONE, "a"): 5.0}
    assert set(pod_use(sample(0), sample(10, device_seconds=rows))) == {KEY}
    assert pod_use(sample(10), sample(10, device_seconds=rows)) == {}
    assert set(pod_use(Sample(), Sample(at=10, device_seconds=rows))) == {PodKey("team", "job-0", "")}
