"""Devices that no pod uses give way to pods that wait. Pure.

Immediate claims hold devices without a pod (cache/immediate_claims). Where a group of pods fits nowhere, and
would fit on a node if such claims there had none, they lose them:

    1. on each node with such claims: take all of them away; if the group does not fit even so, the node is
       out of the question
    2. put them back one by one, the oldest first, and keep every one beside which the group still fits
    3. those left over lose their devices, on the node where they are the fewest, then by name; it is kept
       free for the group (reservations)

What is held for a started gang that lost a member (gangs/seats) gives way in the same way, to pods that are
more urgent than the gang, and after all such claims.

Nothing ends for it, so it needs no right to evict, and any pod comes before a claim that has none, whatever
its priority. The claim waits for devices again, behind all pods. A claim that is reserved in the meantime is
safe: giving back names the version that was looked at.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final, Protocol

from koordra.api import objects
from koordra.api.objects import Fields
from koordra.controller.allocation.eviction.preemption import Fits
from koordra.controller.cache.groups import Group
from koordra.placement.holders.device_hold import HOLD
from koordra.placement.index import NodeInfo


class Unused(Protocol):
    """A claim that no pod uses, or what is held for a gang. `node`: where its devices are."""

    @property
    def claim(self) -> Fields: ...

    @property
    def uid(self) -> str: ...

    @property
    def node(self) -> str | None: ...


MOST_NODES: Final = 16
"""Nodes that are worked out for one part of a group in one pass, those with the fewest claims; of its parts
a quarter as many."""


def displaced(
    group: Group,
    idle: Sequence[Unused],
    nodes: Mapping[str, NodeInfo],
    *,
    excluded: Container[str],
    fits: Fits,
) -> tuple[Unused, ...]:
    """The claims that lose their devices for the group; none where that does not help it. `idle`: those that
    no pod uses."""
    by_node: dict[str, list[Unused]] = {}
    for entry in idle:
        if entry.node in nodes and entry.node not in excluded:
            by_node.setdefault(str(entry.node), []).append(entry)
    fewest = sorted(by_node, key=lambda name: (len(by_node[name]), name))[:MOST_NODES]
    for part in group.parts[: MOST_NODES // 4]:
        found = [tuple(gone) for name in fewest if (gone := _least(part, nodes[name], by_node[name], fits))]
        if found:
            return min(found, key=len)
    return ()


def _least(group: Group, info: NodeInfo, idle: Sequence[Unused], fits: Fits) -> list[Unused]:
    gone = list(idle)
    if not fits(group, info, _uids(gone)):
        return []
    for entry in sorted(idle, key=_age):
        rest = [other for other in gone if other is not entry]
        if fits(group, info, _uids(rest)):
            gone = rest
    return gone


def _age(entry: Unused) -> tuple[bool, str, str]:
    """What is put back first."""
    made = str(objects.metadata(entry.claim).get("creationTimestamp") or "")
    return entry.claim.get("kind") != HOLD, made, objects.key(entry.claim)


def _uids(entries: Sequence[Unused]) -> frozenset[str]:
    return frozenset(entry.uid for entry in entries)
