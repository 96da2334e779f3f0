"""Why devices that were given out are where they are: the placement beside the best one of any other node,
term by term, as if the group were placed now.

When it was placed other things were free, so a node may be better by now. What decided then is not kept: it
is worked out anew, in an overlay of the index without the group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.allocator.explain.cost_terms import (
    CLAIM_TERMS,
    EXPECTED_WASTE,
    NAME,
    SCORING_STRATEGY,
    SOFT_TAINTS,
    TERMS,
)
from koordra.allocator.explain.grouping import grouped
from koordra.allocator.offer import Offer
from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.allocator.score import effective_policy
from koordra.api import objects
from koordra.api.devices import DeviceID
from koordra.api.opaque.parameters import DevicePolicy
from koordra.placement.candidates.candidate_list import CandidateCost
from koordra.placement.decide import Engine, Excluded
from koordra.placement.explain import explain
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.placement.request.request_class import ResolvedGroup, load_beside

Chosen = Mapping[tuple[int, str], Collection[DeviceID]]
"""(position of the claim, label of the request) -> devices."""

_ALWAYS_THE_CLAIMS: Final = frozenset(TERMS[:2])


@dataclass(frozen=True, slots=True)
class Judged:
    """A placement on a node: the terms of its written cost, and what it is compared by. `parts`: how full
    the node is with it, in thousandths, by resource that has a weight; None where the group goes by none."""

    node: str
    terms: Mapping[str, int]
    cost: CandidateCost
    parts: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class WhyHere:
    """`here` is None where the placement could not be made any more. `other`: the best of all other nodes;
    None where there is none, and `reasons` say why. `decided_by`: the term by which the worse of the two
    loses; empty where there are not two."""

    here: Judged | None
    other: Judged | None = None
    decided_by: str = ""
    reasons: Sequence[Reason] = ()

    @property
    def other_is_better(self) -> bool:
        here, other = self.here, self.other
        return bool(here and other and (other.cost, other.node) < (here.cost, here.node))


def why_here(engine: Engine, group: ClaimGroup, node: str, chosen: Chosen, *, excluded: Excluded) -> WhyHere:
    """The group has these devices of the node. `excluded`: other nodes that it has to stay off. Raises
    ClaimRefused, and PlanError."""
    index = engine.index
    gone = frozenset([one.uid or one.key for one in group.claims] + [*map(objects.uid, group.pods)])
    free = ClaimGroup(group.claims, tuple(map(_unbound, group.pods)))
    with index.overlay(gone):
        resolved = engine.resolve(free)
        engine.settle()
        off = {**excluded, node: reason_of(Cause.NODE_UNSUITABLE, "it is here already", node)}
        here = _judged(engine, resolved, node, chosen)
        found = engine.decide(resolved, excluded=off, once=True)
        if isinstance(found, Offer):
            other = _judged(engine, resolved, found.node, _chosen(found))
            return WhyHere(here, other, _decided_by(engine, resolved, here, other))
        why = explain(engine, free, excluded=off, besides=node)
        return WhyHere(here, reasons=grouped(reason for own in why.reasons for reason in own))


def _judged(engine: Engine, resolved: ResolvedGroup, node: str, chosen: Chosen) -> Judged | None:
    info = engine.index.nodes.get(node)
    if info is None:
        return None
    found = engine.placement_for(resolved).terms(
        info.pools, engine.index.taken, chosen, honors_partitions=info.devices.honors_partitions
    )
    if found is None:
        return None
    terms, cost, placed = found
    score, load = resolved.request_class.score, load_beside(engine.index, resolved.group, info)
    parts = None if score is None else score.parts(info, placed, load)
    return Judged(node, terms, engine.value(resolved, node, cost, placed), parts)


def _chosen(offer: Offer) -> dict[tuple[int, str], list[DeviceID]]:
    found: dict[tuple[int, str], list[DeviceID]] = {}
    for one in offer.placed:
        found.setdefault((one.wanted.claim, one.wanted.label), []).append(offer.devices[one.device].id)
    return found


def _decided_by(engine: Engine, resolved: ResolvedGroup, here: Judged | None, other: Judged | None) -> str:
    """The most significant term that speaks for the better one; what the claim pays comes first."""
    if here is None or other is None:
        return ""
    policy = effective_policy([claim.placement for claim in resolved.asked], engine.policy)
    of_claim = CLAIM_TERMS if policy.device is DevicePolicy.TOPOLOGY_AWARE else _ALWAYS_THE_CLAIMS
    more = {term: other.terms[term] - here.terms[term] for term in TERMS}
    if here.cost.claim != other.cost.claim:
        return _first(more, [term for term in TERMS if term in of_claim], other.cost.claim - here.cost.claim)
    if here.cost.soft_taints != other.cost.soft_taints:
        return SOFT_TAINTS
    if here.cost.scoring != other.cost.scoring:
        return SCORING_STRATEGY
    if here.cost.cluster == other.cost.cluster:
        return NAME
    if engine.goes_by_waste(resolved):
        return EXPECTED_WASTE
    rest = [term for term in TERMS if term not in of_claim]
    return _first(more, rest, other.cost.cluster - here.cost.cluster)


def _first(more: Mapping[str, int], terms: Sequence[str], sign: int) -> str:
    return next(term for term in terms if more[term] * sign > 0)


def _unbound(pod: objects.Fields) -> objects.Object:
    """As it was before it was scheduled: a pod that has its node goes nowhere else."""
    spec = {name: value for name, value in objects.spec_of(pod).items() if name != "nodeName"}
    return {**pod, "spec": spec}
