"""Leaders go before their workers are made, once the places of the whole group are held."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_HOLDS, NODES, PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller.gangs import events
from koordra.controller.gangs.declared.annotations import (
    COMMITTED,
    GANG,
    GANG_HOLD,
    GANG_MAX,
    GANG_MIN,
    GANG_START,
)
from koordra.controller.gangs.declared.workload_kind import LWS
from koordra.controller.gangs.expected import leader_first
from koordra.errors import Forbidden
from tests.fakes.joint_cluster import JointCluster, claim, explode_at, pod
from tests.fakes.kube_api import Killed, Write
from tests.unit.gangs.workload_pods import KINDS, mpi

FIRST = {GANG_START: "LeaderFirst"}
RACK = "topology.kubernetes.io/rack"
EXCLUSIVE = {f"{LWS}exclusive-topology": RACK}


class Groups:
    """A LeaderWorkerSet, as its operator makes it: a group's workers after its leader has a node."""

    def __init__(self, cluster: JointCluster, *, size: int = 2, said: dict[str, str] | None = None) -> None:
        self.cluster, self.size = cluster, size
        self.said = EXCLUSIVE if said is None else said
        self.made = 0
        for node in cluster.api.all(NODES):
            name = objects.name(node)
            cluster.api.edit(NODES, name, lambda one: one["metadata"]["labels"].update({RACK: "r1"}))

    def make(self, group: int, worker: int = 0, *, claims: bool = True) -> str:
        self.made += 1
        name = f"serve-{group}" if worker == 0 else f"serve-{group}-{worker}"
        body = pod(
            name,
            (),
            gates=[names.JOINT_GATE],
            resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}] if claims else [],
        )
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "serve", "uid": "uid-serve"}
        body["metadata"] |= {
            "creationTimestamp": self.cluster.timestamp(),
            "labels": {
                f"{LWS}name": "serve",
                f"{LWS}group-index": str(group),
                f"{LWS}worker-index": str(worker),
            },
            "annotations": {
                GANG: "serve",
                GANG_MIN: str(self.size),
                GANG_HOLD: "60s",
                f"{LWS}size": str(self.size),
                **self.said,
            },
            "ownerReferences": [{**owner, "controller": True}],
        }
        made = f"{name}-gpu"
        if claims:
            body["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": made}]
        found = self.cluster.api.create(PODS, body)
        if claims:
            self.cluster.api.create(RESOURCE_CLAIMS, claim(made, owner=found))
        return name

    def follow(self, *groups: int) -> None:
        """Workers of every leader that has a node."""
        there = {objects.name(one) for one in self.cluster.api.all(PODS)}
        for group in groups:
            for worker in range(1, self.size):
                if f"serve-{group}" in self.running() and f"serve-{group}-{worker}" not in there:
                    self.make(group, worker)

    def bind(self) -> None:
        """kube-scheduler's and the kubelets' work."""
        for one in self.cluster.api.all(PODS):
            free = not objects.spec_of(one).get("schedulingGates") and not objects.spec_of(one).get(
                "nodeName"
            )
            name = objects.name(one)
            if free and not objects.spec_of(one)["resourceClaims"]:
                self.cluster.api.edit(PODS, name, lambda each: each["spec"].update(nodeName="n0"))
            elif free and self.cluster.allocation(f"{name}-gpu"):
                self.cluster.scheduler_binds(name, f"{name}-gpu")

    def go(self, *groups: int) -> None:
        for _ in range(3):
            self.cluster.settle()
            self.bind()
            self.follow(*groups)
        self.cluster.settle()
        self.bind()

    def running(self) -> list[str]:
        return [
            objects.name(one) for one in self.cluster.api.all(PODS) if objects.spec_of(one).get("nodeName")
        ]

    def lose(self, *pods: str) -> None:
        for name in pods:
            self.cluster.pod_ends(name, f"{name}-gpu")
            self.cluster.api.edit(
                RESOURCE_CLAIMS, f"{name}-gpu", lambda one: one["metadata"].pop("finalizers")
            )
            self.cluster.api.delete(RESOURCE_CLAIMS, f"{name}-gpu")

    def held(self) -> list[tuple[str, str]]:
        """Name and node of each place that nobody has."""
        return [
            (seat["name"], seat["node"])
            for hold in self.cluster.api.all(DEVICE_HOLDS)
            for seat in hold["spec"]["seats"]
            if seat.get("until")
        ]


def told(cluster: JointCluster, reason: str) -> list[str]:
    return [happening.message for happening in cluster.told if happening.reason == reason]


