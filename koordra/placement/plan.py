"""`plan()`: from the objects of a cluster to what every pending claim gets, or why it does not.

    objects ─ by kind ─▶ index ─┐
    pending claims, pods ─▶ groups ─▶ decide ─▶ Offer ─▶ written, and assumed for the next group
                                         └────▶ explain ─▶ reasons

Pure: the same objects in any order give the same plan, byte for byte. Groups are planned one after the other,
each against what the earlier ones left.

Input that upstream answers with an error is a property of a claim. If nothing else in the input could be
planned, it is raised as PlanError; otherwise it becomes the claim's reason and the others go on (always, with
`report_errors`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.allocator.devices.gpu_nic_distance import level_of
from koordra.allocator.explain.grouping import grouped
from koordra.allocator.explain.telling import waiting_for_others, waits_for
from koordra.allocator.features import Features
from koordra.allocator.group_search import GroupSearch, takes_all
from koordra.allocator.offer import Offer
from koordra.allocator.reasons import Cause, ClaimRefused, Reason, reason_of
from koordra.allocator.score import policy_of
from koordra.api import names, objects
from koordra.api.objects import Fields
from koordra.errors import PlanError
from koordra.placement.candidates.decision import Undecided
from koordra.placement.candidates.node_scoring import ScoringStrategy
from koordra.placement.decide import Engine
from koordra.placement.explain import explain
from koordra.placement.manifests import Manifests
from koordra.placement.policy.learned_order import Learned
from koordra.placement.request.claim_groups import (
    MAX_CONSUMERS,
    ClaimGroup,
    claim_keys,
    group_of,
    groups_of,
    identity_of,
    one_too_many,
)
from koordra.placement.request.request_class import refusals

Exclusions = Mapping[str, Mapping[str, str]]

UPSTREAMS_WALK: Final = 3_000
"""Placements tried on one node to find out whether upstream ends with an error where nothing fits."""


def plan(
    objects: Iterable[Fields],
    *,
    policy: str = names.DEFAULT_POLICY,
    features: str | Iterable[str] | None = None,
    exclude: Exclusions | None = None,
    report_errors: bool = False,
    engine: Engine | None = None,
) -> Plan:
    """Allocate every pending claim among `objects` (plain Kubernetes dicts of any kinds, in any order).

    `policy`    one of score.POLICIES; `FirstFit` answers exactly as upstream's allocator
    `features`  upstream's gate names, default those on in 1.37
    `engine`    what was read, searched and learned in earlier plans (`engine_for`), for who plans again and
                again: objects are values then, and one that is the same dict as in the plan before is not
                read again
    `exclude`   per pod (`namespace/name`), nodes not to use and why
    Raises PlanError for an unknown policy or gate, for an engine of another, and for input that upstream
    answers with an error when nothing else could be planned; with `report_errors` such errors are always
    reasons of their claims.
    """
    gates, asked = Features.of(features), policy_of(policy)
    if engine is None:
        engine = Engine(asked, gates)
    elif (engine.policy, engine.features) != (asked, gates):
        raise PlanError("the engine is for another policy or for other feature gates; keep one for each")
    cluster = Manifests.of(objects)
    cluster.fill(engine.index)
    return _Planning(engine, cluster, exclude or {}, report_errors).run()


def engine_for(
    *,
    policy: str = names.DEFAULT_POLICY,
    features: str | Iterable[str] | None = None,
    learned: Learned | None = None,
    scoring: ScoringStrategy | None = None,
) -> Engine:
    """An engine to keep from plan to plan. Raises PlanError for an unknown policy or gate."""
    return Engine(policy_of(policy), Features.of(features), learned=learned, scoring=scoring)


@dataclass(frozen=True, slots=True)
class Plan:
    """What each pending claim gets, or why it gets nothing; keys are `namespace/name` of the claim.

    `allocations`   AllocationResult without allocationTimestamp, which is the writer's
    `unsatisfiable` nothing fits, and that is proven; the reasons per node and device
    `undecided`     the search ran out of budget before it found or excluded a placement
    `scores`        of what was placed; higher is better, comparable between nodes for one claim
    `levels`        worst level between a GPU and the NIC paired with it, None where there is no NIC
    `nodes`         the node each placed claim is on
    """

    allocations: dict[str, dict[str, Any]] = field(default_factory=dict)
    unsatisfiable: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    undecided: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    scores: dict[str, int] = field(default_factory=dict)
    levels: dict[str, str | None] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Sorted by claim, ready for JSON."""

        def to_dicts(table: Mapping[str, Sequence[Reason]]) -> dict[str, list[dict[str, str | None]]]:
            return {claim: [reason.to_dict() for reason in table[claim]] for claim in sorted(table)}

        return {
            "allocations": {claim: self.allocations[claim] for claim in sorted(self.allocations)},
            "unsatisfiable": to_dicts(self.unsatisfiable),
            "undecided": to_dicts(self.undecided),
            "scores": {claim: self.scores[claim] for claim in sorted(self.scores)},
        }


