"""Whoever places claims asks the same engine: the same `decide`, counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from koordra.api import names
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.explain.forecast.forecast import forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.placement import engine_for, plan
from koordra.placement.decide import Engine
from koordra.placement.gang import GangPlaced, GangRequest, place_gang
from tests.fakes.cluster import Cluster
from tests.fakes.gang_engine import gang_engine, member
from tests.fakes.joint_cluster import JointCluster
from tests.unit.controller.test_placer import Book
from tests.unit.forecast.test_forecast import NOW
from tests.unit.placement import mixed

Object = dict[str, Any]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The claims of every group that was decided."""
    found: list[str] = []
    decide = Engine.decide

    def counted(self: Engine, group: Any, **given: Any) -> Any:
        found.extend(claim.key for claim in self.resolve(group).group.claims)
        return decide(self, group, **given)

    monkeypatch.setattr(Engine, "decide", counted)
    return iter([found])


def test_plan_decides_every_group(decided: Iterator[list[str]]) -> None:
    (found,) = decided
    cluster = [*mixed.nodes(3), *mixed.slices(3), *mixed.classes()]
    plan([*cluster, *mixed.claim("a"), *mixed.claim("b")])
    plan([*cluster, *mixed.claim("c")], engine=engine_for())
    assert found == ["d/a", "d/b", "d/c"]


def test_the_controller_decides_every_group(decided: Iterator[list[str]]) -> None:
    (found,) = decided
    cluster = JointCluster(nodes=2)
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    assert cluster.node_of("a")
    assert set(found) == {"default/a"}


def test_a_forecast_decides_every_group(decided: Iterator[list[str]]) -> None:
    (found,) = decided
    book = Book(nodes=2)
    book.add("a")
    cluster = Cluster(
        nodes=book.nodes, slices=book.slices, classes=book.classes, claims=book.claims, pods=book.pods
    )
    assert forecast(cluster, Terms(NOW)).planned["default/a"].node == "n0"
    assert found == ["default/a"]


def test_gangs_placed_as_a_whole_ask_the_engine_and_keep_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node of each DeviceState, once for each number of members; the next gang that asks the same asks
    nobody."""
    searched: list[str] = []
    search = Engine.search

    def counted(self: Engine, question: Any, info: Any, taken: Any, **given: Any) -> Any:
        searched.append(info.name)
        return search(self, question, info, taken, **given)

    monkeypatch.setattr(Engine, "search", counted)
    engine = gang_engine([*mixed.nodes(3), *mixed.slices(3), *mixed.classes()])
    asked = []
    for job in ("a", "b"):
        pairs = [mixed.claim(f"{job}{number}", memory="10Gi") for number in range(2)]
        members = [member(f"d/{job}{at}", [pod], [claim]) for at, (claim, pod) in enumerate(pairs)]
        assert isinstance(place_gang(GangRequest(job, members, 2), engine), GangPlaced)
        asked.append(len(searched))
    assert 0 < asked[0] == asked[1]


def test_what_is_decided_offline_is_what_the_controller_decides() -> None:
    book = Book(nodes=3)
    for name in "abc":
        book.add(name, memory="50Gi")
    book.placer.sync(book.seen())
    assert isinstance(book.cache, ClusterCache)
    shown = [*book.nodes, *book.slices, *book.classes, *book.claims, *book.pods]
    planned = plan(shown, report_errors=True)
    for name in "abc":
        book.placer.sync(book.seen())
        found = book.placer.place(book.group(name), {})
        assert found.allocations[f"default/{name}"] == planned.allocations[f"default/{name}"]
        book.take(f"default/{name}", found.allocations[f"default/{name}"])
    assert names.CLASS_GPU in book.placer.engine.index.classes
