"""One node is asked for devices for several members at the same time.

The word on devices is the allocator's own: the claims of all the members are placed on the node in one complete search
(`placement.Placement`), so two members never want the same device and neither is refused for a bad choice of the other.

A search that runs out of budget is asked once more, one member after the other. What that finds is good; what it does not find is
not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.allocator.devices.inventory import Usage
from koordra.allocator.devices.nvlink_fabric import honors_partitions
from koordra.allocator.features import Features
from koordra.allocator.placement import NodeAnswer, Placement
from koordra.allocator.request.requests import ResolvedClaim, refuse_bad_selectors, resolve
from koordra.api import objects
from koordra.api.claims import DeviceClass, ResourceClaim
from koordra.api.opaque.parameters import PlacementPolicy
from koordra.errors import InvalidManifest
from koordra.placement.gang.member_assignment import Alike, Fit, fit_of
from koordra.placement.gang.node_devices import Devices, Rails, taken_by
from koordra.placement.gang.preferred_scopes import climbing, prefers
from koordra.placement.gang.types import GangNode, Member
from koordra.placement.request.groups import Group, siblings_in

BUDGET: Final = 5_000
"""Placements that one node may try for one count."""


@dataclass(slots=True)
class Searching:
    """Asks nodes, each time anew."""

    nodes: Mapping[str, GangNode]
    devices: Devices
    device_classes: Mapping[str, DeviceClass | InvalidManifest]
    features: Features
    policy: PlacementPolicy | None
    budget: int = 1
    _asked: dict[tuple[str, int], ResolvedClaim] = field(default_factory=dict)

    def search(self, name: str, alike: Alike, rails: Rails | None) -> tuple[Fit | None, bool]:
        """The node's seats for these members, on these rails; and whether the search ran out of budget."""
        members = [member for _, own in alike for member in own]
        asked, siblings = self.together(members)
        if len(members) > 1 and any(map(prefers, asked)):
            offer, climbed, unknown = climbing(
                asked,
                alike,
                lambda claims: self._placed(name, claims, siblings, rails),
                budget=self.budget,
            )
            return None if offer is None else fit_of(name, alike, [offer], climbed=climbed), unknown
        answer = self._placed(name, asked, siblings, rails)
        if answer.offer is not None:
            return fit_of(name, alike, [answer.offer]), False
        if not answer.exhausted:
            return None, False
        return self._one_by_one(name, alike, rails), True

    def ask(
        self, name: str, members: Sequence[Member], rails: Rails | None = None, taken: Usage | None = None
    ) -> NodeAnswer:
        """The allocator's answer for these members on the node."""
        return self._placed(name, *self.together(members), rails, taken)

    def _placed(
        self,
        name: str,
        asked: Sequence[ResolvedClaim],
        siblings: Sequence[frozenset[int]],
        rails: Rails | None = None,
        taken: Usage | None = None,
    ) -> NodeAnswer:
        node = self.nodes[name]
        placement = Placement(
            asked,
            siblings,
            policy=self.policy,
            features=self.devices.inventory(name).features,
            several=False,
            budget=BUDGET * self.budget,
        )
        return placement.on_node(
            name,
            self.devices.pools(name, rails),
            self.devices.taken(name) if taken is None else taken,
            honors_partitions=honors_partitions(objects.labels_of(node.node)),
        )

    def _one_by_one(self, name: str, alike: Alike, rails: Rails | None) -> Fit | None:
        taken = taken_by(self.nodes[name])
        offers = []
        for member in (member for _, own in alike for member in own):
            answer = self.ask(name, [member], rails, taken)
            if answer.offer is None:
                return None
            offers.append(answer.offer)
            for allocation in answer.offer.allocations(pin_to_node=True):
                taken.add(allocation.results, holder=member.key)
        return fit_of(name, alike, offers)

    def together(self, members: Sequence[Member]) -> tuple[list[ResolvedClaim], list[frozenset[int]]]:
        """The members' claims, one after the other, and which claims each one's pods use together with it."""
        asked: list[ResolvedClaim] = []
        siblings: list[frozenset[int]] = []
        for member in members:
            start = len(asked)
            claims = []
            for claim in member.claims:
                key = (objects.key(claim), len(asked))
                found = self._asked.get(key)
                if found is None:
                    read = ResourceClaim.from_dict(claim)
                    found = resolve(
                        read, position=len(asked), classes=self.device_classes, features=self.features
                    )
                    refuse_bad_selectors(found)
                    self._asked[key] = found
                asked.append(found)
                claims.append(found.claim)
            own = siblings_in(Group(tuple(claims), tuple(member.pods)))
            siblings += [frozenset(start + at for at in together) for together in own]
        return asked, siblings
