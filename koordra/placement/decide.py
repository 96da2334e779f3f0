"""The engine: which node takes a group of claims, and which of its devices. Everything that places claims asks it.

    group ─ resolve ─▶ request class ─▶ candidates ─▶ least bound ─ search ─▶ least cost ─▶ Offer
                                            ▲              │ result cache, by DeviceState
                          nodes that changed┘              └ ceiling: the best cost so far

A cost is an ordered pair: what the claim pays (relaxation levels, alternatives, nearness, NVLink, compactness), then what the cluster
pays. That is the rest of the written cost, or before it, where the workload is known and claim and policy leave the choice to it, the
expected waste: of devices inside the search, of a node by what else is free on it (`learned_order`). Equal costs: the node whose name is
first. Under FirstFit all costs are equal.

`plan()`, the controller, forecasts, preemption and gangs whose members are placed one by one call `decide` or `fits`;
`explain.explain` says why a group fits nowhere. Gangs placed as a whole (`gang/`) ask one node of each DeviceState for several members with
`search`; defragmentation (`defragment/`) asks `decide` for each pod that would have to move, on an overlay without them.
"""

from __future__ import annotations

import traceback
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from koordra.allocator.devices.inventory import Pool, Usage
from koordra.allocator.features import Features
from koordra.allocator.offer import Offer
from koordra.allocator.placement import NodeAnswer, Placement
from koordra.allocator.reasons import Reason
from koordra.allocator.request.requests import ResolvedClaim, refuse_bad_selectors, resolve
from koordra.allocator.score import DEFAULT_POLICY, policy_of
from koordra.allocator.search.solution import CostPair
from koordra.api.claims import ResourceClaim
from koordra.api.opaque.parameters import PlacementPolicy
from koordra.errors import KoordraError, PlanError
from koordra.placement.candidates.candidate_list import Candidate, Unit, Value, first_of
from koordra.placement.candidates.result_cache import Result, offer_of, result_of
from koordra.placement.holders import pinned_node
from koordra.placement.index import ClusterIndex, NodeInfo
from koordra.placement.node_class import DeviceState
from koordra.placement.policy.learned_order import Failed, Learned, LearnedOrder
from koordra.placement.request.groups import Group
from koordra.placement.request.predicates import refusals
from koordra.placement.request.request_class import RequestClass, ResolvedGroup, resolved_group_of, spec_key

MOST_CLASSES: Final = 128
"""Request classes that are remembered; the one that was not asked for the longest goes first."""

MOST_SPECS: Final = 1024
"""Specs of claims that are kept resolved."""

_MOST_SUITS: Final = 1 << 12

Excluded = Mapping[str, Reason]
"""Node -> why the group must stay off it."""
NOTHING: Final[Excluded] = {}
_FREE: Final = frozenset[str]()


@dataclass(frozen=True, slots=True)
class Unsatisfiable:
    """No node fits, and that is proven. `defect`: the traceback of an error inside the allocator, met on some node."""

    defect: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """The search ran out of budget before it found or excluded a placement."""

    defect: str = ""


Decision = Offer | Unsatisfiable | Undecided


