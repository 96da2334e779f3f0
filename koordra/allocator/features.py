"""Which of upstream's feature gates the allocation may rely on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from koordra.errors import PlanError

ADMIN_ACCESS: Final = "DRAAdminAccess"
PRIORITIZED_LIST: Final = "DRAPrioritizedList"
DEVICE_TAINTS: Final = "DRADeviceTaints"
TAINT_RULES: Final = "DRADeviceTaintRules"
BINDING_CONDITIONS: Final = "DRADeviceBindingConditions"
DEVICE_STATUS: Final = "DRAResourceClaimDeviceStatus"
CONSUMABLE_CAPACITY: Final = "DRAConsumableCapacity"
PARTITIONABLE_DEVICES: Final = "DRAPartitionableDevices"
FRACTIONAL_RANGE: Final = "DRAFractionalCapacityRange"
LIST_ATTRIBUTES: Final = "DRAListTypeAttributes"

DEFAULT_ON: Final = frozenset(
    {
        ADMIN_ACCESS,
        PRIORITIZED_LIST,
        DEVICE_TAINTS,
        TAINT_RULES,
        BINDING_CONDITIONS,
        DEVICE_STATUS,
        CONSUMABLE_CAPACITY,
        PARTITIONABLE_DEVICES,
        FRACTIONAL_RANGE,
    }
)
"""On by default in Kubernetes 1.37."""


@dataclass(frozen=True, slots=True)
class Features:
    """The gates that are on, by upstream's names."""

    on: frozenset[str] = DEFAULT_ON

    def __contains__(self, gate: str) -> bool:
        return gate in self.on

    @property
    def binding_conditions(self) -> bool:
        return BINDING_CONDITIONS in self.on and DEVICE_STATUS in self.on

    @classmethod
    def of(cls, features: str | Iterable[str] | None) -> Features:
        """None is 1.37's defaults; several names may be joined by `+`; names of other gates change nothing.

        Raises PlanError for a name that is no gate's.
        """
        if features is None:
            return cls()
        names = [features] if isinstance(features, str) else list(features)
        on = {part.strip() for name in names for part in name.split("+") if part.strip()}
        for name in sorted(on):
            if not name[:1].isupper() or not name.isalnum():
                raise PlanError(f"{name!r} is not a feature gate; write names like {CONSUMABLE_CAPACITY}")
        return cls(frozenset(on))
