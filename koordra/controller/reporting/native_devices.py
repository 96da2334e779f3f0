"""Devices that kube-scheduler gives out (nodes in native mode), in figures: kept by the slices and claims
that change. They are in no index of koordra's, which gives none of them out.

    free          no claim has anything of it
    allocated     some claim has it, or a part of it
    unavailable   no claim has it, and a taint keeps everybody away
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from koordra.api import names, objects
from koordra.api.kinds import RESOURCE_SLICES
from koordra.api.objects import Fields, Object
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.slice_index import allocator_of
from koordra.controller.claims import ClaimEntry
from koordra.controller.reporting.capacity import told_apart
from koordra.placement.free_amounts.capacity import ALLOCATED, FREE, TYPES, UNAVAILABLE, Measure

STATES: Final = (FREE, ALLOCATED, UNAVAILABLE)
_Place = tuple[str, str]
"""Pool and device."""


class _Native(NamedTuple):
    """`slice`: the key of the ResourceSlice that it stands in."""

    slice: str
    type: str
    model: str
    is_tainted: bool


class NativeDevices:
    """Not thread-safe."""

    def __init__(self, cache: ClusterCache) -> None:
        self._devices: dict[_Place, _Native] = {}
        self._in_slice: dict[str, list[_Place]] = {}
        self._uses = Counter[_Place]()
        self._counts = Counter[tuple[str, ...]]()
        for key, entry in cache.claim_index.entries.items():
            self._on_claim(key, None, entry)
        cache.claim_index.on_touch.append(self._on_claim)
        cache.listen(RESOURCE_SLICES, self._on_slice, replay=True)

    def counts(self) -> dict[tuple[str, ...], int]:
        """By type, model and state; models told apart as those of joint devices."""
        there = {key[:3] for key, number in self._counts.items() if number}
        shown = {(*key, state): self._counts[(*key, state)] for key in there for state in STATES}
        return {key[1:]: number for key, number in told_apart(shown).items()}

    def _on_slice(self, key: str, _before: Object | None, now: Object | None) -> None:
        for place in self._in_slice.pop(key, ()):
            if (known := self._devices.get(place)) is not None and known.slice == key:
                self._count(place, -1)
                del self._devices[place]
        spec = {} if now is None else objects.spec_of(now)
        if spec.get("driver") != names.DRIVER:
            return
        pool = str((spec.get("pool") or {}).get("name"))
        found = [
            (pool, str(one.get("name")))
            for one in spec.get("devices") or ()
            if allocator_of(one) == names.ALLOCATOR_SCHEDULER and self._take(key, pool, one)
        ]
        if found:
            self._in_slice[key] = found

    def _take(self, key: str, pool: str, device: Fields) -> bool:
        place, kind = (pool, str(device.get("name"))), _text(device, names.ATTR_TYPE)
        if kind not in TYPES:
            return False
        if place in self._devices:
            self._count(place, -1)
        tainted = any(
            taint.get("effect") in ("NoSchedule", "NoExecute") for taint in device.get("taints") or ()
        )
        self._devices[place] = _Native(key, kind, _text(device, names.ATTR_MODEL), tainted)
        self._count(place, 1)
        return True

    def _on_claim(self, _key: str, before: ClaimEntry | None, now: ClaimEntry | None) -> None:
        had, has = (frozenset() if entry is None else entry.places for entry in (before, now))
        for places, sign in ((had - has, -1), (has - had, 1)):
            for place in places:
                self._count(place, -1)
                self._uses[place] += sign
                if not self._uses[place]:
                    del self._uses[place]
                self._count(place, 1)

    def _count(self, place: _Place, sign: int) -> None:
        if (known := self._devices.get(place)) is not None:
            state = ALLOCATED if place in self._uses else UNAVAILABLE if known.is_tainted else FREE
            self._counts[Measure.DEVICES, known.type, known.model, state] += sign


def _text(device: Fields, name: str) -> str:
    attributes = device.get("attributes") or {}
    found = attributes.get(name) or attributes.get(name.removeprefix(names.DOMAIN)) or {}
    return str(found.get("string") or "")
