"""The controller learns which models are wanted by claims that can run nowhere else, keeps that by name, and
spares them."""

from __future__ import annotations

from typing import Any

from koordra.controller.allocation.learned.leftover_store import data_of, learned_of
from koordra.controller.allocation.placer import Placer
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.placement.policy.learned_order import Learned
from tests.fakes.cluster import Cluster
from tests.fakes.groups import groups_of
from tests.unit.placement import mixed

Object = dict[str, Any]
COUNT = 8


class Controller:
    """Eight nodes, two of each model; on all but the two of the T4 a card is in use, so that those are no
    tie."""

    def __init__(self, learned: Learned | None = None) -> None:
        self.nodes = mixed.nodes(COUNT)
        for node in self.nodes:
            node["spec"], node["status"]["conditions"] = {}, []
        self.slices, self.classes = mixed.slices(COUNT), mixed.classes()
        self.claims: list[Object] = []
        self.pods: list[Object] = []
        self.cache = ClusterCache()
        self.placer = Placer(learned=learned)

    def seen(self) -> ClusterCache:
        self.cache.adopt(
            Cluster(
                nodes=self.nodes, slices=self.slices, classes=self.classes, claims=self.claims, pods=self.pods
            )
        )
        return self.cache

    def place(self, name: str, *, end: bool = False, **said: Any) -> str | None:
        claim, pod = mixed.claim(name, cpu=1, **said)
        self.claims.append(claim)
        self.pods.append(pod)
        self.placer.sync(self.seen())
        group = self._group(name)
        self.placer.learn([group])
        found = self.placer.place(group, {})
        if found.node is None or end:
            self.claims.pop()
            self.pods.pop()
            return found.node
        self.claims[-1] = {**claim, "status": {"allocation": found.allocations[f"d/{name}"]}}
        return found.node

    def _group(self, name: str) -> Group:
        return next(
            one for one in groups_of(self.seen()) if any(pod["metadata"]["name"] == name for pod in one.pods)
        )


def model_at(node: str | None) -> str:
    assert node is not None
    return mixed.model_of(int(node[-3:]))


def learned_by(controller: Controller) -> Learned:
    for number in range(36):
        said = {"selector": mixed.of_model("T4")} if number % 3 == 0 else {}
        assert controller.place(f"c{number}", end=True, **said) is not None
    return controller.placer.order.learned


def test_models_that_only_some_claims_may_use_are_kept_for_them() -> None:
    controller = Controller()
    table = learned_by(controller).table
    assert set(table.reserved) == {"T4"}
    assert table.reserved["T4"] == 1000
    nodes = [model_at(controller.place(f"free-{number}")) for number in range(12)]
    assert "T4" not in nodes
    assert model_at(controller.place("bound", selector=mixed.of_model("T4"))) == "T4"


def test_what_was_learned_of_models_outlives_the_controller() -> None:
    learned = learned_by(Controller())
    again = learned_of(data_of(learned))
    assert again is not None
    assert again.table == learned.table
    assert {request.models: count for request, count in again.workload.counts.items()} == {
        (): 24,
        ("T4",): 12,
    }
    controller = Controller(again)
    assert "T4" not in [model_at(controller.place(f"free-{number}")) for number in range(12)]


def test_of_a_zone_the_models_are_learned() -> None:
    """In the table stand the models that a zone leaves, and nothing of its nodes."""
    controller = Controller()
    for number in range(33):
        zone = {"nodeSelector": {"zone": mixed.ZONES[number % 2]}}
        assert controller.place(f"c{number}", end=True, pod=zone) is not None
    counts = controller.placer.order.learned.workload.counts
    assert sorted(request.models for request in counts) == [("A100", "H100", "T4"), ("A100", "T4", "V100")]


def test_a_pool_that_comes_changes_what_requests_may_use() -> None:
    controller = Controller(learned_by(Controller()))
    kept = controller.nodes
    controller.nodes = [node for node in kept if model_at(node["metadata"]["name"]) in {"A100", "T4"}]
    bound = {"selector": mixed.of_model("A100", "T4")}
    assert controller.place("before", **bound) is not None
    controller.nodes = kept
    assert {model_at(controller.place(f"after-{number}", **bound)) for number in range(8)} <= {"A100", "T4"}
    new = controller.place("new", selector=mixed.of_model("H100"))
    assert model_at(new) == "H100"
