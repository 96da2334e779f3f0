"""`status.devices` of a claim, which the kubelet plugin and the NRI hook of a node both write: one entry for
each allocated device, and in it conditions, each of them one writer's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from koordra.api.objects import Object


def device_key(entry: Mapping[str, Any]) -> tuple[object, ...]:
    """What an entry of status.devices and a result of the allocation are named by."""
    return tuple(entry.get(field) or None for field in ("driver", "pool", "device", "shareID"))


def merged_entry(
    before: Mapping[str, Any], wanted: Mapping[str, Any], *, now: str, own: Collection[str] = ()
) -> Object:
    """The entry with the wanted fields and conditions. Of the conditions that it has, those of the types in
    `own` go if they are no longer wanted, and the others stay. A condition whose status is unchanged keeps
    its time."""
    earlier = {condition["type"]: condition for condition in before.get("conditions") or ()}
    gone = {*own} - {condition["type"] for condition in wanted["conditions"]}
    found = {kind: dict(condition) for kind, condition in earlier.items() if kind not in gone}
    for condition in wanted["conditions"]:
        known = earlier.get(condition["type"], {})
        same = known.get("status") == condition["status"]
        time = known.get("lastTransitionTime") if same else now
        found[condition["type"]] = {**condition, "lastTransitionTime": time}
    return {**before, **wanted, "conditions": list(found.values())}
