"""Conditions in a status: one per type; the transition time moves only when the status does. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koordra.api.objects import Object


def found(conditions: Sequence[Object], type_: str) -> Mapping[str, Any]:
    """The condition of a type; {} where there is none."""
    return next((one for one in conditions if one.get("type") == type_), {})


def is_true(conditions: Sequence[Object], type_: str) -> bool:
    return found(conditions, type_).get("status") == "True"


def replaced(
    conditions: Sequence[Object],
    type_: str,
    status: str | None,
    *,
    reason: str,
    message: str,
    now: str,
    updated: str = "",
) -> list[Object]:
    """The conditions with one of them set; status None removes it. `updated`: name of a second timestamp, for
    each change."""
    earlier = found(conditions, type_)
    others = [one for one in conditions if one.get("type") != type_]
    if status is None:
        return others
    wanted: Object = {"type": type_, "status": status, "reason": reason, "message": message}
    if all(earlier.get(field, "") == value for field, value in wanted.items()):
        return list(conditions)
    wanted = {field: value for field, value in wanted.items() if value}
    wanted["lastTransitionTime"] = (
        earlier["lastTransitionTime"]
        if earlier.get("status") == status and "lastTransitionTime" in earlier
        else now
    )
    if updated:
        wanted[updated] = now
    return [*others, wanted]
