"""A cluster that is read page by page is foretold as one that is read at once. What came besides goes without
a trace."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from koordra.api import objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.cache.changes import KINDS, Tables, tables_of
from koordra.controller.explain.forecast.forecast import Forecast, forecast, foretold
from koordra.controller.explain.forecast.intake import Intake, Terms
from koordra.controller.explain.forecast.stand_ins import stands_in, with_stand_ins
from tests.fakes.forecast_cases import drawn
from tests.fakes.forecast_world import ForecastWorld
from tests.unit.allocator.machines import claim, device_classes, node, request

TERMS = Terms(datetime(2026, 11, 21, 0, 2, tzinfo=UTC))


def by_pages(cluster: Tables, chance: random.Random) -> Forecast:
    """In pages of one to three objects. Some lists are begun anew, and an object is gone then."""
    taken = Intake(TERMS)
    for kind in KINDS:
        every, told = list(cluster.get(kind, {}).values()), list[Object]()
        if every and chance.random() < 0.5:
            told += [_gone(kind, every[0]), *every[: len(every) // 2]]
            taken.take(kind, told)
        start = 0
        while start < len(every):
            page = every[start : start + chance.randint(1, 3)]
            taken.take(kind, page)
            told += page
            start += len(page)
        taken.complete(kind, told, every)
    return foretold(taken)


def _gone(kind: Kind, one: Object) -> Object:
    named = {"name": "is-gone", "uid": f"is-gone-{kind.kind}"}
    return {**one, "metadata": {**objects.metadata(one), **named}}


@pytest.mark.parametrize("seed", range(20))
def test_pages_make_no_difference(seed: int) -> None:
    case, world = drawn(seed), ForecastWorld(seed)
    world.store(case.there)
    world.apply(case.first, created="2026-11-21T00:00:00Z")
    world.come_to_rest()
    world.apply(case.wanted, created="2026-11-21T00:01:30Z")
    cluster = tables_of(world.objects())
    at_once, paged = forecast(cluster, TERMS), by_pages(cluster, random.Random(seed))
    assert paged.planned == at_once.planned
    assert paged.evicted == at_once.evicted
    with paged.when_done(), at_once.when_done():
        for key in cluster[RESOURCE_CLAIMS]:
            assert paged.reasons_of(key) == at_once.reasons_of(key)


def test_what_came_besides_goes_and_what_it_stood_in_place_of_is_back() -> None:
    there = node("n0", labels={"zone": "a"})
    taken = Intake(TERMS)
    taken.take(NODES, [there])
    taken.begin_again(
        {NODES: {"n0": node("n0", labels={"zone": "b"}), "n1": node("n1", labels={"zone": "b"})}}
    )
    assert taken.reconciler.cache.nodes["n0"]["metadata"]["labels"]["zone"] == "b"
    taken.begin_again({})
    assert dict(taken.reconciler.cache.nodes) == {"n0": there}
    assert taken.copy.given()[NODES] == {"n0": there}


def test_who_stands_in_comes_last_again_and_nobody_is_evicted_yet() -> None:
    made = with_stand_ins(
        tables_of([*device_classes(), node("n0"), claim("alone", request("gpu"))]), together=False
    )
    found = forecast(made, TERMS)
    taken = found._taken
    assert [*filter(stands_in, taken.copy.tables[PODS].values())]
    taken.copy.create(PODS, {"metadata": {"name": "p"}}, namespace="d", name="p", subresource="eviction")
    taken.begin_again({})
    assert not taken.copy.tables[PODS]
    assert not taken.copy.evicted


def test_who_listened_for_an_earlier_forecast_is_told_no_more() -> None:
    taken = Intake(TERMS)
    before = [len(each) for each in taken.reconciler.cache.listeners]
    taken.begin_again({})
    assert [len(each) for each in taken.reconciler.cache.listeners] == before
