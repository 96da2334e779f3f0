"""The cards of a cluster, a cell each, by node, by the blocks of the network and by model. Pure.

A card that is cut, or may be, is one cell for all of its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import groupby
from typing import Final

from koordra.api import names
from koordra.api.objects import Fields

_OF_CARDS: Final = frozenset({names.TYPE_GPU, names.TYPE_MIG})
_PART: Final = "-mig-"
"""Between the name of a card and that of its part."""


class CardState(Enum):
    """`letter` is the cell's class in a page."""

    FREE = "free"
    SHARED = "shared"
    TAKEN = "taken"
    TAINTED = "tainted"
    OFF = "not usable"

    @property
    def letter(self) -> str:
        return {"tainted": "x", "not usable": "o"}.get(self.value, self.value[0])


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    model: str
    state: CardState


@dataclass(frozen=True, slots=True)
class NodeCards:
    """`block`: the domains that the node is in, wide to narrow, those without a name left out. `trouble`: why
    nothing, or not everything, of it can be given out; empty where all can."""

    name: str
    block: tuple[str, ...]
    cards: tuple[Card, ...]
    trouble: str = ""

    @property
    def states(self) -> Counter[CardState]:
        return Counter(card.state for card in self.cards)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Of a cluster at one moment."""

    at: datetime
    nodes: Sequence[NodeCards]


@dataclass(frozen=True, slots=True)
class Block:
    path: tuple[str, ...]
    nodes: tuple[NodeCards, ...]

    @property
    def states(self) -> Counter[CardState]:
        return sum((node.states for node in self.nodes), Counter[CardState]())


def cards_of(rows: Iterable[Fields]) -> tuple[Card, ...]:
    """`rows`: of one node, as `koordra devices` has them."""
    of_card: dict[str, list[Fields]] = {}
    for row in rows:
        if row["type"] in _OF_CARDS:
            of_card.setdefault(str(row["name"]).partition(_PART)[0], []).append(row)
    return tuple(_card(name, parts) for name, parts in of_card.items())


def _card(name: str, parts: Sequence[Fields]) -> Card:
    whole = next((row for row in parts if row["type"] == names.TYPE_GPU), parts[0])
    return Card(name, str(whole["model"] or "unknown"), _state(parts))


def _state(parts: Sequence[Fields]) -> CardState:
    states = {str(row["state"]) for row in parts}
    is_left = bool(states & {"Free", "Shared"})
    if any(row["holders"] for row in parts):
        return CardState.SHARED if is_left else CardState.TAKEN
    if is_left:
        return CardState.FREE
    return CardState.TAINTED if "Tainted" in states else CardState.OFF


def blocks_of(nodes: Iterable[NodeCards]) -> list[Block]:
    """By their paths; what has none comes last."""
    ordered = sorted(nodes, key=lambda node: (not node.block, node.block, node.name))
    return [Block(path, tuple(own)) for path, own in groupby(ordered, key=lambda node: node.block)]


def by_model(nodes: Iterable[NodeCards]) -> Mapping[str, Counter[CardState]]:
    found: dict[str, Counter[CardState]] = {}
    for node in nodes:
        for card in node.cards:
            found.setdefault(card.model, Counter())[card.state] += 1
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Filter:
    """What is shown; empty words leave all."""

    model: str = ""
    block: str = ""
    state: str = ""

    def of(self, nodes: Iterable[NodeCards]) -> list[NodeCards]:
        return [node for node in nodes if self._has(node)]

    def _has(self, node: NodeCards) -> bool:
        return (
            (not self.block or block_name(node.block) == self.block)
            and (not self.model or any(card.model == self.model for card in node.cards))
            and (not self.state or any(card.state.value == self.state for card in node.cards))
        )


def block_name(path: Sequence[str]) -> str:
    return " / ".join(path) or "no block"
