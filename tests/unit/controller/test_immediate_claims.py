"""Devices without a pod: who may have them, how many, and to whom they give way."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, NAMESPACES, PODS, RESOURCE_CLAIMS
from koordra.controller.allocation.writes import WriteOutcome
from koordra.controller.cache.immediate_claims import ImmediateRules
from koordra.controller.cache.kept_fields import kept_of
from koordra.errors import Conflict
from tests.fakes.joint_cluster import JointCluster

NOW = {names.MODE_LABEL: names.IMMEDIATE}
REFUSED = "ImmediateRefused"


def says(cluster: JointCluster, device_class: str, **marks: str) -> None:
    cluster.api.edit(DEVICE_CLASSES, device_class, lambda found: found["metadata"].update(annotations=marks))


def class_says_immediate(cluster: JointCluster) -> None:
    says(cluster, names.CLASS_GPU, **NOW)


def given(cluster: JointCluster, *claims: str) -> list[str]:
    return [name for name in claims if cluster.allocation(name) is not None]


def edit(cluster: JointCluster, name: str, **metadata: Any) -> None:
    cluster.api.edit(RESOURCE_CLAIMS, name, lambda found: found["metadata"].update(metadata))


# --- who ---


def test_the_annotation_counts_only_where_the_policy_is_said_to_be_there() -> None:
    cluster = JointCluster(immediate=ImmediateRules(by_annotation=False))
    cluster.claim("a", annotations=NOW)
    cluster.settle()
    assert cluster.allocation("a") is None
    assert cluster.reasons() == [REFUSED]
    assert "koordra-immediate" in cluster.told[0].message
    cluster.settle()
    assert cluster.reasons() == [REFUSED]
    cluster.pod("p", "a")
    cluster.settle()
    assert cluster.allocation("a") is not None
    cluster.api.delete(PODS, "p")
    cluster.settle()
    assert cluster.allocation("a") is None


def test_a_class_that_says_immediate_is_the_grant_and_its_word_can_be_taken_back() -> None:
    cluster = JointCluster(immediate=ImmediateRules(by_annotation=False))
    cluster.claim("a")
    cluster.settle()
    assert cluster.allocation("a") is None
    class_says_immediate(cluster)
    cluster.settle()
    assert cluster.allocation("a") is not None
    says(cluster, names.CLASS_GPU)
    cluster.settle()
    assert cluster.allocation("a") is None


def test_a_claim_may_wait_although_its_class_says_immediate() -> None:
    cluster = JointCluster()
    class_says_immediate(cluster)
    cluster.claim("a", annotations={names.MODE_LABEL: "WaitForFirstConsumer"})
    cluster.settle()
    assert cluster.allocation("a") is None


def test_every_class_of_the_claim_has_to_say_it() -> None:
    cluster = JointCluster(immediate=ImmediateRules(by_annotation=False))
    says(cluster, names.CLASS_NIC, **NOW)
    mixed = cluster.claim("a")
    requests = mixed["spec"]["devices"]["requests"]
    nic = {"name": "nic", "exactly": {"deviceClassName": names.CLASS_NIC}}
    cluster.api.delete(RESOURCE_CLAIMS, "a")
    body = {
        **mixed,
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"devices": {"requests": [*requests, nic]}},
    }
    cluster.api.create(RESOURCE_CLAIMS, body)
    cluster.settle()
    assert cluster.reconciler.cache.claim_index.waiting_without_pod() == []


def test_a_claim_of_a_template_has_its_pod_whatever_it_says() -> None:
    cluster = JointCluster()
    cluster.claim("a", annotations={**NOW, names.POD_CLAIM_NAME: "gpu"})
    cluster.settle()
    assert cluster.allocation("a") is None
    edit(cluster, "a", annotations=NOW)
    cluster.settle()
    assert cluster.allocation("a") is not None


# --- how many ---


def test_a_namespace_has_so_many_devices_and_the_others_wait_for_a_pod() -> None:
    cluster = JointCluster(nodes=2, gpus=2, immediate=ImmediateRules(devices=3))
    for number, name in enumerate(("a", "b", "c")):
        cluster.claim(name, count=1 + (name == "b"), annotations=NOW, created=f"2026-11-21T00:00:0{number}Z")
    cluster.settle()
    assert given(cluster, "a", "b", "c") == ["a", "b"]
    (told,) = [one for one in cluster.told if one.reason == REFUSED]
    assert "asks for 1 device " in told.message
    assert "have 3 in all, which does not do for it and those before it" in told.message
    cluster.claim("d", annotations=NOW, created="2026-11-21T00:00:04Z")
    cluster.settle()
    assert cluster.reasons().count(REFUSED) == 2, "of the new one alone"
    cluster.pod("p", "c")
    cluster.settle()
    assert given(cluster, "c") == ["c"]
    edit(cluster, "b", finalizers=[])
    cluster.api.delete(RESOURCE_CLAIMS, "b")
    cluster.settle()
    cluster.api.delete(PODS, "p")
    cluster.settle()
    assert given(cluster, "a", "c") == ["a", "c"]


@pytest.mark.parametrize(
    ("said", "count"), [("1", 1), ("0", 0), ("4", 3), ("many", 0), ("9999999", 0), ("-1", 0)]
)
def test_the_namespace_says_how_many(said: str, count: int) -> None:
    cluster = JointCluster(nodes=2, gpus=2, immediate=ImmediateRules(devices=2))
    for number, name in enumerate(("a", "b", "c")):
        cluster.claim(name, annotations=NOW, created=f"2026-11-21T00:00:0{number}Z")
    cluster.settle()
    assert len(given(cluster, "a", "b", "c")) == 2
    place = {"metadata": {"name": "default", "annotations": {names.IMMEDIATE_DEVICES: said}}}
    cluster.api.create(NAMESPACES, place)
    cluster.settle()
    assert given(cluster, "a", "b", "c") == ["a", "b", "c"][:count]
    told = [one.message for one in cluster.told if one.reason == REFUSED]
    assert any(said in one and names.IMMEDIATE_DEVICES in one for one in told) is (count < 3)


def test_all_of_a_nodes_devices_count_as_many_as_an_allocation_can_name() -> None:
    cluster = JointCluster(immediate=ImmediateRules(devices=31))
    body = cluster.claim("a", annotations=NOW)
    cluster.api.delete(RESOURCE_CLAIMS, "a")
    asked = body["spec"]["devices"]["requests"][0]["exactly"]
    asked.pop("count", None)
    asked["allocationMode"] = "All"
    body["metadata"] = {"name": "b", "namespace": "default", "annotations": NOW}
    cluster.api.create(RESOURCE_CLAIMS, body)
    cluster.settle()
    assert cluster.reasons() == [REFUSED]
    assert "asks for 32 devices" in cluster.told[0].message


def test_a_pod_that_used_a_claim_makes_no_room_for_more() -> None:
    """Else a namespace would hold what it likes, by a pod that uses one claim after the other."""
    cluster = JointCluster(nodes=2, gpus=2, immediate=ImmediateRules(devices=1))
    cluster.claim("a", annotations=NOW, created="2026-11-21T00:00:00Z")
    cluster.claim("b", annotations=NOW, created="2026-11-21T00:00:01Z")
    cluster.settle()
    cluster.pod("p", "a")
    cluster.settle()
    cluster.scheduler_binds("p", "a")
    cluster.settle()
    assert given(cluster, "a", "b") == ["a"]


# --- giving way ---


def test_devices_that_no_pod_uses_give_way_the_newest_first_and_come_back_last() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    for number, name in enumerate(("old", "new")):
        cluster.claim(name, annotations=NOW, created=f"2026-11-21T00:00:0{number}Z")
    cluster.settle()
    cluster.claim("a")
    cluster.pod("p", "a", priority=-10)
    cluster.settle()
    assert given(cluster, "old", "new", "a") == ["old", "a"]
    (told,) = [one for one in cluster.told if one.reason == "GivenBack"]
    assert "pod default/p waits" in told.message
    writes = len(cluster.api.writes)
    cluster.settle(passes=5)
    assert len(cluster.api.writes) == writes
    cluster.api.delete(PODS, "p")
    cluster.settle()
    assert given(cluster, "old", "new", "a") == ["old", "new"]


def test_nothing_gives_way_where_that_does_not_help() -> None:
    cluster = JointCluster(nodes=2, gpus=1)
    cluster.claim("idle", annotations=NOW)
    cluster.claim("used")
    cluster.pod("u", "used")
    cluster.settle()
    cluster.scheduler_binds("u", "used")
    cluster.claim("a", count=2)
    cluster.pod("p", "a")
    cluster.settle(passes=5)
    assert given(cluster, "idle", "a") == ["idle"]


def test_what_a_pod_names_or_has_reserved_does_not_give_way() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    for name in ("named", "reserved"):
        cluster.claim(name, annotations=NOW)
    cluster.settle()
    cluster.pod("q", "named")
    cluster.pod("r", "reserved")
    cluster.settle()
    cluster.scheduler_binds("r", "reserved")
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle(passes=5)
    assert given(cluster, "named", "reserved", "a") == ["named", "reserved"]
    assert "GivenBack" not in cluster.reasons()
    assert cluster.reconciler.cache.claim_index.idle() == []


def test_a_claim_that_is_reserved_meanwhile_keeps_its_devices() -> None:
    """The write names the version that was looked at: the API server says Conflict."""
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("idle", annotations=NOW)
    cluster.settle()
    consumer = {"resource": "pods", "name": "s", "uid": "s"}
    stale = cluster.api.get(RESOURCE_CLAIMS, "idle")
    cluster.api.edit(RESOURCE_CLAIMS, "idle", lambda found: found["status"].update(reservedFor=[consumer]))
    assert cluster.writer.give_back(stale).outcome is WriteOutcome.CONFLICT
    assert cluster.allocation("idle") is not None
    cluster.settle()
    assert cluster.reconciler.cache.claim_index.idle() == []


def test_what_no_pod_uses_gives_way_to_whom_a_late_write_gave_the_same_devices() -> None:
    """Of two without a pod one keeps its devices."""
    cluster = JointCluster(nodes=1, gpus=1)
    for name in ("idle", "late", "used"):
        cluster.claim(name, annotations=NOW if name != "used" else {})
    cluster.settle()
    (first,) = given(cluster, "idle", "late")
    (other,) = {"idle", "late"} - {first}
    allocation = cluster.allocation(first)
    twice = {"status": {"allocation": allocation}}
    cluster.api.edit(RESOURCE_CLAIMS, other, lambda found: found.update(twice))
    cluster.settle()
    assert len(given(cluster, "idle", "late")) == 1
    cluster.pod("p", "used", gates=["another"])
    cluster.api.edit(RESOURCE_CLAIMS, "used", lambda found: found.update(twice))
    cluster.scheduler_binds("p", "used")
    cluster.settle()
    assert given(cluster, "idle", "late", "used") == ["used"]
    assert "OverCommitted" not in cluster.reasons(), "it is over before it is told"


def test_what_retains_gives_way_to_nobody() -> None:
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("kept", annotations=NOW, finalizers=[names.RETAIN_FINALIZER])
    cluster.claim("a")
    cluster.settle()
    cluster.pod("p", "a")
    cluster.settle(passes=5)
    assert given(cluster, "kept", "a") == ["kept"]


def test_a_finalizer_that_nobody_guards_keeps_nothing() -> None:
    cluster = JointCluster(nodes=1, gpus=1, immediate=ImmediateRules(by_annotation=False))
    class_says_immediate(cluster)
    cluster.claim("forged", annotations=NOW, finalizers=[names.RETAIN_FINALIZER])
    cluster.settle()
    assert given(cluster, "forged") == ["forged"]
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    assert given(cluster, "forged", "a") == ["a"]
    says(cluster, names.CLASS_GPU, **NOW, **{names.RECLAIM_POLICY: names.RETAIN})


def test_a_claim_without_a_pod_is_planned_behind_all_pods() -> None:
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("idle", annotations=NOW, created="2020-01-01T00:00:00Z")
    cluster.claim("a")
    cluster.pod("p", "a", priority=-5)
    cluster.settle(passes=1)
    assert given(cluster, "idle", "a") == ["a"]


def test_an_immediate_claim_is_freed_where_its_pod_cannot_run() -> None:
    """kube-scheduler's no counts for it as for others: it moves with its pod."""
    cluster = JointCluster(nodes=2, gpus=1)
    cluster.claim("a", annotations=NOW)
    cluster.settle()
    before = cluster.node_of("a")
    cluster.pod("p", "a")
    cluster.settle()
    cluster.scheduler_says_no("p", observedGeneration=9)
    cluster.settle(passes=1)
    assert cluster.node_of("a") not in (before, None)


