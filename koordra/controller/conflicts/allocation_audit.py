"""Allocations that should not be: of somebody else's making, or of more than there is. Pure.

    ForeignWriter        an allocation of a joint device that another field manager wrote
    OverCommitted        a device that is given out beyond what it has, whoever did it

As in conflict_rules.py, they are told and not mended: the node refuses what would over-commit it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import chain
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


def overcommitments(place: Place, slices: Iterable[Object], claims: Iterable[Object]) -> list[DeviceConflict]:
    """Whether more of a device is given out than it has. `claims`: all that hold it; `slices`: koordra's of its pool."""
    used = [
        (claim, result) for claim in claims for result in claims_of.results(claim) if _takes(result, place)
    ]
    too_much = _too_much([result for _, result in used], slices, place[1]) if len(used) > 1 else ""
    if not too_much:
        return []
    holders = {objects.uid(claim): claim for claim, _ in used}
    about = tuple(holders[uid] for uid in sorted(holders))
    text = (
        f"device {place[1]} of pool {place[0]} {too_much} {', '.join(sorted(map(objects.key, about)))}; "
        "the node will refuse to prepare what is too much; delete one of the pods"
    )
    return [DeviceConflict(OVER_COMMITTED, "/".join(place), about, text)]


def _takes(result: Mapping[str, Any], place: Place) -> bool:
    """Whether a result of an allocation takes of the device. Admin access takes nothing."""
    driver, pool, device = result.get("driver"), result.get("pool"), result.get("device")
    return driver == names.DRIVER and (pool, device) == place and not result.get("adminAccess")


def _too_much(results: Sequence[Mapping[str, Any]], slices: Iterable[Object], device: str) -> str:
    """What is wrong with a device that has several holders, up to their names; empty where nothing is."""
    if not all(result.get("shareID") for result in results):
        return "is allocated as a whole to more than one claim:"
    asked: dict[str, Decimal] = defaultdict(Decimal)
    for result in results:
        for name, amount in _amounts(result.get("consumedCapacity")).items():
            asked[name] += amount
    for published in chain.from_iterable(objects.spec_of(entry).get("devices") or () for entry in slices):
        if published.get("name") == device:
            values = (published.get("capacity") or {}).items()
            for name, total in _amounts({name: value.get("value") for name, value in values}).items():
                if asked[name] > total:
                    return f"has {name} {canonical(total)} and {canonical(asked[name])} is allocated, to"
    return ""


def _amounts(quantities: object) -> dict[str, Decimal]:
    """By capacity; what cannot be read is left out (the allocator says so elsewhere)."""
    found: dict[str, Decimal] = {}
    for name, text in quantities.items() if isinstance(quantities, Mapping) else ():
        amount = _amount(str(text))
        if amount is not None:
            found[str(name).removeprefix(names.DOMAIN)] = amount
    return found


@lru_cache(maxsize=4096)
def _amount(text: str) -> Decimal | None:
    try:
        return parse(text)
    except InvalidQuantity:
        return None
