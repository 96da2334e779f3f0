"""A pod that two replicas admitted beside another gets no devices while the quota has no room for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_QUOTAS, Kind
from koordra.compat.settings import Settings
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.controller.legacy.settings import in_a_cluster
from koordra.controller.quota import bounds, controller
from koordra.controller.quota.bounds import Charge
from koordra.controller.quota.controller import QuotaController
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.kube.watch import WatchCache
from tests.fakes.joint_cluster import JointCluster
from tests.patience import PATIENCE
from tests.unit.compat.pods import converted
from tests.unit.legacy.cluster import Cluster, Object, a_quota, of_kind, pod

GPU = {"nvidia.com/gpu": 1}
ONE_CARD = a_quota({"requests.nvidia.com/gpu": "1"})
TWO_CARDS = a_quota({"requests.nvidia.com/gpu": "2"})


class PodCharge(NamedTuple):
    charge: Charge
    has_devices: bool
    gang: str = ""
    spare: int = 0

    @property
    def name(self) -> str:
        return objects.name(self.charge.pod)


def counted(name: str, cards: int, *, has_devices: bool = False, age: str = "1", **spec: Any) -> PodCharge:
    stored = {"metadata": {"name": name, "namespace": "team", "creationTimestamp": age}, "spec": spec}
    return PodCharge(Charge(stored, {"nvidia.com/gpu": cards}), has_devices)


def beyond(quotas: Sequence[Object], pods: Sequence[PodCharge]) -> dict[str, str]:
    return bounds.beyond(
        quotas,
        {pod.name: pod.charge for pod in pods},
        served={pod.name for pod in pods if pod.has_devices},
        gangs={pod.name: (pod.gang, pod.spare, 0) for pod in pods if pod.gang},
    )


def test_the_older_comes_first() -> None:
    assert set(beyond([ONE_CARD], [counted("a", 1, age="2"), counted("b", 1, age="1")])) == {"a"}


def test_who_has_devices_keeps_them_and_comes_first() -> None:
    pods = [counted("old", 1, age="1"), counted("served", 1, age="2", has_devices=True)]
    assert set(beyond([ONE_CARD], pods)) == {"old"}
    both = [counted("a", 1, has_devices=True), counted("b", 1, has_devices=True)]
    assert beyond([ONE_CARD], both) == {}


def test_a_smaller_one_behind_it_still_fits() -> None:
    pods = [counted("served", 1, has_devices=True), counted("big", 2, age="1"), counted("small", 1, age="2")]
    assert set(beyond([TWO_CARDS], pods)) == {"big"}


def test_a_quota_counts_what_is_in_its_scope_only() -> None:
    scoped = a_quota({"requests.nvidia.com/gpu": "1"}, scopes=["PriorityClass"])
    urgent = [counted(name, 1, priorityClassName="urgent") for name in ("a", "b")]
    assert set(beyond([scoped], [*urgent, counted("c", 1), counted("d", 1)])) == {"b"}


def in_gang(name: str, gang: str, *, age: str, spare: int = 0) -> PodCharge:
    return counted(name, 1, age=age)._replace(gang=gang, spare=spare)


def test_of_two_gangs_that_came_in_turns_one_is_whole() -> None:
    pods = [in_gang("a0", "a", age="1"), in_gang("b0", "b", age="2"), in_gang("a1", "a", age="3")]
    assert set(beyond([TWO_CARDS], [*pods, in_gang("b1", "b", age="4")])) == {"b0", "b1"}


def test_a_gang_that_does_not_fit_keeps_nothing_from_others() -> None:
    gang = [in_gang(name, "a", age="1") for name in ("a0", "a1", "a2")]
    held = beyond([TWO_CARDS], [*gang, counted("small", 1, age="2")])
    assert set(held) == {"a0", "a1", "a2"}
    assert all(
        text.startswith("gang a waits as a whole") and "exceeded quota: gpus" in text
        for text in held.values()
    )


def test_a_gang_that_can_do_without_some_loses_those_alone() -> None:
    gang = [in_gang(name, "a", age="1", spare=1) for name in ("a0", "a1", "a2")]
    assert set(beyond([TWO_CARDS], gang)) == {"a2"}


def test_the_words_name_pod_quota_field_and_remedy() -> None:
    (text,) = beyond([ONE_CARD], [counted("a", 1), counted("b", 1)]).values()
    assert (
        "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=1" in text
    )
    assert "spec.hard of ResourceQuota gpus" in text


# --- the leader ---------------------------------------------------------------------------------------------


class Api:
    """Quotas to list, templates that nobody has, and watches that say nothing."""

    def __init__(self, *quotas: Object) -> None:
        self.quotas = list(quotas)
        self.over = threading.Event()

    def newest(self, kind: Kind, **_: object) -> str:
        return "1"

    def list(self, kind: Kind, **_: object) -> tuple[list[Object], str]:
        return (list(self.quotas) if kind is RESOURCE_QUOTAS else []), "1"

    def watch(self, kind: Kind, **_: object) -> Iterator[tuple[str, Object]]:
        self.over.wait(20)
        return iter(())


@pytest.mark.parametrize("legacy", [in_a_cluster(Settings()), None], ids=["legacy", "no legacy"])
def test_converted_pods_count_where_component_legacy_is(legacy: Settings | None) -> None:
    asking = pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}, name="a")
    stored, template = converted({"apiVersion": "v1", "kind": "Pod", **asking}).objects
    keeper = QuotaController(
        Api(),  # type: ignore[arg-type]
        legacy,
        report=lambda happening: None,
        may_write=lambda: True,
    )
    keeper.usage.on_template("ADDED", template)
    keeper.on_pod("ADDED", stored)
    found = {
        name: charge.amounts["nvidia.com/gpumem"] for name, charge in keeper.usage.charges("team").items()
    }
    assert found == ({"a": 1000} if legacy else {})


class Listed(Api):
    """Pods to list."""

    def list(self, kind: Kind, **_: object) -> tuple[list[Object], str]:
        return list(self.quotas), "1"

    def watch(self, kind: Kind, **_: object) -> Iterator[tuple[str, Object]]:
        return iter(())


class Leader(JointCluster):
    """The controller's passes with the quota's count; its watch of pods is `hear`."""

    def __init__(self, api: Api) -> None:
        self.keeper = QuotaController(
            api,  # type: ignore[arg-type]
            in_a_cluster(Settings()),
            report=lambda happening: None,
            may_write=lambda: True,
        )
        super().__init__(nodes=1, gpus=8)
        self.restart_with_quota()

    def restart_with_quota(self) -> None:
        self.reconciler = Reconciler(
            self.caches,
            self.writer,
            clock=lambda: self.now,
            report=self.told.append,
            quotas=self.keeper,
        )

    def objects(self, kind: Kind) -> list[Object]:
        """Nothing for the upkeep of templates."""
        return []

    def get(self, kind: Kind, key: str) -> Object | None:
        namespace, _, name = key.partition("/")
        return self.api.objects.get((kind.plural, namespace, name))

    def stored(self, stored: Object, template: Object) -> Object:
        """A pod that the webhook has let in, of which no claim was made yet."""
        kept = self.api.create(PODS, {**stored, "metadata": {**stored["metadata"], "namespace": "default"}})
        self.keeper.usage.on_template("ADDED", template)
        self.hear("ADDED", kept)
        return kept

    def admitted(self, stored: Object, template: Object, *, heard: bool = True) -> None:
        """A pod that the webhook has let in, with its claim made."""
        name, entry = objects.name(stored), stored["spec"]["resourceClaims"][0]["name"]
        status = {"resourceClaimStatuses": [{"name": entry, "resourceClaimName": name}]}
        made = {**stored, "status": status}
        made["metadata"] = {**made["metadata"], "namespace": "default"}
        kept = self.api.create(PODS, made)
        self.claim(name, owner=kept)
        self.api.edit(RESOURCE_CLAIMS, name, lambda claim: claim.update(spec=template["spec"]["spec"]))
        self.keeper.usage.on_template("ADDED", template)
        if heard:
            self.hear("ADDED", kept)

    def hear(self, event: str, stored: Object) -> None:
        self.keeper.on_pod(event, stored)

    def served(self) -> list[str]:
        return [name for name in self.claims() if self.allocation(name)]

    def claims(self) -> list[str]:
        return [objects.name(claim) for claim in self.api.all(RESOURCE_CLAIMS)]


@pytest.fixture
def leader() -> Iterator[Callable[..., Leader]]:
    stop, apis = threading.Event(), []

    def start(*quotas: Object) -> Leader:
        here = [{**quota, "metadata": {**quota["metadata"], "namespace": "default"}} for quota in quotas]
        api = Api(*here)
        apis.append(api)
        made = Leader(api)
        made.keeper.start(made, stop)  # type: ignore[arg-type]
        ends = time.monotonic() + PATIENCE
        while not made.keeper._is_read():
            assert time.monotonic() < ends
            time.sleep(0.01)
        return made

    yield start
    stop.set()
    for api in apis:
        api.over.set()


def from_two_replicas(number: int = 2, **more: Any) -> tuple[list[Object], Object]:
    """Pods that as many replicas have admitted, none of which has heard of the others' yet; and their
    template."""
    replicas = [Cluster() for _ in range(number)]
    admitted = []
    for place, replica in enumerate(replicas):
        replica.quotas = [ONE_CARD]
        made = replica.admitted(pod(GPU, name=f"p{place}", **more), uid=f"u-{place}")
        made["metadata"]["creationTimestamp"] = f"2026-11-21T10:00:0{place}Z"
        admitted.append(made)
    return admitted, of_kind(replicas[0])[0]


def test_of_two_pods_that_two_replicas_let_in_one_gets_the_card(leader: Callable[..., Leader]) -> None:
    (first, second), template = from_two_replicas()
    cluster = leader(ONE_CARD)
    cluster.admitted(first, template)
    cluster.admitted(second, template)
    cluster.settle()
    assert cluster.served() == ["p0"]
    (told,) = [one for one in cluster.told if one.reason == "QuotaExceeded"]
    assert [objects.name(about) for about in told.about] == ["p1", "p1"]
    assert "exceeded quota: gpus" in told.message
    held = cluster.api.get(PODS, "p1")
    assert names.JOINT_GATE in [gate["name"] for gate in held["spec"]["schedulingGates"]]


def test_the_second_comes_after_the_first_was_served_though_it_is_older(
    leader: Callable[..., Leader],
) -> None:
    (older, younger), template = from_two_replicas()
    cluster = leader(ONE_CARD)
    cluster.admitted(younger, template)
    cluster.settle()
    cluster.admitted(older, template)
    cluster.settle()
    assert cluster.served() == ["p1"]


def test_how_far_each_line_is_used_is_told(leader: Callable[..., Leader]) -> None:
    (first, second), template = from_two_replicas()
    lines = {"requests.nvidia.com/gpu": "4", "limits.nvidia.com/gpumem": "0", "pods": "1"}
    cluster = leader(a_quota(lines))
    cluster.admitted(first, template)
    cluster.admitted(second, template)
    cluster.settle()
    (quota,) = cluster.keeper._quotas.all()
    found = cluster.keeper._held_back.ratios(quota)
    assert found == {"requests.nvidia.com/gpu": 0.5, "limits.nvidia.com/gpumem": 0.0}


def test_when_the_first_ends_the_second_gets_its_card(leader: Callable[..., Leader]) -> None:
    (first, second), template = from_two_replicas()
    cluster = leader(ONE_CARD)
    cluster.admitted(first, template)
    cluster.admitted(second, template)
    cluster.settle()
    gone = cluster.api.get(PODS, "p0")
    cluster.api.delete(PODS, "p0")
    cluster.hear("DELETED", gone)
    cluster.settle()
    assert "p1" in cluster.served()


def test_a_gang_with_a_member_too_many_waits_as_a_whole(leader: Callable[..., Leader]) -> None:
    members, template = from_two_replicas(3, annotations={GANG: "train", GANG_MIN: "3"})
    cluster = leader(TWO_CARDS)
    for member in members:
        cluster.admitted(member, template)
    cluster.settle()
    assert cluster.served() == []
    roomy = leader(a_quota({"requests.nvidia.com/gpu": "3"}))
    for member in members:
        roomy.admitted(member, template)
    roomy.settle()
    assert roomy.served() == ["p0", "p1", "p2"]


def test_two_gangs_that_came_in_turns_do_not_wait_for_each_other(leader: Callable[..., Leader]) -> None:
    """Each would have half of the bound: neither could ever start."""
    pods, template = from_two_replicas(4)
    cluster = leader(TWO_CARDS)
    for place, made in enumerate(pods):
        made["metadata"]["annotations"] |= {GANG: f"g{place % 2}", GANG_MIN: "2"}
        cluster.admitted(made, template)
    cluster.settle()
    assert cluster.served() == ["p0", "p2"]
    words = [one.message for one in cluster.told if one.reason == "QuotaExceeded"]
    assert len(words) == 2
    assert all("gang default/g1 waits as a whole" in text for text in words)


def test_an_elastic_gang_starts_with_those_that_the_quota_lets_in(leader: Callable[..., Leader]) -> None:
    members, template = from_two_replicas(3, annotations={GANG: "train", GANG_MIN: "2"})
    cluster = leader(TWO_CARDS)
    for made in members:
        cluster.admitted(made, template)
    cluster.settle()
    assert cluster.served() == ["p0", "p1"]


def test_a_pod_without_its_claim_keeps_nobody_from_the_card(leader: Callable[..., Leader]) -> None:
    """Its claim may come only when the other's is gone, where the class is bounded too: each would wait for
    the other."""
    (older, younger), template = from_two_replicas()
    cluster = leader(ONE_CARD)
    cluster.stored(older, template)
    cluster.admitted(younger, template)
    cluster.settle()
    assert cluster.served() == ["p1"]


def test_a_pod_behind_another_gate_keeps_nobody_from_the_card(leader: Callable[..., Leader]) -> None:
    (older, younger), template = from_two_replicas()
    older["spec"]["schedulingGates"] = [*older["spec"]["schedulingGates"], {"name": "queue"}]
    cluster = leader(ONE_CARD)
    cluster.admitted(older, template)
    cluster.admitted(younger, template)
    cluster.settle()
    assert cluster.served() == ["p1"]


def test_a_pod_that_runs_counts_though_its_template_was_deleted(leader: Callable[..., Leader]) -> None:
    """A new leader has never seen the template; the claim says the same."""
    (first, _), template = from_two_replicas()
    before = leader(ONE_CARD)
    before.admitted(first, template)
    before.settle()
    before.scheduler_binds("p0", "p0")
    cluster = leader(ONE_CARD)
    cluster.api = before.api
    cluster.start_again()
    cluster.restart_with_quota()
    cluster.hear("ADDED", cluster.api.get(PODS, "p0"))
    replica = Cluster()
    cluster.admitted(
        replica.admitted(pod({**GPU, "nvidia.com/gpumem": 1000}, name="p1")), of_kind(replica)[0]
    )
    cluster.settle()
    assert cluster.served() == ["p0"]


def test_while_quotas_are_not_read_the_next_pass_is_soon() -> None:
    """No quota at all is no change that wakes anybody."""
    (first, _), template = from_two_replicas()
    cluster = Leader(Api())
    cluster.admitted(first, template)
    pause = cluster.settle()
    assert cluster.served() == []
    assert pause is not None
    assert pause <= 1.0


def test_nobody_goes_before_the_pods_while_quotas_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims without a pod come last. They do not wait for ever: who can be told of what is amiss is."""
    cluster = Leader(Api())
    cluster.claim("now", annotations={names.MODE_LABEL: names.IMMEDIATE})
    pause = cluster.settle()
    assert cluster.served() == []
    assert pause is not None
    assert pause <= 1.0
    monkeypatch.setattr(controller, "PATIENCE", -1.0)
    cluster.settle()
    assert cluster.served() == ["now"]


