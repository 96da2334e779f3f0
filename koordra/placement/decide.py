"""The engine, which everything that places claims asks: which node takes a group, and which of its devices.

    group ─ resolve ─▶ request class ─▶ candidates ─▶ least bound ─ search ─▶ least cost ─▶ Offer
                                            ▲              │ result cache, by NodeClassUsage
                          nodes that changed┘              └ ceiling: the best cost so far

A cost is an ordered pair: what the claim pays (relaxation ... compactness: the table in `score`), then, after
PreferNoSchedule taints of the node and how full it is by the operator's weights (`node_scoring`; of its best
placement, which is chosen without regard to that), what the cluster pays: the rest of the written cost, or
before it, where the workload is known and claim and policy leave the choice to it, the expected waste, of
devices inside the search, of a node by what else is free on it (`learned_order`). Equals: the node named
first.

`plan()`, the controller, forecasts, preemption and gangs whose members are placed one by one call `decide` or
`fits`; `explain.explain` says why a group fits nowhere. Gangs placed as a whole (`gang/`) ask one node of
each NodeClassUsage for several members with `search`; defragmentation (`defragment/`) asks `decide` for each
pod that would have to move, on an overlay without them.
"""

from __future__ import annotations

import traceback
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from koordra.allocator.devices.inventory import Pool, Usage
from koordra.allocator.features import Features
from koordra.allocator.group_search import GroupSearch, NodeAnswer
from koordra.allocator.offer import Offer
from koordra.allocator.predicates import soft_taints
from koordra.allocator.reasons import Reason
from koordra.allocator.request.requests import ResolvedClaim, refuse_bad_selectors, resolve
from koordra.allocator.score import policy_of
from koordra.allocator.search.search import BUDGET, MOST_BUDGET
from koordra.allocator.search.solution import CostPair, Placed
from koordra.api import names
from koordra.api.claims import ResourceClaim
from koordra.api.opaque.parameters import PlacementPolicy
from koordra.api.tables import BoundedCache
from koordra.effort import spend
from koordra.errors import KoordraError, PlanError
from koordra.placement.candidates.candidate_list import (
    Candidate,
    CandidateCost,
    Entry,
    Result,
    Unit,
    Where,
    ceiling_of,
    first_of,
    offer_of,
)
from koordra.placement.candidates.decision import Decision, Undecided, unplaced
from koordra.placement.candidates.node_scoring import ScoringStrategy
from koordra.placement.holders.kept_devices import offer_of_reserved
from koordra.placement.index import ClusterIndex, NodeInfo
from koordra.placement.policy.learned_order import Failed, Learned, LearnedOrder
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.placement.request.request_class import (
    RequestClass,
    ResolvedGroup,
    load_beside,
    pinned_to,
    refusals,
    resolved_group_of,
    spec_key,
    suits,
)

Excluded = Mapping[str, Reason]
"""Node -> why the group must stay off it."""
NOTHING: Final[Excluded] = {}
_FREE: Final = frozenset[str]()


