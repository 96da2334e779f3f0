"""What one controller knows and has written: the state that all steps of a pass share.

`cluster` is the caches as they were when the pass began, with our own writes laid over, the latest included; so
every step sees what the steps before it did. It is put together when it is asked for: who writes thousands of
claims one after the other looks at them one by one (`claim`). `settled` is the one place where the outcome of a
write is taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller import happenings
from koordra.controller.announcements import Announcements
from koordra.controller.assumed import AssumedWrites
from koordra.controller.grants import Grants
from koordra.controller.happenings import Witness
from koordra.controller.membership import Membership
from koordra.controller.snapshot import Cluster
from koordra.controller.writes import Outcome, Writer, Written
from koordra.errors import ApiUnreachable
from koordra.logs import get_logger

log = get_logger(__name__)

CONFLICT_PAUSE: Final = 0.02
LONGEST_CONFLICT_PAUSE: Final = 1.0
REFUSED_PAUSE: Final = 60.0


class Working:
    """`observe` returns the caches as they are; `clock` is monotonic; `witnesses` hear what happens."""

    def __init__(
        self,
        observe: Callable[[], Cluster],
        writer: Writer,
        *,
        clock: Callable[[], float],
        witnesses: Sequence[Witness],
        refusals: Callable[[str], int],
    ) -> None:
        self._observe = observe
        self.writer = writer
        self.clock = clock
        self.announce = Announcements(witnesses, clock=clock)
        self.assumed = AssumedWrites()
        self.grants = Grants(refusals=refusals)
        self.membership = Membership()
        self._cluster = Cluster()
        self._newer: dict[str, Object] = {}
        self._conflicts = 0
        self._conflicts_before = 0
        self._wake_at: float | None = None
        self._stale = True
        self._looked = False

    def begin(self) -> None:
        """Take the caches as they are now."""
        self._conflicts_before, self._wake_at = self._conflicts, None
        seen = self._observe()
        laid_over = self.assumed.laid_over(seen.claims)
        same = all(mine is theirs for mine, theirs in zip(laid_over, seen.claims, strict=True))
        self._cluster = seen if same else replace(seen, claims=laid_over)
        self._newer = {}
        self._stale, self._looked = True, False

    @property
    def cluster(self) -> Cluster:
        """Everything, after all writes so far."""
        if self._newer:
            self._cluster, self._newer = self._cluster.with_claims(self._newer), {}
        return self._cluster

    def claim(self, key: str) -> Object | None:
        """One claim, after all writes so far."""
        return self._newer.get(key) or self._cluster.claims_by_key.get(key)

    def end(self) -> float | None:
        """Seconds after which another pass is due even if nothing changes, None for never."""
        if self._conflicts == self._conflicts_before:
            self._conflicts = 0
        self.wake(self.announce.catch_up())
        return None if self._wake_at is None else max(0.0, self._wake_at - self.clock())

    def pods(self) -> Membership:
        """Which claims each pod has, after all writes so far."""
        if self._stale:
            self.membership.look(self.cluster)
            self._stale, self._looked = False, True
        return self.membership

    def users(self) -> Mapping[str, Sequence[Object]]:
        """Claim key -> the pods that name it and have not finished; writes to claims do not change that."""
        if not self._looked:
            self.pods()
        return self.membership.users

    def wake(self, at: float | None) -> None:
        """Another pass is wanted at this monotonic time."""
        if at is not None and (self._wake_at is None or at < self._wake_at):
            self._wake_at = at

    def settled(self, written: Written) -> Written:
        """Take over what a write has shown of its claim; raise where the pass cannot go on."""
        if written.outcome is Outcome.IN_DOUBT and written.obj is not None and written.sent is not None:
            self.assumed.doubt(written.obj, written.sent)
        if written.outcome in {Outcome.IN_DOUBT, Outcome.UNREACHABLE, Outcome.FENCED}:
            raise ApiUnreachable(written.message)
        if written.outcome is Outcome.CONFLICT:
            self._conflicts += 1
            self.wake(self.clock() + min(CONFLICT_PAUSE * 2.0**self._conflicts, LONGEST_CONFLICT_PAUSE))
        if written.obj is not None and written.obj.get("kind") == "ResourceClaim":
            self.take_over(written.obj)
        return written

    def take_over(self, claim: Object) -> None:
        """The server has answered with this state of a claim."""
        self.assumed.assume(claim)
        key = objects.key(claim)
        before = self.claim(key)
        if before is not None and objects.uid(before) == objects.uid(claim):
            self._newer[key] = claim
            self._stale = True

    def lose(self, claim: Object) -> None:
        """The server does not have this claim any more, whatever the caches show."""
        self.assumed.forget(objects.uid(claim))
        self._cluster = self.cluster.without_claim(claim)
        self._stale = True

    def give_back(self, claim: Object, *, why: str) -> None:
        """Free an unreserved claim. Whatever keeps that from happening is looked at again in the next
        pass."""
        if claims_of.is_immediate(claim):
            return
        users = self.users().get(objects.key(claim), [])
        written = self.settled(self.writer.give_back(claim))
        self.grants.drop(claim)
        if written.ok:
            log.info("claim_given_back", claim=objects.key(claim), why=why)
            self.announce.tell(happenings.given_back(claim, users, why=why))
        elif written.outcome is Outcome.REFUSED:
            log.error("give_back_refused", claim=objects.key(claim), error=written.message)
            self.wake(self.clock() + REFUSED_PAUSE)
