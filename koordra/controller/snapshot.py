"""From the caches' objects to what has to be planned. Pure.

A pod *waits* when it is neither finished nor being deleted, every one of its claims exists and stays (a
template's claim is the one made for this very pod), and at least one claim of koordra's is not allocated.
Gated and ungated pods alike; a pod that carries somebody else's scheduling gate (a queue, a quota) is not
planned before that gate is gone, since nobody knows when it will be.

Pods that share an unallocated claim are planned together, for one allocation has to suit them all: a `Group`.

What the allocator is shown for a group: all nodes and taint rules, koordra's slices with the devices that
this controller gives out (devices of native nodes are kube-scheduler's and left out), the classes the group's
claims name, every claim that holds devices, the pods that take room on nodes, and the group itself. Claims of
other drivers in the group's pods are shown when they are allocated (they may pin the pod to a node) and
hidden while they are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.claims import Owner
from koordra.controller.order import most_urgent, urgency


@dataclass(frozen=True, slots=True)
class Cluster:
    """Every object of the kinds that matter, as the caches (and our own latest writes) have them."""

    nodes: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    classes: Sequence[Object] = ()
    taint_rules: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    claims_by_key: Mapping[str, Object] = field(init=False, hash=False, compare=False)
    classes_by_name: Mapping[str, Object] = field(init=False, hash=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "claims_by_key", {objects.key(claim): claim for claim in self.claims})
        object.__setattr__(self, "classes_by_name", {objects.name(entry): entry for entry in self.classes})

    def with_claim(self, claim: Object) -> Cluster:
        """The same with a newer state of one claim."""
        uid = objects.uid(claim)
        return replace(self, claims=[claim if objects.uid(old) == uid else old for old in self.claims])


@dataclass(frozen=True, slots=True)
class PodClaims:
    """A pod with all its claims: `ours` are koordra's, `others` another driver's, `refused` nobody's (with
    why)."""

    pod: Object
    ours: tuple[Object, ...]
    others: tuple[Object, ...] = ()
    refused: tuple[tuple[Object, Owner], ...] = ()

    @property
    def pending(self) -> tuple[Object, ...]:
        """Claims of koordra's that are still to be allocated."""
        return tuple(claim for claim in self.ours if not claims_of.is_allocated(claim))


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that have to be planned together, most urgent first."""

    members: tuple[PodClaims, ...]

    @property
    def key(self) -> str:
        """Stable name of the group: its most urgent pod's uid."""
        return objects.uid(self.members[0].pod)

    @property
    def pods(self) -> tuple[Object, ...]:
        return tuple(member.pod for member in self.members)

    @property
    def pending(self) -> tuple[Object, ...]:
        """The claims to allocate, each once, by key."""
        found = {objects.key(claim): claim for member in self.members for claim in member.pending}
        return tuple(found[key] for key in sorted(found))


def claims_of_pod(pod: Object, cluster: Cluster) -> PodClaims | None:
    """The pod's claims sorted by owner; None while one does not exist yet, is being deleted, or is another
    pod's."""
    ours: list[Object] = []
    others: list[Object] = []
    refused: list[tuple[Object, Owner]] = []
    for name in objects.pod_claim_names(pod).values():
        claim = None if name is None else cluster.claims_by_key.get(f"{objects.namespace(pod)}/{name}")
        if claim is None or objects.is_deleting(claim):
            return None
        if claims_of.is_made_from_template(claim) and not claims_of.belongs_to(claim, pod):
            return None
        owner = claims_of.owner(claim, cluster.classes_by_name)
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


def pods_with_claims(cluster: Cluster) -> Iterator[PodClaims]:
    """Every living pod all of whose claims exist and of which at least one concerns koordra."""
    for pod in cluster.pods:
        if objects.spec_of(pod).get("resourceClaims") and is_living(pod):
            found = claims_of_pod(pod, cluster)
            if found is not None and (found.ours or found.refused):
                yield found


def is_living(pod: Mapping[str, Any]) -> bool:
    """Neither finished nor being deleted."""
    return not objects.pod_is_finished(pod) and not objects.is_deleting(pod)


def may_be_planned(member: PodClaims) -> bool:
    """Whether the pod waits for koordra and for nobody else; see the module's docstring."""
    foreign_gates = [gate for gate in gates(member.pod) if gate != names.JOINT_GATE]
    return bool(member.pending) and not foreign_gates and not member.refused


