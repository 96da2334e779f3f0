"""When the pods of a gang are told what it is now.

In the write that lifts its gate a pod is told the gang that starts. Later changes go in rounds: what is to be
told is worked out once, written pod by pod, and after the round the gang rests for PAUSE, and for longer the
more was written. So a gang of which pods come and go costs the API server little more than one that rarely
changes, and all pods get the same words. A pass writes MOST_WRITES at most; the next one goes on.

What a pod was told is known by a digest in its annotations, which a successor of a killed controller finds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.tables import DueKeys
from koordra.controller.allocation.pass_context import REFUSED_PAUSE, PassContext
from koordra.controller.allocation.writes import WriteOutcome
from koordra.controller.cache import pod_index
from koordra.controller.gangs.declared.annotations import LIVE_DIGEST
from koordra.controller.gangs.live.texts import readers_of, texts_of
from koordra.controller.gangs.membership import Gang, Member
from koordra.logs import get_logger

log = get_logger(__name__)

PAUSE: Final = 10.0
BYTES_PER_SECOND: Final = 256 << 10
MOST_WRITES: Final = 50

Told = dict[str, str]
"""Annotations of one pod."""


@dataclass(slots=True)
class _Round:
    """Who is still to be told, and how much was written."""

    left: deque[tuple[str, Told]]
    written: int = 0


@dataclass(slots=True)
class LiveFiles:
    """Not thread-safe."""

    context: PassContext
    _touched: set[str] = field(default_factory=set)
    _rounds: dict[str, _Round] = field(default_factory=dict)
    _rests: dict[str, float] = field(default_factory=dict)
    _due: DueKeys = field(default_factory=DueKeys)
    _digests: dict[str, dict[str, str]] = field(default_factory=dict)
    """By gang and uid: of what was written here, which the caches may not show yet."""

    def touch(self, gangs: Iterable[str]) -> None:
        """Members of these have changed, or they are gone."""
        self._touched.update(gangs)

    def at_start(self, gang: Gang, starting: Collection[Member]) -> dict[str, Told]:
        """By uid, what is written to those of `starting` that read it, as their gates are lifted."""
        uids = {member.uid for member in starting}
        readers = readers_of(gang)
        if not uids & readers.keys():
            return {}
        told = texts_of(gang, readers, starting=uids)
        return {uid: told[uid] for uid in told.keys() & uids}

    def started(self, gang: str, uid: str, told: Told) -> None:
        """That was written."""
        self._digests.setdefault(gang, {})[uid] = told[LIVE_DIGEST]

    def sync(self, gangs: Mapping[str, Gang]) -> None:
        """Raises ApiUnreachable."""
        now = self.context.clock()
        self._touched |= self._due.pop(now)
        for key in sorted(self._touched):
            self._touched.discard(key)
            self._begin(key, gangs.get(key), now)
        left = MOST_WRITES
        for key in list(self._rounds):
            left = self._go_on(gangs[key], left)
            if not left:
                self.context.wake(now)
                return
        self.context.wake(self._due.next)

    def _begin(self, key: str, gang: Gang | None, now: float) -> None:
        if gang is None:
            for table in (self._rounds, self._rests, self._digests):
                table.pop(key, None)
            return
        if key in self._rounds:
            return  # at its end the gang is looked at again
        if (until := self._rests.get(key, now)) > now:
            self._due.add(until, key)
            return
        self._rests.pop(key, None)
        readers = readers_of(gang)
        if not readers:
            self._digests.pop(key, None)
            return
        known = self._digests.get(key, {})
        self._digests[key] = known = {uid: known[uid] for uid in known.keys() & readers.keys()}
        told = texts_of(gang, readers)
        left = [
            (member.uid, told[member.uid])
            for member in gang.members
            if member.uid in told
            and self._reads(gang, member)
            and not self._knows(known, member, told[member.uid])
        ]
        if left:
            self._rounds[key] = _Round(deque(left))

    def _reads(self, gang: Gang, member: Member) -> bool:
        """Whoever waits behind a gate is told when it is lifted."""
        return bool(gang.committed) and not pod_index.is_gated(member.pod)

    def _knows(self, known: Mapping[str, str], member: Member, told: Told) -> bool:
        there = objects.annotations_of(member.pod).get(LIVE_DIGEST)
        return known.get(member.uid, there) == told[LIVE_DIGEST]

    def _go_on(self, gang: Gang, most: int) -> int:
        """Write some of what is left; how many more writes there may be."""
        going = self._rounds[gang.key]
        pods = {member.uid: member.pod for member in gang.members}
        rest = PAUSE
        while going.left and most:
            uid, told = going.left[0]
            if uid in pods:
                outcome = self._write(gang.key, pods[uid], told)
                most -= 1
                if outcome is WriteOutcome.WRITTEN:
                    going.written += sum(map(len, told.values()))
                elif outcome is WriteOutcome.REFUSED:
                    rest = REFUSED_PAUSE
            going.left.popleft()
        if not going.left:
            del self._rounds[gang.key]
            now = self.context.clock()
            self._rests[gang.key] = now + rest + going.written / BYTES_PER_SECOND
            self._due.add(self._rests[gang.key], gang.key)
        return most

    def _write(self, gang: str, pod: Object, told: Told) -> WriteOutcome:
        written = self.context.settled(self.context.writer.hold(pod, told))
        if written.ok:
            self.started(gang, objects.uid(pod), told)
        elif written.outcome is WriteOutcome.REFUSED:
            log.warning("gang_not_told", pod=objects.key(pod), gang=gang, error=written.message)
        return written.outcome
