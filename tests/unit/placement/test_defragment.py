"""The moves are the fewest: compared with every set of pods in every new place, on small clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import pytest

from koordra.placement.defragment import moves
from koordra.placement.defragment.emptying import Pod, Shape, without
from koordra.placement.defragment.moves import Freed, defragment, shapes_free
from koordra.placement.free_amounts.state import Choice, FreeAmounts, MachineType, Request, after
from koordra.topology import presets
from koordra.topology.levels import Level
from tests.fakes.defragmented import carried_out, empty, filled
from tests.fakes.machine_shapes import shape_of_machine

KINDS = (MachineType("", 2), MachineType("", 3))


def _cluster(seed: int) -> tuple[list[FreeAmounts], list[Pod]]:
    """Three or four nodes of two or three GPUs and as many NICs, with pods where they happen to be."""
    generator = np.random.default_rng(seed)
    nodes: list[FreeAmounts] = []
    for _ in range(int(generator.integers(3, 5))):
        kind = int(generator.integers(2))
        gpus = KINDS[kind].gpus
        nodes.append(FreeAmounts(kind, 8000, 8000, (1000,) * gpus, (100,) * gpus))
    pods: list[Pod] = []
    for number in range(int(generator.integers(4, 8))):
        milli = (1000, 500, 700, 300)[int(generator.integers(4))]
        nics = int(generator.integers(2))
        request = Request(1000 * int(generator.integers(1, 4)), 0, 1, milli, (), nics, 50 * nics)
        homes = [
            (node, gpu, nic)
            for node, state in enumerate(nodes)
            if state.cpu >= request.cpu
            for gpu, free in enumerate(state.gpus)
            if free >= milli
            for nic, left in enumerate(state.nics)
            if left >= request.percent
        ]
        if homes:
            node, gpu, nic = homes[int(generator.integers(len(homes)))]
            ports = (nic,) if nics else ()
            nodes[node] = after(nodes[node], request, Choice((gpu,), ports))
            pods.append(Pod(f"p{number}", node, request, (gpu,), ports))
    return nodes, pods


def _fewest(nodes: Sequence[FreeAmounts], pods: Sequence[Pod], shape: Shape) -> int | None:
    """Every set of pods taken away, every place for the shape, every new place for the pods."""
    for count in range(len(pods) + 1):
        for chosen in combinations(range(len(pods)), count):
            emptied = list(nodes)
            for number in chosen:
                pod = pods[number]
                taken = pod.request
                back = taken._replace(cpu=-taken.cpu, milli=-taken.milli, percent=-taken.percent)
                emptied[pod.node] = after(emptied[pod.node], back, Choice(pod.gpus, pod.nics))
            for node, state in enumerate(emptied):
                gpus = [at for at, free in enumerate(state.gpus) if free == 1000]
                nics = [at for at, free in enumerate(state.nics) if free == 100]
                for some in combinations(gpus, shape.gpus):
                    for ports in combinations(nics, shape.nics):
                        kept = list(emptied)
                        kept[node] = state._replace(
                            gpus=tuple(0 if at in some else free for at, free in enumerate(state.gpus)),
                            nics=tuple(0 if at in ports else free for at, free in enumerate(state.nics)),
                        )
                        if _housed([pods[number].request for number in chosen], kept):
                            return count
    return None


def _housed(requests: Sequence[Request], nodes: list[FreeAmounts]) -> bool:
    if not requests:
        return True
    request = requests[0]
    for node, state in enumerate(nodes):
        if state.cpu < request.cpu:
            continue
        for gpu, free in enumerate(state.gpus):
            for nic in range(len(state.nics)) if request.nics else (0,):
                if free < request.milli or (request.nics and state.nics[nic] < request.percent):
                    continue
                changed = list(nodes)
                changed[node] = after(state, request, Choice((gpu,), (nic,) if request.nics else ()))
                if _housed(requests[1:], changed):
                    return True
    return False


@pytest.mark.parametrize("seed", range(40))
def test_the_moves_are_the_fewest(seed: int) -> None:
    nodes, pods = _cluster(seed)
    shape = Shape(gpus=2, nics=2 if seed % 2 else 1, scope=Level.SYS)
    found = defragment(KINDS, nodes, pods, shape)
    fewest = _fewest(nodes, pods, shape)
    assert (None if found is None else len(found.moves)) == fewest
    if found is not None:
        assert len(found.moves) == found.at_least
        _check(nodes, found, shape)


def test_other_pods_are_moved_to_make_room() -> None:
    """The pod in the way fits nowhere until a small one elsewhere steps aside; what else is in use belongs to
    nobody who may move."""
    nodes = [
        FreeAmounts(0, 8000, 0, (0, 1000)),
        FreeAmounts(0, 8000, 0, (700, 0)),
        FreeAmounts(0, 8000, 0, (300, 0)),
    ]
    pods = [
        Pod("big", 0, Request(0, 0, 1, 1000), (0,)),
        Pod("small", 1, Request(0, 0, 1, 300), (0,)),
    ]
    found = defragment(KINDS, nodes, pods, Shape(gpus=2))
    assert found is not None
    assert sorted(move.pod.name for move in found.moves) == ["big", "small"]
    assert (found.site.node, found.at_least, len(found.moves)) == (0, 2, 2)


def test_nothing_to_move_where_the_shape_is_free() -> None:
    found = defragment(KINDS, [FreeAmounts(0, 0, 0, (1000, 1000))], [], Shape(gpus=2))
    assert found is not None
    assert found.moves == ()
    assert len(found.moves) == found.at_least


def test_a_broken_device_frees_nothing() -> None:
    assert defragment(KINDS, [FreeAmounts(0, 0, 0, (1000, 0))], [], Shape(gpus=2)) is None


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-a100"])
@pytest.mark.parametrize("count", [16, 60, 200])
def test_a_cluster_at_90_percent_after_departures(machine: str, count: int) -> None:
    """Eight GPUs with eight NICs on one node; stated bound: at most one move more than no answer can be
    below."""
    shape = shape_of_machine(presets.load(machine).machine(serial="a"))
    kinds, nodes = (MachineType("", shape.gpus, shape),), [empty(shape)] * count
    generator = np.random.default_rng(count)
    pods: list[Pod] = []
    given = refused = 0
    while refused < 30:
        milli = (1000, 1000, 500, 250)[int(generator.integers(4))]
        nics = int(generator.integers(2))
        placed = filled(nodes, Request(2000, 4096, 1, milli, (), nics, 50 * nics), f"p{len(pods)}")
        refused += placed is None
        if placed is not None:
            pods.append(placed)
            given += milli
    while given > 900 * shape.gpus * count:
        placed = pods.pop(int(generator.integers(len(pods))))
        nodes[placed.node] = without(nodes[placed.node], placed)
        given -= placed.request.share
    wanted = Shape(gpus=8, nics=8, scope=Level.SYS)
    found = defragment(kinds, nodes, pods, wanted)
    assert found is not None
    assert found.at_least <= len(found.moves) <= found.at_least + 1
    _check(nodes, found, wanted)
    now = carried_out(nodes, found)
    assert shapes_free(kinds, nodes, wanted) == 0
    assert sum(len([free for free in state.gpus if free < 0]) for state in now if state is not None) == 0


def test_the_answer_says_what_is_gained() -> None:
    nodes = [
        FreeAmounts(0, 8000, 0, (1000, 1000)),
        FreeAmounts(0, 8000, 0, (0, 1000)),
        FreeAmounts(0, 8000, 0, (500, 1000)),
    ]
    assert shapes_free(KINDS, nodes, Shape(gpus=2)) == 1
    assert shapes_free(KINDS, nodes, Shape(gpus=1)) == 4


def test_where_nics_are_lacking_no_sets_of_gpus_are_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 16 GPUs has 12,870 sets of eight."""

    def counted(positions: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
        for number, chosen in enumerate(combinations(positions, size)):
            assert number < 100
            yield chosen

    monkeypatch.setattr(moves, "combinations", counted)
    state = FreeAmounts(0, 8000, 8000, (1000,) * 16, (100,) * 7 + (50,))
    assert list(moves.ways(state, Request(0, 0, 8, 1000, nics=8, percent=100))) == []


def _check(nodes: Sequence[FreeAmounts], found: Freed, shape: Shape) -> None:
    """The moves as carried out: the shape is free, nobody has more than there is."""
    assert (len(found.site.gpus), len(found.site.nics)) == (shape.gpus, shape.nics)
    now = list(nodes)
    for move in found.moves:
        taken = move.pod.request
        back = taken._replace(
            cpu=-taken.cpu, memory=-taken.memory, milli=-taken.milli, percent=-taken.percent
        )
        now[move.pod.node] = after(now[move.pod.node], back, Choice(move.pod.gpus, move.pod.nics))
    site = now[found.site.node]
    assert all(site.gpus[at] == 1000 for at in found.site.gpus)
    assert all(site.nics[at] == 100 for at in found.site.nics)