class Engine:
    """`policy` None is first fit. `contained` is told of errors inside the allocator, which then concern one node only, and what
    cannot be read one object; without it they are raised. Not thread-safe.
    """

    def __init__(
        self,
        policy: PlacementPolicy | None,
        features: Features,
        *,
        learned: Learned | None = None,
        contained: Failed | None = None,
    ) -> None:
        self.policy = policy
        self.features = features
        self.index = ClusterIndex(features, lenient=contained is not None)
        self.order = LearnedOrder(self.index, learned, failed=contained)
        self._contained = contained is not None
        self._classes: dict[Hashable, RequestClass] = {}
        self._class_version = -1
        self._resolved: ResolvedGroup | None = None
        self._claims: dict[Hashable, ResolvedClaim] = {}
        """By position and spec: claims of one template are resolved once."""

    # --- deciding ---------------------------------------------------------------------------------------------------

    def decide(self, group: Group | ResolvedGroup, *, excluded: Excluded = NOTHING) -> Decision:
        """The best place for the group as a whole. Raises ClaimRefused for a claim that can be placed nowhere by anybody, and
        PlanError where a taint rule cannot be read."""
        resolved = self.resolve(group)
        self.settle()
        if resolved.group.allocated:
            return self._beside(resolved, excluded)
        return self._choose(resolved, excluded)

    def fits(self, group: Group | ResolvedGroup, node: str, *, without: frozenset[str] = _FREE) -> bool:
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

    def resolve(self, group: Group | ResolvedGroup) -> ResolvedGroup:
        """The group with its claims resolved; they are resolved again only if a DeviceClass has changed since. Raises ClaimRefused."""
        index = self.index
        if index.trouble:
            raise PlanError(index.trouble[min(index.trouble)])
        if self._class_version != index.class_version:
            self._classes.clear()
            self._claims.clear()
            self._resolved = None
            self._class_version = index.class_version
            group = group.group if isinstance(group, ResolvedGroup) else group
        if isinstance(group, ResolvedGroup):
            return group
        known = self._resolved
        if known is not None and known.group is group:
            return known
        asked = tuple([self.resolve_claim(claim, at) for at, claim in enumerate(group.claims)])
        resolved = resolved_group_of(group, asked, self._classes, self.index, policy=self.policy)
        self._classes.pop(resolved.key, None)
        if len(self._classes) >= MOST_CLASSES:
            del self._classes[next(iter(self._classes))]
        self._classes[resolved.key] = resolved.request_class
        self._resolved = resolved
        return resolved

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
            if len(self._claims) >= MOST_SPECS:
                self._claims.clear()
            self._claims[key] = asked
        return asked

    def settle(self) -> None:
        """Take over what has changed."""
        self.index.settle()
        self.order.follow()

    def _choose(self, resolved: ResolvedGroup, excluded: Excluded) -> Decision:
        """The best of all nodes, by the class's candidates."""
        of, index = resolved.request_class, self.index
        candidates = of.candidates
        candidates.read_changes(
            index,
            by_node=of.names_nodes or of.reads_any_of(index.known.identities),
            epoch=self.order.epoch,
            first_look=partial(self._first_look, resolved),
        )
        placement: Placement | None = None
        late: list[Candidate] = []

        def search(name: str, candidate: Candidate, best: Any) -> Candidate | None:
            nonlocal placement
            placement = placement or self.placement_for(resolved)
            info = self.index.nodes[name]
            ceiling = None if best is None else self._ceiling(resolved, name, candidate, best)
            result = self._result(resolved, info, ceiling, placement)
            if result.bound is not None:
                wasted = candidate.value.cluster
                if result.bound.cluster and not self._learned(resolved):
                    wasted = result.bound.cluster[-1]
                return Candidate(candidate.unit, Value(result.bound.claim, wasted), known=False)
            if result.cost is None:
                if result.undecided:
                    late.append(candidate)
                return None
            return Candidate(candidate.unit, self._value(resolved, name, result.cost), known=True)

        found = candidates.best(excluded, search)
        for candidate in late:
            # Earlier nodes had used the budget up: with the next question the node has its own chance.
            candidates.put(candidate.unit, candidate)
        if found is not None:
            return self._offer(resolved, self.index.nodes[found[0]])
        return self._nowhere(resolved, excluded, undecided=bool(late))

    def _nowhere(self, resolved: ResolvedGroup, excluded: Excluded, *, undecided: bool) -> Decision:
        """Not one: whether that is known for sure."""
        defect = ""
        entries = resolved.request_class.candidates.entries
        for unit, candidate in entries.items():
            name = first_of(unit)
            if candidate is None and name is not None and name not in excluded:
                info = self.index.nodes[name]
                known = self._known(resolved, info)
                if known is not None:
                    undecided, defect = undecided or known.undecided, defect or known.defect
        return Undecided(defect) if undecided else Unsatisfiable(defect)

    def _beside(self, resolved: ResolvedGroup, excluded: Excluded) -> Decision:
        """Claims of the pods have their devices: only nodes that those allow come into question."""
        best: tuple[Value, str] | None = None
        undecided, defect = False, ""
        for name in self.pinned(resolved.group):
            info = self.index.nodes.get(name)
            if info is None or name in excluded or refusals(self.index, resolved.group, info):
                continue
            result = self._result(resolved, info, None)
            undecided, defect = undecided or result.undecided, defect or result.defect
            if result.cost is not None:
                value = self._value(resolved, name, result.cost)
                best = min(best or (value, name), (value, name))
        if best is not None:
            return self._offer(resolved, self.index.nodes[best[1]])
        return Undecided(defect) if undecided else Unsatisfiable(defect)

    def pinned(self, group: Group) -> list[str]:
        """The nodes that the group's claims are on already, by name; all where they do not say."""
        said = [self.index.allocation(key) for key in group.allocated]
        pinned = {node for one in said if one is not None and (node := pinned_node(one))}
        return sorted(pinned or self.index.nodes)

    # --- candidates -------------------------------------------------------------------------------------------------

    def _first_look(self, resolved: ResolvedGroup, unit: Unit, info: NodeInfo) -> Candidate | None:
        """What can be said without a search."""
        if not self._suits(resolved, info):
            return None
        known = self._known(resolved, info)
        if known is None:
            least = CostPair()
            if self.state_for(resolved, info) is not info:
                found = resolved.request_class.bound.least(info, self.index.taken)
                if found is None:
                    return None
                least = found
            packing = least.cluster[-1] if least.cluster else 0
            wasted = self.order.least(resolved, info) if self._learned(resolved) else packing
            return Candidate(unit, Value(least.claim, wasted), known=False)
        if known.cost is None:
            return None
        return Candidate(unit, self._value(resolved, info.name, known.cost), known=True)

    def _value(self, resolved: ResolvedGroup, name: str, cost: CostPair) -> Value:
        if self.policy is None:
            return Value(0, 0)
        learned = self._learned(resolved)
        wasted = (
            self.order.value(resolved, self.index.nodes[name], cost.cluster) if learned else cost.cluster[-1]
        )
        return Value(cost.claim, wasted)

    def _learned(self, resolved: ResolvedGroup) -> bool:
        """Whether the expected waste decides what the cluster pays, rather than the rest of the written cost alone."""
        return self.policy == policy_of(DEFAULT_POLICY) and self.order.knows(resolved)

    def _ceiling(self, resolved: ResolvedGroup, name: str, candidate: Candidate, best: Any) -> CostPair:
        """What a placement on the node has to cost less than to be better than the best so far."""
        claim: int = best[0]
        cluster: int = best[1]
        node: str = best[2]
        if self._learned(resolved):
            return CostPair(claim + ((candidate.value.cluster, name) < (cluster, node)))
        return CostPair(claim, (cluster + (name < node),))

    # --- one node ---------------------------------------------------------------------------------------------------

    def state_for(self, resolved: ResolvedGroup, info: NodeInfo) -> DeviceState | NodeInfo:
        """Whose results hold for the node: its state, or the node alone."""
        reads = resolved.request_class.reads_any_of(self.index.known.identities)
        return info if reads else info.devices

    def _version(self, resolved: ResolvedGroup, info: NodeInfo) -> int:
        return info.generation if self.state_for(resolved, info) is info else 0

    def _known(
        self, resolved: ResolvedGroup, info: NodeInfo, ceiling: CostPair | None = None
    ) -> Result | None:
        where, version = self.state_for(resolved, info), self._version(resolved, info)
        return resolved.request_class.results.get(where, version, self.order.epoch, ceiling)

    def _result(
        self,
        resolved: ResolvedGroup,
        info: NodeInfo,
        ceiling: CostPair | None,
        placement: Placement | None = None,
    ) -> Result:
        known = self._known(resolved, info, ceiling)
        if known is not None:
            return known
        short = False
        try:
            answer = self.search(resolved, info, self.index.taken, placement=placement, ceiling=ceiling)
            short = answer.short
        except KoordraError:
            raise
        except Exception:
            if not self._contained:
                raise
            found = Result(defect=traceback.format_exc(), generation=self._version(resolved, info))
        else:
            found = result_of(answer, generation=self._version(resolved, info), epoch=self.order.epoch)
        if not short:
            resolved.request_class.results.keep(self.state_for(resolved, info), found)
        return found

    def search(
        self,
        resolved: ResolvedGroup,
        info: NodeInfo,
        taken: Usage,
        *,
        placement: Placement | None = None,
        alike: Hashable = None,
        ceiling: CostPair | None = None,
        pools: Sequence[Pool] | None = None,
    ) -> NodeAnswer:
        """What the node says to the group. `pools`: as if the node had these, and no others."""
        asking = placement or self.placement_for(resolved)
        of = info.devices.node_class
        alone = self.state_for(resolved, info) is info or pools is not None
        return asking.on_node(
            info.name,
            info.pools if pools is None else pools,
            taken,
            honors_partitions=info.devices.honors_partitions,
            alike=alike,
            ceiling=ceiling,
            verdicts=None if of is None or alone else resolved.request_class.verdicts_of(of),
        )

    def placement_for(self, resolved: ResolvedGroup) -> Placement:
        """The search of nodes for the group, with one budget for all of them."""
        return Placement(
            resolved.asked,
            resolved.siblings,
            policy=self.policy,
            features=self.features,
            waste=self.order.waste.on_node if self._learned(resolved) else None,
        )

    def _offer(self, resolved: ResolvedGroup, info: NodeInfo) -> Offer:
        """The node's result written for this group."""
        return offer_of(self._result(resolved, info, None), info, resolved.asked)

    # --- predicates -------------------------------------------------------------------------------------------------

    def _suits(self, resolved: ResolvedGroup, info: NodeInfo) -> bool:
        """Whether no predicate refuses the node; of pods that read no names and labels kept by what they do read."""
        of, state = resolved.request_class, info.state
        if of.names_nodes or state is None:
            return not refusals(self.index, resolved.group, info)
        found = of.suits.get(state.predicate_inputs)
        if found is None:
            if len(of.suits) >= _MOST_SUITS:
                of.suits.clear()
            found = of.suits[state.predicate_inputs] = not refusals(self.index, resolved.group, info)
        return found
