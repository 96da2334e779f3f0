"""What a claim group asks for, as a request class.

A request for a share becomes thousandths of the usual GPU of the cluster, one for a MIG slice the set of
profiles that would serve it (`slices`). Of a firstAvailable list the first alternative counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import ceil, prod
from typing import Final

from koordra.allocator.predicates import requests_of, total_of
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.api import names
from koordra.api.objects import Fields
from koordra.placement.free_amounts.state import FULL, WHOLE, Request, mebi_of, milli_of
from koordra.placement.mig.layout import Slice
from koordra.placement.mig.profiles import NO_PROFILES, Profiles

_MOST_SLICES: Final = 8
_MOST_PARTS: Final = 16
"""More slices in one claim, or parts of them (by sort and number) to be placed, are the search's alone."""

_MOST_DEVICES: Final = 1 << 10
"""So is what no node has; a claim may ask for any number."""


def request_of(
    asked: Sequence[ResolvedClaim],
    pods: Sequence[Fields],
    memory: Decimal,
    profiles: Profiles = NO_PROFILES,
) -> Request | None:
    """What a claim group asks for, by its first alternatives; None where counting devices does not describe
    it.

    `memory` is the usual memory of a GPU, against which an amount becomes a share; `profiles` are those of
    cards that may be cut.
    """
    gpus, milli, nics, percent = 0, 0, 0, 0
    slices: list[Slice] = []
    for wanted in (request.alternatives[0] for claim in asked for request in claim.requests):
        if wanted.takes_all or wanted.spec.admin_access or wanted.spec.count > _MOST_DEVICES:
            return None
        name = wanted.spec.device_class
        if name == names.CLASS_MIG and profiles:
            cut = profiles.slice_of(wanted)
            if cut is None:
                return None
            slices += [cut] * wanted.spec.count
        elif name in {names.CLASS_GPU, names.CLASS_MIG}:
            gpus += wanted.spec.count
            milli = max(milli, _share(wanted, memory))
        elif name in {names.CLASS_NIC, names.CLASS_VF}:
            nics += wanted.spec.count
            percent = max(percent, _percent(wanted))
        else:
            return None
    parts = prod(count + 1 for count in Counter(slices).values())
    if (gpus and slices) or len(slices) > _MOST_SLICES or parts > _MOST_PARTS:
        return None
    if max(gpus, nics) > _MOST_DEVICES:
        return None
    if gpus > 1:
        # Several shares are as hard to place as several GPUs, and rare.
        milli = WHOLE
    needed = total_of(map(requests_of, pods))
    return Request(
        cpu=milli_of(needed.get("cpu", Decimal(0))),
        memory=mebi_of(needed.get("memory", Decimal(0))),
        gpus=gpus,
        milli=milli,
        nics=nics,
        percent=percent,
        slices=tuple(sorted(slices)),
    )


def counted(asked: Sequence[ResolvedClaim]) -> bool:
    """Whether counts say all that is asked: no alternatives, of several GPUs every one whole, NICs that ask
    alike.

    So do several slices, if there is no NIC to be near to.
    """
    requests = [request for claim in asked for request in claim.requests]
    if any(len(request.alternatives) > 1 for request in requests):
        return False
    wanted = [request.alternatives[0] for request in requests]
    nics = [one for one in wanted if one.spec.device_class in {names.CLASS_NIC, names.CLASS_VF}]
    if len({_percent(one) for one in nics}) > 1:
        return False
    gpus = [one for one in wanted if one not in nics]
    if gpus and not nics and all(one.spec.device_class == names.CLASS_MIG for one in gpus):
        return True
    return sum(one.spec.count for one in gpus) <= 1 or all(map(_takes_cards, gpus))


def _takes_cards(wanted: RequestAlternative) -> bool:
    """Whether the request takes whole cards, whatever they are."""
    amounts = {name.rpartition("/")[2] for name in wanted.spec.capacity or {}}
    shared = names.CAPACITY_MEMORY in amounts or wanted.memory_percent is not None
    return wanted.spec.device_class == names.CLASS_GPU and (bool(wanted.whole) or not shared)


def _share(wanted: RequestAlternative, memory: Decimal) -> int:
    amounts = {name.rpartition("/")[2]: amount for name, amount in (wanted.spec.capacity or {}).items()}
    parts = [] if wanted.memory_percent is None else [Decimal(wanted.memory_percent) / 100]
    return WHOLE if wanted.whole else share_of(amounts, memory, parts)


def share_of(amounts: Mapping[str, Decimal], memory: Decimal, parts: Sequence[Decimal] = ()) -> int:
    """Thousandths of a GPU with so much `memory` that these amounts of it are, and these `parts`; all of it
    where nothing is said of memory."""
    parts = [*parts]
    if names.CAPACITY_MEMORY in amounts and memory:
        parts.append(amounts[names.CAPACITY_MEMORY] / memory)
    if not parts:
        return WHOLE
    if names.CAPACITY_CORES in amounts:
        parts.append(amounts[names.CAPACITY_CORES] / 100)
    return max(1, ceil(min(Decimal(1), max(parts)) * WHOLE))


def _percent(wanted: RequestAlternative) -> int:
    for name, amount in (wanted.spec.capacity or {}).items():
        if name.rpartition("/")[2] == names.CAPACITY_SHARE:
            return max(1, min(FULL, int(amount)))
    return FULL
