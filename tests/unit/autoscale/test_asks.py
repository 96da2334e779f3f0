"""How far asks are, and which are made, dropped and marked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.api.kinds import NODES, RESOURCE_SLICES
from koordra.controller.autoscale.asks import changes_of, published_nodes, stage_of
from koordra.controller.autoscale.left_out import MOST_SERVED, Standing
from koordra.controller.cache.placeholders import Ask, Stage
from tests.unit.autoscale.world import group

NOW = datetime(2026, 11, 21, 1, 0, tzinfo=UTC)


def ask(
    name: str = "g-0", age: float = 10.0, node: str = "", claims: tuple[str, ...] = (), **more: Any
) -> Ask:
    return Ask(name, name, "g", NOW - timedelta(seconds=age), node, claims, more.get("has_ended", False))


def node(age: float) -> dict[str, Any]:
    made = (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": {"name": "n", "creationTimestamp": made}}


@pytest.mark.parametrize(
    ("one", "node_age", "published", "stage"),
    [
        (ask(), None, False, Stage.ASKED),
        (ask(age=99.0), None, False, Stage.ASKED),
        (ask(age=101.0), None, False, Stage.EXPIRED),
        (ask(node="n"), 5.0, False, Stage.CAME),
        (ask(node="n", age=150.0), 5.0, False, Stage.CAME),
        (ask(node="n", age=201.0), 5.0, False, Stage.EXPIRED),
        (ask(node="n"), 5.0, True, Stage.DONE),
        (ask(node="n", age=900.0), 5.0, True, Stage.DONE),
        (ask(node="n"), 50.0, True, Stage.MISFIT),
        (ask(node="n"), 50.0, False, Stage.CAME),
        (ask(node="gone"), None, True, Stage.CAME),
        (ask(has_ended=True), None, False, Stage.ENDED),
    ],
)
def test_stages(one: Ask, node_age: float | None, published: bool, stage: Stage) -> None:
    nodes = {} if node_age is None else {"n": node(node_age)}
    there = {"n", "gone"} if published else set()
    assert stage_of(one, {NODES: nodes}, there, within=100.0, now=NOW) is stage


def slices(*of: tuple[int, int], driver: str = "koordra.io") -> dict[str, Any]:
    """(generation, slices that the pool has)."""
    made = [
        {
            "spec": {
                "driver": driver,
                "nodeName": "n",
                "pool": {"name": "n", "generation": number, "resourceSliceCount": count},
            }
        }
        for number, count in of
    ]
    return {str(at): one for at, one in enumerate(made)}


@pytest.mark.parametrize(
    ("there", "is_published"),
    [
        (slices((1, 1)), True),
        (slices((1, 2)), False),
        (slices((1, 2), (1, 2)), True),
        (slices((1, 1), (2, 2)), False),
        (slices((1, 1), driver="other"), False),
        ({}, False),
    ],
)
def test_a_node_has_published_when_all_slices_are_there(there: dict[str, Any], is_published: bool) -> None:
    assert published_nodes({RESOURCE_SLICES: there}) == ({"n"} if is_published else set())


@given(
    wanted=st.lists(st.lists(st.sampled_from("abcdef"), max_size=3).map(tuple), max_size=5),
    asks=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from("abcdef"), st.booleans()),
        max_size=6,
        unique_by=lambda one: one[0],
    ),
)
def test_as_many_as_are_wanted_and_no_name_twice(
    wanted: list[tuple[str, ...]], asks: list[tuple[int, str, bool]]
) -> None:
    there = [ask(f"g-{number}", claims=(key,)) for number, key, _ in asks]
    came = {f"g-{number}" for number, _, has_node in asks if has_node}
    found = changes_of(group(), wanted, there, came)
    kept = [one for one in there if one not in found.drop]
    assert len(kept) + len(found.make) == len(wanted)
    assert not (found.make and found.drop)
    numbers = [number for number, _ in found.make]
    assert len({*numbers}) == len(numbers)
    assert not {f"g-{number}" for number in numbers} & {one.name for one in there}
    dropped_with_node = [one for one in found.drop if one.uid in came]
    assert not dropped_with_node or all(one.uid in came for one in kept), "who has a node goes last"
    said = sorted([claims for _, claims in found.make] + [claims for _, claims in found.mark])
    stay = [one.claims for one in kept if one not in [marked for marked, _ in found.mark]]
    assert sorted([*said, *stay]) == sorted(tuple(sorted(claims)) for claims in wanted)


def test_what_failed_long_ago_does_not_count() -> None:
    standing = Standing().failed("a", NOW).failed("b", NOW)
    assert standing.failures == 2
    assert standing.until == NOW.timestamp() + 120
    assert standing.failed("c", NOW + timedelta(hours=2)).failures == 1


def test_of_whom_nodes_came_for_the_last_are_remembered() -> None:
    many = tuple(f"u{number}" for number in range(MOST_SERVED))
    standing = Standing().delivered(many, NOW).delivered(("last",), NOW)
    assert standing.served == (*many[1:], "last")
