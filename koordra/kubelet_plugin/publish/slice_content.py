"""What a pool's ResourceSlices hold: compared with what is wanted, and with devices changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from koordra.api.objects import Fields, Object


def same_content(old: Sequence[Fields], new: Sequence[Fields]) -> bool:
    """Whether the pool's slices as they are, in one generation, have the content of the wanted ones: then
    nothing is written."""
    return len(set(map(generation_of, old))) == 1 and _content(old) == _content(new)


def generation_of(one: Fields) -> int:
    return int(((one.get("spec") or {}).get("pool") or {}).get("generation") or 0)


def _content(slices: Sequence[Fields]) -> Object:
    """The content of slices without their generation, by name, and without the time that the API server adds
    to taints."""
    return {
        one["metadata"]["name"]: (
            {"devices": [], **one["spec"], "pool": {**one["spec"]["pool"], "generation": 0}},
            [owner.get("uid") for owner in one["metadata"].get("ownerReferences", ())],
        )
        for one in with_devices(slices, _undated)
    }


def _undated(device: Object) -> Object:
    return {**device, "taints": [{**taint, "timeAdded": None} for taint in (device.get("taints") or ())]}


def with_devices(slices: Sequence[Any], change: Callable[[Object], Object]) -> list[Object]:
    return [
        {**one, "spec": {**one["spec"], "devices": [change(device) for device in one["spec"]["devices"]]}}
        if one["spec"].get("devices")
        else one
        for one in slices
    ]
