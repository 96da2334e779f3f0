"""One group on one node after the other: relaxation levels, bounds, search; and what need not be searched again.

A Preferred JointAllocation has relaxation levels. On each node the combinations of levels are tried from the lowest total
upwards and the first that fits is taken; relaxing costs more than anything else in the objective, so nodes compare rightly.

Clusters consist of many nodes of few kinds. Who asks several nodes says which of them are alike device by device (`alike`): only the
first of those is looked at. If that fitted, the others cost the same and come after it by name, so they need not be solved at all; if it
did not, only the reasons are worked out anew, and those that are about all requests together once per canonical form (`symmetry.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from koordra.allocator.devices.inventory import GPU, NIC, Pool, Usage
from koordra.allocator.explain.diagnosis import reasons_on_node
from koordra.allocator.explain.nearest_fit import ClaimReason
from koordra.allocator.features import Features
from koordra.allocator.joint_allocation import Member, Rule, members_of, relaxation_levels, rule_for
from koordra.allocator.node_state import NodeState, Verdicts
from koordra.allocator.offer import Offer
from koordra.allocator.reasons import Cause, ClaimRefused, Reason, refusal
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.allocator.score import RELAXATION, ClusterCost, Cost, effective_policy
from koordra.allocator.search.feasibility import candidates_of, enough, narrow, rooms_of, settled
from koordra.allocator.search.packing import packed, tries_before_packing
from koordra.allocator.search.search import BUDGET, Search
from koordra.allocator.search.solution import NOTHING, CostPair, Outcome
from koordra.api.opaque.parameters import PlacementPolicy


@dataclass(slots=True)
class NodeAnswer:
    """What one node said to one group. `fits` without an offer: as good as an earlier node, so not worked out. `bound`: the node
    holds nothing that costs less than the ceiling that was given; it costs so much at least, if it fits, which was not found out.
    `short`: the budget ran out, and it was not a whole one, since earlier nodes had used of it.

    `reasons` are worked out when they are asked for, which is only where no node fits.
    """

    offer: Offer | None = None
    reasons: Callable[[], list[ClaimReason]] = list
    exhausted: bool = False
    short: bool = False
    error: ClaimRefused | None = None
    fits: bool = False
    bound: CostPair | None = None


Candidates = Mapping[RequestAlternative, Sequence[int]]
_Tried = list[Rule]
"""The rules of the last relaxation that was tried on a node that did not fit, where only what is Required is left."""

_MOST_KEPT: Final = 128
"""Nodes whose search is kept for a second question; others are looked into again."""

SHARE_OF_BUDGET: Final = 2_000
"""Placements that are tried on each node, also where earlier nodes have used the budget up."""


class Placement:
    """A group of claims that is to be placed under one policy (None is first fit).

    `budget`: placements tried on all nodes together; when it is used up, SHARE_OF_BUDGET on each.
    `waste`: what a choice on a node costs the cluster, where that is known.
    """

    def __init__(
        self,
        asked: Sequence[ResolvedClaim],
        siblings: Sequence[frozenset[int]],
        *,
        policy: PlacementPolicy | None,
        features: Features,
        budget: int = BUDGET,
        waste: Callable[[NodeState], ClusterCost] | None = None,
    ) -> None:
        self.asked = asked
        self.siblings = siblings
        self.policy = (
            None if policy is None else effective_policy([claim.placement for claim in asked], policy)
        )
        self.waste = waste
        self.features = features
        self.budget = self.left = budget
        self.answered: dict[Hashable, _Tried | CostPair | None] = {}
        self.last_tried: _Tried = []
        self.codes: dict[Hashable, int] = {}
        self._kept: dict[str, tuple[NodeState, Search]] = {}
        self.together: dict[tuple[object, ...], list[ClaimReason]] = {}

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
        """The best placement on the node, or why there is none. What does not cost less than the ceiling is not looked for.

        `alike`: equal for nodes with equal devices, of which equally much is taken; None for a node that is like no other.
        `verdicts`: what was found out about requests and devices on nodes that publish the same; what is found is added. A
        node that was cut may be asked again with a higher ceiling; nothing may have been taken there in between.
        """
        key = None if alike is None else (alike, honors_partitions)

        def state() -> NodeState:
            return NodeState(
                pools,
                taken,
                self.features,
                honors_partitions=honors_partitions,
                verdicts={} if verdicts is None else verdicts,
            )

        if key is not None and key in self.answered:
            first = self.answered[key]
            if first is None:
                return NodeAnswer(fits=True)
            if not isinstance(first, CostPair):
                return NodeAnswer(reasons=lambda: self._reasons_on(name, state(), first))
            if ceiling is not None and first >= ceiling:
                return NodeAnswer(bound=first)
        kept, left = self._kept.pop(name, None), self.left
        before, begun = kept or (None, None)
        try:
            answer = self._search(
                name, before or state(), None if self.policy is None else ceiling, begun=begun
            )
        except ClaimRefused as error:
            position = next(index for index, claim in enumerate(self.asked) if claim.claim.key == error.claim)
            reasons = [(position, replace(error.reason, node=name))]
            return NodeAnswer(reasons=lambda: reasons, error=error)
        answer.short = answer.exhausted and left < self.budget
        if key is not None and not answer.exhausted and answer.error is None:
            self.answered[key] = (
                answer.bound if answer.bound is not None else None if answer.fits else self.last_tried
            )
        return answer

    def _reasons_on(self, name: str, state: NodeState, tried: _Tried) -> list[ClaimReason]:
        """The reasons of a node like one that did not fit."""
        form = (tuple(tried), state.honors_partitions, self._new_search(state, tried).start_form())
        return reasons_on_node(name, self.asked, state, joint_rules=tried, known=self.together, form=form)

    def _search(
        self, name: str, state: NodeState, ceiling: CostPair | None, *, begun: Search | None = None
    ) -> NodeAnswer:
        kinds = _kinds(self.asked, state)
        joints = members_of(self.asked, kinds, self.siblings)
        levels = [relaxation_levels(joint) for joint, _ in joints]
        relaxations = sorted(
            itertools.product(*(range(len(scopes)) for scopes in levels)),
            key=lambda steps: (sum(steps), steps),
        )
        exhausted, error = False, None
        for at, relaxation in enumerate(relaxations):
            relaxed = RELAXATION * sum(relaxation)
            left = None if ceiling is None else ceiling.plus(-relaxed)
            if left is not None and left.claim < 0 and at:
                return NodeAnswer(bound=CostPair(relaxed))
            joint_rules = [
                rule_for(joint, members, scopes[step], kinds)
                for (joint, members), scopes, step in zip(joints, levels, relaxation, strict=True)
            ]
            search = begun if begun is not None and not at else self._new_search(state, joint_rules)
            outcome = self._at_relaxation(name, search, joint_rules, relaxation, left)
            if outcome is not None and outcome.bound is not None:
                if (
                    at + 1 == len(relaxations)
                    or ceiling is None
                    or RELAXATION * sum(relaxations[at + 1]) > ceiling.claim
                ):
                    return NodeAnswer(bound=outcome.bound.plus(relaxed))
                # Only where this relaxation does not fit, a wider one counts.
                search = self._new_search(state, joint_rules)
                outcome = self._at_relaxation(name, search, joint_rules, relaxation, None)
            if outcome is not None and outcome.solution is not None:
                cost = outcome.cost.plus(relaxed) if self.policy is not None else NOTHING
                return NodeAnswer(Offer(name, self.asked, state.devices, outcome.solution, cost), fits=True)
            exhausted = exhausted or (outcome is not None and outcome.exhausted)
            error = error or search.forced_error
        return self._nothing(name, state, joint_rules, exhausted=exhausted, error=error)

    def _nothing(
        self, name: str, state: NodeState, tried: _Tried, *, exhausted: bool, error: ClaimRefused | None
    ) -> NodeAnswer:
        """No relaxation level fitted: undecided, an error that upstream would have ended with, or the reasons."""
        if exhausted:
            limit = "the search ran out of budget before it found or excluded a placement; it is repeated with more"
            reason = Reason(name, None, None, Cause.SEARCH_LIMIT.value, limit)
            undecided = [(position, reason) for position in range(len(self.asked))]
            return NodeAnswer(reasons=lambda: undecided, exhausted=True)
        if error is not None:
            raise error
        self.last_tried = tried
        reasons = partial(self._reasons_on, name, state, tried)
        invalid = next((pool for pool in state.pools if pool.trouble and not pool.incomplete), None)
        if invalid is None:
            return NodeAnswer(reasons=reasons)
        detail = f"invalid resource pools were encountered: {invalid}: {invalid.trouble}"
        error = refusal(self.asked[0].claim.key, Cause.POOL_INCOMPLETE, detail, node=name)
        return NodeAnswer(reasons=reasons, error=error)

    def _at_relaxation(
        self,
        name: str,
        search: Search,
        joint_rules: Sequence[Rule],
        relaxation: tuple[int, ...],
        ceiling: CostPair | None,
    ) -> Outcome | None:
        """Bounds, then the walk; None where counting leaves no chance."""
        search.ceiling, state = ceiling, search.state
        try:
            search.check_beforehand()
            if search.counted is None:
                search.counted = self._count(search, state, joint_rules)
            counted = search.counted
            if (
                counted
                and ceiling is not None
                and (least := search.least(0)) is not None
                and least >= ceiling
            ):
                if not sum(relaxation) and len(self._kept) < _MOST_KEPT:
                    self._kept[name] = state, search
                return Outcome(None, bound=least)
            outcome = self._run(search, joint_rules) if counted else None
        finally:
            search.unwind()
            self.left -= search.tried
        return outcome

    def _run(self, search: Search, joint_rules: Sequence[Rule]) -> Outcome | None:
        """The walk; shares that have no room to spare are packed before it goes too far, and where it ran out of budget."""
        tries = tries_before_packing(search) if self.policy is not None else None
        budget = search.budget
        if tries is not None:
            search.budget = min(budget, tries)
        outcome = search.run()
        if not outcome.exhausted or outcome.solution is not None or self.policy is None:
            return outcome
        search.unwind()
        shares = packed(search)
        if shares is not None and shares.candidates is None:
            return None
        if shares is not None:
            found = self._again(search, shares.candidates or {}, joint_rules)
            if found.solution is not None:
                return found
        if tries is None or budget <= tries:
            return outcome
        return self._again(search, search.candidates, joint_rules)

    def _again(self, search: Search, candidates: Candidates, joint_rules: Sequence[Rule]) -> Outcome:
        """The same search from its beginning, among these candidates."""
        again = self._new_search(search.state, joint_rules)
        again.candidates, again.ceiling = candidates, search.ceiling
        try:
            return again.run()
        finally:
            again.unwind()

    def _new_search(self, state: NodeState, joint_rules: Sequence[Rule]) -> Search:
        objective = None
        if self.policy is not None:
            objective = Cost(state, self.policy, None if self.waste is None else self.waste(state))
        return Search(
            self.asked,
            state,
            joint_rules=joint_rules,
            objective=objective,
            strict=self.policy is None,
            budget=max(self.left, min(self.budget, SHARE_OF_BUDGET)),
            codes=self.codes,
        )

    def _count(self, search: Search, state: NodeState, joint_rules: Sequence[Rule]) -> bool:
        """Whether counting leaves a chance; the search is left with the candidates that remain."""
        if self.policy is None and takes_all(self.asked):
            # Upstream may end with an error on the way, which counting would hide.
            return True
        found = candidates_of(self.asked, state)
        if found is None:
            return True
        search.candidates = narrow(self.asked, state, found, joint_rules=joint_rules)
        rooms = rooms_of(state, search.candidates)
        search.settled = settled(self.asked, state, search.candidates, rooms)
        return enough(search.candidates, rooms)


def _kinds(asked: Sequence[ResolvedClaim], state: NodeState) -> dict[Member, set[str]]:
    """What each request can get here: GPUs, NICs or both. Looked at only where a JointAllocation asks."""
    kinds: dict[Member, set[str]] = {}
    if not any(claim.joints for claim in asked):
        return kinds
    of_kind: dict[object, set[str]] = {}
    for claim in asked:
        for wanted in claim.alternatives:
            found = of_kind.get(wanted.kind)
            if found is None:
                found = of_kind[wanted.kind] = {
                    offered.kind
                    for device, offered in enumerate(state.devices)
                    if offered.kind in (GPU, NIC) and state.verdict(wanted, device).demand is not None
                }
            kinds.setdefault((wanted.claim, wanted.request), set()).update(found)
    return kinds


def takes_all(asked: Sequence[ResolvedClaim]) -> bool:
    """Whether some request is for all devices that match, which upstream may answer with an error on the way."""
    return any(
        wanted.takes_all for claim in asked for request in claim.requests for wanted in request.alternatives
    )
