"""Which GPU and which NIC of a machine of known shape, and what the choice does to what is left.

What the choice is worth to who gets it comes first, always, in the words of the written cost (`allocator.score`): the nearest
level that is free on the node; of several GPUs also NVLink and how far they are spread. Among equal ones the least

    dH + dA/2 - dT/50        (`leftover`: holes, usable GPU that will lack a NIC of its group, intact switch groups)

then the smallest leftover on the GPU, on the NIC, the group with the fewest free NICs, and the first in device order. For one GPU
(or a share of it) with at most one NIC every pair is looked at; for several GPUs or NICs every set (`device_sets`).

In the key of a node the worth comes before everything else too (CLAIM): a node that has a near pair is taken before one that has
only a far one, whatever either leaves. What that costs in allocation is measured by benchmarks/scale_alignment.py. The search of
`plan()` and of the controller, whose cost is ordered like that, agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from koordra.allocator.score import COMPACTNESS, NEARNESS, WORTH
from koordra.placement.columns.state import FULL, Choice, DeviceRequestShape
from koordra.placement.mig.mig_placement import PACKING, Card, Taken
from koordra.placement.policy.device_sets import ChosenSet
from koordra.placement.policy.device_value import ALL, Allowed, DeviceSetValue
from koordra.topology.machine_shape import pair_level, positions

CLAIM: Final = (1 << 20) * 10**6
"""One unit of what a choice costs who gets it, beside the other terms of a key: more than they can ever sum up to."""

_MICRO: Final = 1000


class Joint(NamedTuple):
    """`holes` is dH in thousandths of a milli-GPU, `left` on the chosen GPU, `extra` the other terms, weighted by 1000."""

    holes: int
    left: int
    extra: int
    choice: Choice


def best(worth: DeviceSetValue, form: DeviceRequestShape, allowed: Allowed = ALL) -> Joint | None:
    """The best devices for the form among those free, None where they do not suffice."""
    if not form.gpus and not form.nics and not form.slices:
        return Joint(0, 0, 0, Choice(()))
    if form.slices and (form.gpus or len(form.slices) > 1 or form.nics > 1):
        return _slices(worth, form, allowed)
    if form.gpus <= 1 and form.nics <= 1:
        return min(_pairs(worth, form, allowed), default=(None,), key=lambda entry: entry[1:])[0]
    return _several(worth, form, allowed)


def _pairs(
    worth: DeviceSetValue, form: DeviceRequestShape, allowed: Allowed
) -> Iterator[tuple[Joint, int, int, int, int, int, int, int]]:
    """Candidates with what orders them; devices that are alike to everything are looked at once."""
    devices = worth.devices
    paired = bool((form.gpus or form.slices) and form.nics)
    levels = worth.places.levels
    gpus, nics = [-1], [-1]
    cut: dict[int, Taken] = {}
    if form.gpus:
        free_gpus = [
            gpu for gpu, free in enumerate(devices.gpus) if free >= form.milli and allowed.gpus >> gpu & 1
        ]
        gpus = _unlike(free_gpus, lambda gpu: (worth.group_of_gpu[gpu], devices.gpus[gpu], levels[gpu]))
    elif form.slices:
        found_cuts = ((gpu, worth.cut(gpu, form, allowed)) for gpu in range(len(devices.gpus)))
        cut = {gpu: taken for gpu, taken in found_cuts if taken is not None}
        gpus = _unlike(list(cut), lambda gpu: (worth.group_of_gpu[gpu], cut[gpu], levels[gpu]))
    if form.nics:
        free_nics = [
            nic for nic, free in enumerate(devices.nics) if free >= form.percent and allowed.nics >> nic & 1
        ]
        nics = _unlike(
            free_nics,
            lambda nic: (worth.group_of_nic[nic], devices.nics[nic], tuple(row[nic] for row in levels)),
        )
    for gpu in gpus:
        taken = cut.get(gpu)
        for nic in nics:
            level = levels[gpu][nic] if paired else 0
            chosen_nics = (nic,) if nic >= 0 else ()
            if taken is not None:
                drop, left = taken.loss, taken.left
                lost = drop + form.slices[0].milli * _MICRO
                extra = worth.change_by_cuts([(gpu, lost)], chosen_nics, form) + PACKING * taken.after
                choice = Choice((), chosen_nics, level, ((gpu, taken.place),))
            else:
                drop = worth.drop(gpu, form.milli) if gpu >= 0 else 0
                left = devices.gpus[gpu] - form.milli if gpu >= 0 else 0
                chosen_gpus = (gpu,) if gpu >= 0 else ()
                extra = worth.change(chosen_gpus, chosen_nics, form)
                choice = Choice(chosen_gpus, chosen_nics, level)
            left_nics = worth.bandwidth[worth.group_of_gpu[gpu]] if gpu >= 0 and nic < 0 else 0
            left_on_nic = devices.nics[nic] - form.percent if nic >= 0 else 0
            apart = CLAIM * (NEARNESS // WORTH) * (level // 10)
            found = Joint(drop, left, extra + apart, choice)
            yield found, level, 1000 * drop + extra, left, left_on_nic, left_nics, gpu, nic


def _slices(worth: DeviceSetValue, form: DeviceRequestShape, allowed: Allowed) -> Joint | None:
    """Several slices: where least is lost, wherever that is; their NICs as near to those cards as there are free ones."""
    if form.gpus or not worth.layouts:
        return None
    groups, apart_of = worth.places.grouped
    cards = [
        Card(
            layout,
            worth.devices.cuts[gpu],
            (allowed.places[gpu] if allowed.places else -1) if allowed.gpus >> gpu & 1 else 0,
            groups[gpu],
        )
        for gpu, layout in enumerate(worth.layouts)
    ]
    found = worth.cuts.spread(cards, form.slices, apart_of)
    if found is None:
        return None
    on = sorted({gpu for gpu, _ in found.places})
    levels = worth.places.levels
    nics = sorted(
        (min(levels[gpu][nic] for gpu in on), free, nic)
        for nic, free in enumerate(worth.devices.nics)
        if form.nics and free >= form.percent and allowed.nics >> nic & 1
    )[: form.nics]
    if len(nics) < form.nics:
        return None
    chosen = tuple(sorted(nic for _, _, nic in nics))
    steps = [min(levels[gpu][nic] for nic in chosen) for gpu, _ in found.places] if chosen else []
    losses = [
        (gpu, taken.loss + one.milli * _MICRO)
        for (gpu, _), taken, one in zip(found.places, found.takes, form.slices, strict=True)
    ]
    extra = worth.change_by_cuts(losses, chosen, form) + PACKING * sum(taken.after for taken in found.takes)
    apart = NEARNESS // WORTH * sum(level // 10 for level in steps) + COMPACTNESS // WORTH * found.apart
    choice = Choice((), chosen, max(steps, default=0), found.places)
    loss, left = sum(taken.loss for taken in found.takes), max(taken.left for taken in found.takes)
    return Joint(loss, left, extra + CLAIM * apart, choice)


def _several(worth: DeviceSetValue, form: DeviceRequestShape, allowed: Allowed) -> Joint | None:
    devices, places = worth.devices, worth.places
    gpus = allowed.gpus & _mask(free >= form.milli for free in devices.gpus)
    nics = allowed.nics & _mask(free >= (form.percent if form.nics else FULL) for free in devices.nics)
    if gpus.bit_count() < form.gpus or nics.bit_count() < form.nics:
        return None
    sets = places.sets(form)
    # Where there is no table they are only counted: which devices these are, the search decides.
    chosen = (
        _fullest(worth, form, gpus, nics)
        if sets is None
        else sets.best(devices, gpus, nics, partial(worth.change_of, form))
    )
    if chosen is None:
        return None
    drop = sum(worth.drop(gpu, form.milli) for gpu in chosen.gpus)
    left = max((devices.gpus[gpu] - form.milli for gpu in chosen.gpus), default=0)
    level = int(pair_level(places.shape, _bits(chosen.gpus), _bits(chosen.nics)) or 0)
    extra = worth.change(chosen.gpus, chosen.nics, form) + CLAIM * chosen.claim
    return Joint(drop, left, extra, Choice(chosen.gpus, chosen.nics, level))


def _fullest(worth: DeviceSetValue, form: DeviceRequestShape, gpus: int, nics: int) -> ChosenSet:
    """Best fit."""
    devices = worth.devices
    some = sorted(positions(gpus), key=lambda gpu: (worth.drop(gpu, form.milli), devices.gpus[gpu], gpu))
    others = sorted(positions(nics), key=lambda nic: (devices.nics[nic], nic))
    return ChosenSet(tuple(sorted(some[: form.gpus])), tuple(sorted(others[: form.nics])), 0)


def _unlike(devices: Sequence[int], likeness: Callable[[int], Hashable]) -> list[int]:
    """The first device of each sort."""
    found: dict[Hashable, int] = {}
    for device in devices:
        found.setdefault(likeness(device), device)
    return list(found.values())


def _mask(bits: Iterator[bool]) -> int:
    return sum(1 << position for position, bit in enumerate(bits) if bit)


def _bits(positions: Sequence[int]) -> int:
    return sum(1 << position for position in positions)
