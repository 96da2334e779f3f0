"""`plan()`: from the objects of a cluster to what every pending claim gets, or why it does not.

    objects ── claims with an allocation ──────────────▶ what is taken
            ├─ pending claims, pods ────▶ groups ──┐
            └─ slices, classes, nodes, rules ──────┴──▶ per node: predicates ▶ bounds ▶ search ▶ cost
                                                         best node ▶ allocations, taken for the next group

Pure: the same objects in any order give the same plan, byte for byte. Groups are planned one after the other, each against
what the earlier ones left.

Input that upstream answers with an error is a property of a claim. If nothing else in the input could be planned, it is
raised as PlanError; otherwise it becomes the claim's reason and the others go on (always, with `report_errors`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.fabric import honors_partitions
from koordra.allocator.features import Features
from koordra.allocator.inventory import Inventory, Taken
from koordra.allocator.offer import Offer
from koordra.allocator.pairing_level import level_of
from koordra.allocator.placement import NodeAnswer, Placement, takes_all
from koordra.allocator.predicates import requests_of, selector_matches, unsuitable
from koordra.allocator.reasons import Cause, ClaimRefused, Reason, told_in_order
from koordra.allocator.requests import AskedClaim, refuse_bad_selectors, resolve
from koordra.allocator.score import policy_of
from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.api.claims import ResourceClaim
from koordra.api.parameters import PlacementPolicy
from koordra.placement.groups import (
    MAX_CONSUMERS,
    Group,
    claim_keys,
    group_of,
    groups_of,
    identity_of,
    one_too_many,
    siblings_in,
)
from koordra.placement.manifests import Cluster
from koordra.placement.policy.device_selection import Cards, Guide
from koordra.placement.ranked_nodes import KeptFleet, ranked_nodes

Exclusions = Mapping[str, Mapping[str, str]]

UPSTREAMS_WALK: Final = 3_000
"""Placements tried on one node to find out whether upstream ends with an error where nothing fits."""


def plan(
    objects: Iterable[Mapping[str, Any]],
    *,
    policy: str = "koordra",
    features: str | Iterable[str] | None = None,
    exclude: Exclusions | None = None,
    report_errors: bool = False,
    inventory: Inventory | None = None,
    fleet: KeptFleet | None = None,
    cards: Cards | None = None,
) -> Plan:
    """Allocate every pending claim among `objects` (plain Kubernetes dicts of any kinds, in any order).

    `policy`    one of score.POLICIES; `FirstFit` answers exactly as upstream's allocator
    `features`  upstream's gate names, default those on in 1.37
    `inventory` slices and taint rules read beforehand (`read_inventory`), which `objects` then do not hold. Who plans
                again and again reads them once, tells the inventory each slice or rule that changed (`put`) or went
                (`remove`), as a watch delivers them, and passes Nodes, DeviceClasses, Pods and ResourceClaims as `objects`:
                then a plan costs what its claims and the nodes that changed cost. No change while a plan is made
    `fleet`     what was ranked and solved in earlier plans with the same `inventory`, and the learned table (KeptFleet). Objects
                are values then: one that is the same dict as in the plan before is not read again
    `cards`     what is known of the workload, for the choice of devices inside a node alone; a `fleet` has its own
    `exclude`   per pod (`namespace/name`), nodes not to use and why
    Raises PlanError for an unknown policy or gate, and for input that upstream answers with an error when nothing else
    could be planned; with `report_errors` such errors are always reasons of their claims.
    """
    gates = Features.of(features)
    cluster = Cluster.of(
        objects, gates, inventory=inventory, known=None if fleet is None else fleet.known_objects
    )
    planning = _Planning(
        cluster,
        gates,
        policy_of(policy),
        exclude=exclude or {},
        report_errors=report_errors,
        fleet=fleet,
        cards=cards,
    )
    return planning.run()


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

        def told(table: Mapping[str, Sequence[Reason]]) -> dict[str, list[dict[str, str | None]]]:
            return {claim: [reason.to_dict() for reason in table[claim]] for claim in sorted(table)}

        return {
            "allocations": {claim: self.allocations[claim] for claim in sorted(self.allocations)},
            "unsatisfiable": told(self.unsatisfiable),
            "undecided": told(self.undecided),
            "scores": {claim: self.scores[claim] for claim in sorted(self.scores)},
        }


class _Planning:
    """One run of plan(): what is taken grows group by group."""

    def __init__(
        self,
        cluster: Cluster,
        features: Features,
        policy: PlacementPolicy | None,
        *,
        exclude: Exclusions,
        report_errors: bool,
        fleet: KeptFleet | None = None,
        cards: Cards | None = None,
    ) -> None:
        self.cluster = cluster
        self.features = features
        self.policy = policy
        self.exclude = exclude
        self.report_errors = report_errors
        self.result = Plan()
        self.taken = Taken()
        for key in sorted(cluster.allocated):
            self.taken.add(cluster.allocated[key].results, holder=key)
        self.node_load: dict[str, dict[str, Decimal]] = {}
        for pod in cluster.pods:
            node = self._node_of(pod)
            if node and not objects.pod_is_finished(pod):
                self._load(node, pod)
        self.ranked = ranked_nodes(cluster, policy, self.taken, self.node_load, fleet)
        known = cards if fleet is None else fleet.cards
        self.guide = None if known is None else Guide(known, cluster.nodes, cluster.slices, self.taken)

    def run(self) -> Plan:
        groups = groups_of(self.cluster.pending, self.cluster.pods, frozenset(self.cluster.allocated))
        errors: list[ClaimRefused] = []
        for group in groups:
            refused = self._place(group)
            if refused is not None:
                errors.append(refused)
        if errors and len(errors) == len(groups) and not self.report_errors:
            raise errors[0]
        return self.result

    # --- groups -----------------------------------------------------------------------------------------------------

    def _place(self, group: Group) -> ClaimRefused | None:
        """Plan one group and record the answer. Returns the error that upstream would have ended with, if any."""
        if group.missing:
            self._unsatisfiable(
                group,
                [Reason(None, None, None, Cause.CONSTRAINT_VIOLATED.value, text) for text in group.missing],
            )
            return None
        late = one_too_many(group, self.cluster.consumers)
        if late:
            return self._place_without(group, late)
        try:
            asked = [self._resolved(claim, position) for position, claim in enumerate(group.claims)]
            answers = self._answers(group, asked)
        except ClaimRefused as error:
            return self._refuse(group, error)
        offers = [answer.offer for answer in answers.values() if answer.offer is not None]
        if offers:
            self._commit(group, asked, self._best(offers, group, asked))
            return None
        failed = next((answer.error for answer in answers.values() if answer.error is not None), None)
        if len(group.pods) > 1 and failed is None:
            return self._place_pod_by_pod(group)
        reasons = [pair for answer in answers.values() for pair in answer.reasons()]
        if not answers:
            nowhere = "there is no node and no ResourceSlice that names one"
            reasons = [
                (position, Reason(None, None, None, Cause.NODE_UNSUITABLE.value, nowhere))
                for position in range(len(asked))
            ]
        if failed is not None:
            return self._refuse(group, failed, reasons)
        if self.report_errors and not group.pods and len(group.claims) > 1:
            hopeless = self._hopeless(group)
            if 0 < len(hopeless) < len(group.claims):
                return self._place_rest(group, hopeless)
        exhausted = any(answer.exhausted for answer in answers.values())
        failed = None if exhausted else self._upstreams_error(group, asked)
        if failed is not None:
            return self._refuse(group, failed, reasons)
        table = self.result.undecided if exhausted else self.result.unsatisfiable
        told = {
            claim.key: told_in_order(reason for owner, reason in reasons if owner == position)
            for position, claim in enumerate(group.claims)
        }
        for key, own in told.items():
            table[key] = own or _waiting_for(told)
        return None

    def _best(self, offers: Sequence[Offer], group: Group, asked: Sequence[AskedClaim]) -> Offer:
        if self.ranked is not None:
            return self.ranked.best(offers, asked, group.pods)
        return min(offers, key=lambda offer: offer.cost)

    def _upstreams_error(self, group: Group, asked: Sequence[AskedClaim]) -> ClaimRefused | None:
        """For a group that fits nowhere: the error with which upstream's walk ends, where it is short enough to be told.

        Upstream ends with an error as soon as a device that `All` takes breaks a constraint. Counting and the order of a scored
        search prove "no fit" without going there, so that walk is made here; how claims with a JointAllocation end is not upstream's.
        """
        if self.policy is None or not takes_all(asked) or any(claim.joints for claim in asked):
            return None
        placement = Placement(
            asked,
            siblings_in(group),
            policy=None,
            inventory=self.cluster.slices,
            several=len(self.cluster.nodes) > 1,
            budget=UPSTREAMS_WALK,
        )
        for name in sorted(self.cluster.nodes):
            node = self.cluster.nodes[name]
            if self._node_refusals(node, group):
                continue
            honors = honors_partitions(objects.metadata(node).get("labels") or {})
            pools = self.cluster.slices.pools(node)
            answer = placement.on_node(name, pools, self.taken, honors_partitions=honors)
            if answer.error is not None:
                return answer.error
        return None

    def _place_without(self, group: Group, late: Mapping[str, str]) -> ClaimRefused | None:
        """Pods for which a claim of theirs has no room stay out; claims that only they use wait for that."""
        claims = {claim.key: claim for claim in group.claims}
        rest = [pod for pod in group.pods if objects.key(pod) not in late]
        others = group_of(rest, claims, frozenset(self.cluster.allocated))
        refused = self._place(others) if others.claims else None
        served = {claim.key for claim in others.claims}
        for pod in group.pods:
            full = late.get(objects.key(pod))
            if full is None:
                continue
            detail = f"pod {objects.key(pod)}: ResourceClaim {full} has {MAX_CONSUMERS} consumers, which is the most that it can have"
            reason = Reason(None, None, None, Cause.RESERVED_FOR_FULL.value, detail)
            own = [claims[key] for key in claim_keys(pod) if key in claims and key not in served]
            self._unsatisfiable(Group(tuple(own)), [reason])
        return refused

    def _hopeless(self, group: Group) -> list[ResourceClaim]:
        """Claims of a group without pods that fit nowhere even by themselves; they should not stop the others."""
        found = []
        for claim in group.claims:
            alone = Group((claim,))
            answers = self._answers(alone, [self._resolved(claim, 0)])
            if not any(answer.offer for answer in answers.values()):
                found.append(claim)
        return found

    def _place_rest(self, group: Group, hopeless: Sequence[ResourceClaim]) -> ClaimRefused | None:
        for claim in hopeless:
            self._place(Group((claim,)))
        return self._place(Group(tuple(claim for claim in group.claims if claim not in hopeless)))

    def _place_pod_by_pod(self, group: Group) -> ClaimRefused | None:
        """Not all consumers of a shared claim fit on one node: the first that fits pins it, the others follow if they can."""
        claims = {claim.key: claim for claim in group.claims}
        refused = None
        for pod in group.pods:
            left = {key: claim for key, claim in claims.items() if key not in self.result.allocations}
            alone = group_of([pod], left, frozenset(self.cluster.allocated))
            if alone.claims:
                refused = self._place(alone) or refused
        return refused

    def _resolved(self, claim: ResourceClaim, position: int) -> AskedClaim:
        if claim.key in self.cluster.refused:
            raise self.cluster.refused[claim.key]
        asked = resolve(claim, position=position, classes=self.cluster.classes, features=self.features)
        if self.policy is not None:
            refuse_bad_selectors(asked)
        return asked

    def _refuse(
        self, group: Group, error: ClaimRefused, reasons: Sequence[tuple[int, Reason]] = ()
    ) -> ClaimRefused | None:
        """The claim that is wrong gets its reason. Claims that no pod ties to it are planned without it."""
        if not group.pods and self.report_errors and len(group.claims) > 1:
            self.result.unsatisfiable[error.claim] = (error.reason,)
            rest = tuple(claim for claim in group.claims if claim.key != error.claim)
            return self._place(Group(rest))
        for position, claim in enumerate(group.claims):
            own = [
                reason
                for owner, reason in reasons
                if owner == position and reason.detail != error.reason.detail
            ]
            if claim.key == error.claim:
                own.insert(0, error.reason)
            else:
                waits = f"waits for ResourceClaim {error.claim}, which belongs to it: {error.reason.detail}"
                own.insert(0, Reason(None, None, None, error.reason.reason, waits))
            self.result.unsatisfiable[claim.key] = told_in_order(own)
        return error

    def _unsatisfiable(self, group: Group, reasons: Sequence[Reason]) -> None:
        for claim in group.claims:
            self.result.unsatisfiable[claim.key] = told_in_order(reasons)

    def _commit(self, group: Group, asked: Sequence[AskedClaim], offer: Offer) -> None:
        allocations = offer.allocations(pin_to_node=self.policy is not None)
        for position, (claim, allocation) in enumerate(zip(asked, allocations, strict=True)):
            key = claim.claim.key
            for earlier in (self.result.unsatisfiable, self.result.undecided):
                earlier.pop(key, None)
            self.cluster.allocated[key] = allocation
            self.result.allocations[key] = allocation.to_dict()
            self.result.scores[key] = -offer.cost
            self.result.nodes[key] = offer.node
            level = level_of(offer.devices_of(position))
            self.result.levels[key] = level
            self.taken.add(allocation.results, holder=key)
        for pod in group.pods:
            for key in claim_keys(pod):
                self.cluster.consumers.setdefault(key, set()).add(identity_of(pod))
            if not objects.spec_of(pod).get("nodeName"):
                self._load(offer.node, pod)
        if self.ranked is not None:
            self.ranked.took(offer.node)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _answers(self, group: Group, asked: Sequence[AskedClaim]) -> dict[str, NodeAnswer]:
        """What the nodes say, by name in order; first fit asks no further than the first that fits.

        In a large cluster the fleet says which node to ask first (`fleet/ranked.py`).
        """
        if self.ranked is not None:
            best = self._placement(group, asked)
            found = self.ranked.first(
                asked, group.pods, lambda name: self._ask(name, group, best), among=self._pinned(group)
            )
            if found is not None:
                return found
        placement = self._placement(group, asked)
        answers: dict[str, NodeAnswer] = {}
        for name in sorted(self.cluster.nodes):
            answers[name] = self._ask(name, group, placement)
            if self.policy is None and answers[name].offer is not None:
                break
        return answers

    def _pinned(self, group: Group) -> frozenset[str] | None:
        """The nodes on which claims of the pods are already, where their allocations name them."""
        pinned = {_pinned_node(self.cluster.allocated[key]) for key in group.allocated} - {""}
        return frozenset(pinned) if pinned else None

    def _placement(self, group: Group, asked: Sequence[AskedClaim]) -> Placement:
        return Placement(
            asked,
            siblings_in(group),
            policy=self.policy,
            inventory=self.cluster.slices,
            several=len(self.cluster.nodes) > 1,
            guide=self.guide,
        )

    def _ask(self, name: str, group: Group, placement: Placement) -> NodeAnswer:
        node = self.cluster.nodes[name]
        refused = self._node_refusals(node, group)
        if refused:
            told = [(position, reason) for position in range(len(group.claims)) for reason in refused]
            return NodeAnswer(reasons=lambda: told, unsuited=True)
        pools = self.cluster.slices.pools(node)
        honors = honors_partitions(objects.metadata(node).get("labels") or {})

        def search() -> NodeAnswer:
            return placement.on_node(name, pools, self.taken, honors_partitions=honors)

        if self.ranked is None:
            return search()
        return self.ranked.answer(
            name, placement.asked, placement.siblings, pools, search, honors_partitions=honors
        )

    def _node_refusals(self, node: Mapping[str, Any], group: Group) -> list[Reason]:
        name = objects.name(node)
        found: list[tuple[Cause, str]] = []
        load = dict(self.node_load.get(name, {}))
        for pod in group.pods:
            why = self.exclude.get(objects.key(pod), {}).get(name)
            if why:
                found.append((Cause.NODE_UNSUITABLE, f"excluded for pod {objects.key(pod)}: {why}"))
            found += [
                (Cause.NODE_UNSUITABLE, f"pod {objects.key(pod)}: {text}" if len(group.pods) > 1 else text)
                for text in unsuitable(node, pod, taken=load)
            ]
            for resource, amount in requests_of(pod).items():
                load[resource] = load.get(resource, Decimal(0)) + amount
        for key in group.allocated:
            selector = self.cluster.allocated[key].node_selector
            if selector is not None and not selector_matches(selector, node):
                where = _pinned_node(self.cluster.allocated[key]) or "other nodes"
                found.append(
                    (Cause.SHARED_CLAIM_PINNED, f"ResourceClaim {key} of the pod is allocated on {where}")
                )
        return [Reason(name, None, None, cause.value, text) for cause, text in dict.fromkeys(found)]

    def _node_of(self, pod: Mapping[str, Any]) -> str:
        """Where the pod runs, or will run: its claims may pin it before it is bound."""
        bound = objects.spec_of(pod).get("nodeName")
        if bound:
            return str(bound)
        for key in claim_keys(pod):
            allocation = self.cluster.allocated.get(key)
            pinned = _pinned_node(allocation) if allocation else ""
            if pinned and not any(other in self.cluster.pending for other in claim_keys(pod)):
                return pinned
        return ""

    def _load(self, node: str, pod: Mapping[str, Any]) -> None:
        load = self.node_load.setdefault(node, {})
        for resource, amount in self.cluster.known.requests(pod).items():
            load[resource] = load.get(resource, Decimal(0)) + amount


def _waiting_for(told: Mapping[str, Sequence[Reason]]) -> tuple[Reason, ...]:
    """For a claim that would fit by itself: which claims of its group it waits for, in their words."""
    return tuple(
        Reason(
            None,
            None,
            None,
            own[0].reason,
            f"waits for ResourceClaim {key}, which belongs to it: {own[0].detail}",
        )
        for key, own in told.items()
        if own
    )


def _pinned_node(allocation: Allocation) -> str:
    for term in (allocation.node_selector or {}).get("nodeSelectorTerms") or ():
        for entry in term.get("matchFields") or ():
            if entry.get("key") == "metadata.name" and len(entry.get("values") or ()) == 1:
                return str(entry["values"][0])
    return ""
