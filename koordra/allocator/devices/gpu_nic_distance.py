"""How near the GPUs of a claim are to the NICs that they are paired with, for people: one level per claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from koordra.allocator.devices.inventory import Inventory
from koordra.allocator.features import Features
from koordra.allocator.score import worst_pair
from koordra.api import names
from koordra.api.allocation import Allocation


def level_of(devices: Sequence[Mapping[str, Any]]) -> str | None:
    """The worst level between a GPU and its NIC, from plain attributes; None without a GPU or a NIC."""
    gpus = [plain for plain in devices if plain.get(names.ATTR_TYPE) in (names.TYPE_GPU, names.TYPE_MIG)]
    nics = [plain for plain in devices if plain.get(names.ATTR_TYPE) in (names.TYPE_NIC, names.TYPE_VF)]
    worst = worst_pair(gpus, nics)
    return None if worst is None else str(worst)


def worst_level(claim: Mapping[str, Any], slices: Iterable[Mapping[str, Any]]) -> str | None:
    """The worst GPU-NIC level of a claim that has its allocation, from published attributes; None without NIC or GPU."""
    allocation = Allocation.of_claim(claim)
    if allocation is None:
        return None
    wanted = {result.device for result in allocation.results}
    newest: dict[Any, tuple[int, Mapping[str, Any]]] = {}
    index = Inventory.of(slices, features=Features())
    for entries in index.by_pool.values():
        for entry in entries:
            for identity, plain in index.plain_devices(entry):
                if identity in wanted and entry.generation >= newest.get(identity, (-1, {}))[0]:
                    newest[identity] = (entry.generation, plain)
    # Several shares of one device are one device.
    held = dict.fromkeys(result.device for result in allocation.results)
    return level_of([newest[device][1] for device in held if device in newest])
