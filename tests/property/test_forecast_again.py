"""A forecast that keeps what an earlier one has read says what one says that begins with nothing."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime

import pytest

from koordra.api import objects
from koordra.cli.what_if.manifests import Assumed, what_if
from koordra.controller.autoscale.node_groups import NodeGroup, new_nodes
from koordra.controller.cache.changes import Tables
from koordra.controller.explain.forecast.forecast import Forecast, forecast
from tests.fakes.forecast_cases import drawn
from tests.fakes.forecast_world import ForecastWorld
from tests.long import mostly_long

CASES = int(os.environ.get("KOORDRA_EXAMPLES", "12"))
FIRST = int(os.environ.get("KOORDRA_SEED", "0"))
BLOCKS = 3
NOW = datetime(2026, 11, 21, 0, 10, tzinfo=UTC)


def one_case(seed: int) -> None:
    """First with the nodes that are there, then with new ones of other numbers each time, none among them."""
    case, world, chance = drawn(seed), ForecastWorld(seed), random.Random(f"again {seed}")
    world.store(case.there)
    world.apply(case.first, created="2026-11-21T00:00:00Z")
    world.come_to_rest()
    asked = what_if([*world.objects(), *case.wanted], Assumed(), NOW)
    group = drawn_group(case.there, chance)
    found = asked.forecast
    for number in (chance.randint(1, 3), 0, chance.randint(1, 3), chance.randint(1, 8)):
        besides = new_nodes([group], {group.name: number})
        found = found.with_besides(besides)
        fresh = forecast(with_these(asked.cluster, besides), asked.terms)
        assert said(found) == said(fresh), f"KOORDRA_SEED={seed}: with {number} new nodes"


def drawn_group(there: list[objects.Object], chance: random.Random) -> NodeGroup:
    slices = [one for one in there if one["kind"] == "ResourceSlice"]
    return NodeGroup("more", "more", [chance.choice(slices)], 8, {"zone": chance.choice("ab")})


def with_these(cluster: Tables, besides: Tables) -> Tables:
    return {**cluster, **{kind: {**cluster[kind], **table} for kind, table in besides.items()}}


def said(found: Forecast) -> tuple[object, ...]:
    given = {
        key: (one.node, one.level, one.score, one.allocation["devices"], one.allocation.get("nodeSelector"))
        for key, one in found.planned.items()
    }
    with found.when_done():
        why = {key: [str(one) for one in found.reasons_of(key).reasons[key]] for key in found.lacking}
    return given, why, sorted(found.evicted)


@pytest.mark.parametrize("block", mostly_long(range(BLOCKS)))
def test_what_an_earlier_forecast_read_changes_nothing(block: int) -> None:
    for seed in range(FIRST + block, FIRST + CASES, BLOCKS):
        one_case(seed)
