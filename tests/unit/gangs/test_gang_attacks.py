"""What tenants, other systems and chance may do to gangs: nothing is held in vain, nobody waits for ever, no
pass ends early."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names
from koordra.api.kinds import DEVICE_TAINT_RULES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.ungate_tracker import UngateTracker
from koordra.controller.gangs import events
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN, GANG_TIMEOUT
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.controller.gangs.declared.terms import terms_of
from koordra.controller.gangs.membership import GangIndex
from koordra.errors import ApiError, ApiUnreachable, Forbidden
from tests.fakes.cluster import Cluster
from tests.fakes.joint_cluster import JointCluster, explode_at, gpu_slice, node
from tests.fakes.kube_api import Killed, Write
from tests.unit.gangs.test_gang_course import allocated, bind, let_go, member, told

MINUTE = {GANG_TIMEOUT: "60s"}


def foreign(cluster: JointCluster, name: str, *, least: int, claims: bool = True, **spec: Any) -> None:
    """A member of a gang of Koordinator's; one without claims is not held."""
    if claims:
        cluster.claim(name)
    cluster.pod(name, *([name] if claims else []), gates=[names.JOINT_GATE] if claims else [], **spec)
    prefix = "gang.scheduling.koordinator.sh/"
    said = {prefix + "name": "train", prefix + "min-available": str(least)}
    cluster.api.edit(PODS, name, lambda found: found["metadata"].update(annotations=said))


def more_room(cluster: JointCluster, name: str = "later", gpus: int = 1) -> None:
    cluster.api.create(NODES, node(name))
    cluster.api.create(RESOURCE_SLICES, gpu_slice(name, gpus))


def a_launcher_that_runs(cluster: JointCluster) -> None:
    foreign(cluster, "launcher", least=4, claims=False)
    cluster.api.edit(PODS, "launcher", lambda found: found["spec"].update(nodeName="n0"))
    for number in range(3):
        foreign(cluster, f"w{number}", least=4)


@pytest.mark.parametrize("step", range(6))
def test_a_launcher_of_others_that_runs_commits_nobody(step: int) -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    a_launcher_that_runs(cluster)
    cluster.caches.deliver()
    cluster.api.after = explode_at(step, Killed)
    with pytest.raises(Killed):
        cluster.reconciler.reconcile()
    cluster.api.after = lambda _write: None
    assert let_go(cluster) == []
    cluster.pod_ends("w2", "w2")
    cluster.start_again()
    cluster.settle()
    assert allocated(cluster) == []
    assert let_go(cluster) == []


def test_a_launcher_of_others_that_runs_counts_and_is_not_evicted() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    a_launcher_that_runs(cluster)
    evictions: list[Write] = []
    cluster.api.before = lambda write: evictions.append(write) if write.subresource == "eviction" else None
    for _ in range(3):
        cluster.settle()
        cluster.pass_time(301)
    assert evictions == []
    more_room(cluster)
    cluster.settle()
    assert let_go(cluster) == allocated(cluster) == ["w0", "w1", "w2"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("koordra.io/gang-min", "1" * 5000),
        ("koordra.io/gang-timeout", "1" * 5000 + "s"),
        ("koordra.io/gang-timeout", "1" * 1000),
        ("volcano.sh/task-index", "1" * 5000),
        ("volcano.sh/task-index", "1" * 100),
    ],
)
def test_a_tenants_long_numbers_do_not_end_the_pass(name: str, text: str) -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    for member_name in ("w0", "w1"):
        member(cluster, member_name, terms={name: text})
    cluster.claim("neighbour")
    cluster.pod("neighbour", "neighbour")
    cluster.settle()
    assert "neighbour" in allocated(cluster)


def test_a_name_that_no_write_could_carry_is_refused() -> None:
    cluster = JointCluster()
    for name in ("w0", "w1"):
        member(cluster, name, gang="x" * 20_000)
    cluster.settle()
    assert allocated(cluster) == []
    assert told(cluster, events.REFUSED)


@pytest.mark.parametrize("gang", ["my job", "line\nbreak"])
def test_a_name_that_containers_could_not_be_told_is_refused(gang: str) -> None:
    cluster = JointCluster()
    for name in ("w0", "w1"):
        member(cluster, name, gang=gang)
    cluster.settle()
    assert allocated(cluster) == []
    assert told(cluster, events.REFUSED)


