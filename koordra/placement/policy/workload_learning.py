"""How the table of the policy `koordra` is learned from counts of classes (`koordra.simulation.learning` does it better, by replaying them).

A GPU with r free meets the classes in proportion to their counts; the ones that fit take their share,
for thirty rounds: h(r) <- sum_m p_m [fits ? h(r - s_m) : h(r)], from h(r) = r. Cores and memory per GPU, blocks and reserved
models are plain sums over the counts, and so is the mix of slices, from which `mig_placement` tells what a cut card is worth. This takes a millisecond and is what a running cluster does as pods arrive (`Online`).

Before a workload is known the table is empty and the policy is best fit; it may act on few pods, because with few the recursion
mostly knows their own shares, and is made anew whenever the count has grown by a quarter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from koordra.placement.free_amounts.state import WHOLE, Request, Slice
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_table import (
    MILLION,
    MOST_PER_GPU,
    STEP,
    STEPS,
    Block,
    Demand,
    LearnedTable,
    SliceDemand,
)

_ROUNDS_AT_ONCE = 30
_FIRST_LOOK = 32
_HORIZON = 1 << 15
"""Arrivals after which old ones count half; a workload that changes is followed within one or two of these."""


_Holes = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def expected(workload: Workload, capacity: Mapping[str, int]) -> LearnedTable:
    """The table at once. `capacity` is GPUs by model."""
    return LearnedTable(
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
        return LearnedTable().holes
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
    """Learns at once, from what arrives. `capacity`: GPUs by model."""

    def __init__(self, capacity: Mapping[str, int]) -> None:
        self.capacity = capacity
        self.workload = Workload(horizon=_HORIZON)
        self._arrived, self._next = 0, _FIRST_LOOK

    def observe(self, request: Request) -> LearnedTable | None:
        """Count the request; a table that was made anew, where it is time for one."""
        self.workload.add(request)
        self._arrived += 1
        if self._arrived < self._next:
            return None
        self._next = self._after(self._arrived)
        return expected(self.workload, self.capacity)

    @staticmethod
    def _after(arrived: int) -> int:
        return arrived + min(arrived // 4 + 1, _HORIZON // 16)

    def resume(self, counts: Workload) -> None:
        """Go on from what an earlier life has counted."""
        self.workload = Workload(counts.counts.items(), horizon=_HORIZON)
        self._arrived = self.workload.count
        self._next = max(_FIRST_LOOK, self._after(self._arrived))
