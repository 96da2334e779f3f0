"""What is packed, by which rules, and how the parts of the score become one whole number.

The score, most important first; each is a whole number and less is better:

    placed    as many members as can be (an elastic gang), at least the minimum, the indispensable ones among them
    apart     steps above PXB between a GPU and its NIC (PHB 1, NODE 2, SYS 3), since GPUDirect is off there and the slowest member
              slows all; 64 for each step down in a firstAvailable list, 1024 for each level by which a Preferred scope is widened
    domains   number of domains used; the preferred level first, then wide levels before narrow ones: fewest zones, in them fewest
              cores, spines, blocks, NVLink domains
    opened    blocks and NVLink domains that nobody used and that the gang uses in part, so that whole ones stay whole for who
              needs them; "in part": the members in it are fewer than its nodes take one by one
    nodes     number of nodes
    rails     number of rails that the gang's NICs are on: members on the same rails talk through one leaf switch (rail_minimization);
              not minded where the whole gang is on one node
    spare     GPUs left free on the nodes used (best fit)

Every part gets a digit of its own, with a radix as large as this gang can make it, so that comparing numbers is comparing scores part by
part. Mostly all digits fit into an int64; where they do not, Python's whole numbers are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Count = tuple[int, ...]
"""Members of each class."""

INFEASIBLE: Final = 1 << 61


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """What one node of a kind takes: count -> (apart, spare). The empty count is left out. `fixed`: a fixed member is there.

    `alone`: the most members that the node takes when nothing else is asked of it (no rails).
    """

    takes: Mapping[Count, tuple[int, int]]
    fixed: bool = False
    alone: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """`levels`: positions of the scored levels in order of importance; `opened`: levels whose untouched domains count."""

    want: Count
    levels: tuple[int, ...]
    opened: frozenset[int]
    required: int | None = None
    slice_level: int | None = None
    slice_size: int = 1


@dataclass(slots=True)
class ScoreWeights:
    """Weights of the score's parts in one whole number."""

    apart: int
    level: dict[int, int]
    opened: int
    nodes: int
    spare: int
    small: bool

    @classmethod
    def of(
        cls, rules: Rules, kinds: Sequence[NodeCounts], domains: Mapping[int, int], nodes: int
    ) -> ScoreWeights:
        members = sum(rules.want)
        used = min(members, nodes)
        aparts = max((entry[0] for kind in kinds for entry in kind.takes.values()), default=0)
        spares = max((entry[1] for kind in kinds for entry in kind.takes.values()), default=0)
        weight = 1
        spare, weight = weight, weight * (used * spares + 1)
        per_node, weight = weight, weight * (used + 1)
        opened, weight = weight, weight * (sum(min(members, domains[at]) for at in rules.opened) + 1)
        level: dict[int, int] = {}
        for at in reversed(rules.levels):
            level[at], weight = weight, weight * (min(members, domains[at]) + 1)
        apart, weight = weight, weight * (used * aparts + 1)
        return cls(apart, level, opened, per_node, spare, weight < INFEASIBLE)
