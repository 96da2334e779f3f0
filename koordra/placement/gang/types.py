"""What is asked of the placement of a gang, and what is answered. Frozen values over plain Kubernetes
objects.

A *member* is a pod with its claims; pods that share a claim that is still to be allocated are one member,
since the claim has one node. A *fixed* member has its node already and stays there: one member is placed
again beside the others, or a gang grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordra.allocator.reasons import Reason
from koordra.api.objects import Fields
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.topology.network_topology import DISCOVERED, Levels


@dataclass(frozen=True, slots=True)
class NewMember:
    """`key` is unique in the gang (usually the pod's `namespace/name`).

    `group`     the pods and those of their claims that are to be allocated now, as the engine is asked for
                them
    `index`     the position that the workload fixed; members get places in the order of the fabric by it, and
                ranks in this order
    `rank`      beside members that have theirs: the one that is this member's, where it is known
    `excluded`  nodes that must not be used for this member, and why
    """

    key: str
    group: ClaimGroup
    index: int | None = None
    rank: int | None = None
    excluded: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A member that is placed already; `node` is empty for one without devices, which may be anywhere.
    `claims` are its allocated claims: their NICs say which rails the gang is on."""

    key: str
    node: str
    claims: Sequence[Fields] = ()
    rank: int | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Slices:
    """A part is cut into units of so many members, each in one domain of `required`, and of `preferred` if
    there is such a way. Both name a level of the fabric, or one of its labels."""

    size: int
    required: str | None = None
    preferred: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Members of a gang that stand together: a role, a subgroup, or all of them.

    `members`   keys of new and fixed ones, with the number that each has in the part; None: it has none, and
                may be in any slice
    `required`, `preferred`     as in `Slices`, for the part as a whole
    `size`      how many members it is to have, if that is known: with fewer it waits
    `slices`    into which the part is cut: layers, the outer first; each size divides the one before
    `parts`     of which it consists, among others

    A unit with a required level is placed whole or not at all; members that come to it later are placed in
    its domain.
    """

    name: str
    members: Mapping[str, int | None]
    required: str | None = None
    preferred: str | None = None
    slices: tuple[Slices, ...] = ()
    parts: tuple[Part, ...] = ()
    size: int | None = None


@dataclass(frozen=True, slots=True)
class LeastOf:
    """Of these new members, by key, at least so many are placed, or nobody is; with `or_none`, or none of
    these."""

    name: str
    members: frozenset[str]
    least: int
    or_none: bool = False


@dataclass(frozen=True, slots=True)
class GangRequest:
    """`minimum` counts fixed members too; the most that is wanted is all members. `required` names a level of
    the fabric (or one of its node labels): all members, the fixed ones too, are in one domain of it.
    `preferred`: in one domain of that level if there is such a way, else of the next wider. `parts` have
    levels of their own. `levels` are the cluster's. `least_of`: what is needed of each role."""

    name: str
    members: Sequence[NewMember]
    minimum: int
    fixed: Sequence[Fixed] = ()
    required: str | None = None
    preferred: str | None = None
    parts: tuple[Part, ...] = ()
    levels: Levels = DISCOVERED
    least_of: tuple[LeastOf, ...] = ()


@dataclass(frozen=True, slots=True)
class GangScore:
    """Compared in this order, less is better (but for `placed`). Everything counts fixed members too. See
    topology/packing.py.

    `cut`      per level that a unit prefers, widest first: its name and the members in units that are not
               whole in one domain of it. With it, and before it the domains down to the level that the gang
               itself prefers, come before `apart`
    `apart`    steps above PXB of the worst pair of GPU and NIC, summed over the new members (PHB 1, NODE 2,
               SYS 3); a step down in a firstAvailable list counts 64, a level by which a Preferred scope is
               widened 1024
    `domains`  per level that tells nodes apart, widest first: its name and the number of domains used
    `opened`   blocks and NVLink domains that were untouched and now are used in part
    `nodes`    number of nodes
    `rails`    number of rails that the gang's NICs are on
    `spare`    GPUs that stay free on the nodes of the new members
    """

    placed: int
    apart: int
    domains: tuple[tuple[str, int], ...]
    opened: int
    nodes: int
    rails: int
    spare: int
    cut: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PlacedMember:
    """`allocations` per claim (`namespace/name`): AllocationResults without allocationTimestamp, as
    `Plan.allocations` has them.

    `domains`: level -> name of the domain the node is in, narrow levels last. `rails`: of its NICs, by
    request order.
    """

    key: str
    node: str
    rank: int
    allocations: Mapping[str, Mapping[str, Any]]
    levels: Mapping[str, str | None]
    domains: Mapping[str, str]
    rails: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GangPlaced:
    """`members` are those placed now, by rank; `left` were not placed (elastic gangs), in the order given.

    `size` counts the fixed members too. `proven`: no better score exists; False where a part of the search
    ran out of budget.
    """

    members: tuple[PlacedMember, ...]
    left: tuple[str, ...]
    size: int
    score: GangScore
    proven: bool = True


@dataclass(frozen=True, slots=True)
class GangUnplaced:
    """No placement: `most` members fit, fixed ones included; `reasons` by member."""

    most: int
    text: str
    reasons: Mapping[str, tuple[Reason, ...]]


class GangUnsatisfiable(GangUnplaced):
    """Proven: fewer than `minimum` fit."""

    __slots__ = ()


class GangUndecided(GangUnplaced):
    """The search ran out of budget before it found or excluded a placement; `most` is the most for which one
    was found."""

    __slots__ = ()


GangAnswer = GangPlaced | GangUnplaced
