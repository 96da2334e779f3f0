"""What one namespace can make a pass of the controller cost, counted in calls and steps; and that nobody is
forgotten for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.cel import selectors as cel
from koordra.controller.allocation.placer import MOST_CLAIMS, Placer
from koordra.controller.cache.groups import Group
from koordra.controller.reconcile import allocation_step
from koordra.controller.reconcile.allocation_step import GOES_ON, SELECTORS
from koordra.controller.reconcile.turns import MOST_PARTS, NEXT_PAID, SHARE, Turn, Turns
from tests.fakes.effort import calls
from tests.fakes.joint_cluster import JointCluster, claim, gpu_slice, node, pod

HOST = "kubernetes.io/hostname"
TENANT, INNOCENT = "tenant", "innocent"


class Cluster(JointCluster):
    """Pods with a claim each, in namespaces."""

    def ask(self, name: str, place: str = TENANT, *, age: int = 30, **spec: Any) -> None:
        asked = {key: spec.pop(key) for key in ("count", "memory") if key in spec}
        made = claim(name, namespace=place, **asked)
        if selectors := spec.pop("selectors", None):
            exactly = made["spec"]["devices"]["requests"][0]["exactly"]
            exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
        self.api.create(RESOURCE_CLAIMS, made)
        waits = pod(name, [name], created=f"2026-11-20T00:{age:02}:00Z", **spec)
        waits["metadata"]["namespace"] = place
        self.api.create(PODS, waits)

    def one_pass(self) -> None:
        self.caches.deliver()
        self.reconciler.reconcile()

    def has(self, name: str, place: str = TENANT) -> bool:
        found = self.api.get(RESOURCE_CLAIMS, name, namespace=place)
        return bool(objects.status_of(found).get("allocation"))

    def heartbeat(self) -> None:
        """Of somebody else's pod: nobody waits for that."""
        self.api.edit(PODS, "other", lambda found: found["status"].update(beat=self.api._version))

    def make_room(self) -> None:
        """Something has changed that concerns everybody."""
        self.api.edit(NODES, "n0", lambda found: found["status"]["allocatable"].update(x=str(self.now)))
        self.pass_time(1.0)

    def calls(self) -> int:
        self.caches.deliver()
        return calls(self.reconciler.reconcile)


def with_others(**options: Any) -> Cluster:
    cluster = Cluster(**options)
    cluster.api.create(PODS, pod("other", [], nodeName="n0"))
    return cluster


WAITING: dict[str, Callable[[int], dict[str, Any]]] = {
    "alike": lambda _n: {"count": 9},
    "all different": lambda n: {"count": 9, "selectors": [f"device.driver != 'x{n}'"]},
    "keep apart": lambda _n: {"count": 9, "affinity": apart({"app": "x"})},
    "spread": lambda _n: {"count": 9, "topologySpreadConstraints": [spread({"app": "x"})]},
}


def apart(labels: dict[str, str]) -> Any:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": labels}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def spread(labels: dict[str, str]) -> Any:
    return {"topologyKey": HOST, "maxSkew": 1, "labelSelector": {"matchLabels": labels}}


@pytest.mark.parametrize("how", WAITING)
def test_who_waits_costs_nothing_while_nothing_changes_for_him(how: str) -> None:
    def cost(number: int) -> tuple[int, int]:
        cluster = with_others(nodes=2)
        for each in range(number):
            cluster.ask(f"c{each}", **WAITING[how](each))
        for _ in range(4):
            cluster.settle()
            cluster.pass_time(100.0)
        cluster.heartbeat()
        quiet = cluster.calls()
        cluster.ask("welcome", INNOCENT)
        placing = cluster.calls()
        assert cluster.has("welcome", INNOCENT)
        return quiet, placing

    (few, few_placing), (many, many_placing) = cost(4), cost(64)
    assert many <= few * 1.1, (few, many)
    assert many_placing <= few_placing * 1.25, (few_placing, many_placing)