def test_a_leader_goes_first_and_its_worker_has_the_place_that_was_held() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    groups = Groups(cluster)
    groups.make(0)
    cluster.settle()
    assert objects.annotations_of(cluster.api.get(PODS, "serve-0"))[COMMITTED] == "serve:0"
    assert groups.held() == [("serve/0/1", "n0")]
    said = f"1 member on 1 node, 1 {RACK}, places are kept for 1 that come later"
    assert said in told(cluster, events.STARTS)[0]
    groups.go(0)
    assert groups.running() == ["serve-0", "serve-0-1"]
    assert groups.held() == []
    cluster.assert_no_device_twice()


def test_of_two_leaders_with_room_for_one_group_and_a_half_one_goes() -> None:
    """Never two that wait for their workers for ever."""
    cluster = JointCluster(nodes=1, gpus=3)
    groups = Groups(cluster)
    groups.make(0), groups.make(1)
    groups.go(0, 1)
    assert groups.running() == ["serve-0", "serve-0-1"]
    assert "1 of 2 members fit" in told(cluster, events.WAITING)[0]
    groups.lose(*groups.running())
    for hold in cluster.api.all(DEVICE_HOLDS):
        cluster.api.delete(DEVICE_HOLDS, objects.name(hold))
    groups.go(1)
    assert groups.running() == ["serve-1", "serve-1-1"]


def test_what_is_held_for_a_worker_is_nobody_elses() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    groups = Groups(cluster)
    groups.make(0)
    cluster.settle()
    groups.bind()
    cluster.claim("single"), cluster.pod("single", "single", gates=[names.JOINT_GATE])
    cluster.settle()
    assert cluster.allocation("single") is None
    groups.go(0)
    assert groups.running() == ["serve-0", "serve-0-1"]


def test_a_gang_that_grows_does_not_take_what_is_held_for_workers() -> None:
    """It comes after all that wait; the leader would have its places taken and found again for ever."""
    cluster = JointCluster(nodes=1, gpus=3)
    grows = [f"e{number}" for number in range(2)]
    for name in grows:
        cluster.claim(name)
        cluster.pod(name, name, gates=[names.JOINT_GATE], priority=5)
        said = {GANG: "e", GANG_MIN: "1", GANG_MAX: "2"}
        cluster.api.edit(PODS, name, lambda pod, said=said: pod["metadata"].update(annotations=said))
    groups = Groups(cluster)
    leader = groups.make(0)
    cluster.api.delete(PODS, "e1", namespace="default")
    cluster.settle()
    cluster.pod("e1", "e1", gates=[names.JOINT_GATE], priority=5)
    cluster.api.edit(PODS, "e1", lambda pod: pod["metadata"].update(annotations=said))
    assert COMMITTED in objects.annotations_of(cluster.api.get(PODS, leader))
    for _ in range(3):
        cluster.settle()
        assert cluster.allocation("e1") is None
    assert len(groups.held()) == 1


def test_a_leader_without_a_word_goes_once_it_has_been_alone_for_a_while() -> None:
    """The startupPolicy is not on the pods: with LeaderCreated the workers are there in a moment."""
    cluster = JointCluster(nodes=1, gpus=2)
    groups = Groups(cluster, said={})
    groups.make(0)
    cluster.settle()
    assert "1 of 2 members are there" in told(cluster, events.GATHERING)[0]
    cluster.pass_time(leader_first.LONELY + 1)
    cluster.settle()
    assert groups.held() == [("serve/0/1", "n0")]


def test_workers_that_are_made_at_once_are_waited_for() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    groups = Groups(cluster, said={})
    groups.make(0)
    cluster.settle()
    groups.make(0, 1)
    cluster.settle()
    assert cluster.api.all(DEVICE_HOLDS)[0]["spec"]["seats"][0].get("until") is None
    assert [COMMITTED in objects.annotations_of(one) for one in cluster.api.all(PODS)] == [True, True]


