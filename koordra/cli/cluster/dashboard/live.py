"""The cluster's objects, kept current by one watch a kind, and what is worked out of them for whoever looks.

What it costs does not depend on how many look: the API server has the watches and nothing else; one page is
made at a time and kept for as long as what it shows; and of a core

    what pages show   is worked out when somebody looks and something has changed, and then not for PERIOD
                      seconds, or for REST times as long as it took
    a page            half of the time at most goes into making pages

Who comes while MOST_WAITING others wait is told to come again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, Generic, TypeVar

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.api.tables import SizedCache
from koordra.cli.cluster.controller_answers import NAMESPACE
from koordra.cli.cluster.dashboard.cells import Cells, Listed
from koordra.cli.cluster.dashboard.fleet import Fleet
from koordra.cli.cluster.dashboard.pages.address import Address, OfFleet
from koordra.cli.cluster.dashboard.snapshot import Snapshot
from koordra.controller.allocation.learned.leftover_store import NAME
from koordra.controller.cache.changes import NEEDED, OPTIONAL
from koordra.controller.cache.kept_fields import kept_of
from koordra.controller.gangs.seats.job_owner import JOBS
from koordra.controller.reporting.claim_events import ALLOCATION_REFUSED
from koordra.effort import counted
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache
from koordra.placement.candidates.node_scoring import ScoringStrategy
from koordra.topology.network_topology import Levels

PERIOD: Final = 10.0
REST: Final = 9.0
MOST_WAITING: Final = 16
MOST_KEPT: Final = 16 << 20
"""Bytes of pages that are kept: of the fleet, and of all others."""
SELECTORS: Final = 500_000
"""Units of CEL that the selectors of one page may cost."""

Moment = tuple[int, Listed]
"""All objects, with a number that is another one when they have changed."""
_Shown = TypeVar("_Shown", Fleet, Snapshot)


class Busy(ApiError):
    """Others have asked first, or the cluster is still being read."""


class _Kept(Generic[_Shown]):
    """What pages show, and the pages. Not thread-safe."""

    def __init__(self, make: Callable[[Listed], _Shown], clock: Callable[[], float]) -> None:
        self._make: Callable[[Listed], _Shown] = make
        self._clock = clock
        self._shown: _Shown | None = None
        self._number, self._again = -1, 0.0
        self.pages = SizedCache[Any, bytes](MOST_KEPT)

    def newest(self, objects: Callable[[], Moment | None]) -> _Shown:
        if self._shown is not None and self._clock() < self._again:
            return self._shown
        began, moment = self._clock(), objects()
        if moment is None and self._shown is None:
            raise Busy("the cluster is being read; come again", code=503, reason="NotReady")
        if moment is not None and moment[0] != self._number:
            self._shown, self._number = self._make(moment[1]), moment[0]
            self.pages.clear()
            ended = self._clock()
            self._again = ended + max(PERIOD, REST * (ended - began))
        assert self._shown is not None
        return self._shown


class Live:
    """Thread-safe. `clock` is monotonic, `pause` waits so many seconds of it."""

    def __init__(
        self,
        objects: Callable[[], Moment | None],
        *,
        levels: Levels | None = None,
        scoring: ScoringStrategy | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`objects`: None as long as not all of them are there."""
        cells = Cells(levels)
        self._fleet = _Kept[Fleet](lambda listed: Fleet(now(), cells.nodes(listed)), clock)
        self._snapshot = _Kept[Snapshot](
            lambda listed: Snapshot.of(listed, now(), levels=levels, scoring=scoring), clock
        )
        self._objects, self._clock, self._pause = objects, clock, pause
        self._lock, self._count = threading.Lock(), threading.Lock()
        self._waiting, self._next = 0, 0.0

    def page(self, address: Address) -> bytes:
        """Of what is newest, as far as that may be. Raises Busy, and what making it raises."""
        with self._turn():
            if isinstance(address, OfFleet):
                return self._page(self._fleet, address, address.make)
            return self._page(self._snapshot, address, address.make)

    def _page(self, kept: _Kept[_Shown], address: Address, make: Callable[[_Shown], bytes]) -> bytes:
        shown = kept.newest(self._objects)
        found = kept.pages.get(address)
        if found is None:
            if (left := self._next - self._clock()) > 0:
                self._pause(left)
            began = self._clock()
            try:
                with counted(selectors=SELECTORS):
                    found = make(shown)
            finally:
                self._next = 2 * self._clock() - began
            kept.pages.keep(address, found, len(found))
        return found

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._count:
            if self._waiting >= MOST_WAITING:
                raise Busy("others have asked first; come again", code=503, reason="TooManyRequests")
            self._waiting += 1
        try:
            with self._lock:
                yield
        finally:
            with self._count:
                self._waiting -= 1


class Watches:
    """One of each kind that a controller decides from; of the Events in which it said that kube-scheduler
    refused a node; of Jobs, which say when they end; and of what it has learned."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._numbers, self._changes = count(1), 0

        def watch(kind: Kind, fields: str = "", namespace: str | None = None) -> WatchCache:
            return WatchCache(
                client,
                kind,
                namespace=namespace,
                field_selector=fields,
                on_change=self._on_change,
                trim=kept_of(kind),
            )

        self._needed = [watch(kind) for kind in NEEDED]
        self._optional = [watch(kind) for kind in OPTIONAL]
        self._optional += [
            watch(kinds.EVENTS, f"reason={ALLOCATION_REFUSED}"),
            watch(JOBS),
            watch(CONFIG_MAPS, f"metadata.name={NAME}", NAMESPACE),
        ]

    def _on_change(self, _event: str, _object: Object) -> None:
        self._changes = next(self._numbers)  # of each change another one, from whichever thread

    def start(self, stop: threading.Event) -> None:
        """Raises Forbidden for what may not be read and is needed, and ApiUnreachable."""
        for cache in self._needed:
            self._client.newest(cache.kind)
        for cache in self._needed:
            cache.start(stop)
        for cache in self._optional:
            cache.start_when_served(stop)

    def is_ready(self) -> bool:
        return all(cache.wait_synced(0) for cache in self._needed)

    def objects(self) -> Moment | None:
        if not self.is_ready():
            return None
        changes = self._changes
        return changes, {cache.kind: cache.objects() for cache in (*self._needed, *self._optional)}
