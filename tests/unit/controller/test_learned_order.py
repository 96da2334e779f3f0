"""The controller chooses by what it has learned of the workload, keeps it, and is as before until it has
learned something."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from koordra.allocator.search.solution import CostPair
from koordra.allocator.selection_terms import COMPACTNESS
from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.debug import leftover_table
from koordra.controller.allocation.learned.leftover_store import (
    NAME,
    PERIOD,
    SELDOM,
    LeftoverStore,
    data_of,
    learned_of,
)
from koordra.controller.allocation.placer import Placer
from koordra.errors import InvalidManifest, NotFound
from koordra.placement.free_amounts.state import Request
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_table import LearnedTable
from tests.fakes.joint_cluster import gpu_slice, node
from tests.unit.controller.test_placer import Book, of_kind

GPU = 80
"""GiB of the cards in these tests."""


class Learning(Book):
    """A cluster whose claims can be put on a node by hand."""

    def __init__(self, *, nodes: int, gpus: int = 1, learned: Learned | None = None) -> None:
        super().__init__(nodes=nodes, gpus=gpus)
        self.placer = Placer(learned=learned)

    def place(self, name: str, **asked: Any) -> str | None:
        self.add(name, **asked)
        self.placer.sync(self.seen())
        group = self.group(name)
        self.placer.learn([group])
        offered = self.placer.place(group, {})
        for key, allocation in offered.allocations.items():
            self.take(key, allocation)
        return offered.node

    def run(self) -> None:
        """All its pods run."""
        for pod in self.pods:
            pod["status"] = {**pod.get("status", {}), "phase": "Running"}

    def end(self, name: str) -> None:
        self.claims = [one for one in self.claims if objects.name(one) != name]
        self.pods = [one for one in self.pods if objects.name(one) != name]


def hole_of(free: int) -> LearnedTable:
    """A GPU with this much free (in thousandths) stays as it is; everything else gets filled."""
    return LearnedTable(
        holes=tuple(10_000 * step if 10 * step == free else 0 for step in range(101)), pods=100
    )


def two_cards(learned: Learned | None) -> Learning:
    """n0's card has 60 % free, n1's 75 %."""
    book = Learning(nodes=1, learned=learned)
    assert book.place("first", memory=f"{GPU * 40 // 100}Gi") == "n0"
    book.nodes.append(of_kind("Node", node("n1", cpu="8")))
    book.slices.append(of_kind("ResourceSlice", gpu_slice("n1", 1)))
    book.add("pin", memory=f"{GPU * 65 // 100}Gi")
    book.placer.sync(book.seen())
    offered = book.placer.place(book.group("pin"), {})
    assert offered.node == "n1"
    for key, allocation in offered.allocations.items():
        book.take(key, allocation)
    book.end("pin")
    book.place("second", memory=f"{GPU * 65 // 100}Gi")
    book.end("first")
    book.place("third", memory=f"{GPU * 40 // 100}Gi")
    return book


def test_the_learned_table_decides_where_the_claim_is_equally_well_served() -> None:
    """n0 has 60 % free, n1 35 %. A claim of 25 % fits both; best fit takes n1 and leaves 10 %, which the
    table knows as lost."""
    share = f"{GPU * 25 // 100}Gi"
    assert two_cards(None).place("asked", memory=share) == "n1"
    assert two_cards(Learned(hole_of(100))).place("asked", memory=share) == "n0"
    assert two_cards(Learned(hole_of(350))).place("asked", memory=share) == "n1"


def test_it_learns_from_the_claims_that_arrive() -> None:
    book = Learning(nodes=4, gpus=2)
    assert book.placer.order.learned.table == LearnedTable()
    for number in range(40):
        book.place(f"c{number}", memory=f"{GPU * 60 // 100}Gi", cpu="100m")
        if number % 3 == 2:
            book.end(f"c{number}")
    learned = book.placer.order.learned
    assert book.placer.order.epoch > 0
    assert learned.table.pods >= 32
    assert learned.workload.counts == {Request(100, 0, 1, 600): 40}
    # Nothing smaller than 600 comes: what one of them leaves is lost.
    assert learned.table.holes[40] == 400_000
    before = book.placer.order.epoch
    for _ in range(3):
        book.placer.sync(book.seen())
    assert book.placer.order.epoch == before, "a claim counts once"


def test_a_first_controller_begins_with_what_is_in_use() -> None:
    """Forty claims have their devices before any controller of koordra's kept a table."""
    before = Learning(nodes=20, gpus=2)
    for number in range(40):
        before.place(f"c{number}", memory=f"{GPU * 60 // 100}Gi", cpu="100m")
    before.run()
    first = Placer()
    first.sync(before.seen())
    learned = first.order.learned
    assert learned.workload.counts == before.placer.order.learned.workload.counts
    assert learned.table.pods == 40
    assert first.order.epoch == 1, "it is to be kept"
    first.sync(before.seen())
    assert first.order.epoch == 1
    # A later term goes on from what was kept, and counts nobody twice.
    again = Placer(learned=learned)
    again.sync(before.seen())
    assert again.order.learned.workload.count == 40