def test_taking_devices_away_is_refused_and_not_tried_in_a_loop() -> None:
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("idle", annotations=NOW)
    cluster.settle()

    def refuse(write: object) -> None:
        if getattr(write, "subresource", None) == "status":
            raise Conflict("somebody wrote first", code=409)

    cluster.api.before = refuse
    cluster.claim("a")
    cluster.pod("p", "a")
    pause = cluster.settle(passes=2)
    assert pause is not None
    assert pause > 0.0
    assert given(cluster, "idle", "a") == ["idle"]


# --- held without a pod, without being Immediate ---


def test_a_claim_that_is_deleted_without_the_builtin_finalizer_is_freed() -> None:
    """Its owner took it off, so that kube-controller-manager frees it no more."""
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    cluster.api.delete(PODS, "p")
    edit(cluster, "a", finalizers=["example.com/mine"], deletionTimestamp="2026-11-21T00:00:00Z")
    cluster.settle()
    assert cluster.allocation("a") is None


@pytest.mark.parametrize("made_for", [False, True])
def test_a_living_owner_that_does_not_use_a_claim_keeps_nothing(made_for: bool) -> None:
    """Its author names whatever pod lives; one that a claim is made for names it before long."""
    cluster = JointCluster()
    entries = [] if made_for else [{"name": "gpu", "resourceClaimTemplateName": "nowhere"}]
    cluster.pod("sleeps", resourceClaims=entries)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "sleeps", "controller": True}
    owner["uid"] = objects.uid(cluster.api.get(PODS, "sleeps"))
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    marks = {names.POD_CLAIM_NAME: "gpu"} if made_for else {}
    edit(cluster, "a", ownerReferences=[owner], annotations=marks)
    cluster.api.delete(PODS, "p")
    cluster.settle()
    assert cluster.allocation("a") is None


