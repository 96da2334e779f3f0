"""The full read, the safety net of a controller that goes by changes.

Every PERIOD seconds all objects are read from the watches' tables and compared with those that the changes led to, and every index
is made anew and compared with the one that was kept. A difference is counted by what it was found in, logged, and repaired;
and everything is told once more to whoever follows the indices, so that a lost wake-up ends here at the latest.

An event may be on its way between a watch's table and the worker when the tables are read. So an object counts as different only
when the next full read finds the same difference again; that one is made at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from koordra.controller.cache.changes import Source
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.logs import get_logger

log = get_logger(__name__)

PERIOD: Final = 900.0
INDICES: Final = ("pods", "claims", "slices")


class Audit:
    """`differences` counts by table or index. Not thread-safe."""

    def __init__(self, cache: ClusterCache, source: Source, *, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._source = source
        self._clock = clock
        self._due = clock() + PERIOD
        self._suspects: set[tuple[str, str, int]] = set()
        self.differences: Counter[str] = Counter()

    def run_if_due(self) -> float:
        """When the next full read is due."""
        now = self._clock()
        if now >= self._due:
            self._due = now if self.run() else now + PERIOD
        return self._due

    def run(self) -> bool:
        """One full read; whether another one has to confirm a suspicion."""
        found = self._cache.differences(self._source.cluster())
        suspects = {(str(change.kind), change.key, id(change.obj)) for change in found}
        confirmed = suspects & self._suspects
        missed = [one for one in found if (str(one.kind), one.key, id(one.obj)) in confirmed]
        for change in missed:
            self._count(change.kind.plural, change.key)
        self._cache.apply(missed)
        self._suspects = suspects - confirmed
        self.compare()
        self._cache.touch_all()
        return bool(self._suspects)

    def compare(self) -> None:
        """Every index with one that is made anew."""
        fresh = self._cache.rebuilt()
        for name, kept, made in zip(INDICES, self._cache.indices(), fresh.indices(), strict=True):
            for state in kept.STATE:
                if getattr(kept, state) != getattr(made, state):
                    self._count(f"{name}.{state.removeprefix('_')}", "")
                    setattr(kept, state, getattr(made, state))

    def _count(self, where: str, key: str) -> None:
        self.differences[where] += 1
        log.error("index_difference", found_in=where, object=key)
