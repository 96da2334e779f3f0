"""The tree of a node's devices: levels that nest, where one more goes, and which devices can be exchanged."""

from __future__ import annotations

from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koordra.allocator.devices.nvlink_fabric import Fabric
from koordra.allocator.search.device_tree import DeviceTree, Orbits, insert, nests, spread
from koordra.allocator.search.symmetry import Symmetry
from koordra.api import names


@pytest.mark.parametrize(
    ("values", "above", "expected"),
    [
        ("aab", ["xxy"], True),
        ("aa", ["xy"], False),
        ("aab", [], True),
        (["", ""], ["xy"], True),
        ("ab", ["xx"], True),
    ],
)
def test_a_value_nests_under_one_path(values: str, above: list[str], expected: bool) -> None:
    assert nests(list(values), [list(one) for one in above]) is expected


@pytest.mark.parametrize(
    ("group", "lower", "expected"),
    [
        ({0: "p", 2: "p"}, [], ["p", "", "p"]),
        ({}, [], []),
        ({0: "p"}, [["r", "r", ""]], ["p", "p", ""]),
        ({0: "p", 1: "q"}, [["r", "r", "r"]], ["p", "q", ""]),
        ({0: "p", 2: "q"}, [["r", "r", "s", "s"]], ["p", "p", "q", "q"]),
        ({0: "p"}, [["r", "r", "s"], ["t", "u", "u"]], ["p", "p", "p"]),
    ],
)
def test_devices_below_one_roof_go_along(
    group: dict[int, str], lower: list[list[str]], expected: list[str]
) -> None:
    assert spread(group, lower) == expected


@pytest.mark.parametrize(
    ("values", "columns", "depth"),
    [
        ("ppqq", ["aaaa", "1122"], 2),
        ("ppqq", ["aaaa", "1234"], 1),
        ("ppqq", ["abcd"], 0),
        ("pqpq", ["aabb"], None),
        ("ppqq", [], 0),
    ],
)
def test_a_level_goes_as_deep_as_it_nests(values: str, columns: list[str], depth: int | None) -> None:
    levels = [(str(number), list(column)) for number, column in enumerate(columns)]
    assert insert("level", dict(enumerate(values)), levels) == depth
    assert depth is None or levels[depth][0] == "level"


def folded(columns: list[str], labels: list[int]) -> tuple[tuple[int, ...], Orbits]:
    tree = DeviceTree([(str(number), list(one)) for number, one in enumerate(columns)], len(labels))
    codes: dict[Hashable, int] = {}
    return tree.fold(labels, lambda value: codes.setdefault(value, len(codes) + 100))


def orbits(columns: list[str], labels: list[int]) -> list[int]:
    """Each device's orbit, by the first device of it."""
    found = folded(columns, labels)[1]
    first: dict[Hashable, int] = {}
    return [first.setdefault(found.of(device), device) for device in range(len(labels))]


@pytest.mark.parametrize(
    ("columns", "labels", "expected"),
    [
        (["aabb"], [1, 1, 1, 1], [0, 0, 0, 0]),
        (["aabb"], [1, 2, 2, 1], [0, 1, 1, 0]),
        (["aabb"], [1, 1, 1, 2], [0, 0, 2, 3]),
        (["aaaabbbb", "11223344"], [1, 1, 1, 1, 1, 1, 1, 2], [0, 0, 0, 0, 4, 4, 6, 7]),
        (["aaabb"], [1, 1, 1, 1, 1], [0, 0, 0, 3, 3]),
    ],
)
def test_devices_in_subtrees_that_are_alike_are_in_one_orbit(
    columns: list[str], labels: list[int], expected: list[int]
) -> None:
    assert orbits(columns, labels) == expected


def test_trees_that_differ_in_order_alone_have_one_form() -> None:
    tree = DeviceTree([("numa", list("aabb"))], 4)
    codes: dict[Hashable, int] = {}

    def form(*labels: int) -> tuple[int, ...]:
        return tree.fold(labels, lambda value: codes.setdefault(value, len(codes)))[0]

    assert form(1, 2, 3, 4) == form(4, 3, 2, 1) == form(3, 4, 1, 2)
    assert form(1, 2, 3, 4) != form(1, 3, 2, 4)


def test_a_level_at_which_a_device_is_alone_is_remembered_with_it() -> None:
    tree = DeviceTree([("numa", ["a", "a", "b"]), ("switch", ["1", "2", ""])], 3)
    assert tree.alone == [("switch",), ("switch",), ("numa",)]
    assert [len(above) for above in tree.ancestors] == [1, 1, 0]


def test_only_a_bus_that_devices_share_is_a_level() -> None:
    addresses = ("0000:01:00.0", "0000:01:00.1", "0000:02:00.0", None)
    devices = [SimpleNamespace(plain={names.STANDARD_PCI_BUS_ID: address}) for address in addresses]
    assert Symmetry._buses(cast(Any, SimpleNamespace(devices=devices))) == ["0000:01", "0000:01", "", ""]


@pytest.mark.parametrize(
    ("scored", "demanded", "pinned"), [(False, None, False), (True, None, True), (False, "partitions", True)]
)
def test_nvlink_tells_cards_apart_for_a_score_and_for_demanded_partitions(
    scored: bool, demanded: str | None, pinned: bool
) -> None:
    links = ((0, 4), (4, 0))
    state = SimpleNamespace(fabric=Fabric((0, 1), links))
    search = cast(Any, SimpleNamespace(state=state, scored=scored, demanded=demanded))
    expected = {0: (0, links, ()), 1: (1, links, ())} if pinned else {}
    assert Symmetry._pinned_cards(cast(Any, None), search, None) == expected