def test_gangs_of_one_name_in_two_systems_are_two() -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    for number in range(2):
        member(cluster, f"k{number}")
        foreign(cluster, f"f{number}", least=2)
    cluster.settle()
    assert allocated(cluster) == ["f0", "f1", "k0", "k1"]


BUDGET = ApiUnreachable("Cannot evict pod as it would violate the pod's disruption budget", code=429)


def short_and_overdue(refused: set[str], why: ApiError = BUDGET) -> JointCluster:
    """One of two members runs, its time is over, and these pods may not be evicted."""
    cluster = JointCluster(nodes=2, gpus=1)
    for name in ("w0", "w1"):
        member(cluster, name, terms=MINUTE)
    cluster.settle()
    bind(cluster, "w0")
    cluster.scheduler_says_no("w1")
    cluster.settle()

    def budget(write: Write) -> None:
        if write.subresource == "eviction" and write.name in refused:
            raise why

    cluster.api.before = budget
    cluster.pass_time(61)
    cluster.settle()
    assert told(cluster, events.RESTARTED)
    return cluster


def test_while_a_budget_keeps_a_gang_others_get_their_devices() -> None:
    cluster = short_and_overdue({"w0", "w1"})
    more_room(cluster)
    cluster.claim("other")
    cluster.pod("other", "other")
    cluster.settle()
    assert cluster.allocation("other")


def test_a_gang_that_may_not_end_is_not_asked_in_each_pass() -> None:
    cluster = short_and_overdue({"w0", "w1"})
    cluster.settle(passes=10)
    asked = [write.name for write in cluster.api.writes if write.subresource == "eviction"]
    assert sorted(asked) == ["w0", "w1"]
    cluster.pass_time(5)
    cluster.settle()
    assert sum(write.subresource == "eviction" for write in cluster.api.writes) == 4


@pytest.mark.parametrize("why", [BUDGET, Forbidden("not now", code=403)])
def test_a_gang_that_nobody_may_evict_completes_itself_when_there_is_room(why: ApiError) -> None:
    cluster = short_and_overdue({"w0", "w1"}, why)
    more_room(cluster)
    for _ in range(8):
        cluster.pass_time(10)
        cluster.settle()
    assert allocated(cluster) == ["w0", "w1"]


def test_a_gang_of_which_a_part_may_be_evicted_completes_itself_too() -> None:
    cluster = short_and_overdue({"w0"})
    cluster.pod_ends("w1", "w1")
    member(cluster, "w2", terms=MINUTE)
    more_room(cluster)
    for _ in range(8):
        cluster.pass_time(10)
        cluster.settle()
    assert {"w0", "w2"} <= set(allocated(cluster))


def test_a_member_whose_gate_somebody_lifted_after_the_start_gets_devices() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    for number in range(3):
        member(cluster, f"w{number}")
    cluster.settle()
    bind(cluster, "w0", "w1")
    cluster.settle()
    cluster.api.edit(PODS, "w2", lambda pod: pod["spec"].pop("schedulingGates"))
    more_room(cluster)
    cluster.settle()
    assert allocated(cluster) == ["w0", "w1", "w2"]


@pytest.mark.parametrize("step", range(6))
def test_a_claim_that_two_waiting_gangs_share_is_held_by_neither(step: int) -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    cluster.claim("shared")
    entry = {"name": "shared", "resourceClaimName": "shared"}
    for gang in "ab":
        for number in range(2):
            member(cluster, f"{gang}{number}", gang=gang)
        cluster.api.edit(PODS, f"{gang}1", lambda pod: pod["spec"]["resourceClaims"].append(dict(entry)))
    cluster.caches.deliver()
    cluster.api.after = explode_at(step, Killed)
    with pytest.raises(Killed):
        cluster.reconciler.reconcile()
    cluster.api.after = lambda _write: None
    cluster.start_again()
    assert let_go(cluster) == []
    for gang in "ab":
        cluster.pod_ends(f"{gang}0", f"{gang}0")
    cluster.settle()
    assert allocated(cluster) == []


def test_a_running_pod_that_changes_its_gang_takes_nobodys_turn() -> None:
    """A gang that has started comes first among those of its priority, not before higher ones."""
    cluster = JointCluster(nodes=1, gpus=2)
    for name in ("w0", "w1"):
        member(cluster, name)
    cluster.settle()
    bind(cluster, "w0", "w1")
    for name in ("v0", "v1"):
        member(cluster, name, gang="v", least=3)
    moved = {GANG: "v", GANG_MIN: "3"}
    cluster.api.edit(PODS, "w0", lambda pod: pod["metadata"]["annotations"].update(moved))
    cluster.claim("urgent")
    cluster.pod("urgent", "urgent", priority=100)
    cluster.settle()
    more_room(cluster, gpus=2)
    cluster.settle()
    assert "urgent" in allocated(cluster)
    assert not {"v0", "v1"} & set(allocated(cluster))


