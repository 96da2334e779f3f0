"""ResourceSlices by the node that they are for, and koordra's by pool.

Slices that name no node (another layout than koordra's own) stand under the empty name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from koordra.api import names, objects
from koordra.api.objects import Object

_Slices = dict[str, dict[str, Object]]


@dataclass
class SliceIndex:
    """Not thread-safe."""

    STATE: ClassVar[tuple[str, ...]] = ("_published", "_of_pool")

    _published: _Slices = field(default_factory=dict)
    _of_pool: _Slices = field(default_factory=dict)

    def published(self, node: str) -> tuple[Object, ...]:
        """The slices of all drivers for the node, by name."""
        return _sorted(self._published, node)

    def of_pool(self, pool: str) -> tuple[Object, ...]:
        """koordra's slices of a pool, by name."""
        return _sorted(self._of_pool, pool)

    def on_slice(self, key: str, before: Object | None, now: Object | None) -> None:
        for entry in (before, now):
            if entry is not None:
                spec = objects.spec_of(entry)
                _put(self._published, str(spec.get("nodeName") or ""), key, now if entry is now else None)
                if spec.get("driver") == names.DRIVER:
                    _put(self._of_pool, pool_name(entry), key, now if entry is now else None)


def pool_name(entry: Object) -> str:
    """The pool of a slice."""
    return str((objects.spec_of(entry).get("pool") or {}).get("name"))


def _sorted(table: _Slices, place: str) -> tuple[Object, ...]:
    found = table.get(place, {})
    return tuple(found[key] for key in sorted(found))


def _put(table: _Slices, place: str, key: str, entry: Object | None) -> None:
    found = table.setdefault(place, {})
    if entry is not None:
        found[key] = entry
        return
    found.pop(key, None)
    if not found:
        del table[place]


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


def joint_slices(slices: Iterable[Object]) -> list[Object]:
    """koordra's slices without the devices of native nodes, and without those in quarantine between the modes;
    slices of other drivers are left out.

    A slice none of whose devices is ours stays, empty, because a pool is complete only with all its slices.
    """
    return [joint_slice(entry) for entry in slices if objects.spec_of(entry).get("driver") == names.DRIVER]
