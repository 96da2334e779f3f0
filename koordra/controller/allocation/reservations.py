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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import objects
from koordra.controller import claims as claims_of
from koordra.controller.cache.groups import Group, Urgency
from koordra.placement.index import NodeInfo

STARVES_AFTER: Final = 300.0
WINDOW: Final = 1200.0
REST: Final = 300.0
MOST_TRIED: Final = 16
"""Nodes that are looked at for one group in one pass."""

FitsWhenEmpty = Callable[[Group, NodeInfo], bool]


@dataclass(frozen=True, slots=True)
class Reservation:
    """`until`: when it ends, whatever happens; `why`: why the node is kept free."""

    node: str
    urgency: Urgency
    pod: str
    until: float
    why: str


class Reservations:
    """By group key. `starves_after` 0 turns reserving for the starving off. Times are monotonic seconds. `version`
    goes up whenever other nodes are kept free."""

    def __init__(self, *, starves_after: float = STARVES_AFTER) -> None:
        self._starves_after = starves_after
        self._since: dict[str, float] = {}
        self._resting: dict[str, float] = {}
        self._held: dict[str, Reservation] = {}
        self._next: float | None = None
        self.version = 0

    def waits(self, group: Group, *, now: float) -> None:
        if self._since.setdefault(group.key, now) == now and self._starves_after > 0:
            self._review_at(max(now + self._starves_after, self._resting.get(group.key, 0.0)))

    def forget(self, key: str) -> None:
        """The group has its place, or waits no more."""
        self._since.pop(key, None)
        self._resting.pop(key, None)
        if self._held.pop(key, None) is not None:
            self.version += 1
            self._review_at(0.0)

    def nominate(
        self, group: Group, node: str, *, now: float, why: str = "others were evicted there for"
    ) -> None:
        self._held[group.key] = Reservation(
            node, group.urgency, objects.key(group.pods[0]), now + WINDOW, why
        )
        self.version += 1
        self._review_at(now + WINDOW)

    def _review_at(self, moment: float) -> None:
        self._next = moment if self._next is None else min(self._next, moment)

    def excluded_nodes(self, group: Group) -> dict[str, Reason]:
        """The nodes that are kept free for groups before this one."""
        found = {}
        for key, entry in sorted(self._held.items()):
            if key != group.key and entry.urgency < group.urgency:
                text = f"the node is kept free: {entry.why} pod {entry.pod}, which comes first"
                found[entry.node] = reason_of(Cause.NODE_UNSUITABLE, text, entry.node)
        return found

    def node_of(self, group: Group) -> str | None:
        return self._held[group.key].node if group.key in self._held else None

    def review(
        self,
        groups: Mapping[str, Group],
        nodes: Mapping[str, NodeInfo],
        *,
        fits_when_empty: FitsWhenEmpty,
        now: float,
    ) -> float | None:
        """End what is over and reserve for the starving, as soon as something is. `groups`: all that wait, by key. Returns when the
        next group starves or a reservation ends, None for never."""
        if (self._next is None or self._next > now) and all(
            entry.node in nodes for entry in self._held.values()
        ):
            return self._next
        for key, entry in list(self._held.items()):
            if entry.until <= now or entry.node not in nodes:
                del self._held[key]
                self.version += 1
                self._resting[key] = now + REST
        most = max(1, len(nodes) // 10)
        starving = [groups[key] for key, at in self._starving_at().items() if at <= now and key in groups]
        for group in sorted(starving, key=lambda group: group.urgency):
            if len(self._held) < most and group.pods:
                self._reserve(group, nodes, fits_when_empty, now)
        moments = [*(entry.until for entry in self._held.values()), *self._starving_at().values()]
        self._next = min((moment for moment in moments if moment > now), default=None)
        return self._next

    def _starving_at(self) -> dict[str, float]:
        """From when on the groups starve for which no node is kept free."""
        if self._starves_after <= 0:
            return {}
        return {
            key: max(since + self._starves_after, self._resting.get(key, 0.0))
            for key, since in self._since.items()
            if key not in self._held
        }

    def _reserve(
        self, group: Group, nodes: Mapping[str, NodeInfo], fits_when_empty: FitsWhenEmpty, now: float
    ) -> None:
        taken = {entry.node for entry in self._held.values()}
        free = [info for name, info in nodes.items() if name not in taken and info.holders]
        for info in sorted(free, key=lambda each: (_devices_in_use(each), each.name))[:MOST_TRIED]:
            if fits_when_empty(group, info):
                self.nominate(group, info.name, now=now, why="a claim that takes much waits too long, of")
                return
        self._resting[group.key] = now + REST


def _devices_in_use(info: NodeInfo) -> int:
    return len(
        {
            (result.get("pool"), result.get("device"))
            for claim in info.holders
            for result in claims_of.results(claim)
        }
    )
