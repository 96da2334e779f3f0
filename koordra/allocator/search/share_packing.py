"""Shares that have to fill their devices exactly: found by packing amounts, then checked by the search.

The search takes requests and devices in order, which finds what leaves room to spare at once, and what leaves none hardly ever.
`packed` looks at amounts alone: a device for each share, by `packing.Packing`. Whatever else holds (constraints, scopes,
partitions) is seen to by a search that may only give each request the devices found here. That there is no packing is a proof
that nothing fits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from koordra.allocator.request.requests import RequestAlternative
from koordra.allocator.search.packing import PACKING_BUDGET, Item, Packing
from koordra.allocator.search.partial_choice import PartialChoice

_FEWEST: Final = 3
"""Requests of which an order matters; fewer are tried at once."""


class Packed(NamedTuple):
    """`candidates`: the devices of each request; None where there is no packing."""

    candidates: dict[RequestAlternative, list[int]] | None


def fills_exactly(search: PartialChoice) -> bool:
    """Whether the requests together take all that is left of some capacity, so that every placement leaves the same behind."""
    items = _items(search) if len(search.requests) >= _FEWEST else None
    if items is None:
        return False
    _, names, found = items
    devices = {device for item in found for device in item.takes}
    for at, name in enumerate(names):
        least = sum(min(amounts[at] for amounts in item.takes.values()) for item in found)
        if least == sum(search.state.room(device, name) for device in devices):
            return True
    return False


def packed(search: PartialChoice) -> Packed | None:
    """Devices for all requests, as far as amounts go; None where that cannot be told."""
    items = _items(search)
    if items is None:
        return None
    wanted, names, found = items
    devices = sorted({device for item in found for device in item.takes})
    rooms = {device: [search.state.room(device, name) for name in names] for device in devices}
    packing = Packing(found, rooms, budget=PACKING_BUDGET)
    chosen = packing.solve()
    if chosen is None:
        return None if packing.budget < 0 else Packed(None)
    candidates: dict[RequestAlternative, list[int]] = {}
    for one, device in zip(wanted, chosen, strict=True):
        candidates.setdefault(one, []).append(device)
    return Packed({one: sorted(found) for one, found in candidates.items()})


def _items(search: PartialChoice) -> tuple[list[RequestAlternative], list[str], list[Item]] | None:
    """The shares that are asked for, with what each takes; None where something else is asked for, too."""
    state = search.state
    takes: dict[RequestAlternative, dict[int, dict[str, int]]] = {}
    for _, _, request in search.requests:
        wanted = request.alternatives[0]
        if wanted not in search.candidates or not all(
            map(state.shared.__getitem__, search.candidates[wanted])
        ):
            return None
        own = search.claims[wanted.claim].own_driver_only
        demands = {
            device: state.verdict(wanted, device, own_driver_only=own).demand
            for device in search.candidates[wanted]
        }
        takes[wanted] = {
            device: dict(demand.nano) for device, demand in demands.items() if demand is not None
        }
    names = sorted(
        {
            name
            for found in takes.values()
            for each in found.values()
            for name, amount in each.items()
            if amount
        }
    )
    if not takes or not names or not all(takes.values()):
        return None
    wanted_by = [one for one in takes for _ in range(one.spec.count)]
    items = [
        Item(
            (one.claim, one.request),
            {d: tuple(each.get(n, 0) for n in names) for d, each in takes[one].items()},
        )
        for one in wanted_by
    ]
    return wanted_by, names, items
