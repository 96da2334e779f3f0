"""The limiter's libraries go in front of the driver's, in every device's mounts of the claim. Pure.

The driver's files are mounted with the first GPU of each request, the limiter's with each GPU that it limits, and a container
may have both in any order. So wherever a device brings a driver's library that the limiter stands in front of, under
whatever of its names (libcuda.so.1, libcuda.so.<version>), the limiter's is mounted in its place, and the driver's own
moves to DRIVER_FOLDER, where the limiter looks for it. A GPU of the same claim that is not limited is passed through by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from koordra.kubelet_plugin.claims.container_edits import ContainerEdits, Mount

LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
DRIVER_FOLDER: Final = "/usr/lib/koordra/driver"
REGIONS_FOLDER: Final = "/run/koordra/limiter"


def in_front(edits: Sequence[ContainerEdits], *, isolation: Sequence[ContainerEdits]) -> list[ContainerEdits]:
    """The edits of a claim's devices, with the mounts of the backends in place of the driver's of the same path."""
    fronts = {
        mount.container_path: mount
        for each in isolation
        for mount in each.mounts
        if mount.container_path.rpartition("/")[2] in LIBRARIES
    }
    return [_rearranged(each, fronts) for each in edits] if fronts else list(edits)


def _rearranged(edits: ContainerEdits, fronts: dict[str, Mount]) -> ContainerEdits:
    ours = set(fronts.values())
    driver = {
        mount.host_path: fronts[mount.container_path]
        for mount in edits.mounts
        if mount.container_path in fronts and mount not in ours
    }
    mounts = []
    for mount in edits.mounts:
        front = driver.get(mount.host_path)
        if front is None:
            mounts.append(mount)
            continue
        name = front.container_path.rpartition("/")[2]
        mounts.append(replace(front, container_path=mount.container_path))
        mounts.append(replace(mount, container_path=f"{DRIVER_FOLDER}/{name}"))
    return replace(edits, mounts=tuple(dict.fromkeys(mounts)))
