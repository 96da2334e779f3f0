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
from koordra.api.objects import Fields, status_of
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.api.reader import Reader
from koordra.errors import NodeError
from koordra.kubelet_plugin.discovery.gpus import NO_INSTANCE
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.nvidia_driver.driver_files import NO_DRIVER, DriverFiles, DriverFilesSource
from koordra.kubelet_plugin.nvidia_driver.driver_libraries import library_folders
from koordra.kubelet_plugin.nvidia_driver.homes import FoundHome, HomeSource
from koordra.kubelet_plugin.nvidia_driver.node_numbers import given_nodes
from koordra.kubelet_plugin.publish.devices import MigDevice, mig_devices, whole_of
from koordra.kubelet_plugin.publish.offering import NO_SWITCHES, ModeSwitches, Offering
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from koordra.logs import get_logger
from koordra.topology import machine as topology
from koordra.topology.machine import Gpu, Nic
from koordra.topology.partitions import ImexNodes
from koordra.topology.problems import Discovery, Problem

log = get_logger(__name__)

NodeDevice = topology.Device | MigDevice | ImexNodes
"""Everything that can be given to a claim."""

_DRIVER_FILES_AGE_S: Final = 5.0
NOT_LOOKED: Final = "it is not known yet whether the node's IMEX daemon may run"
_GONE: Final = "is gone from this node; the claim needs another device"


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """`published` has the devices as ResourceSlices show them; `problems` what discovery could not determine.

    `driver_files` are what containers can get of the driver, nothing where the machine has none; `home`:
    where that lives. `withheld`: why no GPU is given out now, empty where they are; `runtime`: the container
    runtime as the Node names it, empty until that was seen; `absent_nodes`: paths of GPUs' device nodes that
    the host's /dev lacks; `without_imex`: why no IMEX channels are given out, empty where they are; `others`:
    types of devices (gpu, nic) that are not koordra's to give out now, and why; `modes`: how switches of MIG
    modes stand.
    """

    machine: topology.Machine
    published: Mapping[str, Device]
    problems: tuple[Problem, ...] = ()
    driver_files: DriverFiles = NO_DRIVER
    offering: Offering = field(default_factory=Offering)
    home: FoundHome = field(default_factory=FoundHome)
    withheld: str = ""
    runtime: str = ""
    absent_nodes: frozenset[str] = frozenset()
    without_imex: str = ""
    others: Mapping[str, str] = field(default_factory=dict)
    modes: ModeSwitches = NO_SWITCHES

    @property
    def boot_id(self) -> str:
        """The kernel's boot id; a machine without one counts as one endless boot, which only keeps records
        longer."""
        return self.machine.boot_id or "unknown"

    @property
    def has_closed_nodes(self) -> bool:
        """Whether there are cards' nodes that not everybody on the host may open; those for drawing are."""
        drawing = (node for gpu in self.machine.gpus for node in gpu.graphics_nodes)
        return any(node.closed for node in (*given_nodes(self.machine), *drawing))

    @property
    def without_libcuda(self) -> str | None:
        """Why CUDA could not start in a container although the driver is loaded: what was looked for, where,
        and the remedy; None where it could."""
        home = self.home
        if not home.loaded or self.driver_files.has_libcuda:
            return None
        searched = ", ".join(library_folders(home.driver)) if home.driver else "none"
        return (
            f"the GPU driver {home.loaded} is loaded, and its libcuda.so.{home.loaded} is not found: {home}, folders searched "
            f"below it: {searched}; install the driver's libraries of that version, or name their place with --driver-root"
        )

    def device(self, name: str) -> NodeDevice | None:
        """A card, NIC or virtual function, or a MIG instance that exists and is certain; where instances are
        made on demand, also a place for one."""
        found = self.machine.device(name)
        if found is not None:
            return found
        if name == names.IMEX_DEVICE:
            return self.machine.imex
        instances = (
            device
            for gpu in self.machine.gpus
            for device in mig_devices(gpu, on_demand=self.offering.mig_on_demand)
        )
        return next((device for device in instances if device.name == name), None)

    def place(self, name: str) -> topology.Device | None:
        """The card, NIC or virtual function of this name; of a MIG instance its card."""
        found = self.device(name)
        if isinstance(found, ImexNodes):
            return None
        return found.gpu if isinstance(found, MigDevice) else found

    def attributes(self, name: str) -> dict[str, Any]:
        """The published attributes as plain values, as the scopes of koordra.topology read them."""
        device = self.published.get(name)
        return {key: attribute.value for key, attribute in device.attributes.items()} if device else {}

    def given_by_others(self, name: str) -> str | None:
        """Why a claim that does not have the device yet may not get it: others give it out, or may."""
        kind = names.TYPE_NIC if isinstance(self.device(name), Nic) else names.TYPE_GPU
        why = self.others.get(kind)
        return f"ForeignDriver: {name} cannot be given out: {why}" if why else None

    def refusal(self, name: str) -> str | None:
        """Why the device of this name cannot be prepared now: a reason of the common vocabulary, the name and
        a remedy. None for a device that can."""
        device = self.device(name)
        if self.withheld and isinstance(device, Gpu | MigDevice):
            return f"Tainted: {name} cannot be given out now: {self.withheld}"
        if whole_of(name) in self.modes.switching:
            return (
                f"ModeSwitching: {name} cannot be given out now: the MIG mode of its card is being switched"
            )
        if name in self.published:
            if not self._needs_switch(name):
                return None
            return f"ModeSwitching: {name} cannot be given out: its card is in the other MIG mode"
        match device:
            case MigDevice():
                why = "MIG instances are not offered on this node; start the kubelet plugin with --mig"
            case Nic() if device.parent and device.publishable:
                why = "virtual functions are not offered on this node; start the kubelet plugin with --vfs"
            case Gpu() if device.certain and device.mig_enabled:
                why = "the card is in MIG mode, so that only its instances can be"
            case None if name == names.IMEX_DEVICE:
                why = self.without_imex or "the driver has none"
                return f"DeviceUnhealthy: {name} cannot be given out: {why}"
            case None:
                card = next((gpu for gpu in self.machine.gpus if name.startswith(f"{gpu.name}-mig-")), None)
                if card is None or card.certain:
                    return f"DeviceUnhealthy: {name} {_GONE}"
                return f"DeviceUnhealthy: {name} cannot be given out: {self._problem_of(card)}"
            case _:
                return f"DeviceUnhealthy: {name} cannot be given out: {self._problem_of(device)}"
        return f"PartitionMismatch: {name} cannot be given out: {why}"

    def _needs_switch(self, name: str) -> bool:
        return any(taint.key == names.MIG_MODE_TAINT for taint in self.published[name].taints)

    def _problem_of(self, device: topology.Device | ImexNodes) -> str:
        if isinstance(device, ImexNodes):
            return self.without_imex or "its GPUs are in no NVLink clique, or in several"
        bus_id = device.location.bus_id
        found = [str(problem) for problem in self.problems if bus_id in problem.object]
        return "; ".join(found) or f"discovery is not certain of the device at {bus_id}"