@pytest.mark.parametrize("said", [{GANG_START: "Together", **EXCLUSIVE}, {**EXCLUSIVE, GANG_HOLD: "0"}])
def test_nobody_goes_first_where_it_is_not_wanted_or_nothing_can_be_held(said: dict[str, str]) -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    groups = Groups(cluster, said=said)
    groups.make(0)
    cluster.settle()
    cluster.pass_time(100)
    cluster.settle()
    assert groups.held() == []
    assert cluster.allocation("serve-0-gpu") is None


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, 6))
def test_killed_between_two_writes(step: int, *, after: bool) -> None:
    """A successor finds in the API what was decided, and finishes it or gives it back."""
    cluster = JointCluster(nodes=1, gpus=4)
    groups = Groups(cluster, size=3)
    groups.make(0), groups.make(1)
    cluster.caches.deliver()
    setattr(cluster.api, "after" if after else "before", explode_at(step, Killed))
    with contextlib.suppress(Killed):
        cluster.settle()
    cluster.api.before = cluster.api.after = lambda _write: None
    cluster.start_again()
    groups.go(0, 1)
    assert groups.running() == ["serve-0", "serve-0-1", "serve-0-2"]
    assert groups.held() == []
    cluster.assert_no_device_twice()


@pytest.mark.parametrize("lost", ["hold", "claim"])
def test_what_is_lost_before_the_leader_went_is_looked_for_again(lost: str) -> None:
    """Somebody more urgent may take a place that is held; a write may be refused."""
    cluster = JointCluster(nodes=1, gpus=2)
    groups = Groups(cluster)
    groups.make(0)
    cluster.caches.deliver()
    cluster.api.before = explode_at(3, Killed)
    with pytest.raises(Killed):
        cluster.settle()
    cluster.api.before = lambda _write: None
    assert len(groups.held()) == 1
    assert cluster.allocation("serve-0-gpu") is not None
    if lost == "hold":
        for hold in cluster.api.all(DEVICE_HOLDS):
            cluster.api.delete(DEVICE_HOLDS, objects.name(hold))
    else:
        cluster.api.edit(RESOURCE_CLAIMS, "serve-0-gpu", lambda one: one.update(status={}))
    cluster.start_again()
    cluster.settle()
    assert groups.held() == [("serve/0/1", "n0")]
    assert COMMITTED in objects.annotations_of(cluster.api.get(PODS, "serve-0"))


def test_what_is_held_for_a_gang_that_is_refused_is_given_back() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    groups = Groups(cluster)
    groups.make(0)
    cluster.caches.deliver()
    cluster.api.before = explode_at(3, Killed)
    with pytest.raises(Killed):
        cluster.settle()
    cluster.api.before = lambda _write: None
    cluster.api.edit(PODS, "serve-0", lambda one: one["metadata"]["annotations"].update({GANG_HOLD: "soon"}))
    cluster.start_again()
    cluster.settle()
    assert groups.held() == []
    assert cluster.allocation("serve-0-gpu") is None


def test_a_leader_that_is_lost_before_its_worker_came_finds_both_places_again() -> None:
    """The gang has started: what was held for its worker is held on."""
    cluster = JointCluster(nodes=1, gpus=2)
    groups = Groups(cluster)
    groups.make(0)
    cluster.settle()
    groups.bind()
    cluster.settle()
    groups.lose("serve-0")
    cluster.claim("single"), cluster.pod("single", "single", gates=[names.JOINT_GATE])
    cluster.settle()
    assert sorted(groups.held()) == [("serve/0/0", "n0"), ("serve/0/1", "n0")]
    groups.make(0)
    groups.go(0)
    assert groups.running() == ["serve-0", "serve-0-1"]
    assert cluster.allocation("single") is None


def refuse_new_holds(write: Write) -> None:
    if write.verb == "create" and write.kind == DEVICE_HOLDS.plural:
        raise Forbidden("exceeded quota", code=403)


def refuse_the_leaders_devices(write: Write) -> None:
    if write.kind == RESOURCE_CLAIMS.plural and write.subresource == "status":
        raise Forbidden("not now", code=403)


@pytest.mark.parametrize("refuse", [refuse_new_holds, refuse_the_leaders_devices])
def test_what_a_lost_worker_had_is_held_on_where_its_leader_cannot_go_again(
    refuse: Callable[[Write], None],
) -> None:
    """The place of another lost worker was taken, and the group waits for it. What is held ends as if nobody
    had tried."""
    cluster = JointCluster(nodes=1, gpus=3)
    groups = Groups(cluster, size=3)
    groups.make(0)
    groups.go(0)
    groups.lose("serve-0", "serve-0-1", "serve-0-2")
    cluster.settle()
    (hold,) = cluster.api.all(DEVICE_HOLDS)
    seats = [seat for seat in hold["spec"]["seats"] if seat["name"] != "serve/0/2"]
    cluster.api.edit(DEVICE_HOLDS, objects.name(hold), lambda one: one["spec"].update(seats=seats))
    cluster.pass_time(20)
    cluster.api.before = refuse
    groups.make(0)
    cluster.settle()
    lost = [seat for one in cluster.api.all(DEVICE_HOLDS) for seat in one["spec"]["seats"] if seat["pod"]]
    assert {seat["name"] for seat in lost if seat["until"]} == {"serve/0/0", "serve/0/1"}
    if refuse is refuse_new_holds:
        assert sorted(seat["until"] for seat in lost) == sorted(seat["until"] for seat in seats)
    cluster.api.before = lambda _write: None
    cluster.pass_time(300)
    groups.go(0)
    assert groups.running() == ["serve-0", "serve-0-1", "serve-0-2"]
    cluster.assert_no_device_twice()