def test_a_namespace_has_its_share_of_a_pass_and_the_others_are_served() -> None:
    """300 claims of which no two are alike, all older than the one of somebody else."""
    cluster = with_others(nodes=3)
    cluster.reconciler.allocation._turns = Turns(300)
    judged: list[str] = []
    place = Placer.place

    def noted(self: Placer, group: Group, excluded: Any, **named: Any) -> Any:
        judged.append(objects.namespace(group.first))
        return place(self, group, excluded, **named)

    for each in range(300):
        cluster.ask(f"c{each}", age=each % 50, **WAITING["all different"](each))
    cluster.ask("welcome", INNOCENT, age=59)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Placer, "place", noted)
        cluster.one_pass()
        assert cluster.has("welcome", INNOCENT)
        assert judged.count(TENANT) < 30
        for _ in range(150):
            cluster.one_pass()
    assert len(judged) == 301
    assert cluster.reconciler.reconcile() != 0.0


def test_the_next_pass_follows_at_once_while_some_are_left_over() -> None:
    cluster = with_others()
    cluster.reconciler.allocation._turns = Turns(60)
    for each in range(18):
        cluster.ask(f"c{each}", count=9)
    cluster.caches.deliver()
    assert [cluster.reconciler.reconcile() == 0.0 for _ in range(4)][:2] == [True, True]
    assert cluster.settle() != 0.0


class Tenants:
    """What waits in each namespace, and what considering it costs; as passes go on, which were considered."""

    def __init__(self, costs: Mapping[str, int], share: int = 100) -> None:
        self.turns = Turns(share)
        self.costs = costs
        self.waiting = [Turn((0, "", key), key, key.split("/")[0], 0) for key in costs]

    def one_pass(self) -> list[str]:
        considered = []
        for turn in self.turns.of(self.waiting):
            considered.append(turn.key)
            self.turns.charge(turn, self.costs[turn.key])
        return considered


def test_what_a_namespace_went_beyond_its_share_counts_for_its_next_passes() -> None:
    tenants = Tenants({"a/large": 1000, "a/small": 1, "b/small": 1})
    passes = [tenants.one_pass() for _ in range(22)]
    assert all("b/small" in one for one in passes)
    assert [at for at, one in enumerate(passes) if "a/large" in one] == [0, 10, 20]
    assert [at for at, one in enumerate(passes) if "a/small" in one] == [10, 20]


def test_passes_for_those_alone_who_owe_a_share_do_not_follow_at_once() -> None:
    tenants = Tenants({"a/large": 350, "a/small": 1})
    pauses = []
    for _ in range(4):
        tenants.one_pass()
        pauses.append(tenants.turns.next_pass)
    assert pauses == [NEXT_PAID, NEXT_PAID, 0.0, None]


@pytest.mark.parametrize(("share", "most"), [(20, 80), (400, 12)])
def test_who_is_left_over_is_served_although_everything_is_judged_anew_in_every_pass(
    share: int, most: int
) -> None:
    """In as many passes as those before it take, where each takes more than the share; fewer else."""
    cluster = with_others(nodes=2, gpus=2)
    cluster.reconciler.allocation._turns = Turns(share)
    for each in range(40):
        cluster.ask(f"c{each:02}", count=9, age=each)
    cluster.ask("small", age=59)
    passes = 0
    while not cluster.has("small"):
        cluster.make_room()
        cluster.one_pass()
        passes += 1
        assert passes <= most
    assert passes > 3


def test_within_its_share_a_namespace_changes_nothing_about_the_order() -> None:
    """One card is left: the oldest gets it, whoever asks for more."""
    cluster = with_others(nodes=1, gpus=1)
    for each in range(30):
        cluster.ask(f"c{each}", age=1 + each % 20)
    cluster.ask("younger", INNOCENT, age=58)
    cluster.ask("oldest", age=0)
    cluster.settle()
    assert cluster.has("oldest")


def test_a_pod_waits_no_longer_once_another_has_other_labels() -> None:
    cluster = with_others(nodes=1)
    cluster.api.edit(PODS, "other", lambda found: found["metadata"].update(labels={"app": "x"}))
    cluster.claim("c")
    cluster.pod("p", "c", affinity=apart({"app": "x"}))
    cluster.settle()
    assert cluster.allocation("c") is None
    cluster.api.edit(PODS, "other", lambda found: found["metadata"].update(labels={"app": "y"}))
    cluster.settle()
    assert cluster.allocation("c") is not None


# chains