def inventory_of(
    discovery: Discovery, *, offering: Offering | None = None, without_imex: str = ""
) -> NodeInventory:
    offering = offering or Offering()
    if offering.mig_on_demand:
        discovery = replace(
            discovery, problems=tuple(one for one in discovery.problems if one.problem != NO_INSTANCE)
        )
    if without_imex:
        discovery = replace(discovery, machine=replace(discovery.machine, imex=None))
    devices = build_devices(discovery.machine, mode=names.MODE_JOINT, offering=offering)
    read = Reader({"devices": devices}, object="this node's ResourceSlice", field="spec")
    return NodeInventory(
        machine=discovery.machine,
        published={device.name: device for device in map(read_device, read.each("devices"))},
        problems=discovery.problems,
        offering=offering,
        without_imex=without_imex,
    )


class InventorySource:
    """The latest inventory of the machine below `root`: one thread sets it, any thread reads it.

    No event announces the driver's user-space files (a driver container installs them some time after the
    module was loaded), so they are searched again if the last search is _DRIVER_FILES_AGE_S seconds old.
    `policy`: the isolation policy by the Node's labels.
    """

    def __init__(
        self,
        root: Path,
        *,
        offering: Offering | None = None,
        clock: Callable[[], float] = time.monotonic,
        homes: HomeSource | None = None,
        policy: Callable[[Fields], IsolationPolicy] | None = None,
    ) -> None:
        self._root = root
        self._homes = homes or HomeSource.of(root)
        self._driver_files = DriverFilesSource()
        self._offering = offering or Offering()
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._current: NodeInventory | None = None
        self._files_at = 0.0
        self._withheld = ""
        self._others: Mapping[str, str] = {}
        self._runtime = ""
        self._found: Discovery | None = None
        self._without_imex = NOT_LOOKED
        self._modes = NO_SWITCHES

    def switch(self, modes: ModeSwitches) -> None:
        """How switches of MIG modes stand from now on: cards that are switched are given to nobody."""
        with self._lock:
            self._modes = modes

    def offer_imex(self, why_not: str) -> bool:
        """Give IMEX channels out from now on (empty), or none; whether that is another answer than before."""
        if why_not == self._without_imex:
            return False
        self._without_imex = why_not
        if self._found is not None:
            self.set(self._found)
        return True

    def see_node(self, node: Fields) -> None:
        """Take from the Node what its machine does not say."""
        with self._lock:
            self._runtime = str((status_of(node).get("nodeInfo") or {}).get("containerRuntimeVersion") or "")
        isolation = self._offering.isolation if self._policy is None else self._policy(node)
        if isolation != self._offering.isolation:
            log.info("isolation_policy", allowed=isolation.allowed, cards=dict(isolation.cards))
            self._offering = replace(self._offering, isolation=isolation)
            if self._found is not None:
                self.set(self._found)

    def withhold(self, why: str) -> None:
        """Give no GPU out from now on; empty: give them out again."""
        with self._lock:
            self._withheld = why

    def leave(self, others: Mapping[str, str]) -> None:
        """Give no device of these types to another claim from now on, and why."""
        with self._lock:
            self._others = others

    @property
    def known(self) -> bool:
        """Whether the machine has been read at all."""
        return self._current is not None

    def set(self, found: Discovery) -> None:
        """Set a reading. Its changes are logged, and each problem once when it appears and once when it is
        resolved."""
        self._found = found
        made = inventory_of(found, offering=self._offering, without_imex=self._without_imex)
        after = self._with_driver(made)
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
                self._current = self._with_driver(self._current)
                self._files_at = self._clock()
            now, of = (self._withheld, self._others, self._runtime, self._modes), self._current
            if (of.withheld, of.others, of.runtime, of.modes) != now:
                self._current = replace(of, withheld=now[0], others=now[1], runtime=now[2], modes=now[3])
            return self._current

    def _with_driver(self, inventory: NodeInventory) -> NodeInventory:
        home = self._homes.now()
        files = self._driver_files.files(home.driver, inventory.machine.driver_version)
        host = MachineRoot(self._root, (self._homes.host.here / "dev",))
        nodes = given_nodes(inventory.machine)
        absent = frozenset(node.path for node in nodes if host.device_node(node.path) is None)
        return replace(inventory, home=home, driver_files=files, absent_nodes=absent)


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
