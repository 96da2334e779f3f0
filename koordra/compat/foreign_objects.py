"""Objects of peers beside pods: what the table of names (`compat.keys`) says of their kinds and fields.

An object of a kind that is refused is left out; one that is warned about stays as it is, since somebody else
may read it still. Of a field that counts resources only those are reported that are devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from koordra.api import objects
from koordra.api.classic.notes import Notes
from koordra.api.objects import Fields, Object
from koordra.compat import detection
from koordra.compat.keys import KEYS, Key, Place, Treatment
from koordra.compat.settings import Settings

_KINDS: Final = {key.name: key for key in KEYS if key.place is Place.KIND}
_GROUPS: Final = {name.partition(".")[2] for name in _KINDS}
_SCHEDULERS: Final = {key.name for key in KEYS if key.place is Place.SCHEDULER}


def is_of_a_peer(obj: Object) -> bool:
    return objects.group_of(obj) in _GROUPS


def tell_object(obj: Object, settings: Settings, notes: Notes) -> None:
    """Raises Refused."""
    group, kind = objects.group_of(obj), str(obj.get("kind"))
    if group not in _GROUPS:
        return
    key = _KINDS.get(f"{kind}.{group}") or _KINDS.get(f"*.{group}")
    if key is None:
        notes.warn("kind", f"{kind} of {group} is no kind that koordra knows, and stays as it is")
    elif key.treatment is Treatment.WARNED:
        notes.warn("kind", key.problem, key.remedy)
    for each, path in _fields_of(f"{kind}.{group}"):
        for place in _said(_at(obj, path), path, settings):
            notes.warn(place, each.problem, each.remedy)


def _fields_of(kind: str) -> Iterator[tuple[Key, str]]:
    for key in KEYS:
        owner, _, path = key.name.partition(": ")
        if key.place is Place.FIELD and owner == kind:
            yield key, path


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _said(value: Any, path: str, settings: Settings) -> Iterator[str]:
    """Where the field says something that is of a peer's devices, or names its scheduler."""
    if isinstance(value, Mapping):
        yield from (f"{path}[{name}]" for name in _devices(value, settings))
    elif isinstance(value, list):  # Kueue's groups of resources
        for at, group in enumerate(value):
            covered = group.get("coveredResources") if isinstance(group, Mapping) else None
            names = dict.fromkeys(map(str, covered)) if isinstance(covered, list) else {}
            yield from (f"{path}[{at}].coveredResources[{name}]" for name in _devices(names, settings))
    elif isinstance(value, str) and value in _SCHEDULERS:
        yield path


def _devices(amounts: Fields, settings: Settings) -> Iterator[str]:
    for name in map(str, amounts):
        if detection.dialects_with(name, settings) or detection.vendor_of(name):
            yield name