@pytest.mark.parametrize("by", ["namespace", "pod"])
def test_pods_in_native_mode_are_in_no_gang(by: str) -> None:
    native = {names.MODE_LABEL: names.MODE_NATIVE}
    metadata = {"name": "w0", "namespace": "team", "uid": "u0", "annotations": {GANG: "train", GANG_MIN: "2"}}
    pod: Object = {"metadata": metadata, "spec": {"nodeSelector": native if by == "pod" else {}}}
    namespace: Object = {"metadata": {"name": "team", "labels": native if by == "namespace" else {}}}
    assert gathered(pod, namespace) == 0
    other = {"metadata": {"name": "team"}}
    joint = {**pod, "spec": {}}
    assert gathered(joint, other) == 1


def gathered(pod: Object, namespace: Object) -> int:
    """How many gangs the pod is in."""
    gathering = GangIndex(ClusterCache.of(Cluster(pods=[pod], namespaces=[namespace])), UngateTracker())
    gathering.gather()
    return len(gathering.gangs)


def test_a_retried_pod_of_a_job_takes_the_place_of_the_failed_one() -> None:
    cluster = JointCluster(nodes=2, gpus=1)

    def numbered(name: str, index: str) -> None:
        member(cluster, name)
        label = {"batch.kubernetes.io/job-completion-index": index}
        cluster.api.edit(PODS, name, lambda pod: pod["metadata"].setdefault("labels", {}).update(label))

    numbered("w0", "0")
    numbered("w1", "1")
    cluster.settle()
    bind(cluster, "w0", "w1")
    cluster.api.edit(PODS, "w1", lambda pod: pod["status"].update(phase="Failed"))
    numbered("w1-again", "1")
    cluster.settle()
    cluster.api.edit(RESOURCE_CLAIMS, "w1", lambda claim: claim.update(status={}))
    cluster.settle()
    assert allocated(cluster) == ["w0", "w1-again"]
    assert "w1-again" in let_go(cluster)


def test_a_part_of_a_workload_with_the_policy_basic_is_no_gang() -> None:
    pod: Object = {
        "metadata": {"name": "w0", "namespace": "team"},
        "spec": {"workloadRef": {"name": "train", "podGroup": "workers"}},
    }
    workload: Object = {
        "apiVersion": "scheduling.k8s.io/v1alpha1",
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {"podGroups": [{"name": "workers", "policy": {"basic": {}}}]},
    }
    ref = gang_of(pod)
    assert ref is not None
    assert terms_of(ref, [pod], {"scheduling.k8s.io/team/train": workload}) is None


def test_a_claim_that_cannot_be_read_is_told_and_its_gang_waits() -> None:
    """The webhook would have refused it; who comes past the webhook must not stop the others."""
    cluster = JointCluster(nodes=1, gpus=4)
    for number in range(2):
        member(cluster, f"w{number}", least=2)
    wrong = {"apiVersion": "koordra.io/v1alpha1", "kind": "JointAllocation", "scope": "Galaxy"}
    entry = {"opaque": {"driver": names.DRIVER, "parameters": wrong}}
    cluster.api.edit(RESOURCE_CLAIMS, "w0", lambda found: found["spec"]["devices"].update(config=[entry]))
    cluster.claim("alone")
    cluster.pod("alone", "alone")
    cluster.settle()
    assert cluster.node_of("alone")
    assert set(allocated(cluster)) <= {"alone"}
    assert any("Galaxy" in message for message in told(cluster, events.WAITING))


def test_a_taint_rule_that_cannot_be_read_stops_no_pass() -> None:
    cluster = JointCluster(nodes=1, gpus=4)
    cluster.api.create(
        DEVICE_TAINT_RULES,
        {
            "apiVersion": "resource.k8s.io/v1alpha3",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "odd"},
            "spec": {"taint": {"effect": 7}},
        },
    )
    for number in range(2):
        member(cluster, f"w{number}", least=2)
    cluster.settle()
    assert allocated(cluster) == []
    assert any("odd" in message for message in told(cluster, events.WAITING))
