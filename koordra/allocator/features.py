"""Which of upstream's feature gates the allocation may rely on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from koordra.errors import PlanError
from koordra.spelling import meant

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

KNOWN: Final = (*sorted(DEFAULT_ON), LIST_ATTRIBUTES)
"""The gates that make a difference here."""

_FAMILY: Final = ("DRA", "DynamicResourceAllocation")
_ALIKE: Final = 0.9


class Features(frozenset[str]):
    """The gates that are on, by upstream's names."""

    @classmethod
    def of(cls, features: str | Iterable[str] | None) -> Features:
        """None is 1.37's defaults; several names may be joined by `+`; other gates of DRA change nothing.

        Raises PlanError for a name that is no gate's of DRA, or one of KNOWN misspelt: a gate that is thought
        to be on and is not would make claims wait for no visible reason.
        """
        if features is None:
            return cls(DEFAULT_ON)
        names = [features] if isinstance(features, str) or not isinstance(features, Iterable) else [*features]
        if any(not isinstance(name, str) for name in names):
            raise PlanError(
                f"features {features!r} are no names of feature gates; write names like {CONSUMABLE_CAPACITY}, joined by +"
            )
        on = {part.strip() for name in names for part in name.split("+") if part.strip()}
        for name in sorted(on.difference(KNOWN)):
            alike = meant(name, KNOWN, cutoff=_ALIKE)
            if alike or not name.startswith(_FAMILY) or not name.isalnum():
                hint = f"did you mean {alike}?" if alike else f"write names like {CONSUMABLE_CAPACITY}"
                raise PlanError(f"{name!r} is not a feature gate of DRA; {hint}")
        return cls(on)
