"""The kinds of GPUs and MIG instances that nodes publish, for what a claim may come to at the most, and what
keeps shares of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from koordra.allocator.devices.capacity import part_of
from koordra.allocator.devices.pools import facts_of
from koordra.api import names, objects
from koordra.api.devices import Capacity, read_device
from koordra.api.objects import Fields, Object
from koordra.api.opaque.isolation import published_policy
from koordra.api.reader import Reader
from koordra.api.tables import BoundedCache, set_or_drop
from koordra.cel.selectors import DeviceFacts, matches
from koordra.errors import InvalidInput, SelectorError

_TELLS: Final = (
    names.ATTR_TYPE,
    names.ATTR_MODEL,
    names.ATTR_PRODUCT_NAME,
    names.ATTR_PROFILE,
    names.ATTR_ARCHITECTURE,
    names.ATTR_CUDA_COMPUTE_CAPABILITY,
    names.ATTR_ALLOCATOR,
)
"""Attributes by which kinds are told apart, and by how shares are kept; what else tells one card from another
says where it is."""
_ISOLATION: Final = "/" + names.ATTR_ISOLATION.rpartition("/")[2]


class PublishedDevices:
    """Follows ResourceSlices; of each kind of device one stands for all. `epoch` is another number when the
    kinds are others. `kept` is the trim of its watch."""

    def __init__(self) -> None:
        self.epoch = 0
        self._lock = threading.Lock()
        self._of_kind: dict[tuple[object, ...], tuple[DeviceFacts, Capacity, Object]] = {}
        self._in_slice: dict[str, tuple[tuple[object, ...], ...]] = {}
        self._number: Counter[tuple[object, ...]] = Counter()
        self._answers = BoundedCache[tuple[tuple[str, ...], tuple[str, ...], int], int | None](4096)

    def kept(self, found: Object) -> Object:
        """A slice with one device of each kind, which slices of like nodes share."""
        spec = objects.spec_of(found)
        metadata = {name: objects.metadata(found).get(name) for name in ("name", "uid", "resourceVersion")}
        devices = [] if spec.get("driver") != names.DRIVER else spec.get("devices") or ()
        kinds = {kind: each for each in devices if (kind := _kind(each)) is not None}
        with self._lock:
            shared = [self._of_kind[kind][2] if kind in self._of_kind else kinds[kind] for kind in kinds]
        return {"metadata": metadata, "spec": {"driver": spec.get("driver"), "devices": shared}}

    def on_slice(self, event: str, found: Object, /) -> None:
        spec, key = objects.spec_of(found), objects.name(found)
        there = [] if event == "DELETED" or spec.get("driver") != names.DRIVER else spec.get("devices") or ()
        kinds = {kind: each for each in there if (kind := _kind(each)) is not None}
        with self._lock:
            before = self._in_slice.get(key, ())
            for kind, each in kinds.items():
                if kind not in before:
                    self._number[kind] += 1
                    if kind not in self._of_kind:
                        self._add(kind, each)
            for kind in before:
                if kind not in kinds:
                    self._number[kind] -= 1
                    if not self._number[kind]:
                        del self._number[kind]
                        self._changed(self._of_kind.pop(kind, None))
            set_or_drop(self._in_slice, key, tuple(kinds))

    def _add(self, kind: tuple[object, ...], found: Fields) -> None:
        try:
            device = read_device(Reader.of(found))
            memory = next(
                one
                for name, one in device.capacity.items()
                if name.rpartition("/")[2] == names.CAPACITY_MEMORY
            )
        except (InvalidInput, StopIteration):
            return
        self._of_kind[kind] = facts_of(names.DRIVER, device)[1], memory, dict(found)
        self._changed(True)

    def _changed(self, is_other: object) -> None:
        if is_other:
            self.epoch += 1
            self._answers.clear()

    def largest(self, of_class: Sequence[str], of_request: Sequence[str], percent: int = 100) -> int | None:
        """Bytes of the largest that the selectors leave, or of a percentage of it, in steps of its kind. A
        selector on what tells one card from another (its UUID, its place) may leave none of those that stand
        for all: then those of the class count."""
        asked = tuple(of_class), tuple(of_request), percent
        with self._lock:
            if asked not in self._answers:
                kinds = self._of_kind.values()
                found = _most(kinds, (*of_class, *of_request), percent)
                self._answers[asked] = _most(kinds, of_class, percent) if found is None else found
            return self._answers[asked]

    def isolations(self) -> frozenset[str] | None:
        """The words by which some card's shares can be kept now; None where nodes do not say it."""
        with self._lock:
            kinds = [facts.attributes for facts, _, _ in self._of_kind.values()]
        found = (published_policy({name: one.value for name, one in each.items()}) for each in kinds)
        policies = [policy for policy in found if policy is not None]
        return frozenset(word for policy in policies for word in policy.allowed or ()) if policies else None


def _kind(device: Fields) -> tuple[object, ...] | None:
    """None of what has no memory: NICs."""
    memory = objects.fields(objects.fields(device.get("capacity")).get(names.CAPACITY_MEMORY)).get("value")
    attributes = objects.fields(device.get("attributes"))
    kept = sorted(str(one) for one in attributes.items() if _ISOLATION in f"/{one[0]}")
    return None if memory is None else (str(memory), *(str(attributes.get(name)) for name in _TELLS), *kept)


def _most(
    kinds: Iterable[tuple[DeviceFacts, Capacity, Object]], selectors: Sequence[str], percent: int
) -> int | None:
    found = (int(part_of(memory, percent)) for facts, memory, _ in kinds if _all_match(selectors, facts))
    return max(found, default=None)


def _all_match(selectors: Sequence[str], facts: DeviceFacts) -> bool:
    try:
        return all(matches(one, facts) for one in selectors)
    except SelectorError:
        return False
