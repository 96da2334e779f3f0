"""One node is asked for devices for several members at the same time.

The word on devices is the engine's own: the claims of all the members are one question to the node (`Engine.search`), so two
members never want the same device and neither is refused for a bad choice of the other.

A search that runs out of budget is asked once more, one member after the other. What that finds is good; what it does not find is
not known.

With a set of rails, a node is shown as if its NICs on other rails were not there. They are not forgotten: what refers to them
by name still finds them among the others of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from koordra.allocator.devices.inventory import NIC, Pool, Usage
from koordra.allocator.placement import NodeAnswer, Placement
from koordra.allocator.request.requests import ResolvedClaim
from koordra.placement.decide import Engine
from koordra.placement.gang.member_assignment import Alike, Fit, Rails, fit_of, rail_of
from koordra.placement.gang.preferred_scopes import prefers, widening
from koordra.placement.request.request_class import ResolvedGroup

BUDGET: Final = 5_000
"""Placements that one node may try for one count."""


@dataclass(slots=True)
class NodeSearch:
    """Asks nodes, each time anew."""

    engine: Engine
    budget: int = 1
    _pools: dict[tuple[str, Rails], tuple[list[Pool], tuple[int, ...]]] = field(default_factory=dict)

    def search(self, name: str, alike: Alike, rails: Rails | None) -> tuple[Fit | None, bool]:
        """The node's assignments for these members, on these rails; and whether the search ran out of budget."""
        taken, members = self.engine.index.taken, [member for _, own in alike for member in own]
        together = self.together(members)
        positions = None if rails is None else self._on_rails(name, rails)[1]
        if len(members) > 1 and any(map(prefers, together.asked)):
            offer, steps, unknown = widening(
                together.asked,
                alike,
                lambda asked: self.ask(name, replace(together, asked=tuple(asked)), rails),
                budget=self.budget,
            )
            return None if offer is None else fit_of(
                alike, [offer], positions, taken=taken, widened=steps
            ), unknown
        answer = self.ask(name, together, rails)
        if answer.offer is not None:
            return fit_of(alike, [answer.offer], positions, taken=taken), False
        if not answer.exhausted:
            return None, False
        return self._one_by_one(name, alike, members, rails), True

    def ask(
        self, name: str, resolved: ResolvedGroup, rails: Rails | None = None, taken: Usage | None = None
    ) -> NodeAnswer:
        """The allocator's answer for these members on the node."""
        index = self.engine.index
        placement = Placement(
            resolved.asked,
            resolved.siblings,
            policy=self.engine.policy,
            features=self.engine.features,
            budget=BUDGET * self.budget,
        )
        return self.engine.search(
            resolved,
            index.nodes[name],
            index.taken if taken is None else taken,
            placement=placement,
            pools=None if rails is None else self._on_rails(name, rails)[0],
        )

    def _one_by_one(
        self, name: str, alike: Alike, members: Sequence[ResolvedGroup], rails: Rails | None
    ) -> Fit | None:
        taken = self.engine.index.taken_without(self.engine.index.nodes[name], frozenset())
        offers = []
        for number, resolved in enumerate(members):
            answer = self.ask(name, resolved, rails, taken)
            if answer.offer is None:
                return None
            offers.append(answer.offer)
            for allocation in answer.offer.allocations(pin_to_node=True):
                taken.add(allocation.results, holder=f"member {number}")
        positions = self._on_rails(name, rails)[1] if rails is not None else None
        return fit_of(alike, offers, positions, taken=self.engine.index.taken)

    def together(self, members: Sequence[ResolvedGroup]) -> ResolvedGroup:
        """The members' claims, one after the other, as one question."""
        if len(members) == 1:
            return members[0]
        identities = self.engine.index.known.identities
        lead = next((one for one in members if one.request_class.reads_any_of(identities)), members[0])
        asked: list[ResolvedClaim] = []
        siblings: list[frozenset[int]] = []
        for member in members:
            start = len(asked)
            asked += [
                self.engine.resolve_claim(claim, start + at) for at, claim in enumerate(member.group.claims)
            ]
            siblings += [frozenset(start + at for at in own) for own in member.siblings]
        return replace(lead, asked=tuple(asked), siblings=tuple(siblings))

    def _on_rails(self, name: str, rails: Rails) -> tuple[list[Pool], tuple[int, ...]]:
        """The node's pools without the NICs that are on other rails, and the positions on the node of the devices that are left."""
        found = self._pools.get((name, rails))
        if found is None:
            pools, positions, start = [], list[int](), 0
            for pool in self.engine.index.nodes[name].pools:
                kept = [
                    at
                    for at, offered in enumerate(pool.devices)
                    if offered.kind != NIC or rail_of(offered.plain) in rails
                ]
                dropped = [
                    (offered.id, offered.device) for at, offered in enumerate(pool.devices) if at not in kept
                ]
                positions += [start + at for at in kept]
                start += len(pool.devices)
                devices = tuple(pool.devices[at] for at in kept)
                pools.append(
                    replace(pool, devices=devices, others=(*pool.others, *dropped)) if dropped else pool
                )
            found = self._pools[name, rails] = pools, tuple(positions)
        return found