def test_the_learned_table_chooses_the_card_inside_a_node() -> None:
    """One node, cards with 60 % and 35 % free. A claim of 25 % would best fit the second, which leaves a hole
    that is lost."""
    share = f"{GPU * 25 // 100}Gi"
    for learned, expected in (
        (None, "gpu-1"),
        (Learned(hole_of(100)), "gpu-0"),
        (Learned(hole_of(350)), "gpu-1"),
    ):
        book = Learning(nodes=1, gpus=2)
        for name, percent in (("a", 40), ("b", 65)):
            book.place(name, memory=f"{GPU * percent // 100}Gi")
        book.placer = Placer(learned=learned)
        book.place("asked", memory=share)
        (claim,) = [one for one in book.claims if objects.name(one) == "asked"]
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert result["device"] == expected


def test_a_new_table_is_used_where_an_old_answer_is_known() -> None:
    """The same question of the same node, before and after something was learned."""
    book = Learning(nodes=1, gpus=2, learned=Learned(hole_of(350)))
    for name, percent in (("a", 40), ("b", 65)):
        book.place(name, memory=f"{GPU * percent // 100}Gi")
    taken = []
    for table in (hole_of(350), hole_of(100)):
        book.placer.order.know(table)
        book.add("asked", memory=f"{GPU * 25 // 100}Gi")
        book.placer.sync(book.seen())
        allocation = book.placer.place(book.group("asked"), {}).allocations["default/asked"]
        taken.append(allocation["devices"]["results"][0]["device"])
        book.end("asked")
    assert taken == ["gpu-1", "gpu-0"]


def test_claims_that_wait_or_are_never_used_teach_nothing() -> None:
    book = Learning(nodes=1)
    book.add("large", memory="1000Gi")
    book.placer.sync(book.seen())
    book.placer.place(book.group("large"), {})
    assert book.placer.order.learned.workload.count == 0


def test_what_the_claim_gets_comes_before_what_the_cluster_keeps() -> None:
    """Nodes are ordered by the part of the cost that is about the claim, then by the expected waste."""
    book = two_cards(Learned(hole_of(100)))
    group_name = "asked"
    book.add(group_name, memory=f"{GPU * 25 // 100}Gi")
    book.placer.sync(book.seen())
    engine = book.placer.engine
    question = book.placer._resolved(book.group(group_name))
    none, much = (0, 0, 0, 250, 0), (10**9, 0, 0, 250, 0)
    assert engine.value(question, "n1", CostPair(0, much), ()) < engine.value(
        question, "n0", CostPair(COMPACTNESS, none), ()
    )
    assert engine.value(question, "n0", CostPair(0, none), ()) < engine.value(
        question, "n1", CostPair(0, much), ()
    )