def test_what_cannot_be_read_is_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "PATIENCE", -1.0)
    (first, _), template = from_two_replicas()
    cluster = Leader(Api())
    cluster.admitted(first, template)
    cluster.settle()
    assert cluster.served() == []
    assert [one.message for one in cluster.told if "could not be read" in one.message]


def test_what_runs_is_counted_before_anybody_gets_a_card() -> None:
    """A term begins when its caches are synced, which the watch of pods is once the count was told of all
    that were listed."""
    admitted, template = from_two_replicas()
    keeper = QuotaController(
        Api(),  # type: ignore[arg-type]
        in_a_cluster(Settings()),
        report=lambda happening: None,
        may_write=lambda: True,
    )
    keeper.usage.on_template("ADDED", template)
    synced: list[bool] = []

    def on_change(event: str, stored: Object, /) -> None:
        synced.append(cache.wait_synced(0))
        keeper.on_pod(event, stored)
        stop.set()

    stop = threading.Event()
    cache = WatchCache(Listed(*admitted), PODS, on_change=on_change)  # type: ignore[arg-type]
    cache.run(stop)
    assert synced == [False, False]
    assert cache.wait_synced(0)
    assert sorted(keeper.usage.charges("team")) == ["p0", "p1"]


def test_a_pod_that_is_not_counted_yet_waits_without_a_word(leader: Callable[..., Leader]) -> None:
    """The pass sees a pod a moment before the count does."""
    (first, _), template = from_two_replicas()
    cluster = leader(ONE_CARD)
    cluster.admitted(first, template, heard=False)
    cluster.settle()
    assert cluster.served() == []
    assert cluster.told == []
    cluster.hear("ADDED", cluster.api.get(PODS, "p0"))
    cluster.settle()
    assert cluster.served() == ["p0"]


def test_without_a_quota_nobody_is_held(leader: Callable[..., Leader]) -> None:
    (first, second), template = from_two_replicas()
    cluster = leader()
    cluster.admitted(first, template, heard=False)
    cluster.admitted(second, template)
    cluster.settle()
    assert cluster.served() == ["p0", "p1"]


def test_quotas_that_are_not_read_hold_everybody() -> None:
    keeper = QuotaController(
        Api(),  # type: ignore[arg-type]
        in_a_cluster(Settings()),
        report=lambda happening: None,
        may_write=lambda: True,
    )
    (first, _), _ = from_two_replicas()
    claim = {"metadata": {"name": "p0", "namespace": "team"}, "spec": {}}
    members: Sequence[PodClaims] = [PodClaims(first, (claim,))]
    assert list(keeper.held(members, {}).values()) == [""]
