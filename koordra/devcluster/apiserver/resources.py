"""What is served: kinds with their short names, categories and subresources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from koordra.api import kinds
from koordra.api.kinds import Kind

EVENTS_V1: Final = Kind("events.k8s.io", "v1", "events", "Event", namespaced=True)

VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Served:
    """One resource. `type_name` is its field table; `stored` where its objects are kept (two event APIs share theirs)."""

    kind: Kind
    type_name: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """(name, kind of the body, verbs)."""

    @property
    def stored(self) -> str:
        return "events" if self.kind == EVENTS_V1 else str(self.kind)

    @property
    def singular(self) -> str:
        return self.kind.kind.lower()


def _status(kind: str) -> tuple[str, str, tuple[str, ...]]:
    return ("status", kind, ("get", "patch", "update"))


SERVED: Final = (
    Served(
        kinds.NAMESPACES,
        "Namespace",
        ("ns",),
        subresources=(("finalize", "Namespace", ("update",)), _status("Namespace")),
    ),
    Served(kinds.NODES, "Node", ("no",), subresources=(_status("Node"),)),
    Served(
        kinds.PODS,
        "Pod",
        ("po",),
        ("all",),
        (("binding", "Binding", ("create",)), ("eviction", "Eviction", ("create",)), _status("Pod")),
    ),
    Served(kinds.EVENTS, "Event", ("ev",)),
    Served(kinds.SERVICE_ACCOUNTS, "ServiceAccount", ("sa",)),
    Served(kinds.LEASES, "Lease"),
    Served(EVENTS_V1, "EventsEvent", ("ev",)),
    Served(kinds.RESOURCE_SLICES, "ResourceSlice"),
    Served(kinds.RESOURCE_CLAIMS, "ResourceClaim", subresources=(_status("ResourceClaim"),)),
    Served(kinds.RESOURCE_CLAIM_TEMPLATES, "ResourceClaimTemplate"),
    Served(kinds.DEVICE_CLASSES, "DeviceClass"),
    Served(kinds.DEVICE_TAINT_RULES, "DeviceTaintRule", subresources=(_status("DeviceTaintRule"),)),
)

BY_PATH: Final = {(one.kind.group, one.kind.version, one.kind.plural): one for one in SERVED}
GROUPS: Final = tuple(dict.fromkeys((one.kind.group, one.kind.version) for one in SERVED))
"""(group, version), the core group first."""


def of_stored(stored: str) -> Served:
    """The resource whose objects are kept under a name of the store."""
    return next(one for one in SERVED if one.stored == stored)