def ranks(cluster: JointCluster) -> dict[str, tuple[int, int]]:
    found = {}
    for one in cluster.api.all(RESOURCE_CLAIMS):
        for entry in ((cluster.allocation(objects.name(one)) or {}).get("devices") or {}).get("config") or ():
            told: Object = entry["opaque"]["parameters"]
            assert told["gang"] == "serve:0"
            found[objects.name(one)] = told["rank"], told["size"]
    return found


def test_ranks_are_those_of_the_whole_group() -> None:
    cluster = JointCluster(nodes=2, gpus=2)
    groups = Groups(cluster, size=3)
    groups.make(0)
    groups.go(0)
    assert ranks(cluster) == {"serve-0-gpu": (0, 3), "serve-0-1-gpu": (1, 3), "serve-0-2-gpu": (2, 3)}


def gathering(pods: list[Object], *, least: int, start: str = "") -> str:
    cluster = JointCluster(nodes=1, gpus=2)
    for one in pods:
        said = {GANG: "train", GANG_MIN: str(least), **({GANG_START: start} if start else {})}
        metadata = {**one["metadata"], "namespace": "default"}
        metadata["annotations"] = {**metadata["annotations"], **said}
        body = pod(objects.name(one), (), gates=[names.JOINT_GATE])
        cluster.api.create(PODS, {**body, "metadata": {**body["metadata"], **metadata}})
    cluster.settle()
    (text,) = set(told(cluster, events.GATHERING))
    return text


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("StatefulSet", "unless its podManagementPolicy is Parallel; or koordra.io/gang-start: LeaderFirst"),
        ("JobSet, Indexed", "(dependsOn, InOrder) are made after them: koordra.io/gang-start: LeaderFirst"),
        ("elastic PyTorchJob", ""),
        ("PyTorchJob", ""),
        ("Indexed Job", ""),
    ],
)
def test_a_gang_that_gathers_is_told_why_others_may_wait_for_it(kind: str, remedy: str) -> None:
    text = gathering(KINDS[kind], least=99)
    assert text.startswith(f"gang default/train: {len(KINDS[kind])} of 99 members are there")
    assert remedy in text if remedy else text.endswith("are there")


def test_an_mpijob_without_a_launcher_is_told_when_that_is_made() -> None:
    workers = [mpi("worker", index, claims=True) for index in range(2)]
    assert gathering(workers, least=3).endswith("koordra.io/gang-min is the number of workers then")
    with_launcher = [*workers, mpi("launcher", None, claims=False)]
    assert gathering(with_launcher, least=4).endswith("3 of 4 members are there")


def test_a_gang_that_says_how_it_starts_is_told_nothing_of_it() -> None:
    assert gathering(KINDS["StatefulSet"], least=99, start="Together").endswith("are there")


def test_a_leader_without_devices_goes_and_its_workers_start_together() -> None:
    """Nobody holds what another group needs: of two such groups one has its workers, and the other waits."""
    cluster = JointCluster(nodes=1, gpus=3)
    groups = Groups(cluster, size=3)
    groups.make(0, claims=False), groups.make(1, claims=False)
    groups.go(0, 1)
    assert groups.held() == []
    assert groups.running() == ["serve-0", "serve-0-1", "serve-0-2", "serve-1"]
    cluster.pass_time(400)
    cluster.settle()
    assert "serve-1" in groups.running(), "a leader that holds nothing was evicted"


def test_a_leader_whose_claim_is_shared_waits_for_the_others() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    groups = Groups(cluster)
    groups.make(0)
    cluster.api.edit(
        RESOURCE_CLAIMS, "serve-0-gpu", lambda one: one["metadata"].update(annotations={}, ownerReferences=[])
    )
    cluster.settle()
    assert cluster.allocation("serve-0-gpu") is None
