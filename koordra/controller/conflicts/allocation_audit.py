"""Allocations that should not be: of somebody else's making, or of more than there is. Pure.

    ForeignWriter        an allocation of a joint device that another field manager wrote
    OverCommitted        a device that is given out beyond what it has, whoever did it

As in conflict_rules.py, they are told and not mended: the node refuses what would over-commit it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.slice_index import allocator_of, pool_name
from koordra.controller.conflicts.conflict_rules import DeviceConflict
from koordra.controller.reporting.claim_events import FOREIGN_WRITER, OVER_COMMITTED
from koordra.errors import InvalidQuantity
from koordra.quantity import canonical, parse

FIELD_MANAGER: Final = "koordra-controller"

Place = tuple[str, str]
"""Pool and name of a device."""


def joint_places(slices: Iterable[Object]) -> set[Place]:
    """Pool and name of every device that the controller gives out."""
    return {
        (pool_name(entry), str(device.get("name")))
        for entry in slices
        if objects.spec_of(entry).get("driver") == names.DRIVER
        for device in objects.spec_of(entry).get("devices") or ()
        if allocator_of(device) == names.ALLOCATOR_CONTROLLER
    }


def writer_conflicts(claim: Object, joint: Container[Place]) -> list[DeviceConflict]:
    """An allocation of joint devices (`joint`: pool and name) that the API server ascribes to somebody else."""
    taken = [
        str(result.get("device"))
        for result in claims_of.results(claim)
        if result.get("driver") == names.DRIVER
        and (str(result.get("pool")), str(result.get("device"))) in joint
    ]
    manager = foreign_manager(claim) if taken else ""
    if not manager:
        return []
    text = (
        f"claim {objects.name(claim)}: {', '.join(taken)} was allocated by {manager}, not by koordra's controller; "
        "devices of a joint node have one writer. Take the right to write resourceclaims/binding from it, or put "
        "the node into native mode"
    )
    return [DeviceConflict(FOREIGN_WRITER, objects.uid(claim), (claim,), text)]


def foreign_manager(claim: Object) -> str:
    """The field manager that owns status.allocation; empty where that is koordra's, or the server does not tell."""
    for entry in objects.metadata(claim).get("managedFields") or ():
        status = (entry.get("fieldsV1") or {}).get("f:status")
        if isinstance(status, Mapping) and "f:allocation" in status:
            manager = str(entry.get("manager") or "")
            return "" if manager.startswith(FIELD_MANAGER) else manager
    return ""


def overcommitments(slices: Iterable[Object], claims: Iterable[Object]) -> list[DeviceConflict]:
    """Devices of which more is given out than they have. `claims`: all that hold devices of these pools."""
    used: dict[Place, list[tuple[Object, Mapping[str, Any]]]] = defaultdict(list)
    for claim in claims:
        for result in claims_of.results(claim):
            if result.get("driver") == names.DRIVER and not result.get("adminAccess"):
                used[str(result.get("pool")), str(result.get("device"))].append((claim, result))
    crowded = {place: entries for place, entries in used.items() if len(entries) > 1}
    capacities = _capacities(slices, crowded) if crowded else {}
    found = []
    for place in sorted(crowded):
        too_much = _too_much([result for _, result in crowded[place]], capacities.get(place, {}))
        if too_much:
            holders = {objects.uid(claim): claim for claim, _ in crowded[place]}
            about = tuple(holders[uid] for uid in sorted(holders))
            who = ", ".join(sorted(map(objects.key, about)))
            text = (
                f"device {place[1]} of pool {place[0]} {too_much} {who}; "
                "the node will refuse to prepare what is too much; delete one of the pods"
            )
            found.append(DeviceConflict(OVER_COMMITTED, "/".join(place), about, text))
    return found


def _too_much(results: Sequence[Mapping[str, Any]], capacity: Mapping[str, Decimal]) -> str:
    """What is wrong with a device that has several holders, up to their names; empty where nothing is."""
    if not all(result.get("shareID") for result in results):
        return "is allocated as a whole to more than one claim:"
    asked: dict[str, Decimal] = defaultdict(Decimal)
    for result in results:
        for name, amount in _amounts(result.get("consumedCapacity")).items():
            asked[name] += amount
    for name, total in capacity.items():
        if asked[name] > total:
            return f"has {name} {canonical(total)} and {canonical(asked[name])} is allocated, to"
    return ""


def _amounts(quantities: object) -> dict[str, Decimal]:
    """By capacity; what cannot be read is left out (the allocator says so elsewhere)."""
    found: dict[str, Decimal] = {}
    for name, text in quantities.items() if isinstance(quantities, Mapping) else ():
        with suppress(InvalidQuantity):
            found[str(name).removeprefix(names.DOMAIN)] = parse(str(text))
    return found


def _capacities(slices: Iterable[Object], wanted: Container[Place]) -> dict[Place, dict[str, Decimal]]:
    found = {}
    for entry in slices:
        if objects.spec_of(entry).get("driver") == names.DRIVER:
            for device in objects.spec_of(entry).get("devices") or ():
                place = (pool_name(entry), str(device.get("name")))
                if place in wanted:
                    values = (device.get("capacity") or {}).items()
                    found[place] = _amounts({name: value.get("value") for name, value in values})
    return found