def groups(members: Iterable[PodClaims]) -> list[Group]:
    """The waiting pods, joined where they share an unallocated claim, the most urgent group first."""
    waiting = sorted(
        (member for member in members if may_be_planned(member)), key=lambda member: urgency(member.pod)
    )
    leader: dict[str, int] = {}
    joined: dict[int, list[PodClaims]] = {}
    for index, member in enumerate(waiting):
        keys = [objects.key(claim) for claim in member.pending]
        met = sorted({leader[key] for key in keys if key in leader})
        home = met[0] if met else index
        gathered = [*joined.pop(home, [])]
        for other in met[1:]:
            gathered += joined.pop(other)
        joined[home] = [*gathered, member]
        for inside in joined[home]:
            leader.update((objects.key(claim), home) for claim in inside.pending)
    found = [Group(tuple(sorted(group, key=lambda member: urgency(member.pod)))) for group in joined.values()]
    return sorted(found, key=lambda group: most_urgent(group.pods))


def shown_to_allocator(group: Group, cluster: Cluster, slices: Sequence[Object]) -> list[Object]:
    """The objects for plan(); `slices` from `joint_slices`, made once per pass."""
    named = {name for claim in group.pending for name in claims_of.class_names(claim)}
    inside = {
        objects.key(claim): claim for member in group.members for claim in (*member.ours, *member.pending)
    }
    inside |= {
        objects.key(claim): claim
        for member in group.members
        for claim in member.others
        if claims_of.is_allocated(claim)
    }
    members = {objects.uid(pod) for pod in group.pods}
    holders = [
        claim
        for claim in cluster.claims
        if claims_of.is_allocated(claim)
        and claims_of.holds_koordra_devices(claim)
        and objects.key(claim) not in inside
    ]
    return [
        *cluster.nodes,
        *slices,
        *(entry for entry in cluster.classes if objects.name(entry) in named),
        *cluster.taint_rules,
        *holders,
        *(inside[key] for key in sorted(inside)),
        *_taking_room([pod for pod in cluster.pods if objects.uid(pod) not in members], cluster),
        *(_with_claims(member.pod, shown=inside) for member in group.members),
    ]


def _taking_room(pods: Iterable[Object], cluster: Cluster) -> Iterator[Object]:
    """Pods that count for the room they take: bound ones, and those that an allocation will bring to its
    node. Their claims are none of this plan's business."""
    for pod in pods:
        if objects.pod_is_finished(pod):
            continue
        node = objects.spec_of(pod).get("nodeName") or _destination(pod, cluster)
        if node:
            kept = {name: value for name, value in objects.spec_of(pod).items() if name != "resourceClaims"}
            yield {**pod, "spec": {**kept, "nodeName": node}}


def _destination(pod: Object, cluster: Cluster) -> str | None:
    """The node that an unbound pod's allocated claims pin it to."""
    for name in objects.pod_claim_names(pod).values():
        claim = cluster.claims_by_key.get(f"{objects.namespace(pod)}/{name}")
        if claim is not None and (node := claims_of.node_of(claim)):
            return node
    return None


def _with_claims(pod: Object, *, shown: Mapping[str, Object]) -> Object:
    """The pod with only those entries of spec.resourceClaims whose claim is shown too."""
    kept = {
        entry
        for entry, name in objects.pod_claim_names(pod).items()
        if name is not None and f"{objects.namespace(pod)}/{name}" in shown
    }
    spec = dict(objects.spec_of(pod))
    spec["resourceClaims"] = [
        entry for entry in spec.get("resourceClaims") or () if entry.get("name") in kept
    ]
    return {**pod, "spec": spec}


def joint_slices(slices: Iterable[Object]) -> list[Object]:
    """koordra's slices without the devices of native nodes; slices of other drivers are left out.

    A slice all of whose devices are native stays, empty, because a pool is complete only with all its slices.
    """
    found = []
    for entry in slices:
        spec = objects.spec_of(entry)
        if spec.get("driver") != names.DRIVER:
            continue
        devices = spec.get("devices") or []
        joint = [device for device in devices if not _is_native(device)]
        found.append(entry if len(joint) == len(devices) else {**entry, "spec": {**spec, "devices": joint}})
    return found


def _is_native(device: Mapping[str, Any]) -> bool:
    """Whether the device says that kube-scheduler's own allocator gives it out. Short attribute names mean
    the driver's domain."""
    attributes = device.get("attributes") or {}
    value = (
        attributes.get(names.ATTR_ALLOCATOR)
        or attributes.get(names.ATTR_ALLOCATOR.removeprefix(names.DOMAIN))
        or {}
    )
    return bool(value.get("string") == names.ALLOCATOR_SCHEDULER)
