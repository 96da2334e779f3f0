"""What a group of claims asks, without names and uids: claims of one template are one request class.

A class holds everything that a node's answer depends on: what the claims say, which of them pods use
together, what the predicates read of the pods, and, where a card is for claims of one namespace, theirs.
Answers are kept by class (`results`, by NodeClassUsage) and so is the order of nodes (`candidates`).

What keeps a group off a node whatever its devices (`refusals`) is what its pods say of nodes and ask for, and
where their other claims are.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

from koordra.allocator.allocation_state import Verdicts
from koordra.allocator.predicates import (
    Amounts,
    Unsuitable,
    chooses_nodes,
    node_constraints_text,
    selector_matches,
    total_of,
    unsuitable,
)
from koordra.allocator.reasons import Cause, ClaimReason, Reason, reason_of
from koordra.allocator.request.requests import ResolvedClaim
from koordra.allocator.search.search import BUDGET
from koordra.api import objects
from koordra.api.claims import ResourceClaim
from koordra.api.objects import Fields
from koordra.api.opaque.parameters import PlacementPolicy
from koordra.api.tables import BoundedCache
from koordra.cel.selectors import names_read_by
from koordra.placement.candidates.candidate_list import CandidateList, ResultCache
from koordra.placement.candidates.cost_bound import CostBound
from koordra.placement.candidates.node_scoring import NodeScore, ScoringStrategy, strategy_under
from koordra.placement.index import ClusterIndex, NodeInfo
from koordra.placement.node_class import NodeClass
from koordra.placement.request.claim_groups import ClaimGroup, claim_keys, siblings_in

MOST_CLASSES: Final = 128
"""Request classes that are remembered."""
MOST_TEXT: Final = 4 << 20
"""Characters of their selectors together."""
MOST_ANSWERS: Final = 1 << 19
"""Of nodes that they remember together, of about half a kilobyte each."""


class OneByOne(NamedTuple):
    """What a node's devices say to each request by itself, and when that was: whether all of them could be
    `served`, whether upstream `may_fail` there, and why other devices cannot serve them."""

    info: NodeInfo
    settled: int
    served: bool
    may_fail: bool
    reasons: tuple[ClaimReason, ...]


@dataclass(slots=True, eq=False)
class KnownReasons:
    """What was found out about nodes that do not serve the class (`placement.explain`). Of a node: why it is
    none for the pods. Of a state: the node that was looked into, and what all requests together fail there.
    All of it holds while the node's `settled` is the same."""

    of_nodes: BoundedCache[NodeInfo, tuple[int, tuple[Reason, ...]]] = field(
        default_factory=lambda: BoundedCache(1 << 14)
    )
    of_devices: BoundedCache[Hashable, OneByOne] = field(default_factory=lambda: BoundedCache(1 << 14))
    together: BoundedCache[Hashable, tuple[NodeInfo, int, tuple[ClaimReason, ...]]] = field(
        default_factory=lambda: BoundedCache(64)
    )

    def __len__(self) -> int:
        return len(self.of_nodes) + len(self.of_devices)


