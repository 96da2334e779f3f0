"""What the controller did while a claim waited for it: the time from a claim's arrival to its allocation, by part.

    watch    from the last event of the claim and its pods, as their caches took it, to the pass that takes it up
    decide   that pass's own work until the claim was allocated
    encode   the JSON of what was written in that time
    write    the API server's answers in that time

There is one worker, so every moment of the way belongs to one part, and the four add up. Claims that come before this
one in the same pass count: their writes are what it waited for. A claim that waited for more than the controller (for
room, say, or because somebody else wrote first) is not counted here; `koordra_controller_allocation_seconds` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from koordra.api import objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object

WATCH: Final = "watch"
DECIDE: Final = "decide"
ENCODE: Final = "encode"
WRITE: Final = "write"
PARTS: Final = (WATCH, DECIDE, ENCODE, WRITE)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A pass began: when, and what had been spent until then."""

    at: float
    encoded: float
    written: float


class LatencyBreakdown:
    """`observe` may be called by any thread, the rest by the worker. `clock` is monotonic."""

    def __init__(self, *, clock: Callable[[], float], observe: Callable[[Mapping[str, float]], None]) -> None:
        self._clock = clock
        self._observe = observe
        self._arrivals: dict[str, float] = {}
        self._spent = {ENCODE: 0.0, WRITE: 0.0}
        self._begun = _Begun(clock(), 0.0, 0.0)

    def begin_term(self) -> None:
        """Nothing has arrived yet."""
        self._arrivals.clear()

    def observe(self, kind: Kind, event: str, obj: Object) -> None:
        """An event, as its cache took it. A claim counts from its creation, a pod from its last change: it is told
        later what its template's claims are called."""
        if event == "DELETED":
            self._arrivals.pop(objects.uid(obj), None)
        elif kind is PODS or (kind is RESOURCE_CLAIMS and event == "ADDED"):
            self._arrivals[objects.uid(obj)] = self._clock()

    def pass_begins(self) -> None:
        self._begun = _Begun(self._clock(), self._spent[ENCODE], self._spent[WRITE])

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """The worker encodes, or waits for an answer."""
        started = self._clock()
        try:
            yield
        finally:
            self._spent[part] += self._clock() - started

    def allocated(self, claim: Object, pods: Iterable[Object]) -> None:
        """A claim that this pass took up has its devices. `claim` and `pods` as they were when it was planned."""
        known = [self._arrivals.get(objects.uid(obj)) for obj in (claim, *pods)]
        arrivals = [at for at in known if at is not None and at <= self._begun.at]
        if not arrivals:
            return
        encode = self._spent[ENCODE] - self._begun.encoded
        write = self._spent[WRITE] - self._begun.written
        decide = max(0.0, self._clock() - self._begun.at - encode - write)
        watch = self._begun.at - max(arrivals)
        self._observe({WATCH: watch, DECIDE: decide, ENCODE: encode, WRITE: write})
