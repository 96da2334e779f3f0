"""NVLink on one node: how many links join which GPUs, and the partitions of an NVSwitch fabric.

Both are read from what the cards publish (`koordra.topology.fabrics`); a MIG slice takes no part, since it has no NVLink.

The partitions are those that Koordinator's built-in table has for eight Hopper GPUs: pairs, fours, all, and each card
by itself. Which of them a claim may have is the node's word, in the label `koordra.io/gpu-partition-policy`
(Koordinator's own label is read as well), and the claim's, in GpuConfig's `partition`:

    Prefer   (default)  a partition is better than another set, see score.py
    Honor               the whole cards of a claim are one of the partitions, or the claim does not fit here

The stricter of the two holds. Cards that are shared do not count: a tenant of half a card uses no NVLink. A node without a
table demands nothing by itself; a claim that demands partitions gets single cards there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from koordra.api import names
from koordra.topology.levels import attribute
from koordra.topology.machine_shape import shape_of_devices

if TYPE_CHECKING:
    from koordra.allocator.devices.inventory import PublishedDevice
    from koordra.allocator.request.requests import ResolvedClaim

_PUBLISHED: Final = (
    names.ATTR_NVLINK_DOMAIN,
    names.ATTR_NVLINKS,
    names.ATTR_NVLINK_PEERS,
    names.ATTR_MINOR,
    names.ATTR_ARCHITECTURE,
)

Links = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Fabric:
    """`cards` are positions in the node's device order; `links[a][b]` is by position among the cards.

    `widest` is the most links that any pair has, 0 without NVLink. `partitions` are sets of device positions of two
    and more cards, the largest first.
    """

    cards: tuple[int, ...] = ()
    links: Links = ()
    widest: int = 0
    partitions: tuple[frozenset[int], ...] = ()
    sizes: frozenset[int] = frozenset()
    place: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, cards: Sequence[int], links: Links, masks: Sequence[int]) -> Fabric:
        """`masks`: the partitions, over the cards' places."""
        partitions = tuple(
            frozenset(card for place, card in enumerate(cards) if mask >> place & 1) for mask in masks
        )
        return cls(
            cards=tuple(cards),
            links=links,
            widest=max(max(row) for row in links),
            partitions=partitions,
            sizes=frozenset(len(members) for members in partitions),
            place={card: place for place, card in enumerate(cards)},
        )

    @property
    def uniform(self) -> bool:
        """Every pair has the same links (none, or a switched fabric), so that links distinguish no choices."""
        return len({self.links[a][b] for a in range(len(self.links)) for b in range(a)}) <= 1

    def between(self, a: int, b: int) -> int:
        """Links between two cards, by device position."""
        return self.links[self.place[a]][self.place[b]]

    def groups(self) -> list[dict[int, str]] | None:
        """Nested sets of cards, coarse to fine, such that exchanging sets alike changes no link and no partition.

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
    cards = _cards(devices)
    if sum(devices[card].plain.get(names.ATTR_NVLINK_DOMAIN) is not None for card in cards) < 2:
        return NO_FABRIC
    # All cards, also those without NVLink: a pair with one of those is a pair without links.
    published = (tuple(attribute(devices[card].plain, name) for name in _PUBLISHED) for card in cards)
    return Fabric.of(cards, *_wiring(tuple(published)))


def _cards(devices: Sequence[PublishedDevice]) -> list[int]:
    return [at for at, offered in enumerate(devices) if offered.plain.get(names.ATTR_TYPE) == names.TYPE_GPU]


@lru_cache(maxsize=256)
def _wiring(published: tuple[tuple[Any, ...], ...]) -> tuple[Links, tuple[int, ...]]:
    """Links and partition masks by the values that decide them; the nodes of a kind share the answer."""
    shape = shape_of_devices([dict(zip(_PUBLISHED, values, strict=True)) for values in published], [])
    return shape.nvlinks, shape.partitions


def honors_partitions(labels: Mapping[str, Any]) -> bool:
    """Whether the node demands partitions; koordra's label wins over Koordinator's."""
    said = next((labels[name] for name in names.PARTITION_POLICY_LABELS if name in labels), None)
    return said == names.PARTITION_HONOR


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


def demanded_of(
    claims: Sequence[ResolvedClaim], devices: Sequence[PublishedDevice], fabric: Fabric, *, by_node: bool
) -> PartitionTracker | None:
    """Of whom partitions are demanded on a node; None where that is nobody."""
    by_node = by_node and bool(fabric.partitions)
    demanding = frozenset(at for at, claim in enumerate(claims) if by_node or claim.demands_partition)
    if not demanding:
        return None
    return PartitionTracker(fabric, demanding, frozenset(fabric.cards or _cards(devices)))


def spelled_sizes(sizes: Iterable[int]) -> str:
    """`1, 2, 4 or 8`"""
    words = [str(size) for size in sorted({1, *sizes})]
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
