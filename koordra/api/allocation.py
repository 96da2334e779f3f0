"""What is written to `status.allocation`: which devices a claim has, how much of each, and with which configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from koordra.api import objects
from koordra.api.devices import DeviceID
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
    tolerations: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
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
            **{name: value for name, value in rest.items() if value is not None},
        }

    @classmethod
    def read(cls, read: Reader) -> DeviceResult:
        """One entry of `devices.results`. Raises InvalidManifest."""
        return cls(
            request=read.text("request"),
            device=DeviceID(read.text("driver"), read.text("pool"), read.text("device", required=True)),
            share_id=read.text("shareID") or None,
            consumed=read.amounts("consumedCapacity"),
            consumed_spelled={
                name: str(value) for name, value in read.inner("consumedCapacity").data.items()
            },
            admin_access=None if read.data.get("adminAccess") is None else read.flag("adminAccess"),
        )


@dataclass(frozen=True, slots=True)
class Allocation:
    """`config` entries are complete API entries (source, requests, opaque); `node_selector` None means every node."""

    results: tuple[DeviceResult, ...] = ()
    config: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    node_selector: Mapping[str, Any] | None = field(default=None, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """An AllocationResult without its timestamp, which is the writer's."""
        parts = {
            "results": [result.to_dict() for result in self.results],
            "config": [dict(entry) for entry in self.config],
        }
        found: dict[str, Any] = {"devices": {name: entries for name, entries in parts.items() if entries}}
        if self.node_selector is not None:
            found["nodeSelector"] = dict(self.node_selector)
        return found

    @classmethod
    def of_claim(cls, claim: Mapping[str, Any]) -> Allocation | None:
        """The allocation in a claim's status, None for a claim that has none. Raises InvalidManifest."""
        found = objects.status_of(claim).get("allocation")
        if found is None:
            return None
        read = Reader(found, object=f"ResourceClaim {objects.key(claim)}", field="status.allocation")
        devices = read.inner("devices")
        return cls(
            results=tuple(DeviceResult.read(each) for each in devices.each("results")),
            config=tuple(devices.sequence("config")),
            node_selector=None if read.data.get("nodeSelector") is None else read.inner("nodeSelector").data,
        )