@dataclass(slots=True, eq=False, weakref_slot=True)
class RequestClass:
    """`reads`: attribute names, without their domain, that selectors read; None is all. `names_nodes`: the
    pods speak of nodes' names or labels, so that nodes of one state are not alike to them."""

    reads: frozenset[str] | None
    names_nodes: bool
    bound: CostBound
    score: NodeScore | None = None
    """How full nodes are by weight, where its claims go by that."""
    results: ResultCache = field(default_factory=ResultCache)
    candidates: CandidateList = field(default_factory=CandidateList)
    suits: BoundedCache[Hashable, bool] = field(default_factory=lambda: BoundedCache(1 << 14))
    """Whether the predicates admit the pods, by what they read of a node."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What others work out for the class and keep with it (`gang`: several members on one node), by their own
    names."""
    verdicts: BoundedCache[NodeClass, Verdicts] = field(default_factory=lambda: BoundedCache(64))
    """What was found out about the requests and the devices that nodes of a class publish."""
    reasons: KnownReasons = field(default_factory=KnownReasons)
    size: int = 0
    """Characters of its selectors."""
    counted: int = -1
    """Answers that it had when all classes were counted last."""
    budget: int = BUDGET
    """Placements that are tried for a group; twice as many once they did not decide it."""

    @property
    def answers(self) -> int:
        return len(self.candidates.entries) + len(self.results) + len(self.reasons)

    def reads_any_of(self, identities: set[str]) -> bool:
        """Whether some selector reads what node classes do not keep by value."""
        return self.reads is None or not self.reads.isdisjoint(identities)

    def verdicts_of(self, info: NodeInfo) -> Verdicts | None:
        """What is known of the devices of the node's class; None where nodes of a class are not alike."""
        of = info.devices.node_class
        if of is None or self.reads_any_of(info.index.known.identities):
            return None
        return self.verdicts.get_or_make(of, dict)


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedGroup:
    """A group with its claims resolved, and the class of its request. `version`: the index's `class_version`
    then."""

    group: ClaimGroup
    asked: tuple[ResolvedClaim, ...]
    siblings: tuple[frozenset[int], ...]
    request_class: RequestClass
    key: tuple[Hashable, Hashable]
    version: int

    @property
    def namespace(self) -> str:
        """Of its claims and pods."""
        return self.asked[0].claim.namespace if self.asked else ""


def spec_key(claim: ResourceClaim) -> Hashable:
    """Equal for claims of equal specs, which differ in nothing but who they are. As short for a claim of a
    megabyte as for others: it outlives the claim."""
    said: object = claim.content
    if not said:
        config = [(one.driver, one.requests, one.where, repr(one.parameters)) for one in claim.config]
        said = claim.requests, claim.constraints, config
    return sha256(repr(said).encode()).digest()


def resolved_group_of(
    group: ClaimGroup,
    asked: tuple[ResolvedClaim, ...],
    known: dict[Hashable, RequestClass],
    index: ClusterIndex,
    *,
    policy: PlacementPolicy | None,
    scoring: ScoringStrategy | None,
) -> ResolvedGroup:
    """The group with its class, the same for groups that every node answers alike, by what is said of devices
    and what the pods say.

    `known`: the classes so far, of which the one that was not asked for the longest is forgotten.
    """
    position = {claim.key: at for at, claim in enumerate(group.claims)}
    pods = tuple(
        [
            (
                tuple([position.get(key, -1) for key in claim_keys(pod)]),
                node_constraints_text(pod),
                tuple(sorted(index.pods.requests_of(pod).items())),
                objects.namespace(pod) if len(group.pods) > 1 else "",
            )
            for pod in group.pods
        ]
    )
    apart = asked[0].claim.namespace if asked and index.inventory.kept_apart else ""
    key = (apart, *[spec_key(claim.claim) for claim in asked]), pods
    found = known.pop(key, None)
    if found is None:
        names_nodes = any(map(chooses_nodes, group.pods))
        bound = CostBound([_requests_of(claim) for claim in asked], policy, index.features)
        found = RequestClass(names_read(asked), names_nodes, bound, size=_size_of(asked))
        said = next((claim.placement.node for claim in asked if claim.placement.node), None)
        strategy = strategy_under(scoring, said)
        if policy is not None and strategy is not None:
            requests = total_of(map(index.pods.requests_of, group.pods))
            found.score = NodeScore(strategy, requests, bound.takes)
    if found.counted != found.answers:
        while known and (len(known) >= MOST_CLASSES or _too_much(found, known.values())):
            del known[next(iter(known))]
        found.counted = found.answers
    known[key] = found
    return ResolvedGroup(group, asked, tuple(siblings_in(group)), found, key, index.class_version)


def _requests_of(claim: ResolvedClaim) -> ResolvedClaim:
    """Without the configuration, which a class need not know, and the claim that it is of."""
    bare = replace(claim.claim, config=(), content=b"", name="", uid="")
    return replace(claim, claim=bare)


def _size_of(asked: Sequence[ResolvedClaim]) -> int:
    """Characters of the selectors."""
    return sum(
        len(text) for claim in asked for wanted in claim.alternatives for text in wanted.spec.selectors
    )


