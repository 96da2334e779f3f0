"""Nodes that are kept free for a while: for large claims that would starve behind small ones, and for those that
others were evicted for. Pure but for what it remembers.

Small claims fit into every gap, so a claim for a whole node might wait for ever while gaps come and go. The rule:

    a group of pods that fitted nowhere for STARVES_AFTER seconds (as this controller has seen it), and that would
    fit on some node if koordra's claims there were gone, gets that node reserved: groups that come *after* it in
    the order of planning (priority, then age) are not placed there; those before it are
    the node is the one with the fewest devices in use, then by name
    at most max(1, nodes / 10) nodes are reserved at a time, the most urgent groups first
    a reservation lasts WINDOW seconds, then rests for REST seconds, so that a node whose claims never end is
    not lost to everybody

So a group waits no longer than STARVES_AFTER, plus its turn among the starving, plus the longest remaining run on
its node (as long as that ends within WINDOW). What is held back by a reservation says NodeUnsuitable and names
the pod it is for. STARVES_AFTER counts anew after a change of leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.controller import claims as claims_of
from koordra.controller.order import Urgency
from koordra.controller.sites import Site
from koordra.controller.snapshot import Group

STARVES_AFTER: Final = 300.0
WINDOW: Final = 1200.0
REST: Final = 300.0
MOST_TRIED: Final = 16
"""Nodes that are looked at for one group in one pass."""

FitsWhenEmpty = Callable[[Group, Site], bool]


@dataclass(frozen=True, slots=True)
class Reservation:
    """`until`: when it ends, whatever happens; `why`: why the node is kept free."""

    node: str
    urgency: Urgency
    pod: str
    until: float
    why: str


class Reservations:
    """By group key. `starves_after` 0 turns reserving for the starving off. Times are monotonic seconds."""

    def __init__(self, *, starves_after: float = STARVES_AFTER) -> None:
        self._starves_after = starves_after
        self._since: dict[str, float] = {}
        self._resting: dict[str, float] = {}
        self._held: dict[str, Reservation] = {}

    @property
    def held(self) -> tuple[Reservation, ...]:
        return tuple(self._held[key] for key in sorted(self._held))

    def waits(self, group: Group, *, now: float) -> None:
        """The group fitted nowhere."""
        self._since.setdefault(group.key, now)

    def placed(self, group: Group) -> None:
        for table in (self._since, self._resting, self._held):
            table.pop(group.key, None)

    def retain(self, waiting: Iterable[Group]) -> None:
        """Forget groups that do not wait any more."""
        kept = {group.key for group in waiting}
        for table in (self._since, self._resting, self._held):
            for key in table.keys() - kept:
                del table[key]

    def nominate(self, group: Group, node: str, *, now: float) -> None:
        """Others were evicted from the node for this group."""
        self._held[group.key] = _reservation(
            group, node, until=now + WINDOW, why="others were evicted there for"
        )

    def kept_off(self, group: Group) -> dict[str, Reason]:
        """The nodes that are kept free for groups before this one."""
        found = {}
        for key, entry in sorted(self._held.items()):
            if key != group.key and entry.urgency < group.urgency:
                text = f"the node is kept free: {entry.why} pod {entry.pod}, which comes first"
                found[entry.node] = Reason(entry.node, None, None, Cause.NODE_UNSUITABLE.value, text)
        return found

    def node_of(self, group: Group) -> str | None:
        """The node that is kept free for the group."""
        entry = self._held.get(group.key)
        return None if entry is None else entry.node

    def review(
        self, waiting: Sequence[Group], sites: Iterable[Site], *, fits_when_empty: FitsWhenEmpty, now: float
    ) -> float | None:
        """End what is over and reserve for the starving; `waiting` in the order of planning. Returns when the
        next group starves or a reservation ends, None for never."""
        known = {site.name: site for site in sites}
        for key, entry in list(self._held.items()):
            if entry.until <= now or entry.node not in known:
                del self._held[key]
                self._resting[key] = now + REST
        if self._starves_after > 0:
            most = max(1, len(known) // 10)
            for group in waiting:
                if len(self._held) >= most:
                    break
                if self._is_starving(group, now):
                    self._reserve(group, known, fits_when_empty, now)
        return self._next(now)

    def _is_starving(self, group: Group, now: float) -> bool:
        since = self._since.get(group.key)
        if since is None or group.key in self._held or not group.pods:
            return False
        return now >= max(since + self._starves_after, self._resting.get(group.key, 0.0))

    def _reserve(
        self, group: Group, sites: dict[str, Site], fits_when_empty: FitsWhenEmpty, now: float
    ) -> None:
        taken = {entry.node for entry in self._held.values()}
        free = [site for name, site in sites.items() if name not in taken and site.holders]
        for site in sorted(free, key=lambda each: (_devices_in_use(each), each.name))[:MOST_TRIED]:
            if fits_when_empty(group, site):
                self._held[group.key] = _reservation(
                    group, site.name, until=now + WINDOW, why="a claim that takes much waits too long, of"
                )
                return
        self._resting[group.key] = now + REST

    def _next(self, now: float) -> float | None:
        moments = [entry.until for entry in self._held.values()]
        if self._starves_after > 0:
            moments += [
                max(since + self._starves_after, self._resting.get(key, 0.0))
                for key, since in self._since.items()
                if key not in self._held
            ]
        return min((moment for moment in moments if moment > now), default=None)


def _reservation(group: Group, node: str, *, until: float, why: str) -> Reservation:
    return Reservation(node, group.urgency, objects.key(group.pods[0]), until, why)


def _devices_in_use(site: Site) -> int:
    return len(
        {
            (result.get("pool"), result.get("device"))
            for claim in site.holders
            for result in claims_of.results(claim)
        }
    )
