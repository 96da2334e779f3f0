"""Allocations that should not be: of somebody else's making, or of more than there is. Pure.

    ForeignWriter        an allocation of a joint device that another field manager wrote
    OverCommitted        a device that is given out beyond what it has, whoever did it

As in conflict_rules.py, they are told and not mended: the node refuses what would over-commit it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.slice_index import allocator_of
from koordra.controller.conflicts.conflict_rules import DeviceConflict
from koordra.controller.reporting.claim_events import FOREIGN_WRITER, OVER_COMMITTED
from koordra.errors import InvalidQuantity
from koordra.quantity import canonical, parse

FIELD_MANAGER: Final = "koordra-controller"


def joint_places(slices: Iterable[Object]) -> set[tuple[str, str]]:
    """Pool and name of every device that the controller gives out."""
    return {
        (str((objects.spec_of(entry).get("pool") or {}).get("name")), str(device.get("name")))
        for entry in slices
        if objects.spec_of(entry).get("driver") == names.DRIVER
        for device in objects.spec_of(entry).get("devices") or ()
        if allocator_of(device) == names.ALLOCATOR_CONTROLLER
    }


def writer_alarms(claim: Object, joint: Container[tuple[str, str]]) -> list[DeviceConflict]:
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
    used: dict[tuple[str, str], list[tuple[Object, Mapping[str, Any]]]] = defaultdict(list)
    for claim in claims:
        for result in claims_of.results(claim):
            if result.get("driver") == names.DRIVER and not result.get("adminAccess"):
                used[str(result.get("pool")), str(result.get("device"))].append((claim, result))
    crowded = {place: entries for place, entries in used.items() if len(entries) > 1}
    if not crowded:
        return []
    capacity = _capacities(slices, crowded.keys())
    found = []
    for place in sorted(crowded):
        text = _too_much(place, crowded[place], capacity.get(place))
        if text:
            holders = {objects.uid(claim): claim for claim, _ in crowded[place]}
            about = tuple(holders[uid] for uid in sorted(holders))
            found.append(DeviceConflict(OVER_COMMITTED, "/".join(place), about, text))
    return found


def _too_much(
    place: tuple[str, str],
    entries: Sequence[tuple[Object, Mapping[str, Any]]],
    capacity: Mapping[str, Decimal] | None,
) -> str:
    who = ", ".join(sorted({objects.key(claim) for claim, _ in entries}))
    advice = "the node will refuse to prepare what is too much; delete one of the pods"
    if any(not result.get("shareID") for _, result in entries):
        return f"device {place[1]} of pool {place[0]} is allocated as a whole to more than one claim: {who}; {advice}"
    for name, total in (capacity or {}).items():
        amounts = (_amount(_consumed(result, name)) for _, result in entries)
        asked = sum((amount for amount in amounts if amount is not None), Decimal(0))
        if asked > total:
            return (
                f"device {place[1]} of pool {place[0]} has {name} {canonical(total)} and {canonical(asked)} is "
                f"allocated, to {who}; {advice}"
            )
    return ""


def _consumed(result: Mapping[str, Any], name: str) -> str | None:
    consumed = claims_of.consumed(result)
    return consumed.get(name, consumed.get(f"{names.DOMAIN}{name}"))


def _amount(value: object) -> Decimal | None:
    """A quantity, None where there is none that can be read (the allocator says so elsewhere)."""
    try:
        return None if value is None else parse(str(value))
    except InvalidQuantity:
        return None


def _capacities(
    slices: Iterable[Object], wanted: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, Decimal]]:
    places = set(wanted)
    pools = {pool for pool, _ in places}
    found = {}
    for entry in slices:
        spec = objects.spec_of(entry)
        pool = str((spec.get("pool") or {}).get("name"))
        if pool not in pools or spec.get("driver") != names.DRIVER:
            continue
        for device in spec.get("devices") or ():
            place = (pool, str(device.get("name")))
            if place in places:
                found[place] = {
                    name.removeprefix(names.DOMAIN): total
                    for name, value in (device.get("capacity") or {}).items()
                    if (total := _amount(value.get("value"))) is not None
                }
    return found
