"""What a cluster is asked for: how often each request class came, and the target workload made from it.

The counts are whole numbers. A workload that drifts forgets: when `count` passes `horizon`, all counts are
halved, so that the last one or two horizons decide. The target workload is FGD's: classes by cores, share,
number and models (memory is ignored), the most frequent first until they are 95 % of the pods.

`expected` makes the table of the policy `koordra` from counts of classes (`koordra.simulation.learning` does
it better, by replaying them).

A GPU with r free meets the classes in proportion to their counts; the ones that fit take their share,
for thirty rounds: h(r) <- sum_m p_m [fits ? h(r - s_m) : h(r)], from h(r) = r. Cores and memory per GPU,
blocks and reserved models are plain sums over the counts, and so is the mix of slices, from which
`mig_placement` tells what a cut card is worth. This takes a millisecond and is what a running cluster does as
pods arrive (`Online`).

Before a workload is known the table is empty and the policy is best fit; it may act on few pods, because with
few the recursion mostly knows their own shares, and is made anew whenever the count has grown by a quarter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from koordra.errors import InvalidManifest
from koordra.placement.free_amounts.state import FULL, WHOLE, Request
from koordra.placement.mig.layout import Slice
from koordra.placement.policy.workload_table import (
    MILLION,
    MOST_GPUS,
    MOST_PER_GPU,
    STEP,
    STEPS,
    Block,
    LearnedTable,
    PerGpuDemand,
    SliceDemand,
    amount,
)

POPULAR: Final = 0.95

_MOST: Final = 1 << 40
"""More of anything than any claim that is counted asks for."""


class WorkloadShare(NamedTuple):
    """A class of the target workload and its part of the pods."""

    request: Request
    part: float


class Workload:
    """Counts of request classes."""

    def __init__(self, counts: Iterable[tuple[Request, int]] = (), *, horizon: int | None = None) -> None:
        self.counts: dict[Request, int] = dict(counts)
        self.count = sum(self.counts.values())
        self.horizon = horizon

    @classmethod
    def of(cls, requests: Iterable[Request]) -> Workload:
        return cls(Counter(requests).items())

    def add(self, request: Request, number: int = 1) -> None:
        self.counts[request] = self.counts.get(request, 0) + number
        self.count += number
        if self.horizon is not None and self.count > self.horizon:
            self.halve()

    def halve(self) -> None:
        self.counts = {known: count // 2 for known, count in self.counts.items() if count > 1}
        self.count = sum(self.counts.values())

    def to_document(self, most: int = 2048) -> list[list[Any]]:
        """The most frequent classes, plain, so that somebody can keep them."""
        frequent = sorted(self.counts.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
        return [[count, *request] for request, count in frequent]

    @classmethod
    def from_document(cls, document: Any) -> Workload:
        """Raises InvalidManifest for what is no such document."""
        try:
            return cls(_read(entry) for entry in document)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidManifest(
                f"cannot be read: {error!r}", object="workload", remedy="learn it anew"
            ) from error

    def with_cards(self) -> Iterator[tuple[Request, int]]:
        """Classes that ask for GPUs in any way: as a whole, for shares or for slices."""
        return ((request, count) for request, count in self.ordered() if request.share)

    def ordered(self) -> list[tuple[Request, int]]:
        """By class, so that what is computed does not depend on the order of arrival."""
        return sorted(self.counts.items())

    def popular(self) -> list[WorkloadShare]:
        """The target workload, most frequent first."""
        pooled = Counter[Request]()
        for request, count in self.ordered():
            pooled[request._replace(memory=0, nics=0, percent=0)] += count
        ranked = sorted(pooled.items(), key=lambda entry: (-entry[1], entry[0]))
        total, seen, kept = pooled.total(), 0, []
        for request, count in ranked:
            kept.append((request, count))
            seen += count
            if seen >= POPULAR * total:
                break
        return [WorkloadShare(request, count / seen) for request, count in kept]


def _read(entry: Any) -> tuple[Request, int]:
    count, cpu, memory, gpus, milli, models, nics, percent, slices = entry
    request = Request(
        amount(cpu, _MOST),
        amount(memory, _MOST),
        amount(gpus, MOST_GPUS),
        amount(milli, WHOLE),
        tuple(map(str, models)),
        amount(nics, _MOST),
        amount(percent, FULL),
        tuple(Slice(tuple(map(str, profiles)), amount(size, _MOST)) for profiles, size in slices),
    )
    return request, max(0, int(count))


_ROUNDS_AT_ONCE = 30
_FIRST_LOOK = 32
_HORIZON = 1 << 15
"""Arrivals after which old ones count half; a workload that changes is followed in one or two of these."""


_ALWAYS = 1 << 10
"""Pods of a namespace that count whatever others there are."""
_MOST_CLASSES = 1 << 12


_Holes = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def expected(workload: Workload, capacity: Mapping[str, int]) -> LearnedTable:
    """The table at once. `capacity` is GPUs by model."""
    popular = _popular_with_cards(workload)
    return LearnedTable(
        holes=_recursion(workload),
        cores=_demands(popular, lambda request: request.cpu),
        memory=_demands(popular, lambda request: request.memory),
        nics=_demands(workload.with_cards(), lambda request: request.nics * request.percent),
        blocks=_blocks(workload),
        reserved=_reserved(workload, capacity),
        pods=workload.count,
        slices=_slices(workload),
    )


def _recursion(workload: Workload) -> tuple[int, ...]:
    """In steps of ten thousandths; a share between steps counts as the next larger one."""
    shares = np.zeros(STEPS + 1)
    for request, count in workload.ordered():
        if request.gpus:
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


def _demands(
    classes: Iterable[tuple[Request, int]], amount: Callable[[Request], int]
) -> tuple[PerGpuDemand, ...]:
    """Amount per GPU with the class's part of the GPU demand, of those classes that want some."""
    pooled, total = Counter[int](), 0
    for request, count in classes:
        total += count * request.share
        if wanted := amount(request):
            pooled[min(MOST_PER_GPU, wanted * WHOLE // request.share)] += count * request.share
    return tuple(PerGpuDemand(per_gpu, part * MILLION // total) for per_gpu, part in sorted(pooled.items()))


def _popular_with_cards(workload: Workload) -> list[tuple[Request, int]]:
    """GPU classes of the target workload, with memory; the rare ones are left out as FGD leaves them out."""
    popular = {one.request for one in workload.popular()}
    return [
        (request, count)
        for request, count in workload.with_cards()
        if request._replace(memory=0, nics=0, percent=0) in popular
    ]


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
    wanted = defaultdict[str, float](float)
    for request, count in workload.with_cards():
        room = sum(capacity.get(model, 0) for model in request.models)
        for model in request.models if room else ():
            wanted[model] += request.share * count * capacity.get(model, 0) / room
    return {
        model: min(1000, round(1000 * amount / demand * there / capacity[model]))
        for model, amount in sorted(wanted.items())
        if capacity.get(model)
    }


def _slices(workload: Workload) -> tuple[SliceDemand, ...]:
    counts = Counter[Slice]()
    for request, count in workload.ordered():
        for one in request.slices:
            counts[one] += count
    return tuple(
        SliceDemand(*one, count * MILLION // counts.total()) for one, count in sorted(counts.items())
    )


def together(of: Mapping[str, Workload]) -> Workload:
    """One workload of those of several namespaces. None of them counts for more than all others, or for more
    than _ALWAYS where those are fewer; alone, one counts as it is."""
    total = sum(one.count for one in of.values())
    pooled = Counter[Request]()
    for _, one in sorted(of.items()):
        most = one.count if len(of) == 1 else max(total - one.count, _ALWAYS)
        for request, count in one.counts.items():
            pooled[request] += count * most // one.count if one.count > most else count
    return Workload((+pooled).items())


Moves = Mapping[str, Mapping[int, Mapping[int, int]]]
"""By namespace and thousandths of a GPU that pods asked for: of how many of them the jobs will ask for how
many thousandths when they come again."""


def foreseen(of: Mapping[str, Workload], moves: Moves) -> dict[str, Workload]:
    """What will be asked for: the counts of shares in the parts of the moves. Who has no profile is taken to
    do what those did that asked for the same share; what is of its right size moves to itself, so nothing is
    moved twice."""
    return {
        namespace: _moved(workload, moves[namespace]) if moves.get(namespace) else workload
        for namespace, workload in of.items()
    }


def _moved(workload: Workload, moves: Mapping[int, Mapping[int, int]]) -> Workload:
    found = Counter[Request]()
    for request, count in workload.counts.items():
        is_share = request.gpus == 1 and request.milli < WHOLE
        to = (moves.get(request.milli) if is_share else None) or {request.milli: 1}
        left, pods = count, sum(to.values())
        for milli, part in sorted(to.items()):
            moved = left * part // pods
            found[request._replace(milli=milli)] += moved
            left, pods = left - moved, pods - part
    return Workload((+found).items())


class Online:
    """Learns at once, from what arrives. `capacity`: GPUs by model; `of`: what was counted, by namespace;
    `moves`: what of it will be asked for otherwise.

    A namespace forgets by its own horizon, and where there are more classes than _MOST_CLASSES, the namespace
    with the most of them forgets half.
    """

    def __init__(self, capacity: Mapping[str, int]) -> None:
        self.capacity = capacity
        self.of: dict[str, Workload] = {}
        self.moves: Moves = {}
        self._arrived, self._next = 0, _FIRST_LOOK

    @property
    def workload(self) -> Workload:
        """By which the table is made."""
        return together(foreseen(self.of, self.moves))

    def observe(self, request: Request, namespace: str = "") -> LearnedTable | None:
        """Count the request; a table that was made anew, where it is time for one."""
        self.of.setdefault(namespace, Workload(horizon=_HORIZON)).add(request)
        if sum(len(one.counts) for one in self.of.values()) > _MOST_CLASSES:
            varied = max(sorted(self.of), key=lambda name: len(self.of[name].counts))
            self.of[varied].halve()
            if not self.of[varied].count:
                del self.of[varied]
        self._arrived += 1
        if self._arrived < self._next:
            return None
        self._next = self._after(self._arrived)
        return expected(self.workload, self.capacity)

    @staticmethod
    def _after(arrived: int) -> int:
        return arrived + min(arrived // 4 + 1, _HORIZON // 16)

    def resume(self, counts: Mapping[str, Workload]) -> None:
        """Go on from what an earlier life has counted."""
        self.of = {
            name: Workload(one.counts.items(), horizon=_HORIZON) for name, one in counts.items() if one.count
        }
        self._arrived = sum(one.count for one in self.of.values())
        self._next = max(_FIRST_LOOK, self._after(self._arrived))
