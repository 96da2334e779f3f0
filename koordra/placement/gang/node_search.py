"""One node is asked for devices for several members at the same time.

The word on devices is the engine's own: the claims of all the members are one question to the node
(`Engine.search`), so two members never want the same device and neither is refused for a bad choice of the
other.

A search that runs out of budget is asked once more, one member after the other. What that finds is good; what
it does not find is not known.

With a set of rails, a node is shown as if its NICs on other rails were not there. They are not forgotten:
what refers to them by name still finds them among the others of the pool.

Preferred scopes of several members:

    all in their narrowest scopes ─▶ fits: taken
                                  └▶ does not: do they fit at all? ─▶ no: refused
                                                                   └▶ yes: the fewest levels wider in sum,
                                                                      then the next fewest, …

The combinations are not tried in every order (that is exponential): members of a class are alike, so it is
asked how many of them are how many levels wider. A few ways are tried; if none of them fits, what fitted
without scopes is taken, counted as if all were at their widest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from koordra.allocator.devices.inventory import NIC, Pool, Usage
from koordra.allocator.group_search import GroupSearch, NodeAnswer
from koordra.allocator.joint_allocation import relaxation_levels
from koordra.allocator.offer import Offer
from koordra.allocator.request.requests import ResolvedClaim
from koordra.api.opaque.parameters import Enforcement
from koordra.effort import spend
from koordra.placement.decide import Engine
from koordra.placement.gang.member_assignment import Alike, Fit, Rails, fit_of, rail_of
from koordra.placement.index import NodeInfo
from koordra.placement.request.request_class import ResolvedGroup

BUDGET: Final = 5_000
"""Placements that one node may try for one count."""

_READ: Final = 20
"""Steps that each claim of a question takes besides the placements tried."""

_MOST_WAYS: Final = 8
"""Ways to widen scopes that are tried on one node for one count."""

_MOST_COMBINATIONS: Final = 20_000


@dataclass(slots=True)
class NodeSearch:
    engine: Engine
    budget: int = 1
    _pools: dict[tuple[str, Rails | None], tuple[list[Pool], tuple[int, ...]]] = field(default_factory=dict)

    def search(self, info: NodeInfo, alike: Alike, rails: Rails | None) -> tuple[Fit | None, bool]:
        """The node's assignments for these members, on these rails; whether a better answer is not known."""
        engine, members = self.engine, [member for _, own in alike for member in own]
        whole, taken = together(engine, members), engine.index.taken
        pools, positions = self._offered(info, rails)
        if len(members) > 1 and any(
            joint.enforcement is Enforcement.PREFERRED for claim in whole.asked for joint in claim.joints
        ):
            offer, steps, unknown = _widened_least(
                whole.asked,
                alike,
                lambda asked: self.ask(info, replace(whole, asked=tuple(asked)), taken, pools),
                most=_MOST_WAYS * self.budget,
            )
            if offer is None:
                return None, unknown
            return fit_of(alike, [offer], positions, taken=taken, widened=steps), unknown
        answer = self.ask(info, whole, taken, pools)
        if answer.offer is not None:
            return fit_of(alike, [answer.offer], positions, taken=taken), False
        if not answer.exhausted:
            return None, False
        beside, offers = engine.index.taken_without(info, frozenset()), list[Offer]()
        for number, resolved in enumerate(members):
            offer = self.ask(info, resolved, beside, pools).offer
            if offer is None:
                return None, True
            offers.append(offer)
            for allocation in offer.allocations(pin_to_node=True):
                beside.add(allocation.results, holder=f"member {number}", namespace=whole.namespace)
        return fit_of(alike, offers, positions, taken=taken), True

    def ask(
        self, info: NodeInfo, resolved: ResolvedGroup, taken: Usage, pools: Sequence[Pool] | None = None
    ) -> NodeAnswer:
        """The allocator's answer for these members on the node. `pools`: as if it had these, no others."""
        spend(_READ * len(resolved.asked))
        placement = GroupSearch(
            resolved.asked,
            resolved.siblings,
            policy=self.engine.policy,
            features=self.engine.features,
            budget=BUDGET * self.budget,
        )
        return self.engine.search(resolved, info, taken, placement=placement, pools=pools)

    def _offered(
        self, info: NodeInfo, rails: Rails | None
    ) -> tuple[list[Pool] | None, tuple[int, ...] | None]:
        """The node's pools without what its members cannot have, and the positions on the node of the devices
        that are left; None where that is all: NICs that are on other rails, and devices that are on no node,
        which the members on another node would be given too."""
        if rails is None and not any(pool.is_shared for pool in info.pools):
            return None, None
        found = self._pools.get((info.name, rails))
        if found is None:
            pools, positions, start = [], list[int](), 0
            for pool in info.pools:
                kept = [
                    at
                    for at, offered in enumerate(pool.devices)
                    if offered.selection.node_name
                    and (rails is None or offered.kind != NIC or rail_of(offered.plain) in rails)
                ]
                dropped = [
                    (offered.id, offered.device) for at, offered in enumerate(pool.devices) if at not in kept
                ]
                positions += [start + at for at in kept]
                start += len(pool.devices)
                pools.append(
                    replace(
                        pool,
                        devices=tuple(pool.devices[at] for at in kept),
                        others=(*pool.others, *dropped),
                    )
                )
            found = self._pools[info.name, rails] = pools, tuple(positions)
        return found


