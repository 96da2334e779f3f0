"""The placement of gangs against trying everything.

Two halves, each against an implementation that shares no code with the one tested:

    packing   made-up trees of domains and nodes that take made-up counts: every way to give every node a
              count is tried, and the score is added up from its definition
    gangs     made-up machines with devices in use: every way to give every member a node is tried; whether
              members fit on a node together is found by giving out devices one by one; the fewest rails by
              trying all sets of them

`make soak` tries more (KOORDRA_EXAMPLES).
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from koordra.placement.candidates.node_scoring import ScoringStrategy, ScoringType
from koordra.placement.gang import Fixed, GangPlaced, GangRequest, GangUnsatisfiable, NewMember, place_gang
from koordra.placement.gang.topology.cost_tables import Count
from koordra.placement.gang.topology.domains import tree_of
from koordra.placement.gang.topology.packing import GangPacking, NodeCounts
from tests.fakes.gang_engine import gang_engine, member, order_of
from tests.long import mostly_long
from tests.unit.allocator.machines import (
    allocated,
    claim,
    config,
    device_classes,
    gpu,
    joint,
    nic,
    node,
    pod,
    request,
    slice_of,
)

GPU_MEMORY = "koordra.io/gpu-memory"
HUNDREDS = max(1, int(os.environ.get("KOORDRA_EXAMPLES") or 0) // 100)


# --- packing ------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """`places`: node -> its path; `takes`: node -> count -> (apart, spare); `full`: node -> count -> cost by
    weights."""

    places: dict[str, tuple[str, ...]]
    takes: dict[str, dict[Count, tuple[int, int]]]
    fixed: dict[str, int]
    touched: frozenset[str]
    want: Count
    opened: frozenset[int]
    required: int | None
    minimum: int
    kinds: dict[str, Any] = field(default_factory=dict)
    full: dict[str, dict[Count, int]] = field(default_factory=dict)


def made_up(draw: random.Random) -> Case:
    levels = draw.randint(0, 3)
    classes = draw.choice((1, 1, 2, 3))
    want = tuple(draw.randint(1, 4 if classes == 1 else 2) for _ in range(classes))
    nodes = [f"n{number}" for number in range(draw.randint(1, 5))]
    places = {
        name: tuple(
            draw.choice(("", "a", "b", "c")) if depth else draw.choice("ab") for depth in range(levels)
        )
        for name in nodes
    }
    sorts = [downward(draw, want) for _ in range(draw.randint(1, 3))]
    kinds = {name: draw.randrange(len(sorts)) for name in nodes}
    fixed = {name: draw.randint(1, 2) for name in nodes if draw.random() < 0.15}
    required = draw.choice((None, None, *range(levels))) if levels else None
    costs = [{count: draw.choice((0, 0, 300, 1000)) for count in sort} for sort in sorts]
    return Case(
        places,
        {name: sorts[kinds[name]] for name in nodes},
        fixed,
        frozenset(name for name in nodes if draw.random() < 0.3) | frozenset(fixed),
        want,
        frozenset(at for at in range(levels) if draw.random() < 0.5),
        required,
        draw.randint(1, sum(want)),
        kinds,
        {name: costs[kinds[name]] for name in nodes} if draw.random() < 0.5 else {},
    )


def downward(draw: random.Random, want: Count) -> dict[Count, tuple[int, int]]:
    """Counts that a node takes: with each also all smaller ones."""
    tops = [tuple(draw.randint(0, number) for number in want) for _ in range(draw.randint(1, 2))]
    return {
        count: (draw.choice((0, 0, 0, 1, 2)) * sum(count), draw.randint(0, 4))
        for count in itertools.product(*(range(number + 1) for number in want))
        if any(count) and any(all(a <= b for a, b in zip(count, top, strict=True)) for top in tops)
    }


def every_way(case: Case) -> Iterator[dict[str, Count]]:
    zero = (0,) * len(case.want)
    options = [[zero, *case.takes[name]] for name in case.places]
    for counts in itertools.product(*options):
        if all(map(int.__le__, map(sum, zip(*counts, strict=True)), case.want)):
            yield dict(zip(case.places, counts, strict=True))


def judged(case: Case, way: dict[str, Count]) -> tuple[int, ...] | None:
    """The score by its definition, least first; None for what the rules forbid."""
    used = {name for name, count in way.items() if any(count)}
    members = {name: sum(count) + case.fixed.get(name, 0) for name, count in way.items()}
    if case.required is not None:
        domains = {case.places[name][: case.required + 1] for name, number in members.items() if number}
        if len(domains) > 1 or any(not domain[-1] for domain in domains):
            return None
    new_domains = []
    opened = 0
    for level in range(len(next(iter(case.places.values())))):
        of = {name: case.places[name][: level + 1] for name in case.places}
        before = {of[name] for name in case.fixed}
        entered = {of[name] for name in used} - before
        new_domains.append(len(entered))
        for domain in {of[name] for name in used}:
            own = [name for name in case.places if of[name] == domain]
            takes = sum(max((sum(count) for count in case.takes[name]), default=0) for name in own)
            placed = sum(sum(way[name]) for name in own)
            opened += level in case.opened and not case.touched & set(own) and placed < takes
    return (
        -sum(map(sum, way.values())),
        sum(case.takes[name][way[name]][0] for name in used),
        *new_domains,
        opened,
        len(used - case.fixed.keys()),
        sum(case.full[name][way[name]] for name in used) if case.full else 0,
        sum(case.takes[name][way[name]][1] for name in used),
    )


def packed(case: Case) -> tuple[tuple[int, ...] | None, dict[str, Count]]:
    places = {
        name: case.places[name] for name in sorted(case.places, key=lambda name: (case.places[name], name))
    }
    root = tree_of(places, fixed=case.fixed, touched=case.touched)
    kinds = {name: (case.kinds[name], name in case.fixed) for name in case.places}
    takes = {
        kinds[name]: NodeCounts(
            case.takes[name],
            name in case.fixed,
            max(map(sum, case.takes[name]), default=0),
            case.full.get(name, {}),
        )
        for name in case.places
    }
    levels = range(len(next(iter(case.places.values()))))
    domains = [len({path[: level + 1] for path in case.places.values()}) for level in levels]
    best = GangPacking(root, kinds, takes, case.want, domains, case.opened, case.required).best()
    placed = 0 if best is None else sum(map(sum, best.counts.values()))
    if best is None or placed < case.minimum:
        return None, {}
    return (-placed, *best.order), best.counts


@pytest.mark.parametrize("hundred", mostly_long(range(20 * HUNDREDS), fast=4))
def test_no_spread_is_better_and_none_is_missed(hundred: int) -> None:
    for number in range(100):
        draw = random.Random(100 * hundred + number)
        case = made_up(draw)
        scores = [
            score
            for way in every_way(case)
            if sum(map(sum, way.values())) >= case.minimum and (score := judged(case, way)) is not None
        ]
        found, places = packed(case)
        assert found == min(scores, default=None), (hundred, number, case)
        if found is not None:
            zero = (0,) * len(case.want)
            way = {name: places.get(name, zero) for name in case.places}
            assert judged(case, way) == found, (hundred, number, case, places)


# --- gangs --------------------------------------------------------------------------------------------------

PIX, NODE = 1, 4
"""Levels of the made-up machines: below one switch, or only in one NUMA node (two steps above PXB)."""


@dataclass(frozen=True)
class Sort:
    """A sort of member: `gpus` whole GPUs and `nics` NICs; `paired`: each GPU beside a NIC of its own, or not
    at all."""

    gpus: int
    nics: int
    paired: bool
    cores: int


@dataclass(frozen=True)
class MadeNode:
    """`free_gpus`, `free_nics`: the switches of those that nobody holds; NICs with their rail, by position;
    -1 is one that nobody knows. `avoided`: PreferNoSchedule taints that nobody tolerates."""

    name: str
    block: str
    spine: str
    gpus: tuple[int, ...]
    nics: tuple[tuple[int, int], ...]
    held_gpus: frozenset[int]
    held_nics: frozenset[int]
    cores: int
    fixed: int = 0
    avoided: int = 0


def made_node(draw: random.Random, number: int, sorts: int) -> MadeNode:
    count = draw.choice((2, 2, 4))
    shift = draw.randrange(2) if sorts > 1 else 0
    gpus = tuple(range(count))
    nics = tuple(
        (at, (at + shift) % count if draw.random() < 0.95 else -1)
        for at in range(draw.choice((count, count, 1)))
    )
    busy = draw.choice((0.0, 0.0, 0.3, 0.6))
    return MadeNode(
        f"n{number}",
        draw.choice("ab"),
        draw.choice("xxy"),
        gpus,
        nics,
        frozenset(at for at in gpus if draw.random() < busy),
        frozenset(at for at in range(len(nics)) if draw.random() < busy),
        draw.choice((64, 64, 20)),
    )


def objects_of(made: MadeNode) -> tuple[list[Any], list[Any]]:
    """The node with its slice, and the claims that hold what is held."""
    devices = [gpu(at, place=_spot(at)) for at in made.gpus]
    devices += [
        nic(at, place=_spot(switch), **({} if rail < 0 else {"rail": rail}))
        for at, (switch, rail) in enumerate(made.nics)
    ]
    labels = {"fabric.koordra.io/block": made.block, "fabric.koordra.io/spine": made.spine}
    held = [f"gpu-{at}" for at in made.held_gpus] + [f"nic-{at}" for at in made.held_nics]
    results = [
        {"request": "r", "driver": "koordra.io", "pool": made.name, "device": device}
        for device in sorted(held)
    ]
    holders = (
        [allocated(claim(f"held-{made.name}", request("r")), {"devices": {"results": results}})]
        if held
        else []
    )
    taints = [{"key": f"k{at}", "effect": "PreferNoSchedule"} for at in range(made.avoided)]
    there = node(made.name, labels=labels, allocatable={"cpu": str(made.cores)})
    return [{**there, "spec": {"taints": taints}}, slice_of(devices, name=made.name)], holders


def _spot(switch: int) -> dict[str, Any]:
    return {
        "numaNode": 0,
        "socket": 0,
        "pcieSwitch": f"0000:{switch:02x}:00.0",
        "resource.kubernetes.io/pcieRoot": f"pci0000:{switch:02x}",
        "resource.kubernetes.io/pciBusID": None,
    }


def member_of(name: str, sort: Sort) -> NewMember:
    asked = [request("gpu", "gpu", sort.gpus)] if sort.gpus else []
    asked += [request("nic", "nic", sort.nics)] if sort.nics else []
    configs = [joint("PCIeRoot")] if sort.paired else []
    own = [claim(name, *asked, configs=configs)] if asked else []
    return member(
        f"default/{name}", [pod(name, *([name] if own else []), requests={"cpu": str(sort.cores)})], own
    )


@cache
def devices_for(made: MadeNode, sorts: tuple[Sort, ...], rails: frozenset[int]) -> int | None:
    """The least steps apart with which these members fit on the node together on these rails; None: not at
    all."""
    if sum(sort.cores for sort in sorts) > made.cores:
        return None
    gpus = [at for at in made.gpus if at not in made.held_gpus]
    nics = [at for at, (_, rail) in enumerate(made.nics) if at not in made.held_nics and rail in rails]
    return _given(made, sorts, tuple(gpus), tuple(nics))


@cache
def _given(
    made: MadeNode, sorts: tuple[Sort, ...], gpus: tuple[int, ...], nics: tuple[int, ...]
) -> int | None:
    if not sorts:
        return 0
    sort, rest = sorts[0], sorts[1:]
    best: int | None = None
    for mine in itertools.combinations(gpus, sort.gpus):
        for beside in itertools.combinations(nics, sort.nics):
            switches = {made.nics[at][0] for at in beside}
            near = set(mine) <= switches
            if sort.paired and not near:
                continue
            left = _given(
                made,
                rest,
                tuple(at for at in gpus if at not in mine),
                tuple(at for at in nics if at not in beside),
            )
            if left is not None:
                apart = 2 if mine and beside and not near else 0
                best = min(left + apart, best) if best is not None else left + apart
    return best


def best_of_all(
    made: list[MadeNode],
    sorts: list[Sort],
    minimum: int,
    fixed: dict[str, int],
    required: str | None,
    weights: ScoringStrategy | None = None,
) -> tuple[int, ...] | None:
    """The least score over every way to give members nodes and rails, then the taints of the members' nodes
    and what the nodes cost by weights; without what stays spare."""
    every = frozenset(rail for one in made for _, rail in one.nics)
    rail_sets = [
        frozenset(chosen)
        for size in range(len(every) + 1)
        for chosen in itertools.combinations(sorted(every), size)
    ]
    alone = {
        one.name: max(
            len(chosen)
            for size in range(len(sorts) + 1)
            for chosen in itertools.combinations(sorts, size)
            if devices_for(one, tuple(sorted(chosen, key=repr)), every) is not None
        )
        for one in made
    }
    best: tuple[int, ...] | None = None
    for where in itertools.product([None, *range(len(made))], repeat=len(sorts)):
        placed = sum(at is not None for at in where)
        if placed + sum(fixed.values()) < minimum:
            continue
        on = [
            tuple(sorted((sort for sort, at in zip(sorts, where, strict=True) if at == number), key=repr))
            for number in range(len(made))
        ]
        used = [one for number, one in enumerate(made) if on[number] or fixed.get(one.name)]
        if required and len({_domain(one, required) for one in used}) > 1:
            continue
        opened = sum(
            not any(one.held_gpus or one.held_nics or fixed.get(one.name) for one in own)
            and 0
            < sum(len(on[number]) for number, one in enumerate(made) if one in own)
            < sum(alone[one.name] for one in own)
            for domain in {_domain(one, "block") for one in made}
            for own in [[one for one in made if _domain(one, "block") == domain]]
        )
        head = (-placed - sum(fixed.values()),)
        tail = (
            len({one.spine for one in used}),
            len({_domain(one, "block") for one in used}),
            opened,
            len(used),
        )
        for rails in rail_sets:
            aparts = [devices_for(one, on[number], rails) for number, one in enumerate(made) if on[number]]
            if None not in aparts:
                full = sum(full_of(one, on[at], weights) for at, one in enumerate(made) if on[at])
                taints = sum(one.avoided * len(on[at]) for at, one in enumerate(made))
                score = (*head, sum(apart or 0 for apart in aparts), *tail, len(rails), taints, full)
                best = score if best is None else min(best, score)
    return best


def full_of(one: MadeNode, sorts: Sequence[Sort], weights: ScoringStrategy | None) -> int:
    """How full the node is with these members, or how empty, in thousandths, by its definition."""
    if weights is None:
        return 0
    parts = {
        "cpu": 1000 * sum(sort.cores for sort in sorts) // one.cores,
        GPU_MEMORY: 1000 * (len(one.held_gpus) + sum(sort.gpus for sort in sorts)) // len(one.gpus),
    }
    total = sum(weight * parts[name] for name, weight in weights.resources)
    full = total // sum(weight for _, weight in weights.resources)
    return 1000 - full if weights.type is ScoringType.MOST_ALLOCATED else full


def _domain(one: MadeNode, level: str) -> tuple[str, ...]:
    return (one.spine,) if level == "spine" else (one.spine, one.block)


SORTS = (
    Sort(1, 1, True, 4),
    Sort(1, 1, False, 4),
    Sort(2, 2, True, 8),
    Sort(2, 0, False, 8),
    Sort(1, 0, False, 15),
    Sort(0, 0, False, 2),
    Sort(4, 4, True, 16),
)


@pytest.mark.parametrize("twenty", mostly_long(range(10 * HUNDREDS), fast=3))
def test_gangs_get_what_trying_everything_finds(twenty: int) -> None:
    for number in range(20):
        draw = random.Random(20 * twenty + number)
        sorts = draw.sample(SORTS, draw.choice((1, 1, 2)))
        made = [made_node(draw, at, len(sorts)) for at in range(draw.randint(1, 4))]
        asked = [draw.choice(sorts) for _ in range(draw.randint(1, 4))]
        fixed = {draw.choice(made).name: 1} if draw.random() < 0.2 else {}
        required = draw.choice((None, None, "block", "spine"))
        minimum = draw.randint(1, len(asked)) + sum(fixed.values())
        found = placed(draw, made, asked, minimum, fixed, required)
        best = best_of_all(made, asked, minimum, fixed, required)
        if isinstance(found, GangPlaced):
            assert found.proven
            # On one node rails do not matter, and what is spare is the last word among equals.
            until = -2 if found.score.nodes == 1 else -1
            assert best is not None
            assert order_of(found.score)[:until] == best[: len(best) + until - 1], (twenty, number)
        else:
            assert isinstance(found, GangUnsatisfiable), (twenty, number)
            assert best is None, (twenty, number)


@pytest.mark.parametrize("twenty", mostly_long(range(6 * HUNDREDS), fast=2))
def test_of_places_that_are_as_near_taints_and_then_weights_decide(twenty: int) -> None:
    """Without NICs, whose rails come first."""
    for number in range(20):
        draw = random.Random(f"weights {20 * twenty + number}")
        sorts = draw.sample([sort for sort in SORTS if not sort.nics], draw.choice((1, 1, 2)))
        made = [made_node(draw, at, len(sorts)) for at in range(draw.randint(2, 4))]
        asked = [draw.choice(sorts) for _ in range(draw.randint(1, 4))]
        fixed = {draw.choice(made).name: 1} if draw.random() < 0.2 else {}
        weights = (
            ScoringStrategy(draw.choice(list(ScoringType)), (("cpu", draw.choice((1, 3))), (GPU_MEMORY, 2)))
            if draw.random() < 0.7
            else None
        )
        if draw.random() < 0.7:
            made = [replace(one, avoided=draw.choice((0, 0, 1, 2))) for one in made]
        found = placed(draw, made, asked, 1, fixed, None, weights)
        best = best_of_all(made, asked, 1, fixed, None, weights)
        if not isinstance(found, GangPlaced):
            assert best is None, (twenty, number)
            continue
        on: dict[str, list[Sort]] = {}
        for one in found.members:
            on.setdefault(one.node, []).append(asked[int(one.key.removeprefix("default/m"))])
        full = sum(full_of(one, on[one.name], weights) for one in made if one.name in on)
        taints = sum(one.avoided * len(on[one.name]) for one in made if one.name in on)
        assert (*order_of(found.score)[:-1], taints, full) == best, (twenty, number)


def test_of_cards_that_differ_the_ones_that_are_given_count() -> None:
    """Of two nodes with 80 and 40 GiB, one has the small card first: the member takes that, and leaves the
    node emptier."""
    sizes = {"a": ("80Gi", "40Gi"), "b": ("40Gi", "80Gi")}
    objects = [*device_classes()]
    for name, memories in sizes.items():
        cards = [gpu(at, memory=memory, place=_spot(at)) for at, memory in enumerate(memories)]
        objects += [node(name), slice_of(cards, name=name)]
    found = {}
    for kind in ScoringType:
        gang = GangRequest("g", [member_of("m0", Sort(1, 0, False, 1))], 1)
        answer = place_gang(gang, gang_engine(objects, scoring=ScoringStrategy(kind, ((GPU_MEMORY, 1),))))
        assert isinstance(answer, GangPlaced)
        found[kind.value] = answer.members[0].node
    assert found == {"MostAllocated": "a", "LeastAllocated": "b"}


def test_members_that_go_by_different_types_go_by_none() -> None:
    """The members of one node, which is the fullest and the emptiest to nobody: the first by name."""
    objects = [*device_classes()]
    for name, cores in (("a", "32"), ("b", "16"), ("c", "64")):
        cards = [gpu(at, place=_spot(at)) for at in range(2)]
        objects += [node(name, allocatable={"cpu": cores}), slice_of(cards, name=name)]
    nodes = {}
    for words in (
        ("Binpack", "Binpack"),
        ("Spread", "Spread"),
        ("Binpack", "Spread"),
        ("Spread", "FragmentationAware"),
    ):
        members = []
        for at, word in enumerate(words):
            asked = claim(f"m{at}", request("gpu"), configs=[config("PlacementPolicy", node=word)])
            members.append(
                member(f"default/m{at}", [pod(f"m{at}", f"m{at}", requests={"cpu": "4"})], [asked])
            )
        weights = ScoringStrategy(ScoringType.MOST_ALLOCATED, (("cpu", 1),))
        answer = place_gang(GangRequest("g", members, 2), gang_engine(objects, scoring=weights))
        assert isinstance(answer, GangPlaced)
        nodes[words] = {one.node for one in answer.members}
    assert [*nodes.values()] == [{"b"}, {"c"}, {"a"}, {"a"}]


def placed(
    draw: random.Random,
    made: list[MadeNode],
    asked: list[Sort],
    minimum: int,
    fixed: dict[str, int],
    required: str | None,
    weights: ScoringStrategy | None = None,
) -> Any:
    """The answer of `place_gang`, with every object in another order, and checked for devices that are given
    out twice."""
    objects: list[Any] = [*device_classes()]
    for one in made:
        own, holders = objects_of(one)
        objects += [*own, *holders]
    draw.shuffle(objects)
    members = [member_of(f"m{at}", sort) for at, sort in enumerate(asked)]
    draw.shuffle(members)
    gang = GangRequest(
        "g",
        members,
        minimum,
        fixed=tuple(Fixed(f"f-{name}", name) for name in fixed),
        required=required,
    )
    found = place_gang(gang, gang_engine(objects, scoring=weights))
    if isinstance(found, GangPlaced):
        given = [
            (entry["pool"], entry["device"])
            for one in found.members
            for allocation in one.allocations.values()
            for entry in allocation["devices"]["results"]
        ]
        held = {(one.name, f"gpu-{at}") for one in made for at in one.held_gpus} | {
            (one.name, f"nic-{at}") for one in made for at in one.held_nics
        }
        assert len(given) == len(set(given))
        assert not held & set(given)
    return found