class Engine:
    """`policy` None is first fit, which weighs no nodes. `contained` is told of errors inside the allocator,
    which then concern one node only, and what cannot be read one object; without it they are raised. Not
    thread-safe."""

    def __init__(
        self,
        policy: PlacementPolicy | None,
        features: Features,
        *,
        learned: Learned | None = None,
        contained: Failed | None = None,
        scoring: ScoringStrategy | None = None,
    ) -> None:
        self.policy = policy
        self.features = features
        self.scoring = scoring
        if policy is None and scoring is not None:
            raise PlanError("FirstFit weighs no nodes: give another policy, or no scoring strategy")
        self.index = ClusterIndex(features, lenient=contained is not None)
        self.order = LearnedOrder(self.index, learned, failed=contained)
        self._contained = contained is not None
        self._classes: dict[Hashable, RequestClass] = {}
        self._class_version = -1
        self._claims = BoundedCache[Hashable, ResolvedClaim](1024)
        """By position and spec: claims of one template are resolved once."""

    def decide(
        self, group: ClaimGroup | ResolvedGroup, *, excluded: Excluded = NOTHING, once: bool = False
    ) -> Decision:
        """The best place for the group as a whole. `once`: for who asks again later; the others are answered
        when the group is decided, or as much was tried as is at most. Raises ClaimRefused for a claim that
        can be placed nowhere by anybody, and PlanError where a taint rule cannot be read."""
        resolved = self.resolve(group)
        self.settle()
        reserved = offer_of_reserved(self, resolved, excluded, once=once)
        return self.choose(resolved, excluded, once=once) if reserved is None else reserved

    def choose(self, resolved: ResolvedGroup, excluded: Excluded, *, once: bool) -> Decision:
        """`decide`, of what is settled, and without regard to what is reserved for the group."""
        of, choose = resolved.request_class, self._beside if resolved.group.allocated else self._choose
        while True:
            decision, tried = choose(resolved, excluded), of.budget
            if isinstance(decision, Undecided):
                of.budget = min(2 * tried, MOST_BUDGET)
            if once or of.budget == tried:
                return decision

    def fits(self, group: ClaimGroup | ResolvedGroup, node: str, *, without: frozenset[str] = _FREE) -> bool:
        """Whether the group fits on the node, as if these claims and pods (by uid) were gone."""
        resolved = self.resolve(group)
        self.settle()
        info = self.index.nodes.get(node)
        if info is None or refusals(self.index, resolved.group, info, without=without):
            return False
        if not without:
            return self._result(resolved, info, None).cost is not None
        taken = self.index.taken_without(info, without)
        return self.search(resolved, info, taken).offer is not None

    def resolve(self, group: ClaimGroup | ResolvedGroup) -> ResolvedGroup:
        """The group with its claims resolved, again only if a DeviceClass changed. Raises ClaimRefused."""
        index = self.index
        if index.trouble:
            raise PlanError(index.trouble[min(index.trouble)])
        if self._class_version != index.class_version:
            self._classes.clear()
            self._claims.clear()
            self._class_version = index.class_version
        if isinstance(group, ResolvedGroup):
            if group.version == index.class_version:
                return group
            group = group.group
        asked = tuple([self.resolve_claim(claim, at) for at, claim in enumerate(group.claims)])
        known = self._classes
        return resolved_group_of(group, asked, known, index, policy=self.policy, scoring=self.scoring)

    def resolve_claim(self, claim: ResourceClaim, position: int) -> ResolvedClaim:
        """The claim as the one at this position of its group. Raises ClaimRefused."""
        key = position, spec_key(claim)
        known = self._claims.get(key)
        if known is not None:
            return replace(known, claim=claim)
        asked = resolve(claim, position=position, classes=self.index.classes, features=self.features)
        if self.policy is not None:
            refuse_bad_selectors(asked)
        if claim.content:
            self._claims[key] = asked
        return asked

    def settle(self) -> None:
        """Take over what has changed."""
        self.index.settle()
        self.order.follow()

    def _choose(self, resolved: ResolvedGroup, excluded: Excluded) -> Decision:
        """The best of all nodes, by the class's candidates."""
        of, index, alone = resolved.request_class, self.index, self._alone(resolved)
        candidates = of.candidates
        candidates.read_changes(
            index,
            by_node=of.names_nodes or alone,
            epoch=self.order.epoch,
            first_look=partial(self._first_look, resolved, alone),
        )
        placement: GroupSearch | None = None
        late: list[Candidate] = []

        def search(name: str, candidate: Candidate, best: Entry | None) -> Candidate | None:
            nonlocal placement
            placement = placement or self.placement_for(resolved, of.budget)
            by_waste = self.goes_by_waste(resolved)
            ceiling = None if best is None else ceiling_of(candidate, name, best, by_waste=by_waste)
            result = self._result(resolved, index.nodes[name], ceiling, placement)
            if result.bound is not None:
                least = candidate.value._replace(claim=result.bound.claim)
                if result.bound.cluster and not by_waste:
                    least = least._replace(cluster=result.bound.cluster[-1])
                return Candidate(candidate.unit, least, known=False)
            if result.cost is None:
                spend(1)
                if result.undecided:
                    late.append(candidate)
                return None
            value = self.value(resolved, name, result.cost, result.placed)
            return Candidate(candidate.unit, value, known=True)

        found = candidates.best(excluded, search)
        for candidate in late:
            # With the next question there is more to try, and the node is perhaps the first.
            candidates.put(candidate.unit, candidate)
        if found is not None:
            return self._offer(resolved, index.nodes[found[0]])
        units = candidates.entries.items() if of.results else ()
        names = [first_of(unit) for unit, candidate in units if candidate is None]
        there = [name for name in names if name is not None and name not in excluded]
        known = [self.known(resolved, index.nodes[name]) for name in there]
        return unplaced(known, undecided=bool(late))

    def _beside(self, resolved: ResolvedGroup, excluded: Excluded) -> Decision:
        """Claims of the pods have their devices: only nodes that those allow come into question."""
        results: dict[str, Result] = {}
        placement = self.placement_for(resolved, resolved.request_class.budget)
        for name in pinned_to(self.index, resolved.group):
            info = self.index.nodes.get(name)
            if info is not None and name not in excluded and not refusals(self.index, resolved.group, info):
                results[name] = self._result(resolved, info, None, placement)
        placed = [
            (self.value(resolved, name, result.cost, result.placed), name)
            for name, result in results.items()
            if result.cost is not None
        ]
        if placed:
            return self._offer(resolved, self.index.nodes[min(placed)[1]])
        return unplaced(results.values())

    def _first_look(
        self, resolved: ResolvedGroup, alone: bool, unit: Unit, info: NodeInfo
    ) -> Candidate | None:
        """What can be said without a search."""
        bound = resolved.request_class.bound
        if (not alone and bound.lacks(info, self.index.taken)) or not suits(self.index, resolved, info):
            return None
        known = self.known(resolved, info)
        if known is not None and not known.undecided:
            value = known.cost and self.value(resolved, info.name, known.cost, known.placed)
            return value and Candidate(unit, value, known=True)
        least = CostPair() if alone else bound.least(info, self.index.taken)
        if least is None:
            return None
        wasted = least.cluster[-1] if least.cluster else 0
        if self.goes_by_waste(resolved):
            wasted = self.order.least(resolved, info, alone=alone)
        soft, score = soft_taints(info.node, resolved.group.pods), resolved.request_class.score
        scoring = 0 if score is None else score.least(info, alone=alone)
        return Candidate(unit, CandidateCost(least.claim, soft, scoring, wasted), known=False)

    def value(
        self, resolved: ResolvedGroup, name: str, cost: CostPair, placed: Sequence[Placed]
    ) -> CandidateCost:
        """What decides between nodes. `placed`: the devices that cost this."""
        info, score = self.index.nodes[name], resolved.request_class.score
        soft, scoring = soft_taints(info.node, resolved.group.pods), 0
        if self.policy is None:
            return CandidateCost(0, soft, 0, 0)
        if score is not None:
            scoring = score.cost(info, placed, load_beside(self.index, resolved.group, info))
        by_waste = self.goes_by_waste(resolved)
        cluster = self.order.value(resolved, info, cost.cluster) if by_waste else cost.cluster[-1]
        return CandidateCost(cost.claim, soft, scoring, cluster)

    def goes_by_waste(self, resolved: ResolvedGroup) -> bool:
        """Whether the expected waste decides what the cluster pays, not the written cost's rest alone."""
        return self.policy == policy_of(names.DEFAULT_POLICY) and self.order.knows(resolved)

    def _alone(self, resolved: ResolvedGroup) -> bool:
        """Whether nodes of one state may answer differently: some selector reads what tells them apart."""
        return resolved.request_class.reads_any_of(self.index.known.identities)

    def where(self, resolved: ResolvedGroup, info: NodeInfo) -> Where:
        """Whose results hold for the node."""
        return (info, info.generation) if self._alone(resolved) else info.devices

    def known(
        self, resolved: ResolvedGroup, info: NodeInfo, ceiling: CostPair | None = None
    ) -> Result | None:
        of = resolved.request_class
        if not of.results:
            return None
        return of.results.saying(self.where(resolved, info), self.order.epoch, ceiling, of.budget)

    def _result(
        self,
        resolved: ResolvedGroup,
        info: NodeInfo,
        ceiling: CostPair | None,
        placement: GroupSearch | None = None,
    ) -> Result:
        known = self.known(resolved, info, ceiling)
        if known is not None:
            return known
        short, placement = False, placement or self.placement_for(resolved, resolved.request_class.budget)
        try:
            answer = self.search(resolved, info, self.index.taken, placement=placement, ceiling=ceiling)
        except KoordraError:
            raise
        except Exception:
            if not self._contained:
                raise
            found = Result(defect=traceback.format_exc())
        else:
            short, offer = answer.short, answer.offer
            cost, placed = (None, ()) if offer is None else (offer.cost, offer.placed)
            undecided = placement.budget if answer.exhausted else 0
            found = Result(cost, placed, answer.bound, undecided, epoch=self.order.epoch)
        if not short:
            resolved.request_class.results[self.where(resolved, info)] = found
        return found

    def search(
        self,
        resolved: ResolvedGroup,
        info: NodeInfo,
        taken: Usage,
        *,
        placement: GroupSearch | None = None,
        alike: Hashable = None,
        ceiling: CostPair | None = None,
        pools: Sequence[Pool] | None = None,
    ) -> NodeAnswer:
        """What the node says to the group. `pools`: as if the node had these, and no others."""
        asking = placement or self.placement_for(resolved)
        return asking.on_node(
            info.name,
            info.pools if pools is None else pools,
            taken,
            honors_partitions=info.devices.honors_partitions,
            alike=alike,
            ceiling=ceiling,
            verdicts=None if pools is not None else resolved.request_class.verdicts_of(info),
        )

    def placement_for(self, resolved: ResolvedGroup, budget: int = BUDGET) -> GroupSearch:
        """The search of nodes for the group, with one budget for all of them."""
        return GroupSearch(
            resolved.asked,
            resolved.siblings,
            policy=self.policy,
            features=self.features,
            budget=budget,
            waste=self.order.waste.on_node if self.goes_by_waste(resolved) else None,
        )

    def _offer(self, resolved: ResolvedGroup, info: NodeInfo) -> Offer:
        """The node's result written for this group."""
        found = self._result(resolved, info, None)
        placed = [(one.wanted.claim, one) for one in found.placed]
        return offer_of(placed, info, resolved.asked, found.cost)
