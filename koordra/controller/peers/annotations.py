"""Annotations that other programs read from pods, in the words of the stack that a pod was written for. Pure.

    pod, its claims, the published devices ──> what each container has (allocated_devices.py) ──> the dialect's annotations (koordra.compat)

Dialects whose schedulers left nothing that is known to be read have none. What those stacks wrote for their own node programs to act
on (`vgpu-devices-to-allocate`) is not written. Times are those of the allocation, so that the same allocation is the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.compat.dialects import dialect_named
from koordra.controller.peers.allocated_devices import Devices, allocated

DIALECT: Final = names.DOMAIN + "dialect"
"""Annotation of a pod that came through the shim: the dialect it was written in."""


def wanted(pod: Object, claims: Sequence[Object], devices: Devices) -> dict[str, str]:
    """The annotations of a bound pod whose claims are all allocated; none for dialects that left none."""
    dialect = dialect_named(objects.annotations_of(pod).get(DIALECT, ""))
    if dialect is None or dialect.annotations is None:
        return {}
    found = allocated(pod, claims, devices)
    return dialect.annotations(found) if found is not None and found.held else {}
