"""From the caches' objects to what has to be planned. Pure.

A pod *waits* when it is neither finished nor being deleted, every one of its claims exists and stays (a
template's claim is the one made for this very pod), and at least one claim of koordra's is not allocated.
Gated and ungated pods alike; a pod that carries somebody else's scheduling gate (a queue, a quota) is not
planned before that gate is gone, since nobody knows when it will be.

Pods that share an unallocated claim are planned together, for one allocation has to suit them all: a `Group`.

What the allocator is shown of all this is chosen in `sites` and `offers`. Claims of other drivers in a pod
count when they are allocated (they may pin the pod to a node) and not while they are pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.claims import Owner
from koordra.controller.order import Urgency, most_urgent, urgency


@dataclass(frozen=True, slots=True)
class Cluster:
    """A full read: every object of the kinds that matter."""

    nodes: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    classes: Sequence[Object] = ()
    taint_rules: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    namespaces: Sequence[Object] = ()
    volume_claims: Sequence[Object] = ()
    volumes: Sequence[Object] = ()
    pod_groups: Sequence[Object] = ()


@dataclass(frozen=True, slots=True)
class PodClaims:
    """A pod with all its claims: `ours` are koordra's, `others` another driver's, `refused` nobody's (with
    why)."""

    pod: Object
    ours: tuple[Object, ...]
    others: tuple[Object, ...] = ()
    refused: tuple[tuple[Object, Owner], ...] = ()
    pending: tuple[Object, ...] = field(init=False, compare=False)
    """Claims of koordra's that are still to be allocated."""

    def __post_init__(self) -> None:
        pending = tuple(claim for claim in self.ours if not claims_of.is_allocated(claim))
        object.__setattr__(self, "pending", pending)

    @property
    def is_open(self) -> bool:
        """Whether anything is left to decide: the pod has no node yet, or claims without devices."""
        return bool(self.pending or self.refused) or not is_bound(self.pod)


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that have to be planned together, most urgent first; or one Immediate claim that no pod waits for.

    `pending` are the claims to allocate, `placed` those of its pods that have their devices already (koordra's and
    others'); each claim once, by key.
    """

    members: tuple[PodClaims, ...]
    immediate: Object | None = None
    pods: tuple[Object, ...] = field(init=False, compare=False)
    pending: tuple[Object, ...] = field(init=False, compare=False)
    placed: tuple[Object, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        members = self.members
        pending = [self.immediate] if self.immediate is not None else _each(one.pending for one in members)
        placed = [
            claim
            for claim in _each((*one.ours, *one.others) for one in members)
            if claims_of.is_allocated(claim)
        ]
        object.__setattr__(self, "pods", tuple(one.pod for one in members))
        object.__setattr__(self, "pending", tuple(pending))
        object.__setattr__(self, "placed", tuple(placed))

    @property
    def key(self) -> str:
        """Stable name of the group: its most urgent pod's uid, or the claim's."""
        return objects.uid(self.members[0].pod if self.immediate is None else self.immediate)

    @property
    def urgency(self) -> Urgency:
        """Its place in the order of planning."""
        return most_urgent(self.pods) if self.immediate is None else urgency(self.immediate)


def _each(claims: Iterable[Sequence[Object]]) -> list[Object]:
    """Each claim once, by key."""
    found = {objects.key(claim): claim for some in claims for claim in some}
    return [found[key] for key in sorted(found)]


def claims_of_pod(
    pod: Object, claims: Mapping[str, Object], classes: Mapping[str, Object]
) -> PodClaims | None:
    """The pod's claims (from `claims`, by key) sorted by owner; None while one does not exist yet, is being deleted, or is
    another pod's."""
    ours: list[Object] = []
    others: list[Object] = []
    refused: list[tuple[Object, Owner]] = []
    for name in objects.pod_claim_names(pod).values():
        claim = None if name is None else claims.get(f"{objects.namespace(pod)}/{name}")
        if claim is None or objects.is_deleting(claim):
            return None
        if claims_of.is_made_from_template(claim) and not claims_of.belongs_to(claim, pod):
            return None
        owner = claims_of.owner(claim, classes)
        if claims_of.is_allocated(claim):
            (ours if claims_of.holds_koordra_devices(claim) else others).append(claim)
        elif owner is Owner.KOORDRA:
            ours.append(claim)
        elif owner is Owner.FOREIGN:
            others.append(claim)
        else:
            refused.append((claim, owner))
    return PodClaims(pod, tuple(ours), tuple(others), tuple(refused))


def gates(pod: Mapping[str, Any]) -> list[str]:
    """Names of the pod's scheduling gates, in order."""
    return [str(gate.get("name")) for gate in objects.spec_of(pod).get("schedulingGates") or ()]


def is_gated(pod: Mapping[str, Any]) -> bool:
    """Whether koordra's own gate still holds the pod."""
    return names.JOINT_GATE in gates(pod)


def is_bound(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has a node."""
    return bool(objects.spec_of(pod).get("nodeName"))


def is_living(pod: Mapping[str, Any]) -> bool:
    """Neither finished nor being deleted."""
    return not objects.pod_is_finished(pod) and not objects.is_deleting(pod)


def may_be_planned(member: PodClaims) -> bool:
    """Whether the pod waits for koordra and for nobody else; see the module's docstring."""
    foreign_gates = [gate for gate in gates(member.pod) if gate != names.JOINT_GATE]
    return bool(member.pending) and not foreign_gates and not member.refused


def joint_slices(slices: Iterable[Object]) -> list[Object]:
    """koordra's slices without the devices of native nodes, and without those in quarantine between the modes;
    slices of other drivers are left out.

    A slice none of whose devices is ours stays, empty, because a pool is complete only with all its slices.
    """
    return [joint_slice(entry) for entry in slices if objects.spec_of(entry).get("driver") == names.DRIVER]


def joint_slice(entry: Object) -> Object:
    """A slice of koordra's with the devices that the controller gives out."""
    spec = objects.spec_of(entry)
    devices = spec.get("devices") or []
    joint = [device for device in devices if allocator_of(device) in {"", names.ALLOCATOR_CONTROLLER}]
    return entry if len(joint) == len(devices) else {**entry, "spec": {**spec, "devices": joint}}


def allocator_of(device: Mapping[str, Any]) -> str:
    """Who gives the device out, in its own words; empty when it does not say. Short attribute names mean the
    driver's domain."""
    attributes = device.get("attributes") or {}
    value = (
        attributes.get(names.ATTR_ALLOCATOR)
        or attributes.get(names.ATTR_ALLOCATOR.removeprefix(names.DOMAIN))
        or {}
    )
    return str(value.get("string") or "")
