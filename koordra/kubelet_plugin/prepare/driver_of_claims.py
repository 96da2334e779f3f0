"""Claims that are prepared follow the GPU driver.

A claim's CDI file names files of the driver by path, and the kubelet does not prepare the claim again for a
container that restarts. After an upgrade those paths are gone, or are of a version that the kernel module
refuses. So claims whose mounts name a driver library that the node does not give out any more are prepared
again, as if the kubelet had repeated its call: same devices, files written with what the node has now. While
there is no driver at all they stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from koordra.errors import one_by_one
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, State
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.logs import get_logger
from koordra.process.wakeable import Pause, Wakeable

log = get_logger(__name__)

INTERVAL: Final = 10.0
_DRIVER_LIBRARY: Final = re.compile(r".*/lib[^/]*\.so\.[0-9]{3}(?:\.[0-9]+){1,3}")


def names_other_driver(record: ClaimRecord, inventory: NodeInventory) -> bool:
    """Whether the claim's files name a library of a driver that the node does not give out now, and there is
    another."""
    now = {file.mount.host_path for file in inventory.driver_files.files}
    named = {mount.host_path for device in record.devices for mount in device.edits.mounts}
    return bool(now) and any(path not in now for path in named if _DRIVER_LIBRARY.fullmatch(path))


class DriverOfClaims(Wakeable):
    """Prepares claims again whose files name another driver than the node's. A wake says that the machine
    was read anew."""

    def __init__(self, state: DeviceState, inventory: Callable[[], NodeInventory]) -> None:
        super().__init__()
        self._state = state
        self._inventory = inventory

    failed = "claims_without_driver_update"

    def step(self) -> Pause:
        inventory = self._inventory()
        with one_by_one() as one:
            for record in self._state.records():
                if record.state is State.COMPLETED and names_other_driver(record, inventory):
                    with one():
                        self._state.prepare(record.ref)
                        log.info("claim_follows_driver", claim=str(record.ref), driver=str(inventory.home))
        return Pause(1.0, INTERVAL)