def test_nodes_that_come_go_and_change_are_followed() -> None:
    book = Learning(nodes=3, gpus=2, learned=Learned(hole_of(100)))
    for number in range(6):
        book.place(f"c{number}", memory="20Gi")
    book.nodes.pop(1)
    book.slices.append(of_kind("ResourceSlice", gpu_slice("n7", 5)))
    book.nodes.append(of_kind("Node", node("n7", cpu="8")))
    for number in range(6, 30):
        book.place(f"c{number}", memory="20Gi")
        book.end(f"c{number - 3}")
    leftovers = book.placer.order
    fresh = Placer(learned=leftovers.learned)
    fresh.sync(book.seen())
    book.placer.sync(book.seen())
    for name in book.placer.nodes:
        mine, other = (placer.order.free(placer.nodes[name]) for placer in (book.placer, fresh))
        assert mine is not None
        assert other is not None
        assert (mine[0].kind, mine[1]) == (other[0].kind, other[1])


class Api:
    """One ConfigMap."""

    def __init__(self, *, there: bool = True) -> None:
        self.there = there
        self.data: dict[str, str] = {}
        self.writes = 0

    def get(self, kind: Any, name: str, *, namespace: str | None = None) -> Object:
        assert (kind, name, namespace) == (CONFIG_MAPS, NAME, "home")
        if not self.there:
            raise NotFound("no such ConfigMap", code=404)
        return {"metadata": {"name": name}, "data": self.data} if self.data else {"metadata": {"name": name}}

    def patch(self, kind: Any, name: str, body: Any, *, namespace: str | None = None) -> Object:
        found = self.get(kind, name, namespace=namespace)
        self.data.update(body["data"])
        self.writes += 1
        return found


def test_the_table_is_kept_rarely_and_read_by_the_next_term() -> None:
    api, now, leading = Api(), [0.0], [True]
    store = LeftoverStore(api, namespace="home", may_write=lambda: leading[0], clock=lambda: now[0])  # type: ignore[arg-type]
    assert store.read() is None
    book = Learning(nodes=4, gpus=2)
    for number in range(60):
        book.place(f"c{number}", memory="20Gi", cpu="100m")
        store.save(book.placer.order)
        book.end(f"c{number}")
    assert api.writes == 1
    now[0] = PERIOD / 2
    assert store.save(book.placer.order) == PERIOD / 2, "somebody comes back for it"
    assert api.writes == 1
    now[0] = PERIOD
    leading[0] = False
    store.save(book.placer.order, now=True)
    assert api.writes == 1, "who does not lead does not write"
    leading[0] = True
    assert store.save(book.placer.order) is None
    store.save(book.placer.order, now=True)
    assert api.writes == 2, "what is kept is not written again"
    again = store.read()
    assert again is not None
    assert again.table == book.placer.order.learned.table
    assert again.workload.counts == book.placer.order.learned.workload.counts
    assert Learning(nodes=1, learned=again).placer.order.learned.table == again.table


def test_without_the_config_map_it_learns_all_the_same() -> None:
    api = Api(there=False)
    store = LeftoverStore(api, namespace="home", may_write=lambda: True, clock=lambda: 0.0)  # type: ignore[arg-type]
    assert store.read() is None
    book = Learning(nodes=2)
    for number in range(33):
        book.place(f"c{number}", memory="20Gi")
    assert store.save(book.placer.order, now=True) == SELDOM, "nobody is asked for ever"
    assert store.save(book.placer.order) == SELDOM
    assert api.writes == 0
    assert book.placer.order.epoch == 1


def _but(**other: object) -> str:
    """A table that is whole but for this."""
    return json.dumps({**hole_of(190).to_document(), **other})