@dataclass(slots=True)
class _Planning:
    """One run of plan(): what is taken grows group by group."""

    engine: Engine
    cluster: Manifests
    exclude: Exclusions
    report_errors: bool
    result: Plan = field(default_factory=Plan)
    consumers: dict[str, set[str]] = field(default_factory=dict)

    def run(self) -> Plan:
        groups = groups_of(self.cluster.pending, self.cluster.pods, self.engine.index.allocated)
        self.consumers = self.cluster.consumers(
            {key for group in groups for pod in group.pods for key in claim_keys(pod)}
        )
        errors: list[ClaimRefused] = []
        for group in groups:
            refused = self._place(group)
            if refused is not None:
                errors.append(refused)
        if errors and len(errors) == len(groups) and not (self.report_errors or self.result.allocations):
            raise errors[0]
        return self.result

    # --- groups ---------------------------------------------------------------------------------------------

    def _place(self, group: ClaimGroup) -> ClaimRefused | None:
        """Plan one group and record the answer. Returns the error upstream would have ended with, if any."""
        if group.missing:
            self._unsatisfiable(group, [reason_of(Cause.CONSTRAINT_VIOLATED, text) for text in group.missing])
            return None
        late = one_too_many(group, self.consumers)
        if late:
            return self._place_without(group, late)
        excluded = self._excluded(group)
        try:
            for claim in group.claims:
                if claim.key in self.cluster.refused:
                    raise self.cluster.refused[claim.key]
            decision = self.engine.decide(group, excluded=excluded)
        except ClaimRefused as error:
            return self._place_pod_by_pod(group) if len(group.pods) > 1 else self._refuse(group, error)
        if isinstance(decision, Offer):
            self._commit(group, decision)
            return None
        if len(group.pods) > 1:
            return self._place_pod_by_pod(group)
        why = explain(self.engine, group, excluded=excluded, errors=True)
        reasons = why.reasons
        if why.error is not None:
            return self._refuse(group, why.error, reasons)
        if self.report_errors and not group.pods and len(group.claims) > 1:
            # Claims that fit nowhere even by themselves should not stop the others.
            placeable = tuple(
                claim for claim in group.claims if isinstance(self.engine.decide(ClaimGroup((claim,))), Offer)
            )
            if 0 < len(placeable) < len(group.claims):
                for claim in group.claims:
                    if claim not in placeable:
                        self._place(ClaimGroup((claim,)))
                return self._place(ClaimGroup(placeable))
        exhausted = why.undecided or isinstance(decision, Undecided)
        failed = None if exhausted else self._upstreams_error(group)
        if failed is not None:
            return self._refuse(group, failed, reasons)
        table = self.result.undecided if exhausted else self.result.unsatisfiable
        reasons_of = {claim.key: own for claim, own in zip(group.claims, reasons, strict=True)}
        table |= waiting_for_others(reasons_of)
        return None

    def _excluded(self, group: ClaimGroup) -> dict[str, Reason]:
        found: dict[str, Reason] = {}
        for pod in group.pods:
            for node, why in self.exclude.get(objects.key(pod), {}).items():
                text = f"excluded for pod {objects.key(pod)}: {why}"
                found.setdefault(node, reason_of(Cause.NODE_UNSUITABLE, text, node))
        return found

    def _upstreams_error(self, group: ClaimGroup) -> ClaimRefused | None:
        """For a group that fits nowhere: the error with which upstream's walk ends, where it is short enough
        to be told.

        Upstream ends with an error as soon as a device that `All` takes breaks a constraint. Counting and the
        order of a scored search prove "no fit" without going there, so that walk is made here; how claims
        with a JointAllocation end is not upstream's.
        """
        engine = self.engine
        resolved = engine.resolve(group)
        asked = resolved.asked
        if engine.policy is None or not takes_all(asked) or any(claim.joints for claim in asked):
            return None
        placement = GroupSearch(
            asked, resolved.siblings, policy=None, features=engine.features, budget=UPSTREAMS_WALK
        )
        excluded = self._excluded(group)
        for name in sorted(engine.index.nodes):
            info = engine.index.nodes[name]
            if name not in excluded and not refusals(engine.index, group, info):
                taken = engine.index.taken
                answer = engine.search(resolved, info, taken, placement=placement, alike=info.devices)
                if answer.error is not None:
                    return answer.error
        return None

    def _place_without(self, group: ClaimGroup, late: Mapping[str, str]) -> ClaimRefused | None:
        """Pods for which a claim of theirs has no room stay out; claims that only they use wait for that."""
        claims = {claim.key: claim for claim in group.claims}
        rest = [pod for pod in group.pods if objects.key(pod) not in late]
        others = group_of(rest, claims, self.engine.index.allocated)
        refused = self._place(others) if others.claims else None
        served = {claim.key for claim in others.claims}
        for pod in group.pods:
            full = late.get(objects.key(pod))
            if full is None:
                continue
            detail = f"pod {objects.key(pod)}: ResourceClaim {full} has {MAX_CONSUMERS} consumers, which is the most that it can have"
            reason = reason_of(Cause.RESERVED_FOR_FULL, detail)
            own = [claims[key] for key in claim_keys(pod) if key in claims and key not in served]
            self._unsatisfiable(ClaimGroup(tuple(own)), [reason])
        return refused

    def _place_pod_by_pod(self, group: ClaimGroup) -> ClaimRefused | None:
        """Not all consumers of a shared claim fit on one node: the first that fits pins it, the others follow
        if they can."""
        claims = {claim.key: claim for claim in group.claims}
        refused = None
        for pod in group.pods:
            left = {key: claim for key, claim in claims.items() if key not in self.result.allocations}
            alone = group_of([pod], left, self.engine.index.allocated)
            if alone.claims:
                refused = self._place(alone) or refused
        return refused

    def _refuse(
        self, group: ClaimGroup, error: ClaimRefused, reasons: Sequence[tuple[Reason, ...]] = ()
    ) -> ClaimRefused | None:
        """The claim that is wrong gets its reason. Claims that no pod ties to it are planned without it."""
        if not group.pods and self.report_errors and len(group.claims) > 1:
            self.result.unsatisfiable[error.claim] = (error.reason,)
            rest = tuple(claim for claim in group.claims if claim.key != error.claim)
            return self._place(ClaimGroup(rest))
        for position, claim in enumerate(group.claims):
            told = reasons[position] if reasons else ()
            own = [reason for reason in told if reason.detail != error.reason.detail]
            first = error.reason if claim.key == error.claim else waits_for(error.claim, error.reason)
            self.result.unsatisfiable[claim.key] = grouped([first, *own])
        return error

    def _unsatisfiable(self, group: ClaimGroup, reasons: Sequence[Reason]) -> None:
        for claim in group.claims:
            self.result.unsatisfiable[claim.key] = grouped(reasons)

    def _commit(self, group: ClaimGroup, offer: Offer) -> None:
        allocations = offer.allocations(pin_to_node=self.engine.policy is not None)
        for position, (asked, allocation) in enumerate(zip(offer.claims, allocations, strict=True)):
            key = asked.claim.key
            for earlier in (self.result.unsatisfiable, self.result.undecided):
                earlier.pop(key, None)
            self.result.allocations[key] = allocation.to_dict()
            self.result.scores[key] = -offer.cost.written
            self.result.nodes[key] = offer.node
            self.result.levels[key] = level_of(offer.devices_of(position))
            claim = self.cluster.claims[key]
            self.engine.index.assume(claim, allocation, key=key, node=offer.node, pods=group.pods)
        for pod in group.pods:
            for key in claim_keys(pod):
                self.consumers.setdefault(key, set()).add(identity_of(pod))
