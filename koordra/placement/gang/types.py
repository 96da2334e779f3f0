"""What is asked of the placement of a gang, and what is answered. Frozen values over plain Kubernetes objects.

A *member* is a pod with its claims; pods that share a claim that is still to be allocated are one member, since the claim has one
node. A *fixed* member has its node already and stays there: one member is planned again beside the others, or a gang grows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from koordra.allocator.devices.inventory import Inventory
from koordra.allocator.reasons import Reason

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """`key` is unique in the gang (usually the pod's `namespace/name`).

    `claims`    the pods' ResourceClaims that are to be allocated now; claims of other drivers and allocated ones are left out
    `pinned`    the only nodes that come into question, because other claims of the pods are allocated there; None: any
    `index`     the position that the workload fixed (completion index); members get places in the order of the fabric by it
    `needed`    the gang makes no sense without this member (a launcher); others may be left out of an elastic gang
    `kept_off`  nodes that must not be used for this member, and why
    """

    key: str
    pods: Sequence[Object]
    claims: Sequence[Object] = ()
    pinned: frozenset[str] | None = None
    index: int | None = None
    needed: bool = False
    kept_off: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A member that is placed already. `claims` are its allocated claims: their NICs say which rails the gang is on."""

    key: str
    node: str
    claims: Sequence[Object] = ()
    rank: int | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Gang:
    """`minimum` counts fixed members too; the most that is wanted is all members. `required` and `preferred` name a level of
    the fabric (or one of its node labels); all members, the fixed ones too, are in one domain of the required level.

    With `slice_level` every domain of that level has a multiple of `slice_size` members (model-parallel groups in one NVLink
    domain).
    """

    name: str
    members: Sequence[Member]
    minimum: int
    fixed: Sequence[Fixed] = ()
    required: str | None = None
    preferred: str | None = None
    slice_size: int = 1
    slice_level: str | None = None


@dataclass(frozen=True, slots=True)
class GangNode:
    """A node as the controller knows it: the Node, its slices read, allocated claims with devices here, what pods ask here.

    Nodes of equal `likeness` (not None) publish the same devices under the same names in a pool named like the node, of which the
    same is taken: they give the same answers. `inventory` may be a call that reads it, made only for nodes that are asked.
    """

    node: Object
    inventory: Inventory | Callable[[], Inventory]
    holders: Sequence[Object] = ()
    load: Mapping[str, Decimal] = field(default_factory=dict)
    likeness: Hashable = None
    published: Hashable = None


@dataclass(frozen=True, slots=True)
class GangScore:
    """Compared in this order, less is better (but for `placed`). Everything counts fixed members too. See packing.py.

    `apart`    steps above PXB of the worst pair of GPU and NIC, summed over the new members (PHB 1, NODE 2, SYS 3);
               a step down in a firstAvailable list counts 64, a rung of a Preferred scope 1024
    `domains`  per level that tells nodes apart: its name and the number of domains used; the preferred level first, then widest first
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

    @property
    def order(self) -> tuple[int, ...]:
        counts = tuple(count for _, count in self.domains)
        return (-self.placed, self.apart, *counts, self.opened, self.nodes, self.rails, self.spare)


@dataclass(frozen=True, slots=True)
class PlacedMember:
    """`allocations` per claim (`namespace/name`): AllocationResults without allocationTimestamp, as `Plan.allocations` has them.

    `domains`: level -> name of the domain the node is in, narrow levels last. `rails`: of its NICs, by request order.
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

    `size` counts the fixed members too. `proven`: no better score exists; False where a part of the search ran out of budget.
    `remark`: what was wished for and could not be minded, and why.
    """

    members: tuple[PlacedMember, ...]
    left: tuple[str, ...]
    size: int
    score: GangScore
    proven: bool = True
    remark: str = ""


@dataclass(frozen=True, slots=True)
class GangUnsatisfiable:
    """Proven: fewer than `minimum` fit. `most` is how many fit at most (fixed ones included)."""

    most: int
    text: str
    reasons: Mapping[str, tuple[Reason, ...]]


@dataclass(frozen=True, slots=True)
class GangUndecided:
    """The search ran out of budget before it found or excluded a placement. `found`: the most members for which one was found."""

    found: int
    text: str
    reasons: Mapping[str, tuple[Reason, ...]]


GangAnswer = GangPlaced | GangUnsatisfiable | GangUndecided