def chain(cluster: Cluster, length: int) -> None:
    """Each pod shares a claim with the next."""
    for each in range(length + 1):
        made = claim(f"c{each}", count=1, memory="40Gi", namespace=TENANT)
        cluster.api.create(RESOURCE_CLAIMS, made)
    for each in range(length):
        waits = pod(f"p{each}", [f"c{each}", f"c{each + 1}"])
        waits["metadata"]["namespace"] = TENANT
        cluster.api.create(PODS, waits)


def test_a_chain_of_pods_that_no_node_holds_is_told_so_and_costs_as_much_as_some_pods() -> None:
    steps: dict[int, int] = {}
    for length in (120, 480):
        cluster = with_others(nodes=1, gpus=1)
        chain(cluster, length)
        cluster.ask("welcome", INNOCENT, memory="1Gi", age=59)
        cluster.caches.deliver()
        cluster.reconciler.cache.apply(cluster.caches.changes())
        steps[length] = calls(cluster.reconciler.allocation.plan)
        assert cluster.has("welcome", INNOCENT)
        told = [one.message for one in cluster.told if "share claims in a chain" in one.message]
        assert f"{length} pods" in told[0]
        assert "takes 110 at most" in told[0]
    # What is left grows with the pods: putting them together once, and an Event for each claim.
    assert steps[480] < 5 * steps[120]


