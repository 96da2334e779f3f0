"""What a cluster is asked for: how often each request class came, and the target workload made from it.

The counts are whole numbers. A workload that drifts forgets: when `count` passes `horizon`, all counts are halved, so that the
last one or two horizons decide. The target workload is FGD's: classes by cores, share, number and models (memory is ignored),
the most frequent first until they are 95 % of the pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from koordra.errors import InvalidManifest
from koordra.placement.free_amounts.state import FULL, WHOLE, Request, Slice

POPULAR: Final = 0.95

_MOST: Final = 1 << 40
_MOST_GPUS: Final = 1 << 10
"""More than any claim that is counted asks for."""


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
        found = cls()
        for request in requests:
            found.add(request)
        return found

    def add(self, request: Request) -> None:
        self.counts[request] = self.counts.get(request, 0) + 1
        self.count += 1
        if self.horizon is not None and self.count > self.horizon:
            self.counts = {known: count // 2 for known, count in self.counts.items() if count > 1}
            self.count = sum(self.counts.values())

    def to_document(self, most: int = 2048) -> list[list[Any]]:
        """The most frequent classes, plain, so that somebody can keep them."""
        frequent = sorted(self.counts.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
        return [_written(request, count) for request, count in frequent]

    @classmethod
    def from_document(cls, document: Any) -> Workload:
        """Raises InvalidManifest for what is no such document."""
        try:
            return cls(_read(entry) for entry in document)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidManifest(
                f"cannot be read: {error!r}", object="workload", remedy="learn it anew"
            ) from error

    def with_gpus(self) -> Iterator[tuple[Request, int]]:
        """Classes that ask for GPUs as a whole or for shares."""
        return ((request, count) for request, count in self.ordered() if request.gpus)

    def with_cards(self) -> Iterator[tuple[Request, int]]:
        """Classes that ask for GPUs in any way, slices too."""
        return ((request, count) for request, count in self.ordered() if request.share)

    def ordered(self) -> list[tuple[Request, int]]:
        """By class, so that what is computed does not depend on the order of arrival."""
        return sorted(self.counts.items())

    def popular(self) -> list[WorkloadShare]:
        """The target workload, most frequent first."""
        pooled: dict[Request, int] = {}
        for request, count in self.ordered():
            plain = request._replace(memory=0, nics=0, percent=0)
            pooled[plain] = pooled.get(plain, 0) + count
        ranked = sorted(pooled.items(), key=lambda entry: (-entry[1], entry[0]))
        total, seen, kept = sum(pooled.values()), 0, []
        for request, count in ranked:
            kept.append((request, count))
            seen += count
            if seen >= POPULAR * total:
                break
        return [WorkloadShare(request, count / seen) for request, count in kept]


def _written(request: Request, count: int) -> list[Any]:
    """Slices come last, and only where there are some: earlier versions read what they know, and a set of nodes (-1: any) before."""
    plain = [count, *request[:4], list(request.models), request.nics, request.percent, -1]
    slices = [[list(one.profiles), one.milli] for one in request.slices]
    return [*plain, slices] if slices else plain


def _read(entry: Any) -> tuple[Request, int]:
    count, cpu, memory, gpus, milli, models, nics, percent, _nodes, *slices = entry
    if len(slices) > 1:
        raise ValueError(f"{len(entry)} fields")
    request = Request(
        int(cpu),
        int(memory),
        int(gpus),
        int(milli),
        tuple(map(str, models)),
        int(nics),
        int(percent),
        tuple(Slice(tuple(map(str, profiles)), int(size)) for found in slices for profiles, size in found),
    )
    amounts = (request.cpu, request.memory, request.nics, *(one.milli for one in request.slices))
    if min(amounts) < 0 or max(amounts) > _MOST or not 0 <= request.gpus <= _MOST_GPUS:
        raise ValueError(f"{request} asks for more, or less, than there can be")
    if not (0 <= request.milli <= WHOLE and 0 <= request.percent <= FULL):
        raise ValueError(f"{request} asks for more, or less, than all of a device")
    return request, max(0, int(count))