def test_a_pod_that_its_author_holds_keeps_no_devices() -> None:
    """By a gate of his own, which nobody but he lifts."""
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    cluster.pod("held", "a", schedulingGates=[{"name": "example.com/mine"}])
    cluster.settle()
    assert cluster.allocation("a") is not None
    cluster.api.delete(PODS, "p")
    cluster.settle()
    assert cluster.allocation("a") is None
    cluster.api.edit(PODS, "held", lambda found: found["spec"].pop("schedulingGates"))
    cluster.settle()
    assert cluster.allocation("a") is not None


def test_grants_are_those_that_a_full_read_finds() -> None:
    cluster = JointCluster(nodes=2, gpus=2, immediate=ImmediateRules(devices=2))
    class_says_immediate(cluster)
    for name in ("a", "b", "c"):
        cluster.claim(name)
    cluster.settle()
    cluster.api.delete(RESOURCE_CLAIMS, "a")
    says(cluster, names.CLASS_GPU)
    cluster.settle()
    cluster.reconciler.audit.compare()
    assert dict(cluster.reconciler.audit.differences) == {}
    assert objects.annotations_of(cluster.api.get(RESOURCE_CLAIMS, "b")) == {}


def test_nothing_that_a_tenant_writes_crowds_out_that_a_claim_has_its_pod() -> None:
    """The policy lets a template's claim say Immediate, for it means nothing by it."""
    crowd = {f"koordra.io/{number:04}": "x" * 20 for number in range(3000)}
    marks = {**crowd, **NOW, names.POD_CLAIM_NAME: "g" * 63}
    kept = kept_of(RESOURCE_CLAIMS)(
        {"kind": "ResourceClaim", "metadata": {"name": "a", "annotations": marks}}
    )
    assert objects.annotations_of(kept)[names.POD_CLAIM_NAME] == "g" * 63
