"""One group on one node after the other: relaxation levels, bounds, search; and what need not be searched
again.

A Preferred JointAllocation has relaxation levels. On each node the combinations of levels are tried from the
lowest total upwards and the first that fits is taken; relaxing costs more than anything else in the
objective, so nodes compare rightly.

Clusters consist of many nodes of few kinds. Who asks several nodes says which of them are alike device by
device (`alike`): only the first of those is searched. If it did not fit, the reasons of the others are worked
out anew, and those that are about all requests together once per canonical form (`symmetry.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Final

from koordra.allocator.allocation_state import AllocationState, Verdicts
from koordra.allocator.devices.inventory import Pool, Usage
from koordra.allocator.explain.cost_terms import TERMS
from koordra.allocator.explain.diagnosis import reasons_on_node
from koordra.allocator.features import Features
from koordra.allocator.joint_allocation import Rule, relaxations_of, rules_of
from koordra.allocator.offer import Offer
from koordra.allocator.reasons import Cause, ClaimReason, ClaimRefused, reason_of, refusal
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.allocator.score import RELAXATION, ClusterCost, Cost, effective_policy
from koordra.allocator.search.feasibility import candidates_of, enough, narrow, rooms_of, settled
from koordra.allocator.search.packing import packed, tries_before_packing
from koordra.allocator.search.partial_choice import Clauses, PartialChoice
from koordra.allocator.search.search import BUDGET, MOST_BUDGET, Search
from koordra.allocator.search.solution import NOTHING, CostPair, Outcome, Placed
from koordra.api.devices import DeviceID
from koordra.api.opaque.parameters import PlacementPolicy
from koordra.effort import spend


@dataclass(slots=True)
class NodeAnswer:
    """What one node said to one group. `bound`: the node holds nothing that costs less than the ceiling that
    was given; it costs so much at least, if it fits, which was not found out. `short`: the budget ran out,
    and it was not a whole one, since earlier nodes had used of it.

    `reasons` are worked out when they are asked for, which is only where no node fits. `tried`: the
    JointAllocations of the last relaxation that was tried where none fits, when only what is Required is
    left.
    """

    offer: Offer | None = None
    reasons: Callable[[], list[ClaimReason]] = list
    exhausted: bool = False
    short: bool = False
    error: ClaimRefused | None = None
    bound: CostPair | None = None
    tried: tuple[Rule, ...] | None = None


_MOST_KEPT: Final = 128
"""Nodes whose search is kept for a second question; others are looked into again."""

_SEARCHED: Final = 8
_EXPLAINED: Final = 20
"""Steps that a node takes besides the placements tried there."""
SHARE_OF_BUDGET: Final = 2_000
"""Placements that are tried on each node, also where earlier nodes have used the budget up."""


class _ToldCost(Cost):
    """Keeps the terms of the choice that it was asked about last."""

    told: dict[str, int]

    def __call__(self, search: PartialChoice) -> CostPair:
        self.told = self.terms(search)
        return super().__call__(search)


@dataclass(eq=False)
class GroupSearch:
    """A group of claims that is to be placed under one policy (None is first fit).

    `budget`: placements tried on all nodes together; when it is used up, SHARE_OF_BUDGET on each, until that
    is as much again.
    `waste`: what a choice on a node costs the cluster, where that is known.
    """

    asked: Sequence[ResolvedClaim]
    siblings: Sequence[frozenset[int]]
    _: KW_ONLY
    policy: PlacementPolicy | None
    features: Features
    budget: int = BUDGET
    waste: Callable[[AllocationState], ClusterCost] | None = None

    def __post_init__(self) -> None:
        self.policy = self.policy and effective_policy([claim.placement for claim in self.asked], self.policy)
        self.left = self.budget
        self.namespace = self.asked[0].claim.namespace if self.asked else ""
        self._tried_on: dict[Hashable, tuple[Rule, ...] | None] = {}
        self._codes: dict[Hashable, int] = {}
        self._kept: dict[str, Search] = {}
        self._together: dict[tuple[object, ...], list[ClaimReason]] = {}

    def on_node(
        self,
        name: str,
        pools: Sequence[Pool],
        taken: Usage,
        *,
        honors_partitions: bool,
        alike: Hashable = None,
        ceiling: CostPair | None = None,
        verdicts: Verdicts | None = None,
    ) -> NodeAnswer:
        """The best placement on the node, or why there is none. What does not cost less than the ceiling is
        not looked for.

        `alike`: equal for nodes that fit or do not fit alike, of which only the first is searched; it is
        given without a ceiling. None for a node that is searched by itself. `verdicts`: what was found out
        about requests and devices on nodes that publish the same; what is found is added. A node that was cut
        may be asked again with a higher ceiling; nothing may have been taken there in between.
        """
        state = partial(
            AllocationState,
            pools,
            taken,
            self.features,
            namespace=self.namespace,
            honors_partitions=honors_partitions,
            verdicts=verdicts,
        )
        if alike is not None and alike in self._tried_on:
            tried = self._tried_on[alike]
            if tried is None:
                return NodeAnswer()
            return NodeAnswer(reasons=lambda: self._reasons_on(name, state(), tried))
        begun, left = self._kept.pop(name, None), self.left
        if self.budget and left <= -self.budget:
            return replace(undecided_on(name, len(self.asked), self.budget), short=True)
        spend(_SEARCHED)
        try:
            answer = self._search(
                name, begun.state if begun else state(), ceiling if self.policy else None, begun
            )
        except ClaimRefused as error:
            position = next(index for index, claim in enumerate(self.asked) if claim.claim.key == error.claim)
            reasons = [(position, replace(error.reason, node=name))]
            return NodeAnswer(reasons=lambda: reasons, error=error)
        answer.short = answer.exhausted and left < self.budget
        if alike is not None and not answer.exhausted and answer.error is None:
            self._tried_on[alike] = answer.tried
        return answer

    def terms(
        self,
        pools: Sequence[Pool],
        taken: Usage,
        chosen: Mapping[tuple[int, str], Collection[DeviceID]],
        *,
        honors_partitions: bool,
    ) -> tuple[dict[str, int], CostPair, tuple[Placed, ...]] | None:
        """What this very choice costs on a node, by its TERMS, and as choices are compared; and the choice.
        `chosen`: the devices of each claim (by position) and label. None where it may not be made, and where
        nothing is scored."""
        if self.policy is None:
            return None
        state = AllocationState(
            pools, taken, self.features, namespace=self.namespace, honors_partitions=honors_partitions
        )
        place = {offered.id: device for device, offered in enumerate(state.devices)}
        if any(one not in place for devices in chosen.values() for one in devices):
            return None
        candidates = {
            wanted: [place[one] for one in chosen.get((wanted.claim, wanted.label), ())]
            for claim in self.asked
            for wanted in claim.alternatives
        }
        for steps, rules in self._relaxations(state):
            search = self._new_search(state, rules)
            told = _ToldCost(state, self.policy, self.waste and self.waste(state))
            search.candidates, search.objective = candidates, told
            try:
                found = search.run()
            except ClaimRefused:
                return None
            finally:
                search.unwind()
            if found.solution is not None:
                relaxed = RELAXATION * sum(steps)
                return {TERMS[0]: relaxed, **told.told}, found.cost.plus(relaxed), found.solution
        return None

    def _relaxations(self, state: AllocationState) -> list[tuple[tuple[int, ...], tuple[Rule, ...]]]:
        """Combinations of relaxation levels, the lowest total first, with what is demanded at each."""
        levels = rules_of(self.asked, self.siblings, state)
        return [
            (steps, tuple([r for rules, step in zip(levels, steps, strict=True) if (r := rules[step])]))
            for steps in relaxations_of([len(rules) for rules in levels])
        ]

    def _reasons_on(self, name: str, state: AllocationState, tried: tuple[Rule, ...]) -> list[ClaimReason]:
        """The reasons of a node that does not fit."""
        spend(_EXPLAINED)
        form = (tried, state.honors_partitions, self._new_search(state, tried).start_form())
        return reasons_on_node(name, self.asked, state, joint_rules=tried, known=self._together, form=form)

    def _search(
        self, name: str, state: AllocationState, ceiling: CostPair | None, begun: Search | None
    ) -> NodeAnswer:
        relaxations = self._relaxations(state)
        exhausted, error = False, None
        for at, (steps, tried) in enumerate(relaxations):
            spend(1)
            if at and self.budget and self.left <= -self.budget:
                exhausted = True
                break
            relaxed = RELAXATION * sum(steps)
            left = ceiling and ceiling.plus(-relaxed)
            if left is not None and left.claim < 0 and at:
                return NodeAnswer(bound=CostPair(relaxed))
            search = begun or self._new_search(state, tried)
            begun = None
            outcome = self._at_relaxation(search, left)
            if outcome.bound is not None:
                following = relaxations[at + 1 : at + 2]
                if not following or ceiling is None or RELAXATION * sum(following[0][0]) > ceiling.claim:
                    if not relaxed and not search.tried and len(self._kept) < _MOST_KEPT:
                        self._kept[name] = search
                    return NodeAnswer(bound=outcome.bound.plus(relaxed))
                # Only where this relaxation does not fit, a wider one counts.
                search = self._new_search(state, tried)
                outcome = self._at_relaxation(search, None)
            if outcome.solution is not None:
                cost = outcome.cost.plus(relaxed) if self.policy is not None else NOTHING
                return NodeAnswer(Offer(name, self.asked, state.devices, outcome.solution, cost))
            exhausted = exhausted or outcome.exhausted
            error = error or search.forced_error
        if exhausted:
            return undecided_on(name, len(self.asked), self.budget)
        if error is not None:
            raise error
        invalid = next((pool for pool in state.pools if pool.trouble and not pool.incomplete), None)
        if invalid is not None:
            # As upstream, which ends with it once nothing else fits.
            detail = f"invalid resource pools were encountered: {invalid}: {invalid.trouble}"
            error = refusal(self.asked[0].claim.key, Cause.POOL_INCOMPLETE, detail, node=name)
        return NodeAnswer(reasons=partial(self._reasons_on, name, state, tried), error=error, tried=tried)

    def _at_relaxation(self, search: Search, ceiling: CostPair | None) -> Outcome:
        """Bounds, then the walk."""
        search.ceiling = ceiling
        try:
            search.check_beforehand()
            if search.counted is None:
                search.counted = self._count(search)
            if not search.counted:
                return Outcome(None)
            if ceiling is not None and (least := search.least(0)) is not None and least >= ceiling:
                return Outcome(None, bound=least)
            return self._run(search)
        finally:
            search.unwind()
            self.left -= search.tried

    def _run(self, search: Search) -> Outcome:
        """The walk; shares that have no room to spare are packed before it goes too far, and where it ran out
        of budget."""
        if self.policy is None:
            return search.run()
        budget, tries = search.budget, tries_before_packing(search)
        search.budget = min(budget, tries or budget)
        outcome = search.run()
        if not outcome.exhausted or outcome.solution is not None:
            return outcome
        search.unwind()
        shares = packed(search)
        if shares is not None:
            found = self._again(search, shares) if shares else Outcome(None)
            if not shares or found.solution is not None:
                return found
        return outcome if search.budget == budget else self._again(search, search.candidates)

    def _again(self, search: Search, candidates: Mapping[RequestAlternative, Sequence[int]]) -> Outcome:
        """The same search from its beginning, among these candidates."""
        again = self._new_search(search.state, search.clauses.joint_rules)
        again.candidates, again.ceiling = candidates, search.ceiling
        try:
            return again.run()
        finally:
            again.unwind()
            self.left -= again.tried

    def _new_search(self, state: AllocationState, joint_rules: tuple[Rule, ...]) -> Search:
        objective = None
        if self.policy is not None:
            objective = Cost(state, self.policy, self.waste and self.waste(state))
        budget = max(self.left, min(self.budget, SHARE_OF_BUDGET))
        return Search(
            self.asked, state, Clauses(joint_rules), objective=objective, budget=budget, codes=self._codes
        )

    def _count(self, search: Search) -> bool:
        """Whether counting leaves a chance; the search is left with the candidates that remain."""
        if self.policy is None and takes_all(self.asked):
            # Upstream may end with an error on the way, which counting would hide.
            return True
        state = search.state
        found = candidates_of(self.asked, state)
        if found is None:
            return True
        search.candidates = left = narrow(search, found)
        rooms = rooms_of(state, left)
        search.settled = settled(search, left, rooms)
        return enough(left, rooms)


def undecided_on(node: str, claims: int, budget: int) -> NodeAnswer:
    """So many placements were tried in vain, and not all."""
    text = (
        f"the search tried {budget:,} placements and neither found nor excluded one; it is repeated with more"
    )
    if budget >= MOST_BUDGET:
        text = (
            f"the search tried {budget:,} placements, the most that it does, and neither found nor excluded one; "
            "it is repeated when the node has changed: ask for less in one claim, or with fewer constraints"
        )
    reason = reason_of(Cause.SEARCH_LIMIT, text, node)
    return NodeAnswer(reasons=lambda: [(position, reason) for position in range(claims)], exhausted=True)


def takes_all(asked: Sequence[ResolvedClaim]) -> bool:
    """Whether some request is for all devices that match, which upstream may answer with an error."""
    return any(wanted.takes_all for claim in asked for wanted in claim.alternatives)
