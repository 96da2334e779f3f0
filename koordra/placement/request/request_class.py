"""What a group of claims asks, without names and uids: claims of one template are one request class.

A class holds everything that a node's answer depends on: what the claims say, which of them pods use together, and what the
predicates read of the pods. Answers are kept by class (`results`, by DeviceState) and so is the order of nodes (`candidates`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.node_state import Verdicts
from koordra.allocator.request.requests import ResolvedClaim
from koordra.api import objects
from koordra.api.claims import ResourceClaim
from koordra.api.opaque.parameters import PlacementPolicy
from koordra.cel.selectors import names_read_by
from koordra.placement.candidates.candidate_list import CandidateList
from koordra.placement.candidates.cost_bound import CostBound
from koordra.placement.candidates.result_cache import ResultCache
from koordra.placement.index import ClusterIndex
from koordra.placement.node_class import NodeClass
from koordra.placement.request.groups import Group, claim_keys, siblings_in
from koordra.placement.request.pod_terms import chooses_nodes, node_constraints_text

_MOST_NODE_CLASSES: Final = 64


@dataclass(slots=True, eq=False)
class RequestClass:
    """`reads`: attribute names, without their domain, that selectors read; None is all. `names_nodes`: the pods speak of nodes'
    names or labels, so that nodes of one state are not alike to them."""

    reads: frozenset[str] | None
    names_nodes: bool
    bound: CostBound
    results: ResultCache = field(default_factory=ResultCache)
    candidates: CandidateList = field(default_factory=CandidateList)
    suits: dict[Hashable, bool] = field(default_factory=dict)
    """Whether the predicates admit the pods, by what they read of a node."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What others work out for the class and keep with it (`gang`: several members on one node), by their own names."""
    _verdicts: dict[NodeClass, Verdicts] = field(default_factory=dict)

    def verdicts_of(self, node_class: NodeClass) -> Verdicts:
        """What was found out about the requests and the devices that nodes of the class publish."""
        if node_class not in self._verdicts and len(self._verdicts) >= _MOST_NODE_CLASSES:
            self._verdicts.clear()
        return self._verdicts.setdefault(node_class, {})

    def reads_any_of(self, identities: set[str]) -> bool:
        """Whether some selector reads what node classes do not keep by value."""
        return self.reads is None or not self.reads.isdisjoint(identities)


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedGroup:
    """A group with its claims resolved, and the class of its request."""

    group: Group
    asked: tuple[ResolvedClaim, ...]
    siblings: tuple[frozenset[int], ...]
    request_class: RequestClass
    key: tuple[Hashable, Hashable]


def spec_key(claim: ResourceClaim) -> Hashable:
    """Equal for claims of equal specs, which differ in nothing but who they are."""
    if claim.content:
        return claim.content
    config = tuple([(one.driver, one.requests, one.where, repr(one.parameters)) for one in claim.config])
    return claim.requests, claim.constraints, config


def class_key(
    group: Group,
    asked: Sequence[ResolvedClaim],
    requests_of: Callable[[Mapping[str, Any]], Mapping[str, Decimal]],
) -> tuple[Hashable, Hashable]:
    """Equal for groups that every node answers alike: what is said of devices, and what the pods say."""
    position = {claim.key: at for at, claim in enumerate(group.claims)}
    several = len(group.pods) > 1
    pods = tuple(
        [
            (
                tuple([position.get(key, -1) for key in claim_keys(pod)]),
                node_constraints_text(pod),
                tuple(sorted(requests_of(pod).items())),
                objects.namespace(pod) if several else "",
            )
            for pod in group.pods
        ]
    )
    return tuple([spec_key(claim.claim) for claim in asked]), pods


def resolved_group_of(
    group: Group,
    asked: tuple[ResolvedClaim, ...],
    known: Mapping[Hashable, RequestClass],
    index: ClusterIndex,
    *,
    policy: PlacementPolicy | None,
) -> ResolvedGroup:
    key = class_key(group, asked, index.pods.requests_of)
    found = known.get(key)
    if found is None:
        names_nodes = any(map(chooses_nodes, group.pods))
        found = RequestClass(names_read(asked), names_nodes, CostBound(asked, policy, index.features))
    return ResolvedGroup(group, asked, tuple(siblings_in(group)), found, key)


def names_read(asked: Sequence[ResolvedClaim]) -> frozenset[str] | None:
    """The attribute names that the selectors of the claims and of their classes read; None is all."""
    found: set[str] = set()
    for claim in asked:
        for wanted in (wanted for request in claim.requests for wanted in request.alternatives):
            for expression in (*wanted.device_class.selectors, *wanted.spec.selectors):
                read = names_read_by(expression)
                if read is None:
                    return None
                found |= read
    return frozenset(found)
