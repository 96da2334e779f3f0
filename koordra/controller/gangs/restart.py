"""Started gangs that lack members for too long: all their members are evicted, to start together again, or what runs is kept.

fewer than the least run ─▶ the timeout runs ─▶ Keep: told      Restart: evicted, again and again while some may not end yet
                                                                         └▶ after a while places are looked for once more
"""

from __future__ import annotations

from typing import Final

from koordra.controller import claims as claims_of
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.gangs import commit, events
from koordra.controller.gangs.annotations import Policy
from koordra.controller.gangs.events import GangEvents
from koordra.controller.gangs.membership import Gang

EVICT_PAUSE: Final = 5.0
EVICT_PATIENCE: Final = 60.0


class GangRestarts:
    """Which gangs are BelowMinMember, since when, and which are being restarted. What is not in the API begins anew with a new process."""

    def __init__(self, context: PassContext, reporter: GangEvents) -> None:
        self._context = context
        self._events = reporter
        self._below: dict[str, float] = {}
        self._restarting: dict[str, float] = {}
        self._again: dict[str, float] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._restarting

    def forget(self, key: str) -> None:
        """The gang is gone."""
        for table in (self._below, self._restarting, self._again):
            table.pop(key, None)

    def sync(self, gang: Gang, now: float) -> float | None:
        """A committed gang that lacks members: restart it when its time is over. Returns when to look again, None: when it changes."""
        key, committed = gang.key, gang.committed
        if not committed:
            self._below.pop(key, None)
            self._restarting.pop(key, None)
            self._again.pop(key, None)
            return None
        if key in self._restarting:
            return self._go_on(gang, now)
        running = sum(1 for member in committed if member.is_bound) + len(gang.without_claims) + gang.done
        open_members = [member for member in gang.members if not member.is_bound]
        holding = any(
            member.is_bound or any(map(claims_of.is_allocated, member.ours)) for member in committed
        )
        if running >= (gang.terms.least or 0) or not open_members or not holding:
            self._below.pop(key, None)
            return None
        since = self._below.setdefault(key, now)
        if now < since + gang.terms.timeout:
            return since + gang.terms.timeout
        text = f"{running} of {gang.terms.least} members run, for {gang.terms.timeout:.0f} s"
        if gang.terms.policy is Policy.KEEP:
            self._events.report(
                gang, events.BELOW_MIN_MEMBER, f"{text}; those that run are kept (policy Keep)"
            )
            return None
        self._events.report(
            gang, events.RESTARTED, f"{text}: all of them are evicted, to start together again"
        )
        self._restarting[key] = now + EVICT_PATIENCE
        return self._restart(gang, now)

    def _go_on(self, gang: Gang, now: float) -> float:
        """Evict those that may end by now. Where some may not, the gang tries to complete itself for another timeout."""
        if now < self._restarting[gang.key]:
            return self._restart(gang, now)
        del self._restarting[gang.key]
        self._again.pop(gang.key, None)
        self._below[gang.key] = now
        text = f"{events.number_of(len(gang.committed), 'member')} could not be evicted for {EVICT_PATIENCE:.0f} s"
        self._events.report(gang, events.BELOW_MIN_MEMBER, f"{text}: places beside them are looked for again")
        return now + gang.terms.timeout

    def _restart(self, gang: Gang, now: float) -> float:
        """A pass may come every moment; a large gang is not asked to end in each of them."""
        if now >= self._again.get(gang.key, now):
            commit.evict(gang.committed, context=self._context)
            self._again[gang.key] = now + EVICT_PAUSE
        return self._again[gang.key]
