"""Nodes that are kept free for a gang: it needs much at the same time, and small claims fit into every gap.

    a gang that waits for all of the least for `starves_after` seconds gets nodes: those where it would fit if koordra's claims on
    the least used nodes were gone, as few of those as will do
    pods and gangs that come after it in the order of planning are not placed there; those before it are
    one gang at a time, the most urgent that starves; for WINDOW seconds, then it rests for REST seconds
    a gang for which an elastic one is shrunk gets the nodes at once

As for single pods (reservations.py) it counts anew after a change of leader. One gang at a time: two that keep nodes from each
other's room would only make both wait longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.controller.allocation.reservations import REST, WINDOW
from koordra.controller.cache.groups import Urgency
from koordra.controller.gangs.membership import Gang


@dataclass(frozen=True, slots=True)
class ReservedNodes:
    gang: str
    urgency: Urgency
    nodes: frozenset[str]
    until: float


class GangReservation:
    """By gang key; times are monotonic seconds. `starves_after` 0: only for gangs that others are shrunk for."""

    def __init__(self, *, starves_after: float) -> None:
        self._starves_after = starves_after
        self._since: dict[str, float] = {}
        self._resting: dict[str, float] = {}
        self._reserved: ReservedNodes | None = None
        self.version = 0
        """Goes up whenever other nodes are reserved."""

    def waits(self, gang: Gang, *, now: float) -> None:
        self._since.setdefault(gang.key, now)

    def placed(self, gang: Gang) -> None:
        self._since.pop(gang.key, None)
        self._resting.pop(gang.key, None)
        if self._reserved is not None and self._reserved.gang == gang.key:
            self._end()

    def retain(self, keys: Iterable[str], *, now: float) -> None:
        """Forget gangs that do not wait any more, and end what is over."""
        kept = set(keys)
        for table in (self._since, self._resting):
            for key in table.keys() - kept:
                del table[key]
        held = self._reserved
        if held is not None and held.until <= now:
            self._resting[held.gang] = now + REST
        if held is not None and (held.until <= now or held.gang not in kept):
            self._end()

    def _end(self) -> None:
        self._reserved = None
        self.version += 1

    def starves(self, gang: Gang, *, now: float) -> bool:
        """Whether it is the gang's turn to get nodes."""
        return self._turns().get(gang.key, now + 1.0) <= now

    def _turns(self) -> dict[str, float]:
        """When it is whose turn to get nodes."""
        if self._reserved is not None or self._starves_after <= 0:
            return {}
        return {
            key: max(since + self._starves_after, self._resting.get(key, 0.0))
            for key, since in self._since.items()
        }

    def reserve(self, gang: Gang, nodes: Iterable[str], *, now: float) -> None:
        self.version += 1
        self._reserved = ReservedNodes(gang.key, gang.urgency, frozenset(nodes) - {""}, now + WINDOW)

    def unschedulable(self, gang: Gang, *, now: float) -> None:
        """No nodes would help it."""
        self._resting[gang.key] = now + REST

    def excluded(self, urgency: Urgency, gang: str | None = None) -> dict[str, Reason]:
        """The nodes that are reserved for a gang before this one."""
        held = self._reserved
        if held is None or held.gang == gang or urgency <= held.urgency:
            return {}
        text = (
            f"the node is kept free for gang {held.gang}, which comes first and needs much at the same time"
        )
        return {node: reason_of(Cause.NODE_UNSUITABLE, text, node) for node in sorted(held.nodes)}

    def next(self, now: float) -> float | None:
        """When the next gang starves, or the reservation ends."""
        moments = self._turns().values() if self._reserved is None else [self._reserved.until]
        return min((moment for moment in moments if moment > now), default=None)
