"""What is written to `status.allocation`: which devices a claim has, how much of each, and with which
configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from koordra.api import objects
from koordra.api.devices import DeviceID
from koordra.api.objects import Fields, Object
from koordra.api.reader import Reader

FROM_CLASS: Final = "FromClass"
FROM_CLAIM: Final = "FromClaim"


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """One device of a claim. `share_id` is set exactly for devices that several claims may use at a time."""

    request: str
    device: DeviceID
    share_id: str | None = None
    consumed: Mapping[str, Decimal] = field(default_factory=dict, hash=False)
    consumed_spelled: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)
    admin_access: bool | None = None
    tolerations: tuple[Fields, ...] = field(default=(), hash=False)
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()

    def to_dict(self) -> Object:
        """The API's form; fields that say nothing are left out, as the API server does."""
        rest = {
            "adminAccess": self.admin_access,
            "tolerations": [dict(toleration) for toleration in self.tolerations] or None,
            "bindingConditions": list(self.binding_conditions) or None,
            "bindingFailureConditions": list(self.binding_failure_conditions) or None,
            "shareID": self.share_id,
            "consumedCapacity": {
                name: self.consumed_spelled.get(name, str(self.consumed[name]))
                for name in sorted(self.consumed)
            }
            or None,
        }
        return {
            "request": self.request,
            "driver": self.device.driver,
            "pool": self.device.pool,
            "device": self.device.device,
            **objects.without_none(rest),
        }

    @classmethod
    def read(cls, read: Reader) -> DeviceResult:
        """One entry of `devices.results`. Raises InvalidManifest."""
        return cls(
            request=read.text("request"),
            device=DeviceID(read.text("driver"), read.text("pool"), read.required("device")),
            share_id=read.text("shareID") or None,
            consumed=read.amounts("consumedCapacity"),
            consumed_spelled={
                name: str(value) for name, value in read.inner("consumedCapacity").data.items()
            },
            admin_access=None if read.data.get("adminAccess") is None else read.flag("adminAccess"),
        )


def pinned_node(selector: Fields | None) -> str:
    """The one node that a NodeSelector names through `metadata.name In [node]`; empty where it pins to none
    that way."""
    pinned = {
        str(name)
        for term in (selector or {}).get("nodeSelectorTerms") or ()
        for field in term.get("matchFields") or ()
        if field.get("key") == "metadata.name" and field.get("operator") == "In"
        for name in field.get("values") or ()
    }
    return pinned.pop() if len(pinned) == 1 else ""


@dataclass(frozen=True, slots=True)
class Allocation:
    """`config` entries are complete API entries (source, requests, opaque); `node_selector` None means every
    node."""

    results: tuple[DeviceResult, ...] = ()
    config: tuple[Fields, ...] = field(default=(), hash=False)
    node_selector: Fields | None = field(default=None, hash=False)

    @property
    def node(self) -> str:
        """The one that it is pinned to, empty for none."""
        return pinned_node(self.node_selector)

    def to_dict(self) -> Object:
        """An AllocationResult without its timestamp, which is the writer's."""
        parts = {
            "results": [result.to_dict() for result in self.results],
            "config": [dict(entry) for entry in self.config],
        }
        return objects.without_none(
            {
                "devices": {name: entries for name, entries in parts.items() if entries},
                "nodeSelector": None if self.node_selector is None else dict(self.node_selector),
            }
        )

    @classmethod
    def of_claim(cls, claim: Fields) -> Allocation | None:
        """The allocation in a claim's status, None for a claim that has none. Raises InvalidManifest."""
        found = objects.status_of(claim).get("allocation")
        if found is None:
            return None
        read = Reader(found, object=f"ResourceClaim {objects.key(claim)}", field="status.allocation")
        devices = read.inner("devices")
        return cls(
            results=tuple(DeviceResult.read(each) for each in devices.each("results")),
            config=tuple(devices.sequence("config")),
            node_selector=selector.data if (selector := read.optional("nodeSelector")) else None,
        )
