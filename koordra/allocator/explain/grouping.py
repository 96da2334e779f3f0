"""Reasons of one clause become one: how many nodes and devices it holds for, and the nearest miss among them.

    1,000 nodes whose cards are all too small      one Reason, with the largest card there is
    8 cards of other models                        one Reason, with how many there are of each

The order in which they are told: the node that the pod has to run on; what holds everywhere; request by
request, the count of devices before the devices; nodes that are none for the pod, whatever devices they have.
Neither depends on the order in which reasons are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from koordra.allocator.reasons import Cause, Reason

MOST_EXAMPLES: Final = 3
"""Nodes that are named."""
_MOST_SHOWN: Final = 3
"""Values that are named, the most frequent first."""
_MOST_VALUES: Final = 64
"""Values that are counted apart; the rest is one."""
_RANK: Final = {cause.value: position for position, cause in enumerate(Cause)}
_OF_NODES: Final = frozenset({Cause.NODE_UNSUITABLE.value, Cause.SHARED_CLAIM_PINNED.value})

_Key = tuple[bool, bool, str | None, str, str, bool, bool]


@dataclass(slots=True)
class _Group:
    """`last`: the node of the last reason, which counts once; reasons of a node come one after the other."""

    best: Reason | None = None
    nearness: tuple[object, ...] = ()
    last: str | None = None
    nodes: int = 0
    devices: int = 0
    values: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, reason: Reason, nodes: Sequence[str]) -> None:
        times = max(1, len(nodes))
        node = nodes[0] if nodes else reason.node
        if node != self.last:
            self.nodes, self.last = self.nodes + times * reason.nodes, node
        self.devices += times * reason.devices
        for value, number in reason.values:
            known = value if value in self.values or len(self.values) < _MOST_VALUES else "another"
            self.values[known] += times * number
        named = nodes[:MOST_EXAMPLES] or reason.examples
        if named and (len(self.examples) < MOST_EXAMPLES or named[0] < self.examples[-1]):
            self.examples = sorted({*self.examples, *named})[:MOST_EXAMPLES]
        nearness = _nearness(reason, node)
        if self.best is None or nearness < self.nearness:
            self.best, self.nearness = replace(reason, node=node), nearness

    def told(self) -> Reason:
        assert self.best is not None
        best, detail = self.best, self.best.detail
        if self.values:
            detail = f"{best.clause} {values_text(self.values)}"
        elif best.at_best and (self.nodes > 1 or self.devices > 1):
            detail = f"{best.clause} {best.at_best}"
        return replace(
            best,
            detail=detail,
            values=tuple(sorted(self.values.items())),
            nodes=self.nodes,
            devices=self.devices,
            examples=tuple(self.examples),
        )


class ReasonGroups:
    """Gathers reasons."""

    def __init__(self) -> None:
        self._groups: dict[_Key, _Group] = {}

    def add(self, reason: Reason, nodes: Sequence[str] = ()) -> None:
        """`nodes`: those that say so, by name, where it is not the reason's own node alone."""
        counts = reason.device is None and reason.short is not None and reason.request is not None
        key = (
            reason.is_pinned,
            reason.is_aside,
            reason.request,
            "" if counts else reason.reason,  # devices are counted together, whatever they are unsuitable for
            reason.clause or reason.detail,
            reason.node is None,
            reason.device is None,
        )
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        group.add(reason, nodes)

    def told(self) -> tuple[Reason, ...]:
        return tuple(sorted([group.told() for group in self._groups.values()], key=_order))


def grouped(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The reasons of one clause as one, in the order in which they are told."""
    found = ReasonGroups()
    for reason in dict.fromkeys(reasons):
        found.add(reason)
    return found.told()


def values_text(values: Mapping[str, int]) -> str:
    """`H100 (6), A100 (2) and 3 more`: the most frequent first, with their numbers if there are several."""
    shown = sorted(values.items(), key=lambda one: (-one[1], one[0]))
    texts = [
        f"{value} ({number:,})" if number > 1 and len(shown) > 1 else value
        for value, number in shown[:_MOST_SHOWN]
    ]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return ", ".join(texts) + more


def rank(word: str) -> int:
    """The place of the word in the vocabulary; words of others come last."""
    return _RANK.get(word, len(_RANK))


def _nearness(reason: Reason, node: str | None) -> tuple[object, ...]:
    """A node whose devices are in use is nearer than one that has fewer than are asked for."""
    short = float("inf") if reason.short is None else reason.short
    never = reason.reason == Cause.EXCEEDS_DEVICE.value
    return never, short, rank(reason.reason), node or "", reason.device or ""


def _order(reason: Reason) -> tuple[object, ...]:
    return (
        not reason.is_pinned,
        reason.node is not None,
        reason.reason in _OF_NODES,
        reason.is_aside,
        reason.request or "",
        reason.device is not None,
        rank(reason.reason),
        -reason.nodes,
        reason.detail,
    )
