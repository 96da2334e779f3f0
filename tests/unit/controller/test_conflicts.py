"""What nobody but koordra should do is told, once, and only when it is so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordra.api import names
from koordra.api.kinds import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.reconcile.conflicts import conflict_rules
from koordra.controller.reconcile.conflicts.conflict_watch import REPEAT, ConflictWatch
from koordra.controller.reporting import claim_events
from tests.fakes.cluster import Cluster
from tests.fakes.joint_cluster import JointCluster, claim, device_class, gpu_slice, node

GUARDED = device_class(names.CLASS_GPU, "gpu")
CLUSTER = Cluster(nodes=[node("n0")], slices=[gpu_slice("n0", 2)], classes=[GUARDED])


def class_of(name: str, *expressions: str) -> Object:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors}}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (GUARDED, None),
        (class_of("mine", 'device.driver == "koordra.io"'), claim_events.UNGUARDED_CLASS),
        (class_of("gpu.koordra.io"), claim_events.UNGUARDED_CLASS),
        (class_of("anything"), claim_events.FOREIGN_CLASS),
        (class_of("anything", "true"), claim_events.FOREIGN_CLASS),
        (class_of("nvidia", 'device.driver == "gpu.nvidia.com"'), None),
        (class_of("others", 'device.driver != "gpu.nvidia.com"'), claim_events.FOREIGN_CLASS),
        (class_of("broken", "device.("), None),
        (class_of("not-ours", 'device.driver != "koordra.io"'), None),
    ],
)
def test_classes_that_open_the_door_to_the_other_allocator(entry: Object, reason: str | None) -> None:
    found = conflict_rules.class_conflicts([entry], conflict_rules.joint_devices(CLUSTER.slices).values())
    assert [conflict.reason for conflict in found] == ([] if reason is None else [reason])


def test_devices_of_native_nodes_may_be_selected_by_anybody() -> None:
    native = [gpu_slice("n0", 2, allocator="scheduler")]
    assert (
        conflict_rules.class_conflicts([class_of("anything")], conflict_rules.joint_devices(native).values())
        == []
    )


def two_drivers(slices: list[Object]) -> list[claim_events.ClaimEvent]:
    by_name = [{**entry, "metadata": {"name": str(number)}} for number, entry in enumerate(slices)]
    return ConflictWatch(ClusterCache.of(Cluster(nodes=[node("n0")], slices=by_name))).report(now=0.0)


def test_two_drivers_that_publish_one_pci_device() -> None:
    ours = gpu_slice("n0", 1)
    ours["spec"]["devices"][0]["attributes"]["resource.kubernetes.io/pciBusID"] = {"string": "0000:1f:00.0"}
    device = {"name": "gpu-7", "attributes": {"pciBusID": {"string": "00000000:1F:00.0"}}}
    theirs: Object = {
        "metadata": {"name": "theirs"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "n0", "pool": {"name": "n0"}, "devices": [device]},
    }
    (conflict,) = two_drivers([ours, theirs])
    assert conflict.reason == claim_events.TWO_DRIVERS
    assert "0000:1f:00.0" in conflict.message
    assert "gpu.nvidia.com (gpu-7)" in conflict.message
    elsewhere = {**theirs, "spec": {**theirs["spec"], "nodeName": "n1"}}
    assert two_drivers([ours, elsewhere]) == []


def test_slices_in_our_name_that_no_plugin_makes() -> None:
    strange = gpu_slice("n0", 1)
    strange["spec"] |= {"pool": {"name": "shared", "generation": 1, "resourceSliceCount": 1}}
    del strange["spec"]["nodeName"]
    (conflict,) = conflict_rules.strange_slices([strange])
    assert conflict.reason == claim_events.STRANGE_SLICE
    assert "names no node" in conflict.message


def held(
    name: str, device: str, *, share: str | None = None, manager: str = "", memory: str = "80Gi"
) -> Object:
    result: dict[str, Any] = {"request": "gpu", "driver": names.DRIVER, "pool": "n0", "device": device}
    if share:
        result |= {"shareID": share, "consumedCapacity": {"memory": memory}}
    found = claim(name, uid=name)
    found["status"] = {"allocation": {"devices": {"results": [result]}}}
    if manager:
        fields = {"f:status": {"f:allocation": {}}}
        found["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": fields}]
    return found


@pytest.mark.parametrize(
    ("manager", "reported"), [("", False), ("koordra-controller", False), ("kube-scheduler", True)]
)
def test_another_writer_is_told_from_the_field_manager(manager: str, reported: bool) -> None:
    joint = conflict_rules.joint_places(CLUSTER.slices)
    found = conflict_rules.writer_conflicts(held("c", "gpu-0", manager=manager), joint)
    assert [conflict.reason for conflict in found] == ([claim_events.FOREIGN_WRITER] if reported else [])
    assert conflict_rules.writer_conflicts(held("c", "native-0", manager="kube-scheduler"), joint) == []


@pytest.mark.parametrize(
    ("claims", "reported"),
    [
        ([held("a", "gpu-0", share="1", memory="40Gi"), held("b", "gpu-0", share="2", memory="40Gi")], False),
        ([held("a", "gpu-0", share="1", memory="40Gi"), held("b", "gpu-0", share="2", memory="50Gi")], True),
        ([held("a", "gpu-0"), held("b", "gpu-0", share="2", memory="1Gi")], True),
        ([held("a", "gpu-0"), held("b", "gpu-1")], False),
    ],
)
def test_more_than_there_is(claims: list[Object], reported: bool) -> None:
    found = [
        conflict
        for device in ("gpu-0", "gpu-1")
        for conflict in conflict_rules.overcommitments(("n0", device), CLUSTER.slices, claims)
    ]
    assert [conflict.reason for conflict in found] == ([claim_events.OVER_COMMITTED] if reported else [])
    assert all("a, " in conflict.message or "default/b" in conflict.message for conflict in found)


def test_a_conflict_is_repeated_while_it_lasts_and_not_before() -> None:
    bad = replace(CLUSTER, classes=[class_of("anything")])
    cache = ClusterCache.of(bad)
    watch = ConflictWatch(cache)
    assert [told.reason for told in watch.report(now=0.0)] == [claim_events.FOREIGN_CLASS]
    assert watch.report(now=1.0) == []
    assert len(watch.report(now=REPEAT)) == 1
    cache.adopt(CLUSTER)
    assert watch.report(now=REPEAT + 1) == []
    cache.adopt(replace(CLUSTER, classes=[class_of("anything")]))
    assert len(watch.report(now=REPEAT + 2)) == 1


def test_conflicts_are_reported_by_the_controller() -> None:
    cluster = JointCluster()
    cluster.api.create(DEVICE_CLASSES, class_of("anything"))
    cluster.settle()
    assert cluster.reasons() == [claim_events.FOREIGN_CLASS]


def in_quarantine(name: str) -> Object:
    return gpu_slice(name, 2, allocator=names.ALLOCATOR_NOBODY)


def test_devices_in_quarantine_are_nobodys_and_the_controller_says_that_it_has_seen_it() -> None:
    cluster = JointCluster(nodes=1)
    cluster.api.edit(
        RESOURCE_SLICES,
        "n0-koordra",
        lambda found: found.update(spec={**in_quarantine("n0")["spec"], "pool": _generation(2)}),
    )
    cluster.claim("c")
    cluster.pod("p", "c")
    cluster.settle()
    assert cluster.allocation("c") is None
    annotations = cluster.api.get(NODES, "n0")["metadata"]["annotations"]
    assert annotations == {names.QUARANTINE_SEEN: "2"}
    writes = len(cluster.api.writes)
    cluster.settle()
    assert len(cluster.api.writes) == writes


def test_a_quarantine_is_not_confirmed_while_an_allocation_is_in_doubt() -> None:
    from koordra.errors import ApiUnreachable
    from tests.fakes.joint_cluster import explode_at

    cluster = JointCluster(nodes=1)
    cluster.claim("c")
    cluster.pod("p", "c")
    cluster.caches.deliver()
    cluster.api.before = explode_at(1, lambda: ApiUnreachable("lost"))
    with pytest.raises(ApiUnreachable):
        cluster.reconciler.reconcile()
    cluster.api.edit(
        RESOURCE_SLICES,
        "n0-koordra",
        lambda found: found.update(spec={**in_quarantine("n0")["spec"], "pool": _generation(2)}),
    )
    cluster.caches.deliver()
    cluster.api.before = explode_at(0, lambda: ApiUnreachable("still lost"))
    with pytest.raises(ApiUnreachable):
        cluster.reconciler.reconcile()
    assert "annotations" not in cluster.api.get(NODES, "n0")["metadata"]
    cluster.api.before = lambda _write: None
    cluster.settle()
    assert cluster.api.get(NODES, "n0")["metadata"]["annotations"] == {names.QUARANTINE_SEEN: "2"}
    assert cluster.api.get(RESOURCE_CLAIMS, "c")["status"]["allocation"]


def _generation(number: int) -> Object:
    return {"name": "n0", "generation": number, "resourceSliceCount": 1}
