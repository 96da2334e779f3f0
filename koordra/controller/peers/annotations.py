"""Annotations that other programs read from pods, in the words of the stack that a pod was written for. Pure.

    pod, its claims, the published devices ──> what each container has ──> the dialect's annotations (koordra.compat)

What a pod has is read from the status of its claims and the published devices. Nothing that a user may write counts, but for the
unit in which the pod's dialect counts memory (an annotation of the claim): a unit that cannot be read is GiB.

Dialects whose schedulers left nothing that is known to be read have none. What those stacks wrote for their own node programs to
act on (`vgpu-devices-to-allocate`) is not written. Times are those of the allocation, so that the same allocation is the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.compat.dialect.allocation import Allocated, Device, Held
from koordra.compat.dialects import dialect_named
from koordra.compat.normalized_request import GIB
from koordra.controller import claims as claims_of
from koordra.controller.elastic.cards import (
    attribute,
    consumed,
    containers_using,
    memory_of_device,
    published_devices,
)

DIALECT: Final = names.DOMAIN + "dialect"
"""Annotation of a pod that came through the shim: the dialect it was written in."""


def wanted(pod: Object, claims: Sequence[Object], devices: Devices) -> dict[str, str]:
    """The annotations of a bound pod whose claims are all allocated; none for dialects that left none."""
    dialect = dialect_named(objects.annotations_of(pod).get(DIALECT, ""))
    if dialect is None or dialect.annotations is None:
        return {}
    found = allocated(pod, claims, devices)
    return dialect.annotations(found) if found is not None and found.held else {}


MEMORY_UNIT: Final = names.DOMAIN + "memory-unit"
"""Annotation of a claim: bytes of one unit of memory in the pod's words."""
_LONGEST_UNIT: Final = 18
"""Digits."""


Devices = Mapping[tuple[str, str], Device]


def allocated(pod: Object, claims: Sequence[Object], devices: Devices) -> Allocated | None:
    """What the pod has; None while a device of it is not published."""
    held = []
    stamps, unit = [], GIB
    for claim in claims:
        stamps.append(_unix((claims_of.allocation(claim) or {}).get("allocationTimestamp")))
        unit = _unit(claim) or unit
        for result in claims_of.results(claim):
            if result.get("driver") != names.DRIVER:
                continue
            device = devices.get((str(result.get("pool")), str(result.get("device"))))
            if device is None:
                return None
            using = tuple(containers_using(pod, claim, str(result.get("request"))))
            held.append(_held(result, device, using))
    spec = objects.spec_of(pod)
    init = [str(entry.get("name")) for entry in spec.get("initContainers") or ()]
    app = [str(entry.get("name")) for entry in spec.get("containers") or ()]
    return Allocated(
        node=str(spec.get("nodeName") or ""),
        containers=(*init, *app),
        app=tuple(app),
        held=tuple(sorted(held, key=lambda one: (one.device.kind, one.device.minor, one.device.bus_id))),
        at=max(stamps, default=0),
        unit=unit,
    )


def devices_of(slices: Iterable[Object]) -> dict[tuple[str, str], Device]:
    """Every device that koordra's plugins publish, by pool and name."""
    raw = {place: device for place, _, device in published_devices(slices)}
    return {
        place: _device(device, raw.get((place[0], _text(device, "parent")))) for place, device in raw.items()
    }


def _unit(claim: Object) -> int:
    """0 where the claim says nothing that can be read."""
    text = objects.annotations_of(claim).get(MEMORY_UNIT, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_UNIT else 0


def _held(result: Mapping[str, Any], device: Device, containers: tuple[str, ...]) -> Held:
    memory, share = consumed(result, names.CAPACITY_MEMORY), consumed(result, names.CAPACITY_SHARE)
    return Held(
        device=device,
        containers=containers,
        memory=device.total if memory is None else memory,
        cores=consumed(result, names.CAPACITY_CORES) or 0,
        share=100 if share is None else share,
    )


def _device(device: Mapping[str, Any], parent: Mapping[str, Any] | None) -> Device:
    kind = _text(device, "type")
    return Device(
        kind=kind,
        uuid=_text(device, "uuid"),
        minor=_minor(parent if kind == names.TYPE_MIG and parent else device),
        bus_id=_text(device, names.STANDARD_PCI_BUS_ID),
        parent_bus_id=_text(parent or {}, names.STANDARD_PCI_BUS_ID),
        parent_minor=_minor(parent or {}),
        total=memory_of_device(device),
    )


def _minor(device: Mapping[str, Any]) -> int:
    """A card's minor; of a NIC the number in its RDMA device's name (mlx5_3 is 3), as Koordinator counts them."""
    found = attribute(device, "minor")
    if isinstance(found, int):
        return found
    tail = _text(device, "ibDevice").rpartition("_")[2]
    return int(tail) if tail.isdigit() else 0


def _text(device: Mapping[str, Any], name: str) -> str:
    return str(attribute(device, name) or "")


def _unix(text: object) -> int:
    try:
        return int(datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp())
    except ValueError:
        return 0
