"""What we have written and the caches do not show yet.

A watch cache lags behind our own writes. If the next plan were made from it alone, a device that was just
given out would look free. So every claim that a write or a re-read returned is laid over the cache until the
cache shows that resourceVersion or a later one (versions of one resource compare as numbers: KEP 5504), or
shows that the claim is gone.

A write whose outcome nobody knows (the connection broke after it was sent) is *in doubt*: it may still land,
so its devices count as used. The doubt ends when the claim's version has moved on, because the write was
conditional on the version before and can no longer land; the reconciler ends it actively by repeating that
very write.
"""

from __future__ import annotations

from dataclasses import dataclass

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.controller.claims import with_allocation


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """An allocation that may or may not have been written: `claim` as it was before, with the version it
    depended on."""

    claim: Object
    allocation: Fields


class AssumeCache:
    """By claim uid. Not thread-safe: the reconciler's worker owns it."""

    def __init__(self) -> None:
        self._written: dict[str, Object | None] = {}
        """None: the claim is gone, whatever the cache shows."""
        self._pending: dict[str, PendingWrite] = {}

    def assume(self, claim: Object) -> None:
        """The server has answered with this state of the claim; it ends any doubt."""
        self._pending.pop(objects.uid(claim), None)
        before = self._written.get(objects.uid(claim))
        if before is None or not is_older(claim, before):
            self._written[objects.uid(claim)] = claim

    def doubt(self, claim: Object, allocation: Fields) -> None:
        self._pending[objects.uid(claim)] = PendingWrite(claim, allocation)

    def pending_writes(self) -> list[PendingWrite]:
        return sorted(self._pending.values(), key=lambda doubt: objects.key(doubt.claim))

    def lose(self, claim_uid: str) -> None:
        self._written[claim_uid] = None

    def forget(self, claim_uid: str) -> None:
        self._written.pop(claim_uid, None)
        self._pending.pop(claim_uid, None)

    def has_caught_up_with(self, cached: Object) -> bool:
        """Whether the cache shows what our last write was answered with, and nothing newer: there is nothing
        new in it."""
        uid, version = objects.uid(cached), objects.resource_version(cached)
        written = self._written.get(uid)
        is_shown = written is not None and version and objects.resource_version(written) == version
        if not is_shown or uid in self._pending:
            return False
        del self._written[uid]
        return True

    def current(self, cached: Object) -> Object | None:
        """The newest state known of a claim that the cache shows, None where it is lost; what the cache has
        caught up with is dropped."""
        uid = objects.uid(cached)
        newest = self._written.get(uid, cached)
        if newest is None:
            return None
        if not is_older(cached, newest):
            self._written.pop(uid, None)
            newest = cached
        doubt = self._pending.get(uid)
        if doubt is None:
            return newest
        if is_older(doubt.claim, newest):
            del self._pending[uid]
            return newest
        return with_allocation(doubt.claim, doubt.allocation)


def is_older(one: Fields, other: Fields) -> bool:
    """Whether `one` is an earlier state of the same object than `other`.

    Versions that are not numbers cannot be ordered: then only the same version counts as caught up.
    """
    return objects.is_newer(objects.resource_version(other), objects.resource_version(one))
