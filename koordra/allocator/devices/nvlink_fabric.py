"""NVLink on one node: how many links join which GPUs, and the partitions of an NVSwitch fabric.

Both are read from what the cards publish (`koordra.topology.fabrics`); a MIG slice takes no part, since it
has no NVLink.

The partitions are those that Koordinator's built-in table has for eight Hopper GPUs: pairs, fours, all, and
each card by itself. Which of them a claim may have is the node's word, in the label
`koordra.io/gpu-partition-policy` (Koordinator's own label is read as well), and the claim's, in GpuConfig's
`partition`:

    Prefer   (default)  a partition is better than another set, see score.py
    Honor               the whole cards of a claim are one of the partitions, or the claim does not fit here

The stricter of the two holds. Cards that are shared do not count: a tenant of half a card uses no NVLink. A
node without a table demands nothing by itself; a claim that demands partitions gets single cards there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from koordra.allocator.devices.pools import Pool, PublishedDevice, kept_with_pools, shape_of
from koordra.api import names


@dataclass(frozen=True)
class Fabric:
    """`cards` are positions in the node's device order; `links[a][b]` is by place among the cards.

    `partitions` are sets of device positions of two and more cards, the largest first.
    """

    cards: tuple[int, ...] = ()
    links: tuple[tuple[int, ...], ...] = ()
    partitions: tuple[frozenset[int], ...] = ()

    @cached_property
    def place(self) -> Mapping[int, int]:
        return {card: place for place, card in enumerate(self.cards)}

    @cached_property
    def widest(self) -> int:
        """The most links that any pair has, 0 without NVLink."""
        return max(map(max, self.links), default=0)

    @cached_property
    def sizes(self) -> frozenset[int]:
        return frozenset(map(len, self.partitions))

    @property
    def uniform(self) -> bool:
        """Every pair has the same links (none, or a switched fabric), so links distinguish no choices."""
        return len({self.links[a][b] for a in range(len(self.links)) for b in range(a)}) <= 1

    def between(self, a: int, b: int) -> int:
        """Links between two cards, by device position."""
        return self.links[self.place[a]][self.place[b]]

    def groups(self) -> list[dict[int, str]] | None:
        """Nested sets of cards, coarse to fine, such that exchanging sets alike changes no link and no
        partition.

        None where there are no such sets: cards wired to each other unevenly are all different.
        """
        found: list[dict[int, str]] = []
        if not self.uniform:
            domains = self._domains()
            if domains is None:
                return None
            found.append(domains)
        return found + [
            {
                card: f"partition {min(members)}"
                for members in self.partitions
                if len(members) == size
                for card in members
            }
            for size in sorted(self.sizes, reverse=True)
            if size < len(self.cards)
        ]

    def _domains(self) -> dict[int, str] | None:
        """The sets that NVLink joins, when all pairs inside them are alike and no link leaves them."""
        domains: dict[int, str] = {}
        joined = [
            {row, *(other for other, links in enumerate(self.links[row]) if links)}
            for row in range(len(self.cards))
        ]
        for row, card in enumerate(self.cards):
            widths = {self.links[row][other] for other in joined[row] - {row}}
            if len(widths) > 1 or any(joined[member] != joined[row] for member in joined[row]):
                return None
            domains[card] = f"nvlink {min(joined[row])} {max(widths, default=0)}"
        return domains


NO_FABRIC: Final = Fabric()


def fabric_of(devices: Sequence[PublishedDevice]) -> Fabric:
    """The NVLink of the cards among a node's devices."""
    cards = cards_of(devices)
    if sum(devices[card].plain.get(names.ATTR_NVLINK_DOMAIN) is not None for card in cards) < 2:
        return NO_FABRIC
    # All cards, also those without NVLink: a pair with one of those is a pair without links.
    shape = shape_of([devices[card] for card in cards], [])
    return Fabric(
        tuple(cards),
        shape.nvlinks,
        tuple(
            frozenset(card for place, card in enumerate(cards) if mask >> place & 1)
            for mask in shape.partitions
        ),
    )


@kept_with_pools
def clique_of(pools: Sequence[Pool]) -> str:
    """The part of an NVLink fabric over several nodes that a node's GPUs publish; empty without one, and
    where they publish several."""
    own = (offered for pool in pools if pool.id[0] == names.DRIVER for offered in pool.devices)
    found = set(filter(None, [offered.plain.get(names.ATTR_CLIQUE) for offered in own if offered.here]))
    return str(found.pop()) if len(found) == 1 else ""


def cards_of(devices: Sequence[PublishedDevice]) -> list[int]:
    """Positions of the GPUs that are given out as a whole."""
    return [at for at, offered in enumerate(devices) if offered.type == names.TYPE_GPU]


def honors_partitions(labels: Mapping[str, Any]) -> bool:
    """Whether the node demands partitions; koordra's label wins over Koordinator's."""
    policy = next((labels[name] for name in names.PARTITION_POLICY_LABELS if name in labels), None)
    return policy == names.PARTITION_HONOR


@dataclass(slots=True)
class PartitionTracker:
    """The whole cards that each claim has so far, and whether they can still become a partition.

    `claims` are the positions of those of whom it is demanded; `cards` what it is about.
    """

    fabric: Fabric
    claims: frozenset[int]
    cards: frozenset[int]
    held: dict[int, frozenset[int]] = field(default_factory=dict)

    def allows(self, claim: int, device: int, *, fewest: int, most: int) -> bool:
        """Whether the claim may have the card too, when `fewest` to `most` more cards follow for it."""
        cards = self.held.get(claim, frozenset()) | {device}
        if len(cards) == 1 and not fewest:
            return True
        return any(
            cards <= members and len(cards) + fewest <= len(members) <= len(cards) + most
            for members in self.fabric.partitions
        )

    def add(self, claim: int, device: int) -> None:
        self.held[claim] = self.held.get(claim, frozenset()) | {device}

    def remove(self, claim: int, device: int) -> None:
        self.held[claim] = self.held[claim] - {device}

    def complete(self) -> bool:
        """Whether what every claim has is a partition."""
        return all(len(cards) < 2 or cards in self.fabric.partitions for cards in self.held.values())


def spelled_sizes(sizes: Iterable[int]) -> str:
    """`1, 2, 4 or 8`"""
    words = [str(size) for size in sorted({1, *sizes})]
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