def test_pods_of_one_claim_that_ask_the_same_are_asked_once() -> None:
    cluster = with_others(nodes=2, gpus=2)
    placed: list[Group] = []
    place = Placer.place

    def noted(self: Placer, group: Group, excluded: Any, **named: Any) -> Any:
        placed.append(group)
        return place(self, group, excluded, **named)

    cluster.claim("shared", count=9)
    for each in range(100):
        cluster.pod(f"p{each}", "shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Placer, "place", noted)
        cluster.one_pass()
    assert len(placed) == 2


def test_of_many_pods_that_share_a_claim_each_has_its_turn() -> None:
    """Only the last one, by age, can be placed at all."""
    cluster = with_others(nodes=1, gpus=2)
    cluster.claim("shared")
    for each in range(3 * MOST_PARTS):
        fits = each == 3 * MOST_PARTS - 1
        selector = {HOST: "n0" if fits else f"gone-{each}"}
        cluster.pod(f"p{each}", "shared", created=f"2026-11-20T00:00:{each:02}Z", nodeSelector=selector)
    turns = 0
    while cluster.allocation("shared") is None:
        cluster.one_pass()
        cluster.pass_time(1.0)
        turns += 1
        assert turns < 9
    assert turns == 3


def test_of_a_group_that_cost_a_pass_enough_no_further_pod_is_tried_and_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods that share a claim, of which the last one alone fits; each of them is searched for."""
    tried: list[int] = []
    place = Placer.place

    def noted(self: Placer, group: Group, excluded: Any, **named: Any) -> Any:
        tried.append(len(group.pods))
        return place(self, group, excluded, **named)

    monkeypatch.setattr(allocation_step, "MOST_STEPS", 1)
    cluster = with_others(nodes=2, gpus=2)
    cluster.claim("shared")
    for each in range(4):
        cluster.claim(f"own-{each}", memory="81Gi" if each < 3 else "1Gi")
        cluster.pod(f"p{each}", "shared", f"own-{each}", created=f"2026-11-20T00:00:0{each}Z")
    monkeypatch.setattr(Placer, "place", noted)
    cluster.one_pass()
    assert tried == [4]
    assert cluster.allocation("shared") is None
    passes = 1
    while cluster.allocation("shared") is None:
        cluster.pass_time(GOES_ON)
        cluster.one_pass()
        passes += 1
        assert passes < 9
    assert passes > 2, "a part a pass"


def test_a_pod_of_more_claims_than_are_placed_together_is_told_so() -> None:
    cluster = with_others(nodes=1)
    names = [f"c{each}" for each in range(MOST_CLAIMS + 1)]
    for name in names:
        cluster.claim(name, memory="1Mi")
    cluster.pod("p", *names)
    cluster.ask("welcome", INNOCENT)
    cluster.one_pass()
    assert cluster.has("welcome", INNOCENT)
    assert any(f"{MOST_CLAIMS} are placed together at most" in one.message for one in cluster.told)


# selectors

LOOP = "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, %s)))"
DEAR = LOOP % "semver('1.2.' + string(a + b + c)).compareTo(semver('0.0.1')) >= 0"


def unlike_cards(cluster: Cluster, nodes: int) -> None:
    for each in range(nodes):
        cluster.api.create(NODES, node(f"m{each}"))
        published = gpu_slice(f"m{each}", 8)
        for at, device in enumerate(published["spec"]["devices"]):
            device["attributes"]["uuid"] = {"string": f"GPU-{each}-{at}"}
        cluster.api.create(RESOURCE_SLICES, published)


def test_selectors_cost_a_pass_so_much_and_no_more_and_go_on_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A costly selector that is another for each card of the cluster, of which the last is the one."""
    evaluated: list[int] = []
    evaluate = cel._evaluated

    def counted(program: Any, values: Any) -> Any:
        evaluated.append(program.cost)
        return evaluate(program, values)

    monkeypatch.setattr(cel, "_evaluated", counted)
    cluster = with_others(nodes=0)
    unlike_cards(cluster, 6)
    uuid = "device.attributes['koordra.io'].uuid"
    cluster.ask("dear", age=0, selectors=[f"{DEAR} && {uuid} == 'GPU-5-7'"])
    cluster.ask("welcome", INNOCENT, memory="1Gi", age=59)
    cluster.one_pass()
    assert cluster.has("welcome", INNOCENT)
    assert max(evaluated) > 10_000
    assert sum(evaluated) <= SELECTORS + max(evaluated)
    assert any("selectors of the claim cost too much" in one.message for one in cluster.told)
    passes = 0
    while not cluster.has("dear"):
        evaluated.clear()
        cluster.pass_time(2.0)
        cluster.one_pass()
        assert sum(evaluated) <= SELECTORS + max(evaluated, default=0)
        passes += 1
        assert passes < 60
    given = cluster.api.get(RESOURCE_CLAIMS, "dear", namespace=TENANT)["status"]["allocation"]
    (result,) = given["devices"]["results"]
    assert (result["pool"], result["device"]) == ("m5", "gpu-7")


# nobody is forgotten


@pytest.mark.parametrize("seed", range(25))
def test_a_new_controller_finds_nothing_left_to_place(seed: int) -> None:
    """Whatever came, went and waited: what could be placed has been, by who remembers why others wait."""
    draw = random.Random(seed)
    cluster = with_others(nodes=3, gpus=2)
    cluster.reconciler.allocation._turns = Turns(draw.choice([25, 100, SHARE]))
    for number in range(24):
        what = draw.random()
        pods: Any = cluster.api.all(PODS)
        running = [name for name in map(objects.name, pods) if name.startswith("p")]
        if what < 0.5 or not running:
            spec = draw.choice([{}, {}, {"affinity": apart({"app": "p"})}, {"nodeSelector": {HOST: "n1"}}])
            cluster.claim(f"p{number}", count=draw.choice([1, 1, 2, 3]))
            made = pod(f"p{number}", [f"p{number}"], **spec)
            made["metadata"]["labels"] = {"app": draw.choice("pq")}
            cluster.api.create(PODS, made)
        elif what < 0.8:
            name = draw.choice(running)
            cluster.api.delete(PODS, name)
            cluster.api.edit(RESOURCE_CLAIMS, name, _freed)
        else:
            closed = draw.random() < 0.5
            cluster.api.edit(NODES, f"n{draw.randrange(3)}", partial(_cordoned, closed))
        for _ in range(draw.choice([0, 1, 2])):
            cluster.one_pass()
        cluster.pass_time(draw.choice([0.0, 1.0, 5.0]))
    for _ in range(30):
        cluster.one_pass()
        cluster.pass_time(1.0)
    before = allocated(cluster.api.all(RESOURCE_CLAIMS))
    cluster.start_again()
    cluster.settle(passes=5)
    assert allocated(cluster.api.all(RESOURCE_CLAIMS)) == before


def _cordoned(closed: bool, found: Object) -> None:
    found["spec"]["unschedulable"] = closed


def _freed(found: Object) -> None:
    found["status"] = {}


def allocated(claims: Any) -> list[str]:
    return [objects.name(one) for one in claims if objects.status_of(one).get("allocation")]
