"""Cut cards as nodes publish them: layouts from MIG devices and their counters, and which profiles a request
would take.

A card's places are its MIG devices in the order in which they are published; the counters that they take of
are those of the card's counter set. Nothing but what is published is known of a card. One whose devices take
of several sets or of none, or of counters that are not whole numbers, has no layout: its slices are then
parts of a card, all of one size (`free_amounts/node_devices`).

What a request would take is judged as the search judges it (`allocator.devices.eligibility`), on one device
of every profile and model that the cluster has: selectors may name the profile, its memory or anything else,
and so may an amount of memory. Which of the places of that profile it may have, where selectors name a place,
is the search's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from koordra.allocator.devices.eligibility import judge
from koordra.allocator.devices.inventory import PublishedDevice
from koordra.allocator.devices.partitionable_gpu import size_of
from koordra.allocator.features import Features
from koordra.allocator.request.requests import RequestAlternative
from koordra.api import names
from koordra.api.tables import BoundedCache
from koordra.placement.mig.layout import Layout, Place, Slice, layout_of

Counters = Mapping[tuple[str, str], Decimal]

_GATES: Final = Features.of(None)


class Sample(NamedTuple):
    """One device of a profile, for all of it on cards of one model."""

    profile: str
    model: str
    milli: int
    device: PublishedDevice


class Profiles:
    """The profiles of some nodes; `slice_of` remembers what was asked."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        found: dict[tuple[str, str, int], Sample] = {}
        for sample in samples:
            found.setdefault(sample[:3], sample)
        self.samples = tuple(found[key] for key in sorted(found))
        self.known = frozenset(found)
        self._kept = BoundedCache[object, Slice | None](1 << 12)

    def __bool__(self) -> bool:
        return bool(self.samples)

    def slice_of(self, wanted: RequestAlternative) -> Slice | None:
        """What the request takes of a card; None where no device would do."""
        return self._kept.get_or_make(wanted.kind, lambda: self._judged(wanted))

    def _judged(self, wanted: RequestAlternative) -> Slice | None:
        found = [
            one
            for one in self.samples
            if one.device.id.driver == names.DRIVER
            and judge(wanted, one.device, features=_GATES).demand is not None
        ]
        if not found:
            return None
        return Slice(tuple(sorted({one.profile for one in found})), min(one.milli for one in found))


class MigCard(NamedTuple):
    """A card that may be cut, with its devices in the order of the layout's places."""

    layout: Layout
    devices: tuple[PublishedDevice, ...]

    def samples(self) -> list[Sample]:
        return [
            Sample(place.profile, str(one.plain.get(names.ATTR_MODEL, "")), place.milli, one)
            for place, one in zip(self.layout.places, self.devices, strict=True)
        ]


def mig_card_of(
    devices: Sequence[PublishedDevice], counters: Mapping[tuple[str, str], Counters]
) -> MigCard | None:
    """The card of these MIG devices. `counters` are those of each pool, by set and counter."""
    sets = {(one.id.driver, one.id.pool, *one.device.consumes_counters) for one in devices}
    if (
        len(sets) != 1
        or len(next(iter(sets))) != 3
        or any(one.device.allow_multiple_allocations for one in devices)
    ):
        return None
    ((driver, pool, name),) = sets
    has = {counter: amount for (of_set, counter), amount in counters[driver, pool].items() if of_set == name}
    takes = [one.device.consumes_counters[name] for one in devices]
    amounts = [*has.values(), *(amount for each in takes for amount in each.values())]
    if not has or any(amount != int(amount) or amount < 0 for amount in amounts):
        return None
    order = sorted(has)
    places = tuple(
        Place(
            _profile(one),
            tuple([int(each.get(counter, Decimal(0))) for counter in order]),
            size_of(one.device, each, has),
        )
        for one, each in zip(devices, takes, strict=True)
    )
    layout = _layout(tuple([int(has[counter]) for counter in order]), places)
    return None if layout is None else MigCard(layout, tuple(devices))


@lru_cache(maxsize=1024)
def _layout(counters: tuple[int, ...], places: tuple[Place, ...]) -> Layout | None:
    """The same object for all cards of one sort, since its states are worth keeping."""
    return layout_of(counters, places)


def _profile(one: PublishedDevice) -> str:
    """By name; where that is not published, by what the device has."""
    named = one.plain.get(names.ATTR_PROFILE)
    if named is not None:
        return str(named)
    return (
        "+".join(f"{name}={entry.value.normalize():f}" for name, entry in sorted(one.device.capacity.items()))
        or "?"
    )


NO_PROFILES: Final = Profiles()
