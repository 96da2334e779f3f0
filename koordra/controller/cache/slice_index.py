"""ResourceSlices by the node that they are for, and koordra's by pool.

Slices that name no node (another layout than koordra's own) stand under the empty name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.api.tables import KeySets


@dataclass
class SliceIndex:
    """Over the table of slices, which is changed before it is told. Not thread-safe."""

    STATE: ClassVar[tuple[str, ...]] = ("_of_node", "_of_pool")

    slices: Mapping[str, Object]
    _of_node: KeySets = field(default_factory=KeySets)
    _of_pool: KeySets = field(default_factory=KeySets)

    def published(self, node: str) -> tuple[Object, ...]:
        return tuple(self.slices[key] for key in sorted(self._of_node.get(node, ())))

    def of_pool(self, pool: str) -> tuple[Object, ...]:
        return tuple(self.slices[key] for key in sorted(self._of_pool.get(pool, ())))

    def on_slice(self, key: str, before: Object | None, now: Object | None) -> None:
        self._of_node.move(key, *([node_name(entry)] if entry else [] for entry in (before, now)))
        self._of_pool.move(
            key,
            *([pool_name(entry)] if entry is not None and is_ours(entry) else [] for entry in (before, now)),
        )


def node_name(entry: Object) -> str:
    return str(objects.spec_of(entry).get("nodeName") or "")


def is_ours(entry: Object) -> bool:
    return bool(objects.spec_of(entry).get("driver") == names.DRIVER)


def pool_name(entry: Object) -> str:
    return str((objects.spec_of(entry).get("pool") or {}).get("name"))


def joint_slice(entry: Object) -> Object:
    """Without the devices of native nodes, and without those in quarantine between the modes. One none of
    whose devices is ours stays, empty, because a pool is complete only with all its slices."""
    spec = objects.spec_of(entry)
    devices = spec.get("devices") or []
    joint = [device for device in devices if allocator_of(device) in {"", names.ALLOCATOR_CONTROLLER}]
    return entry if len(joint) == len(devices) else {**entry, "spec": {**spec, "devices": joint}}


def allocator_of(device: Fields) -> str:
    """Who gives the device out, in its own words; empty when it does not say. Short attribute names mean the
    driver's domain."""
    attributes = device.get("attributes") or {}
    short = names.ATTR_ALLOCATOR.removeprefix(names.DOMAIN)
    return str((attributes.get(names.ATTR_ALLOCATOR) or attributes.get(short) or {}).get("string") or "")
