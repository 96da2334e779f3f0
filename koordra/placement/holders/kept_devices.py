"""Devices that are kept for who is asked about: the very devices of a seat, or what a reservation has.

one seat after the other, those with the fewest devices first    its very devices, if they do
as if all of them were free                                      the best place of all
neither                                                          None: like everybody, which says why not
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from koordra.allocator.devices.inventory import Pool, Usage
from koordra.allocator.group_search import NodeAnswer
from koordra.allocator.offer import Offer
from koordra.allocator.reasons import Reason
from koordra.api.devices import DeviceID
from koordra.placement.candidates.decision import Decision
from koordra.placement.index import ClusterIndex, NodeInfo
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.placement.request.request_class import ResolvedGroup, refusals


class Asked(Protocol):
    """The engine (placement/decide)."""

    @property
    def index(self) -> ClusterIndex: ...

    def settle(self) -> None: ...

    def resolve(self, group: ClaimGroup | ResolvedGroup) -> ResolvedGroup: ...

    def choose(self, resolved: ResolvedGroup, excluded: Mapping[str, Reason], *, once: bool) -> Decision: ...

    def search(
        self, resolved: ResolvedGroup, info: NodeInfo, taken: Usage, *, pools: Sequence[Pool] | None = None
    ) -> NodeAnswer: ...


def offer_of_devices(
    engine: Asked,
    group: ClaimGroup | ResolvedGroup,
    node: str,
    devices: Collection[DeviceID],
    *,
    without: frozenset[str],
) -> Offer | None:
    """These devices of the node for the group, as if these claims and pods (by uid) were gone."""
    resolved = engine.resolve(group)
    engine.settle()
    info = engine.index.nodes.get(node)
    if info is None or refusals(engine.index, resolved.group, info, without=without):
        return None
    taken, pools = engine.index.taken_without(info, without), [one.only(devices) for one in info.pools]
    return engine.search(resolved, info, taken, pools=pools).offer


def offer_of_reserved(
    engine: Asked, resolved: ResolvedGroup, excluded: Mapping[str, Reason], *, once: bool
) -> Offer | None:
    """Raises as `Engine.decide` does."""
    seats = engine.index.reserved.for_pods(resolved.group.pods)
    for seat in seats:
        if seat.node not in excluded:
            uid = frozenset({seat.uid})
            offer = offer_of_devices(engine, resolved, seat.node, seat.devices, without=uid)
            if offer is not None:
                return offer
    if not seats:
        return None
    with engine.index.overlay():
        for seat in seats:
            engine.index.release(seat.held)
        engine.settle()
        decision = engine.choose(resolved, excluded, once=once)
    return decision if isinstance(decision, Offer) else None