DAMAGED = [
    "no json",
    "[]",
    '{"apiVersion": "v0"}',
    "[" * 100_000,
    _but(pods=float("inf")),
    _but(cores=[[10**30, 10]]),
    _but(memory=[[4000, 10**30]]),
    _but(nics=[[-5, 10]]),
    _but(blocks=[[-3, 1, [], 10]]),
    _but(blocks=[[10**9, 1, [], 10]]),
    _but(reserved={"A100": 10**30}),
    _but(slices=[[["1g.5gb"], -5, 10]]),
]


@pytest.mark.parametrize(
    "counts",
    [
        "[[Infinity,1,1,1,500,[],0,0,[]]]",
        "[[10,1,1,1,5000,[],0,0,[]]]",
        "[[10,-1,-1,1,-5000,[],0,0,[]]]",
        "[[10,1,1,1000000000,1000,[],0,0,[]]]",
        "[[10,1e30,1,1,1000,[],0,0,[]]]",
        "[[10,1,1,1,1000,[],0,0]]",
        "[" * 100_000,
    ],
)
def test_damaged_counts_are_learned_anew(counts: str) -> None:
    with pytest.raises(InvalidManifest):
        learned_of({**data_of(Learned(hole_of(190))), "workload.json": counts})


@pytest.mark.parametrize("amount", ["9223372036854775807", "1e40"])
def test_a_pod_that_asks_for_more_than_any_number_stops_nobody(amount: str) -> None:
    """Neither now, nor when a table is learned from it, nor after a restart with that table."""
    book = Learning(nodes=4, gpus=8, learned=Learned(hole_of(190)))
    for number in range(36):
        book.add(f"absurd{number}", cpu=amount, memory="20Gi")
    assert book.place("first", memory="20Gi") == "n0"
    waiting = [book.group(f"absurd{number}") for number in range(36)]
    book.placer.learn(waiting)
    assert book.placer.place(waiting[0], {}).node is None
    assert book.placer.order.learned.table.pods >= 32
    kept = learned_of(data_of(book.placer.order.learned))
    assert kept is not None
    book.placer = Placer(learned=kept)
    assert book.place("second", memory="20Gi") is not None


def test_a_defect_of_the_ranking_keeps_no_claim_from_being_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    for part, method in (("waste", "least"), ("online", "observe"), ("_models", "models")):
        book = Learning(nodes=2, learned=Learned(hole_of(190)))
        with monkeypatch.context() as patch:
            patch.setattr(getattr(book.placer.order, part), method, broken)
            book.add("asked", memory="20Gi")
            book.placer.sync(book.seen())
            group = book.group("asked")
            book.placer.learn([group])
            assert book.placer.place(group, {}).node == "n0"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nodes_without_nics_give_several_of_their_gpus(count: int) -> None:
    """Several sets of GPUs are equally good, and none of them has NICs to choose by."""
    book = Learning(nodes=2, gpus=4, learned=Learned(hole_of(350)))
    assert book.place("a", count=count) == "n0"


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_table_is_learned_anew(text: str) -> None:
    with pytest.raises(InvalidManifest):
        learned_of({"table.json": text})
    api = Api()
    api.data = {"table.json": text}
    store = LeftoverStore(api, namespace="home", may_write=lambda: True, clock=lambda: 0.0)  # type: ignore[arg-type]
    assert store.read() is None


def test_the_clusters_table_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    api.data = data_of(Learned(hole_of(190), {"a": Workload([(Request(0, 0, 1, 810), 100)])}))
    monkeypatch.setattr("koordra.cli.debug.connect", lambda _kubeconfig: api)
    told = CliRunner().invoke(leftover_table, ["-n", "home"], catch_exceptions=False)
    assert "learned from 100 pods" in told.output
    assert "practically lost" in told.output
    plain = CliRunner().invoke(leftover_table, ["-n", "home", "-o", "json"], catch_exceptions=False)
    assert LearnedTable.from_document(json.loads(plain.output)) == hole_of(190)
