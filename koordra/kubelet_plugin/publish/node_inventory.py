"""The node's inventory as one frozen value: the machine, and what of it is published with which capacity.

Prepare compares with the very numbers that were published, so the allocator and the node cannot disagree
about a device's capacity. The watcher of the machine sets each new reading (`InventorySource.set`); readers
get the latest one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from koordra.api import names
from koordra.api.devices import Device, read_device
from koordra.api.reader import Reader
from koordra.errors import NodeError
from koordra.kubelet_plugin.claims.claim_record import Mount
from koordra.kubelet_plugin.discovery.driver_libraries import driver_files
from koordra.kubelet_plugin.publish.devices import MigDevice, mig_devices
from koordra.kubelet_plugin.publish.resource_slices import Offering, build_devices
from koordra.logs import get_logger
from koordra.topology import machine as topology
from koordra.topology.machine import Gpu, Nic
from koordra.topology.problems import Discovery, Problem

log = get_logger(__name__)

NodeDevice = topology.Device | MigDevice
"""Everything that can be given to a claim."""

_DRIVER_FILES_AGE_S: Final = 5.0
_GONE: Final = "is gone from this node; the claim needs another device"


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """`published` has the devices as ResourceSlices show them; `problems` what discovery could not determine.

    `driver_files` are the mounts that a CUDA program needs, empty where the machine has no driver.
    """

    machine: topology.Machine
    published: Mapping[str, Device]
    problems: tuple[Problem, ...] = ()
    driver_files: tuple[Mount, ...] = ()
    offering: Offering = field(default_factory=Offering)

    @property
    def boot_id(self) -> str:
        """The kernel's boot id; a machine without one counts as one endless boot, which only keeps records
        longer."""
        return self.machine.boot_id or "unknown"

    def device(self, name: str) -> NodeDevice | None:
        """A card, NIC or virtual function, or a MIG instance that exists and is certain."""
        found = self.machine.device(name)
        if found is not None:
            return found
        instances = (device for gpu in self.machine.gpus for device in mig_devices(gpu))
        return next((device for device in instances if device.name == name), None)

    def attributes(self, name: str) -> dict[str, Any]:
        """The published attributes as plain values, as the scopes of koordra.topology read them."""
        device = self.published.get(name)
        return {key: attribute.value for key, attribute in device.attributes.items()} if device else {}

    def refusal(self, name: str) -> str | None:
        """Why the device of this name cannot be prepared now: a reason of the common vocabulary, the name and
        a remedy. None for a device that can."""
        if name in self.published:
            return None
        device = self.device(name)
        match device:
            case MigDevice():
                why = "MIG instances are not offered on this node; start the kubelet plugin with --mig"
            case Nic() if device.parent and device.publishable:
                why = "virtual functions are not offered on this node; start the kubelet plugin with --vfs"
            case Gpu() if device.certain and device.mig_enabled:
                why = "the card is in MIG mode, so that only its instances can be"
            case None:
                card = next((gpu for gpu in self.machine.gpus if name.startswith(f"{gpu.name}-mig-")), None)
                if card is None or card.certain:
                    return f"DeviceUnhealthy: {name} {_GONE}"
                return f"DeviceUnhealthy: {name} cannot be given out: {self._problem_of(card)}"
            case _:
                return f"DeviceUnhealthy: {name} cannot be given out: {self._problem_of(device)}"
        return f"PartitionMismatch: {name} cannot be given out: {why}"

    def _problem_of(self, device: topology.Device) -> str:
        bus_id = device.location.bus_id
        found = [str(problem) for problem in self.problems if bus_id in problem.object]
        return "; ".join(found) or f"discovery is not certain of the device at {bus_id}"


def inventory_of(
    discovery: Discovery, *, offering: Offering | None = None, driver_files: tuple[Mount, ...] = ()
) -> NodeInventory:
    offering = offering or Offering()
    devices = build_devices(discovery.machine, mode=names.MODE_JOINT, offering=offering)
    read = Reader({"devices": devices}, object="this node's ResourceSlice", field="spec")
    return NodeInventory(
        machine=discovery.machine,
        published={device.name: device for device in map(read_device, read.each("devices"))},
        problems=discovery.problems,
        driver_files=driver_files,
        offering=offering,
    )


class InventorySource:
    """The latest inventory of the machine below `root`: one thread sets it, any thread reads it.

    The GPU driver's files may lie under another root (`driver_root`: a driver container's), which may have
    another name on the host than here (`driver_root_on_host`).

    No event announces the driver's user-space files (a driver container installs them some time after the
    module was loaded), so they are searched again if the last search is _DRIVER_FILES_AGE_S seconds old.
    """

    def __init__(
        self,
        root: Path,
        *,
        offering: Offering | None = None,
        clock: Callable[[], float] = time.monotonic,
        driver_root: Path | None = None,
        driver_root_on_host: Path | None = None,
    ) -> None:
        self._driver_root = driver_root or root
        self._driver_root_on_host = driver_root_on_host or self._driver_root
        self._offering = offering or Offering()
        self._clock = clock
        self._lock = threading.Lock()
        self._current: NodeInventory | None = None
        self._files_at = 0.0

    @property
    def known(self) -> bool:
        """Whether the machine has been read at all."""
        return self._current is not None

    def set(self, found: Discovery) -> None:
        """Set a reading. Its changes are logged, and each problem once when it appears and once when it is
        resolved."""
        after = inventory_of(found, offering=self._offering, driver_files=self._driver_files(found.machine))
        with self._lock:
            before, self._current = self._current, after
            self._files_at = self._clock()
        _log_change(before, after)

    def current(self) -> NodeInventory:
        """Raises NodeError before the first reading."""
        with self._lock:
            if self._current is None:
                raise NodeError("this node's machine has not been read yet; try again in a moment")
            if self._clock() - self._files_at >= _DRIVER_FILES_AGE_S:
                self._current = replace(self._current, driver_files=self._driver_files(self._current.machine))
                self._files_at = self._clock()
            return self._current

    def _driver_files(self, machine: topology.Machine) -> tuple[Mount, ...]:
        return driver_files(self._driver_root, machine.driver_version, on_host=self._driver_root_on_host)


def _log_change(before: NodeInventory | None, after: NodeInventory) -> None:
    old, new = before.published if before else {}, after.published
    log.info(
        "machine_read",
        devices=len(new),
        added=sorted(new.keys() - old.keys()) if before else "all",
        gone=sorted(old.keys() - new.keys()),
        unhealthy={
            name: taint.value
            for name, device in new.items()
            for taint in device.taints
            if taint.key == names.UNHEALTHY_TAINT
        },
    )
    earlier = before.problems if before else ()
    for problem in after.problems:
        if problem not in earlier:
            log.warning("discovery_problem", **asdict(problem))
    for problem in earlier:
        if problem not in after.problems:
            log.info("discovery_problem_resolved", object=problem.object, field=problem.field)
