"""How the table of the policy `koordra` is learned: from counts of classes at once, and better by replaying them.

At once (`expected`). A GPU with r free meets the classes in proportion to their counts; the ones that fit take their share,
for thirty rounds: h(r) <- sum_m p_m [fits ? h(r - s_m) : h(r)], from h(r) = r. Cores and memory per GPU, blocks and reserved
models are plain sums over the counts, and so is the mix of slices, from which `mig_placement` tells what a cut card is worth. This takes a millisecond and is what a running cluster does as pods arrive (`Online`).

By replaying (`Replayed`). Streams drawn from the counts, of 100 % of the capacity, are placed on an empty copy of the fleet by
the policy itself; every free share that a GPU passed through votes with what the GPU had left in the end, five votes go to
the value at once. Half of the result is mixed in per round; the mean of the last rounds is the table.

Before a workload is known the table is empty and the policy is best fit; it may act on few pods, because with few the recursion
mostly knows their own shares, and is made anew whenever the count has grown by a quarter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from koordra.placement.columns.fleet import Fleet
from koordra.placement.columns.state import WHOLE, Kind, Request, Slice, State
from koordra.placement.policy.expected_waste import ExpectedWaste
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_table import (
    MILLION,
    MOST_PER_GPU,
    STEP,
    STEPS,
    Block,
    Demand,
    SliceDemand,
    Table,
)

_ROUNDS_AT_ONCE = 30
_VOTES = 5
_FIRST_LOOK = 32
_HORIZON = 1 << 15
"""Arrivals after which old ones count half; a workload that changes is followed within one or two of these."""


_Holes = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def expected(workload: Workload, capacity: Mapping[str, int]) -> Table:
    """The table at once. `capacity` is GPUs by model."""
    return Table(
        holes=_recursion(workload),
        cores=_demands(workload, lambda request: request.cpu),
        memory=_demands(workload, lambda request: request.memory),
        nics=_nics(workload),
        blocks=_blocks(workload),
        reserved=_reserved(workload, capacity),
        pods=workload.count,
        slices=_slices(workload),
    )


def _recursion(workload: Workload) -> tuple[int, ...]:
    """In steps of ten thousandths; a share between steps counts as the next larger one."""
    shares = np.zeros(STEPS + 1)
    for request, count in workload.with_gpus():
        shares[-(-request.milli // STEP)] += count
    if not shares.any():
        return Table().holes
    shares /= shares.sum()
    steps = np.arange(STEPS + 1)
    smaller = steps[:, None] - steps
    # Row r: what fits leaves less, by its share; what does not fit leaves r.
    passed = np.where(smaller >= 0, shares[np.maximum(smaller, 0)], 0.0)
    passed[steps, steps] += [shares[free + 1 :].sum() for free in steps]
    hole: _Holes = np.arange(STEPS + 1, dtype=np.float64) * STEP
    for _ in range(_ROUNDS_AT_ONCE):
        hole = passed @ hole
    return _whole_numbers(hole)


def _whole_numbers(hole: _Holes) -> tuple[int, ...]:
    """Rounded to what survives differences of the last bits between platforms."""
    return tuple(int(round(float(value), 3) * 1000) for value in hole)


def _demands(workload: Workload, amount: Callable[[Request], int]) -> tuple[Demand, ...]:
    """Amount per GPU with the class's part of the GPU demand, over the popular classes that want some."""
    pooled: dict[int, int] = {}
    for request, count in _popular_with_cards(workload):
        per_gpu = min(MOST_PER_GPU, amount(request) * WHOLE // request.share)
        pooled[per_gpu] = pooled.get(per_gpu, 0) + count * request.share
    total = sum(pooled.values())
    return tuple(Demand(per_gpu, part * MILLION // total) for per_gpu, part in sorted(pooled.items()))


def _popular_with_cards(workload: Workload) -> list[tuple[Request, int]]:
    """GPU classes of the target workload, with memory; the rare ones are left out as FGD leaves them out."""
    popular = {one.request for one in workload.popular()}
    return [
        (request, count)
        for request, count in workload.with_cards()
        if request._replace(memory=0, nics=0, percent=0) in popular
    ]


def _nics(workload: Workload) -> tuple[Demand, ...]:
    pooled: dict[int, int] = {}
    total = 0
    for request, count in workload.with_cards():
        total += count * request.share
        if request.nics:
            per_gpu = min(MOST_PER_GPU, request.nics * request.percent * WHOLE // request.share)
            pooled[per_gpu] = pooled.get(per_gpu, 0) + count * request.share
    return tuple(Demand(per_gpu, part * MILLION // total) for per_gpu, part in sorted(pooled.items()))


def _blocks(workload: Workload) -> tuple[Block, ...]:
    return tuple(
        Block(one.request.gpus, one.request.cpu, one.request.models, round(one.part * MILLION))
        for one in sorted(workload.popular())
        if one.request.gpus > 1
    )


def _reserved(workload: Workload, capacity: Mapping[str, int]) -> dict[str, int]:
    """Demand of constrained pods per model, a list split by capacity, at a load of 100 %, per capacity."""
    demand = sum(request.share * count for request, count in workload.with_cards())
    there = sum(capacity.values())
    wanted: dict[str, float] = {}
    for request, count in workload.with_cards():
        room = sum(capacity.get(model, 0) for model in request.models)
        if not room:
            continue
        for model in request.models:
            part = request.share * count * capacity.get(model, 0) / room
            wanted[model] = wanted.get(model, 0) + part
    return {
        model: min(1000, round(1000 * amount / demand * there / capacity[model]))
        for model, amount in sorted(wanted.items())
        if capacity.get(model)
    }


def _slices(workload: Workload) -> tuple[SliceDemand, ...]:
    counts: dict[Slice, int] = {}
    for request, count in workload.ordered():
        for one in request.slices:
            counts[one] = counts.get(one, 0) + count
    total = sum(counts.values())
    return tuple(
        SliceDemand(one.profiles, one.milli, count * MILLION // total)
        for one, count in sorted(counts.items())
    )


class Online:
    """Learns at once, from what arrives. `observe` says when the table was made anew; the fleet must then be told."""

    def __init__(
        self, policy: ExpectedWaste, capacity: Mapping[str, int], *, workload: Workload | None = None
    ) -> None:
        self.policy, self.capacity = policy, capacity
        self.workload = Workload(horizon=_HORIZON) if workload is None else workload
        self._arrived = self.workload.count
        self._next = _FIRST_LOOK if self._arrived < _FIRST_LOOK else self._after(self._arrived)

    def observe(self, request: Request) -> bool:
        self.workload.add(request)
        self._arrived += 1
        if self._arrived < self._next:
            return False
        self._next = self._after(self._arrived)
        self.policy.learn(expected(self.workload, self.capacity))
        return True

    @staticmethod
    def _after(arrived: int) -> int:
        return arrived + min(arrived // 4 + 1, _HORIZON // 16)

    def resume(self, counts: Workload) -> None:
        """Go on from what an earlier life has counted."""
        self.workload = Workload(counts.counts.items(), horizon=_HORIZON)
        self._arrived = self.workload.count
        self._next = max(_FIRST_LOOK, self._after(self._arrived))


def capacity_of(kinds: Sequence[Kind], nodes: Sequence[State | None]) -> dict[str, int]:
    """GPUs by model."""
    found: dict[str, int] = {}
    for state in nodes:
        if state is not None:
            kind = kinds[state.kind]
            found[kind.model] = found.get(kind.model, 0) + kind.gpus
    return dict(sorted(found.items()))


def replayed(
    workload: Workload,
    kinds: Sequence[Kind],
    nodes: Sequence[State],
    *,
    rounds: int = 12,
    streams: int = 4,
    generators: Callable[[int], np.random.Generator],
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Table:
    """The table by replaying on empty `nodes`. `generators(i)` makes the i-th stream's randomness; `progress` is
    called with the number of streams done and of all."""
    table = expected(workload, capacity_of(kinds, nodes))
    first = np.array(table.holes, dtype=np.float64)
    hole, late = first.copy(), []
    drawn = [_stream(workload, kinds, nodes, generators(number)) for number in range(streams)]
    for round_number in range(rounds):
        sums, visits = _VOTES * first, np.full(len(first), float(_VOTES))
        for number, stream in enumerate(drawn):
            progress(round_number * streams + number, rounds * streams)
            policy = ExpectedWaste(replace(table, holes=tuple(int(value) for value in hole)))
            _vote(Fleet(kinds, nodes, policy), stream, sums, visits)
        hole = 0.5 * hole + 0.5 * sums / visits
        if round_number >= rounds // 2:
            late.append(hole)
    return replace(table, holes=tuple(int(value) for value in np.mean(late, axis=0)))


def _stream(
    workload: Workload, kinds: Sequence[Kind], nodes: Sequence[State], generator: np.random.Generator
) -> list[Request]:
    """Requests drawn by their counts until they ask for the fleet's capacity."""
    counted = workload.ordered()
    parts = np.array([count for _, count in counted], dtype=np.float64)
    capacity = sum(sum(state.gpus) + WHOLE * _cut(kinds[state.kind]) for state in nodes)
    found: list[Request] = []
    asked = 0
    while asked < capacity:
        for at in generator.choice(len(counted), size=256, p=parts / parts.sum()):
            request = counted[int(at)][0]
            asked += request.share
            if asked > capacity:
                break
            found.append(request)
    return found


def _cut(kind: Kind) -> int:
    """Cards that may be cut. They have no free share; what they are worth is not voted for (`mig_placement`)."""
    return sum(layout is not None for layout in kind.layouts)


_Votes = np.ndarray[tuple[int], np.dtype[np.float64]]


def _vote(fleet: Fleet, stream: Sequence[Request], sums: _Votes, visits: _Votes) -> None:
    """Place the stream; each free share that a GPU passed through votes with what was left in the end."""
    passed: dict[tuple[int, int], list[int]] = {}
    for request in stream:
        placement = fleet.place(request)
        if placement is None:
            continue
        state = fleet.nodes[placement.node]
        assert state is not None
        for gpu in placement.gpus:
            passed.setdefault((placement.node, gpu), [WHOLE // STEP]).append(state.gpus[gpu] // STEP)
    shared = (len(state.gpus) - _cut(fleet.kinds[state.kind]) for state in fleet.nodes if state is not None)
    untouched = sum(shared) - len(passed)
    sums[STEPS] += untouched * WHOLE * 1000
    visits[STEPS] += untouched
    for steps in passed.values():
        left = steps[-1] * STEP * 1000
        for step in steps:
            sums[step] += left
            visits[step] += 1
