"""A cluster that is read page by page is foretold as one that is read at once."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from koordra.api import objects
from koordra.api.kinds import RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.cache.changes import KINDS, Tables, tables_of
from koordra.controller.explain.forecast.forecast import Forecast, forecast, foretold
from koordra.controller.explain.forecast.intake import Intake, Terms
from tests.fakes.forecast_cases import drawn
from tests.fakes.forecast_world import ForecastWorld

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
