"""A source of objects that are listed anew by the test: whatever differs from the listing before has
changed."""

from __future__ import annotations

from koordra.controller.cache.changes import Change
from tests.fakes.cluster import Cluster


class Listing:
    """Tests put into `seen` what there is."""

    def __init__(self, seen: Cluster | None = None) -> None:
        self.seen = seen or Cluster()
        self._before = Cluster()

    def changes(self) -> list[Change]:
        before = dict(self._before)
        self._before = self.seen
        found: list[Change] = []
        for kind, table in self.seen.items():
            found += (
                Change(kind, key, obj) for key, obj in table.items() if before[kind].get(key) is not obj
            )
            found += (Change(kind, key, None) for key in before[kind].keys() - table.keys())
        return found

    def cluster(self) -> Cluster:
        return self.seen
