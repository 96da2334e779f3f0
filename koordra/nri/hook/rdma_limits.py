"""Limits of the RDMA controller of cgroup version 2 on a NIC's resources.

A NIC's handles and objects (queue pairs, memory regions) are few and shared by all its users, and the device
file does not limit them. If the operator sets limits and the node has the controller, every container that
holds RDMA devices gets, in the file `rdma.max`, one line per device of the node:

    mlx5_0 hca_handle=64 hca_object=16384        a device that it holds
    mlx5_1 hca_handle=0 hca_object=0             every other: nothing can be opened, even by a leaked descriptor

The runtime must write the file line by line (runc 1.2; older ones write it whole, and the kernel takes one
line a write), so limits are off by default. Cgroup version 1 has the controller too, but NRI has no field for
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.errors import InvalidInput
from koordra.nri.hook.grants import Grants

FILE: Final = "rdma.max"


@dataclass(frozen=True, slots=True)
class RdmaLimit:
    """The most handles and objects of one NIC that one container may have."""

    handles: int
    objects: int

    @classmethod
    def parse(cls, text: str) -> RdmaLimit:
        """From `HANDLES:OBJECTS`. Raises InvalidInput."""
        handles, _, objects = text.partition(":")
        if not (handles.isdecimal() and objects.isdecimal() and int(handles) and int(objects)):
            raise InvalidInput(
                repr(text), field="RDMA limit", remedy="write HANDLES:OBJECTS, for example 64:16384"
            )
        return cls(int(handles), int(objects))


def unified(
    grants: Grants, *, devices: Iterable[str], limit: RdmaLimit | None
) -> tuple[tuple[str, str], ...]:
    """The cgroup files for a container with these devices; `devices` are all RDMA devices of the node."""
    held = {grant.device.ib_device for grant in grants.held if grant.device.ib_device}
    if limit is None or not held:
        return ()
    lines = []
    for name in sorted({*devices, *held}):
        handles, objects = (limit.handles, limit.objects) if name in held else (0, 0)
        lines.append(f"{name} hca_handle={handles} hca_object={objects}")
    return ((FILE, "\n".join(lines)),)


def has_controller(cgroups: Path) -> bool:
    """Whether the hierarchy is of version 2 and has the controller."""
    try:
        return "rdma" in (cgroups / "cgroup.controllers").read_text().split()
    except OSError:
        return False
