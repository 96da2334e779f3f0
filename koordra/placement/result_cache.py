"""Answers of the search that hold for other claims and nodes too, within one run of `plan()` or from run to run.

Thousands of claims say the same, and nodes pass through the same states. A claim group that asks what an earlier one asked, on a
node that is alike device by device (`likeness`: what is published and what is taken), has the earlier answer, position by
position; so the search need not be repeated. Only placements are kept: why a node cannot serve is told anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from koordra.allocator.capacity import Demand
from koordra.allocator.inventory import Inventory, Pool, Taken
from koordra.allocator.likeness import Names, likeness, read_by
from koordra.allocator.node_state import NodeState
from koordra.allocator.offer import Offer
from koordra.allocator.requests import AskedClaim
from koordra.allocator.solution import Placed

_MOST = 1 << 14


class _Given(NamedTuple):
    """One device, by position, given to one request, by position."""

    claim: int
    request: int
    alternative: int
    device: int
    demand: Demand
    shared: bool


class _DevicesOnly(NodeState):
    """What an offer is written from: the devices of the node, without what a search would need beside them."""

    __slots__ = ()

    def __post_init__(self) -> None:
        self.devices.extend(device for pool in self.pools for device in pool.devices)


class Solved:
    """Placements by what is asked and what the node is like. For one inventory, set of classes and policy."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._known: dict[Hashable, tuple[int, tuple[_Given, ...]]] = {}
        self._read: dict[Hashable, Names] = {}

    def key(
        self,
        asked: Sequence[AskedClaim],
        siblings: Sequence[frozenset[int]],
        pools: Sequence[Pool],
        taken: Taken,
        *,
        honors_partitions: bool,
    ) -> Hashable:
        """Equal for the same question; None where that cannot be told."""
        said = (tuple(map(_said, asked)), tuple(siblings))
        if said not in self._read:
            if len(self._read) >= _MOST:
                self._read.clear()
            self._read[said] = read_by(asked)
        alike = likeness(self.inventory, pools, taken, self._read[said])
        return None if alike is None else (said, alike, honors_partitions)

    def offer(
        self, key: Hashable, node: str, asked: Sequence[AskedClaim], pools: Sequence[Pool], taken: Taken
    ) -> Offer | None:
        """The earlier answer, for these claims on this node."""
        found = self._known.get(key)
        if key is None or found is None:
            return None
        cost, given = found
        placed = tuple(
            Placed(
                asked[one.claim].requests[one.request].alternatives[one.alternative],
                one.device,
                one.demand,
                one.shared,
            )
            for one in given
        )
        return Offer(node, asked, _DevicesOnly(pools, taken, self.inventory.features), placed, cost)

    def keep(self, key: Hashable, offer: Offer) -> None:
        """Remember the answer."""
        if key is None:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = (
            offer.cost,
            tuple(
                _Given(
                    one.wanted.claim,
                    one.wanted.request,
                    one.wanted.index,
                    one.device,
                    one.demand,
                    one.shared,
                )
                for one in offer.placed
            ),
        )


def _said(claim: AskedClaim) -> Hashable:
    """All of a claim that the search sees."""
    return (
        claim.claim.requests,
        claim.constraints,
        claim.joints,
        claim.joint_requests,
        claim.placement,
        claim.own_driver_only,
        tuple(
            (tuple(sorted(wanted.percent.items())), wanted.whole, wanted.device_class.name)
            for request in claim.requests
            for wanted in request.alternatives
        ),
    )