def together(engine: Engine, members: Sequence[ResolvedGroup]) -> ResolvedGroup:
    """The members' claims, one after the other, as one question."""
    if len(members) == 1:
        return members[0]
    identities = engine.index.known.identities
    lead = next((one for one in members if one.request_class.reads_any_of(identities)), members[0])
    asked: list[ResolvedClaim] = []
    siblings: list[frozenset[int]] = []
    for member in members:
        start = len(asked)
        asked += [engine.resolve_claim(claim, start + at) for at, claim in enumerate(member.group.claims)]
        siblings += [frozenset(start + at for at in own) for own in member.siblings]
    return replace(lead, asked=tuple(asked), siblings=tuple(siblings))


def _widened_least(
    asked: Sequence[ResolvedClaim],
    alike: Alike,
    ask: Callable[[Sequence[ResolvedClaim]], NodeAnswer],
    *,
    most: int,
) -> tuple[Offer | None, int, bool]:
    """The offer to members with Preferred scopes, how many levels wider they are, and whether a better one is
    not known.

    `ask` asks the node for claims, which are these ones with other scopes; `most`: ways that are tried.
    """
    anyhow = None
    exhausted = False
    for steps in _ways(alike)[:most]:
        answer = ask(_widened(asked, steps))
        if answer.offer is not None:
            return answer.offer, sum(steps), exhausted
        exhausted = exhausted or answer.exhausted
        if anyhow is None:
            anyhow = ask([replace(claim, joints=(), joint_requests=()) for claim in asked])
            if anyhow.offer is None:
                return None, 0, anyhow.exhausted
    widest = sum(len(relaxation_levels(joint)) - 1 for claim in asked for joint in claim.joints)
    return None if anyhow is None else anyhow.offer, widest, True


def _ways(alike: Alike) -> list[tuple[int, ...]]:
    """Levels wider by claim and joint, the fewest in sum first; members that ask alike in order of their
    steps."""
    levels = [
        ([range(len(relaxation_levels(joint))) for claim in own[0].asked for joint in claim.joints], len(own))
        for _, own in alike
    ]
    per_member = [math.prod(map(len, ranges)) for ranges, _ in levels]
    combinations = [
        math.comb(ways + number - 1, number) for ways, (_, number) in zip(per_member, levels, strict=True)
    ]
    if math.prod(combinations) > _MOST_COMBINATIONS:
        return [(0,) * sum(len(ranges) * number for ranges, number in levels)]
    chosen = itertools.product(
        *(
            itertools.combinations_with_replacement(itertools.product(*ranges), number)
            for ranges, number in levels
        )
    )
    flat = [tuple(step for own in one for member in own for step in member) for one in chosen]
    return sorted(flat, key=lambda steps: (sum(steps), steps))


def _widened(asked: Sequence[ResolvedClaim], steps: Sequence[int]) -> list[ResolvedClaim]:
    """The claims with every Preferred scope turned into the one so many levels wider, now Required."""
    found, levels = [], iter(steps)
    for claim in asked:
        kept = [
            (replace(joint, scope=scope, enforcement=Enforcement.REQUIRED), covered)
            for joint, covered in zip(claim.joints, claim.joint_requests, strict=True)
            if (scope := relaxation_levels(joint)[next(levels)]) is not None
        ]
        joints, requests = tuple(joint for joint, _ in kept), tuple(covered for _, covered in kept)
        found.append(replace(claim, joints=joints, joint_requests=requests))
    return found
