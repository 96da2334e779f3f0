"""Nodes that are kept free for a while: for large claims that would starve behind small ones, and for those
that others were evicted for. Pure but for what it remembers.

Small claims fit into every gap, so a claim for a whole node might wait for ever while gaps come and go. The
rule:

    a group of pods that fitted nowhere for STARVES_AFTER seconds (as this controller has seen it), and that
      would fit on some node, as a whole or one of its pods alone, if koordra's claims there were gone, gets
      that node reserved: groups that come *after* it in the order of planning (priority, then age) are not
      placed there; those before it are
    the node is the one with the fewest devices in use, then by name
    at most max(1, nodes / 10) nodes are reserved at a time, for one namespace at most half of them (or one),
      by priority; among equals for the namespace whose turn was longest ago, and in it by age
    a reservation lasts WINDOW seconds, then rests for REST seconds, so that a node whose claims never end is
      not lost to everybody

So a group waits no longer than STARVES_AFTER, plus its turn among the starving, plus the longest remaining
run on its node (as long as that ends within WINDOW). What is held back by a reservation says NodeUnsuitable
and names the pod it is for. STARVES_AFTER counts anew after a change of leader.

A gang needs much at the same time. One that waits for all of the least for STARVES_AFTER seconds gets the
nodes where it would fit if koordra's claims on the least used nodes were gone, as few of those as will do;
one for which an elastic gang is shrunk gets them at once. One gang at a time, for two that keep nodes from
each other's room would only make both wait longer:

    whose turn        by priority; among equals the namespace whose turn was longest ago, and in it by age
    its nodes end     when it is placed, or after WINDOW seconds
    its namespace     then rests for as long as it had them (REST at the least), twice as long each time that
                      it was in vain, LONGEST_REST at most
    everybody's gangs rest for REST seconds after a time in vain, so that the nodes are of use in between

So no namespace keeps another's gangs waiting for ever, and none keeps a cluster idle for a gang that never
starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Final

from koordra.allocator.reasons import Cause, reason_of
from koordra.api import objects
from koordra.controller.allocation.placer import Placer
from koordra.controller.cache.groups import Group
from koordra.placement.decide import Excluded
from koordra.placement.index import NodeInfo
from koordra.placement.request.claim_groups import Urgency

STARVES_AFTER: Final = 300.0
WINDOW: Final = 1200.0
REST: Final = 300.0
LONGEST_REST: Final = 4 * WINDOW
LOOK_AGAIN: Final = 1.0
MOST_TRIED: Final = 16
"""Nodes that are looked at for one part of a group in one pass; of its parts a quarter as many: hundreds
of pods of one claim may not keep a pass busy."""

MOST_TURNS: Final = 1024
"""Namespaces whose turn is known."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """`until`: when it ends, whatever happens; `text`: why the nodes are kept free, for those that come
    later."""

    nodes: frozenset[str]
    urgency: Urgency
    until: float
    text: str
    namespace: str = ""
    since: float = 0.0


class Reservations:
    """By the key of a group or gang. `starves_after` 0 turns reserving for the starving off. Times are
    monotonic seconds. `version` goes up whenever other nodes are kept free."""

    def __init__(self, *, starves_after: float = STARVES_AFTER) -> None:
        self._starves_after = starves_after
        self._since: dict[str, float] = {}
        self._resting: dict[str, float] = {}
        self._held: dict[str, Reservation] = {}
        self._turns: dict[str, int] = {}
        """By namespace: when a node was kept free for it last, by a count of these."""
        self._next: float | None = None
        self.version = 0

    def waits(self, key: str, *, now: float) -> None:
        if self._since.setdefault(key, now) == now and self._starves_after > 0:
            self._review_at(max(now + self._starves_after, self._resting.get(key, 0.0)))

    def forget(self, key: str) -> None:
        """It has its place, or waits no more."""
        self._since.pop(key, None)
        self._resting.pop(key, None)
        if self._held.pop(key, None) is not None:
            self.version += 1
            self._review_at(0.0)

    def rest(self, key: str, *, now: float) -> None:
        """No node would help it for now."""
        self._resting[key] = now + REST

    def reserve(
        self,
        key: str,
        urgency: Urgency,
        nodes: Iterable[str],
        *,
        now: float,
        text: str,
        namespace: str = "",
    ) -> None:
        self._held[key] = Reservation(frozenset(nodes) - {""}, urgency, now + WINDOW, text, namespace, now)
        self.version += 1
        self._review_at(now + WINDOW)

    def nominate(
        self, group: Group, node: str, *, now: float, why: str = "others were evicted there for"
    ) -> None:
        text = f"the node is kept free: {why} pod {objects.key(group.pods[0])}, which comes first"
        place = objects.namespace(group.first)
        self.reserve(group.key, group.urgency, (node,), now=now, text=text, namespace=place)

    def _end(self, keys: Iterable[str], now: float) -> None:
        for key in keys:
            del self._held[key]
            self.version += 1
            self.rest(key, now=now)

    def _review_at(self, moment: float) -> None:
        self._next = moment if self._next is None else min(self._next, moment)

    def excluded_nodes(self, key: str, urgency: Urgency) -> Excluded:
        """The nodes that are kept free for others before this one."""
        return {
            node: reason_of(Cause.NODE_UNSUITABLE, held.text, node)
            for other, held in sorted(self._held.items())
            if other != key and held.urgency < urgency
            for node in sorted(held.nodes)
        }

    def holds(self, key: str) -> bool:
        return key in self._held

    def review(self, groups: Mapping[str, Group], placer: Placer, *, now: float) -> float | None:
        """End what is over and reserve for the starving, as soon as something is. `groups`: all that wait, by
        key. Returns when the next group starves or a reservation ends, None for never."""
        nodes = placer.nodes.keys()
        is_over = [key for key, held in self._held.items() if held.until <= now or not held.nodes <= nodes]
        if not is_over and (self._next is None or self._next > now):
            return self._next
        self._end(is_over, now)
        starving = [groups[key] for key, at in self._starving_at().items() if at <= now and key in groups]
        most = max(1, len(nodes) // 10)
        left = sorted((group for group in starving if group.pods), key=self._turn, reverse=True)
        least_used = _least_used(placer.nodes.values()) if left else []
        while left and len(self._held) < most:
            group = left.pop()
            place = objects.namespace(group.first)
            if sum(held.namespace == place for held in self._held.values()) >= max(1, most // 2):
                continue
            if self._reserve(group, placer, least_used, now):
                left.sort(key=self._turn, reverse=True)
        moments = [*(held.until for held in self._held.values()), *self._starving_at().values()]
        self._next = min((moment for moment in moments if moment > now), default=None)
        return self._next

    def _starving_at(self) -> dict[str, float]:
        """From when on those starve for which no node is kept free."""
        if self._starves_after <= 0:
            return {}
        return {
            key: max(since + self._starves_after, self._resting.get(key, 0.0))
            for key, since in self._since.items()
            if key not in self._held
        }

    def _turn(self, group: Group) -> tuple[int, int, Urgency]:
        return group.urgency[0], self._turns.get(objects.namespace(group.first), 0), group.urgency

    def _reserve(self, group: Group, placer: Placer, least_used: Sequence[NodeInfo], now: float) -> bool:
        taken = {node for held in self._held.values() for node in held.nodes}
        free = (info for info in least_used if info.name not in taken and info.holders)
        for part, info in product(group.parts[: MOST_TRIED // 4], islice(free, MOST_TRIED)):
            if placer.fits_when_empty(part, info):
                self.nominate(group, info.name, now=now, why="a claim that takes much waits too long, of")
                self._had_turn(objects.namespace(group.first))
                return True
        self.rest(group.key, now=now)
        return False

    def _had_turn(self, namespace: str) -> None:
        turn = 1 + max(self._turns.values(), default=0)
        if len(self._turns) >= MOST_TURNS:
            self._turns.clear()
        self._turns[namespace] = turn


class GangReservation(Reservations):
    """By gang key; at most one gang has nodes."""

    def __init__(self, *, starves_after: float = STARVES_AFTER) -> None:
        super().__init__(starves_after=starves_after)
        self._urgency_of: Callable[[str], Urgency] = lambda _: (0, "", "")
        self._in_turn: tuple[float, str | None] | None = None
        """When it was asked for, and what the answer was; None where something has changed since."""
        self._in_vain: dict[str, int] = {}
        """By namespace: how often in a row its gangs had nodes and were not placed."""
        self._pauses: dict[str, float] = {}
        """By namespace, "" for all: until when no gang of it gets nodes."""

    def retain(self, waiting: Collection[str], urgency_of: Callable[[str], Urgency], *, now: float) -> None:
        """Forget gangs that do not wait any more, and end what is over. `waiting`: keys of all that do."""
        self._urgency_of, self._in_turn = urgency_of, None
        over = [key for key, held in self._held.items() if held.until <= now or key not in waiting]
        for key in over:
            self._in_vain_until(now, self._held[key])
        self._end(over, now)
        for key in (self._since.keys() | self._resting.keys()) - set(waiting):
            self.forget(key)
        self._pauses = {place: until for place, until in self._pauses.items() if until > now}

    def placed(self, key: str, *, now: float) -> None:
        """It has its places."""
        if (held := self._held.get(key)) is not None:
            place = _namespace_of(key)
            self._in_vain.pop(place, None)
            self._pauses[place] = now + max(REST, now - held.since)
        self.forget(key)

    def _in_vain_until(self, now: float, held: Reservation) -> None:
        if len(self._in_vain) >= MOST_TURNS:
            self._in_vain.clear()
        times = self._in_vain[held.namespace] = self._in_vain.get(held.namespace, 0) + 1
        rest = max(REST, now - held.since) * 2.0 ** min(times - 1, 8)
        self._pauses[held.namespace] = now + min(rest, LONGEST_REST)
        self._pauses[""] = now + REST

    def in_turn(self, now: float) -> str | None:
        """The gang that is to get nodes now."""
        if self._in_turn is None or self._in_turn[0] != now:
            ready = () if self._held else [key for key, at in self._ready_at().items() if at <= now]
            self._in_turn = now, min(ready, key=self._place, default=None)
        return self._in_turn[1]

    def _place(self, key: str) -> tuple[int, int, Urgency]:
        urgency = self._urgency_of(key)
        return urgency[0], self._turns.get(_namespace_of(key), 0), urgency

    def _ready_at(self) -> dict[str, float]:
        """From when on a gang starves and may have nodes."""
        everybody = self._pauses.get("", 0.0)
        return {
            key: max(at, everybody, self._pauses.get(_namespace_of(key), 0.0))
            for key, at in self._starving_at().items()
        }

    def forget(self, key: str) -> None:
        self._in_turn = None
        super().forget(key)

    def rest(self, key: str, *, now: float) -> None:
        self._in_turn = None
        super().rest(key, now=now)
        self._had_turn(_namespace_of(key))

    def keep_free(self, key: str, urgency: Urgency, nodes: Iterable[str], *, now: float) -> None:
        """Instead of the nodes of any other gang."""
        self._in_turn = None
        self._held.clear()
        text = f"the node is kept free for gang {key}, which comes first and needs much at the same time"
        self._had_turn(_namespace_of(key))
        self.reserve(key, urgency, nodes, now=now, text=text, namespace=_namespace_of(key))

    def next(self, now: float) -> float | None:
        """When a gang is in turn, or its nodes end."""
        if self.in_turn(now) is not None:
            return now + LOOK_AGAIN
        moments = [held.until for held in self._held.values()] or self._ready_at().values()
        return min((moment for moment in moments if moment > now), default=None)


def _namespace_of(gang: str) -> str:
    return gang.partition("/")[0]


def _least_used(nodes: Iterable[NodeInfo]) -> list[NodeInfo]:
    """The fewest devices in use first."""
    return sorted(nodes, key=lambda info: (_devices_in_use(info), info.name))


def _devices_in_use(info: NodeInfo) -> int:
    return sum(len(info.index.taken.of_pool.get(pool.id, ())) for pool in info.pools)
