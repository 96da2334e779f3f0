"""Reservations, which users write (deploy/kustomize/crds/reservations.yaml): devices that a namespace wants
kept for pods of its own. Pure.

    spec.owners[]       for whom: pods of the reservation's namespace; of one entry everything has to match:
                        `labelSelector`, `controller` (kind and name of an owner reference), `pod` (a name)
    spec.seats          how many places are kept, each on one node; 1 without it
    spec.claims[]       what a place has, as claims of one pod have it: `name`, `devices` (as a ResourceClaim)
    spec.nodeSelector, spec.tolerations    on which nodes
    spec.start          from when on; without it at once
    spec.expires        until when; or `spec.ttl` after the start (`90m`, `24h`), which is 24h without both
    spec.allocateOnce   a place is over once a pod has used it; else it is kept again when that ends
    spec.priority       whoever is more urgent may take what is kept

What is kept are seats of DeviceHolds (device_hold), which carry the owners. So whoever reads a cluster knows
for whom they are: an owner's claims are placed as if these seats were free, and in them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from koordra.allocator.predicates import requirement_matches
from koordra.api import objects
from koordra.api.objects import Fields, Object

API_VERSION: Final = "koordra.io/v1alpha1"
MOST_SEATS: Final = 1000
MOST_CLAIMS: Final = 16
TTL: Final = "24h"

_OWNER: Final = "reservation "


def owner_of(key: str) -> str:
    """A reservation, as DeviceHolds name whom they are for."""
    return f"{_OWNER}{key}"


def reservation_of_owner(owner: str) -> str | None:
    """Its key; None where the hold is somebody else's."""
    return owner.removeprefix(_OWNER) if owner.startswith(_OWNER) else None


@dataclass(frozen=True, slots=True)
class Reservation:
    """`owners` as they are written; `claims`: name and devices. `problems`: why it cannot be meant."""

    obj: Fields
    owners: tuple[Fields, ...]
    seats: int
    claims: tuple[tuple[str, Fields], ...]
    start: str
    expires: str
    ttl: str
    once: bool
    priority: int
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, obj: Fields) -> Reservation | None:
        """None for a Reservation of somebody else (Koordinator's)."""
        if str(obj.get("apiVersion") or API_VERSION) != API_VERSION:
            return None
        spec = objects.spec_of(obj)
        claims = tuple(
            (str(one.get("name") or f"claim-{at}"), objects.fields(one.get("devices")))
            for at, one in enumerate(objects.mappings(spec.get("claims")))
        )
        seats, owners = _number(spec.get("seats"), 1), tuple(objects.mappings(spec.get("owners")))
        problems = [
            *(["spec.owners: name whom it is for"] if not owners else []),
            *(
                f"spec.owners[{at}]: say labelSelector, controller or pod"
                for at, one in enumerate(owners)
                if not any(one.get(part) for part in ("labelSelector", "controller", "pod"))
            ),
            *([f"spec.claims: name 1 to {MOST_CLAIMS}"] if not 0 < len(claims) <= MOST_CLAIMS else []),
            *([f"spec.seats: 1 to {MOST_SEATS}"] if not 0 < seats <= MOST_SEATS else []),
            *_administrative(claims),
        ]
        return cls(
            obj,
            owners,
            seats,
            claims,
            str(spec.get("start") or ""),
            str(spec.get("expires") or ""),
            str(spec.get("ttl") or TTL),
            spec.get("allocateOnce") is True,
            _number(spec.get("priority"), 0),
            tuple(problems),
        )

    @property
    def key(self) -> str:
        return objects.key(self.obj)

    @property
    def owner(self) -> str:
        return owner_of(self.key)

    def pod(self, seat: str) -> Object:
        """A pod that would use the seat."""
        spec = objects.spec_of(self.obj)
        name = f"{objects.name(self.obj)}-seat-{seat}"
        metadata = {
            "namespace": objects.namespace(self.obj),
            "name": name,
            "uid": f"{objects.uid(self.obj)}/{seat}",
            "creationTimestamp": objects.metadata(self.obj).get("creationTimestamp"),
        }
        asked = {part: spec[part] for part in ("nodeSelector", "tolerations") if spec.get(part)}
        entries = [{"name": claim, "resourceClaimName": f"{name}-{claim}"} for claim, _ in self.claims]
        return {
            "kind": "Pod",
            "metadata": metadata,
            "spec": {**asked, "priority": self.priority, "containers": [], "resourceClaims": entries},
            "status": {"phase": "Pending"},
        }

    def claims_for(self, seat: str) -> tuple[Object, ...]:
        """The claims that would have its devices."""
        place, name = objects.namespace(self.obj), f"{objects.name(self.obj)}-seat-{seat}"
        return tuple(
            {
                "kind": "ResourceClaim",
                "metadata": {
                    "namespace": place,
                    "name": f"{name}-{claim}",
                    "uid": f"{objects.uid(self.obj)}/{seat}/{claim}",
                },
                "spec": {"devices": dict(devices)},
                "status": {},
            }
            for claim, devices in self.claims
        )


def owns(owners: Sequence[Fields], namespace: str, pod: Fields) -> bool:
    """Whether the pod is one that the seats of this namespace are kept for."""
    return objects.namespace(pod) == namespace and any(_is_owner(one, pod) for one in owners)


def _is_owner(entry: Fields, pod: Fields) -> bool:
    selector, made_by, name = (entry.get(part) for part in ("labelSelector", "controller", "pod"))
    if selector is not None and not _selects(objects.fields(selector), pod):
        return False
    if made_by is not None and not any(
        all(owner.get(part) == wanted for part, wanted in objects.fields(made_by).items())
        for owner in objects.mappings(objects.metadata(pod).get("ownerReferences"))
    ):
        return False
    return name is None or objects.name(pod) == name


def _selects(selector: Fields, pod: Fields) -> bool:
    """An empty selector, and one that cannot be read, mean nobody: what is kept for nobody in particular
    would be everybody's."""
    labels, named = objects.labels_of(pod), objects.fields(selector.get("matchLabels"))
    expressions = objects.mappings(selector.get("matchExpressions"))
    return (
        bool(named or expressions)
        and all(labels.get(label) == value for label, value in named.items())
        and all(requirement_matches(one, labels) for one in expressions)
    )


def _administrative(claims: Sequence[tuple[str, Fields]]) -> list[str]:
    """Devices that are not taken from anybody cannot be kept; nor is an administrator's access."""
    return [
        f"spec.claims[{at}]: adminAccess keeps nothing"
        for at, (_, devices) in enumerate(claims)
        if any(
            objects.fields(one.get("exactly")).get("adminAccess")
            for one in objects.mappings(devices.get("requests"))
        )
    ]


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
