"""What was read of a cluster's objects in earlier plans: an object that is there again is not read again.

Who plans again and again gives the same objects again and again; only some are new. What reading one costs (an allocation with its
quantities, the requests of a pod's containers) is more than what planning around it costs. So what was read is kept beside the very
dict that it was read from, as long as that is given in every plan. Objects are values: who changes one makes a new dict, as a watch does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from operator import is_
from typing import Any, TypeVar

from koordra.allocator.predicates import requests_of
from koordra.api import objects
from koordra.api.allocation import Allocation

Manifest = Mapping[str, Any]
_Read = TypeVar("_Read")


class KnownObjects:
    """Not thread-safe. `begin` is called once per plan."""

    def __init__(self) -> None:
        self._entries: Sequence[Manifest] = ()
        self._nodes: dict[str, Manifest] = {}
        self._now: dict[int, tuple[Manifest, Any]] = {}
        self._before: dict[int, tuple[Manifest, Any]] = {}

    def begin(self) -> None:
        """A new plan: what the last one did not ask for is forgotten."""
        self._before, self._now = self._now, {}

    def nodes(
        self, entries: Sequence[Manifest], read: Callable[[Sequence[Manifest]], dict[str, Manifest]]
    ) -> dict[str, Manifest]:
        """The nodes by name: the same dict as last time for the same nodes in the same order."""
        if len(entries) != len(self._entries) or not all(map(is_, entries, self._entries)):
            self._entries, self._nodes = entries, read(entries)
        return self._nodes

    def allocation(self, claim: Manifest) -> Allocation | None:
        """Raises InvalidManifest."""
        if objects.status_of(claim).get("allocation") is None:
            return None
        return self._known(claim, Allocation.of_claim)

    def requests(self, pod: Manifest) -> Mapping[str, Decimal]:
        return self._known(pod, requests_of)

    def _known(self, manifest: Manifest, read: Callable[[Manifest], _Read]) -> _Read:
        at = id(manifest)
        known = self._now.get(at) or self._before.get(at)
        if known is None or known[0] is not manifest:
            known = manifest, read(manifest)
        self._now[at] = known
        found: _Read = known[1]
        return found