def _too_much(new: RequestClass, known: Collection[RequestClass]) -> bool:
    """Whether the classes hold too much together, in selectors or in what was found out about nodes."""
    return new.size + sum([one.size for one in known]) > MOST_TEXT or (
        sum([one.answers for one in known]) > MOST_ANSWERS
    )


def names_read(asked: Sequence[ResolvedClaim]) -> frozenset[str] | None:
    """The attribute names that the selectors of the claims and of their classes read; None is all."""
    found: set[str] = set()
    for claim in asked:
        for wanted in claim.alternatives:
            for expression in (*wanted.device_class.selectors, *wanted.spec.selectors):
                read = names_read_by(expression)
                if read is None:
                    return None
                found |= read
    return frozenset(found)


def pinned_to(index: ClusterIndex, group: ClaimGroup) -> list[str]:
    """The nodes that the group's claims are on already, by name; all where they do not say."""
    allocations = [index.allocation(key) for key in group.allocated]
    pinned = {node for one in allocations if one is not None and (node := one.node)}
    return sorted(pinned or index.nodes)


def load_beside(
    index: ClusterIndex, group: ClaimGroup, info: NodeInfo, *, without: frozenset[str] = frozenset()
) -> Amounts:
    """What other pods ask for of the node: those of the group may be there already, by claims that have their
    devices. `without`: as if these claims and pods (by uid) were gone."""
    mine = frozenset(map(objects.identity, group.pods if group.allocated else ()))
    return index.load_without(info, without | mine) if without or mine else info.load


def refusals(
    index: ClusterIndex, group: ClaimGroup, info: NodeInfo, *, without: frozenset[str] = frozenset()
) -> list[Reason]:
    """Why the node itself is none for the group's pods, all of them at the same time; `without`: as if these
    claims and pods (by uid) were gone."""
    load = load_beside(index, group, info, without=without)
    several, found = len(group.pods) > 1, list[Reason]()
    if info.trouble:
        found.append(reason_of(Cause.POOL_INCOMPLETE, info.trouble, info.name))
    failed: dict[str, list[tuple[Fields, Unsuitable]]] = {}
    for pod in group.pods:
        asked = index.pods.requests_of(pod)
        for why in unsuitable(info.node, pod, taken=load, asked=asked):
            failed.setdefault(why.clause, []).append((pod, why))
        if several:
            load = total_of((load, asked))
    for alike in failed.values():
        pod, why = alike[0]
        who = f"pod {objects.key(pod)}: " if several else ""
        if len(alike) > 1:  # by name they would be as many lines as pods
            who = "each of the pods: " if len(alike) == len(group.pods) else "several of the pods: "
        found.append(_unsuitable(info.name, who, why))
    for key in group.allocated:
        allocation = index.allocation(key)
        selector = None if allocation is None else allocation.node_selector
        if allocation is not None and selector is not None and not selector_matches(selector, info.node):
            at = allocation.node or "other nodes"
            text = f"ResourceClaim {key} of the pod is allocated on {at}"
            found.append(reason_of(Cause.SHARED_CLAIM_PINNED, text, info.name))
    return list(dict.fromkeys(found))


def _unsuitable(node: str, where: str, why: Unsuitable) -> Reason:
    values = () if why.short is not None or not why.has else ((why.has, 1),)
    return Reason(
        node,
        None,
        None,
        Cause.NODE_UNSUITABLE.value,
        f"{where}{why}",
        clause=where + why.clause,
        at_best=f"at best {why.has}" if why.short is not None else "",
        short=why.short,
        values=values,
    )


def suits(index: ClusterIndex, resolved: ResolvedGroup, info: NodeInfo) -> bool:
    """Whether no predicate refuses the node; of pods that read no names and labels kept by what they do
    read."""
    of, state = resolved.request_class, info.state
    if of.names_nodes or state is None:
        return not refusals(index, resolved.group, info)
    return of.suits.get_or_make(state.predicate_inputs, lambda: not refusals(index, resolved.group, info))
