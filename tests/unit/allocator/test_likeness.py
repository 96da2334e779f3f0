"""Clusters of many nodes: what is looked at once, what is told apart, and an engine that is kept."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.allocator.group_search import GroupSearch, NodeAnswer
from koordra.placement import engine_for, plan
from tests.unit.allocator.machines import (
    allocated,
    claim,
    device_classes,
    gpu,
    machine,
    node,
    place,
    pod,
    request,
    slice_of,
)

Dict = dict[str, Any]


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that were searched."""
    nodes: list[str] = []
    search = GroupSearch._search

    def noted(placement: GroupSearch, name: str, *given: Any, **options: Any) -> NodeAnswer:
        nodes.append(name)
        return search(placement, name, *given, **options)

    monkeypatch.setattr(GroupSearch, "_search", noted)
    return nodes


def serial(name: str, number: int) -> list[Dict]:
    """A node with one card that has a serial number of its own."""
    return [node(name), slice_of([gpu(0, place=place(0), uuid=f"GPU-{number}")], name=name)]


def cluster(count: int) -> list[Dict]:
    return [entry for number in range(count) for entry in serial(f"n{number:02}", number)]


def test_nodes_that_differ_in_serial_numbers_are_looked_at_once(looked_at: list[str]) -> None:
    found = plan([*device_classes(), *cluster(30), claim("a", request("gpu"))])
    assert found.nodes == {"default/a": "n00"}
    assert looked_at == ["n00"]


def test_a_serial_number_that_a_selector_reads_tells_them_apart() -> None:
    third = [{"cel": {"expression": 'device.attributes["koordra.io"].uuid == "GPU-3"'}}]
    found = plan([*device_classes(), *cluster(5), claim("a", request("gpu", selectors=third))])
    assert found.nodes == {"default/a": "n03"}


def test_what_is_taken_tells_nodes_apart() -> None:
    objects = [*device_classes(), *cluster(3)]
    for number in range(3):
        objects += [claim(f"c{number}", request("gpu")), pod(f"p{number}", f"c{number}")]
    assert sorted(plan(objects).nodes.values()) == ["n00", "n01", "n02"]


def test_where_nothing_fits_nodes_that_say_the_same_are_told_together() -> None:
    objects = [*device_classes(), *cluster(3), claim("a", request("gpu", count=2))]
    reasons = plan(objects).unsatisfiable["default/a"]
    (told,) = reasons
    assert (told.nodes, told.devices, told.examples) == (3, 0, ("n00", "n01", "n02"))
    assert str(told) == (
        "3 nodes (request gpu): ExceedsDevice: devices: requested 2 of class gpu.koordra.io, no node has more than 1"
    )


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
def test_an_engine_that_has_read_the_slices_before_changes_nothing(policy: str) -> None:
    slices = [entry for entry in machine(4, 4) if entry["kind"] == "ResourceSlice"]
    rest = [entry for entry in machine(4, 4) if entry["kind"] == "Node"] + device_classes()
    kept = engine_for(policy=policy)
    first = claim("a", request("gpu", count=2))
    once = plan([*rest, *slices, first], engine=kept, policy=policy)
    assert once == plan([*rest, *slices, first], policy=policy)
    taken = allocated(first, once.allocations["default/a"])
    second = claim("b", request("gpu", count=2))
    assert plan([*rest, *slices, taken, second], engine=kept, policy=policy) == plan(
        [*rest, *slices, taken, second], policy=policy
    )


def test_a_kept_engine_sees_labels_that_change() -> None:
    everywhere = slice_of([gpu(0, place=place(0))])
    del everywhere["spec"]["nodeName"]
    term = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}
    everywhere["spec"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
    kept = engine_for()
    wanted = [*device_classes(), everywhere, claim("a", request("gpu"))]
    assert not plan([*wanted, node(labels={"pool": "b"})], engine=kept).allocations
    assert plan([*wanted, node(labels={"pool": "a"})], engine=kept).allocations
