"""What a reading of the machine that differs from the last one does on the node, in this order, so that no
device is given out before it is guarded:

    guarded.json ─> the inventory, by which Prepare decides ─> health streams ─> whoever is woken
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from koordra.errors import KoordraError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, moved_nics
from koordra.kubelet_plugin.discovery.reading import with_moved
from koordra.kubelet_plugin.dra.health import HealthFeed, device_health, held_devices
from koordra.kubelet_plugin.dra.plugin_metrics import PluginMetrics
from koordra.kubelet_plugin.isolation.backend import IsolationBackend
from koordra.kubelet_plugin.isolation.mps.backend import MpsIsolation
from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.kubelet_plugin.publish.node_inventory import InventorySource
from koordra.kubelet_plugin.publish.node_modes import PolicyOfNode
from koordra.kubelet_plugin.settings import Settings
from koordra.logs import get_logger
from koordra.process.wakeable import Wakeable
from koordra.topology import overlay
from koordra.topology.problems import Discovery

log = get_logger(__name__)


def inventory_source(settings: Settings, backends: Mapping[str, IsolationBackend]) -> InventorySource:
    """Of what the node offers with those of the backends that it has."""
    lacking = {name: why for name, backend in backends.items() if (why := backend.unavailable)}
    usable = [name for name in backends if name not in lacking]
    policy = PolicyOfNode(settings.offering.isolation, settings.modes, usable)
    wanted, _ = settings.modes.over(settings.offering.isolation)
    for word in wanted.allowed or ():
        if word in lacking:
            log.warning("isolation_backend_unavailable", backend=word, why=lacking[word])
    mps = backends.get(MpsIsolation.name)
    protocol = mps.protocol if isinstance(mps, MpsIsolation) else None
    offering = replace(settings.offering, isolation=policy(), mps_protocol=protocol).on(usable)
    return InventorySource(settings.paths.root, offering=offering, homes=settings.homes, policy=policy)


class NodeReadings:
    """`wakes` are those who look at the inventory again."""

    def __init__(
        self,
        settings: Settings,
        *,
        guarded: DeviceGuardFile,
        inventory: InventorySource,
        records: Callable[[], Sequence[ClaimRecord]],
        metrics: PluginMetrics,
        feed: HealthFeed,
        wakes: Sequence[Wakeable],
    ) -> None:
        self._guarded, self._inventory, self._records = guarded, inventory, records
        self._metrics, self._feed, self._wakes = metrics, feed, wakes
        self._pod_network = settings.pod_network
        self._overlay = overlay.load(settings.overlay) if settings.overlay else None
        self._first = threading.Event()
        self._error: KoordraError | None = None

    def take(self, found: Discovery) -> None:
        """The watcher's thread retries if this raises."""
        try:
            if self._overlay is not None:
                found = self._overlay.apply(found)
            if self._pod_network and self._inventory.known:
                before, moved = self._inventory.current().machine, moved_nics(self._records())
                found = replace(found, machine=with_moved(found.machine, before, moved))
            self._guarded.update(found.machine)
            self._inventory.set(found)
            devices = device_health(self._inventory.current(), held=held_devices(self._records))
            self._metrics.observe_devices(devices, found.machine)
            self._feed.publish(devices)
        except KoordraError as error:
            self._error = error
            raise
        finally:
            self._first.set()
        for part in self._wakes:
            part.wake()

    def wait_for_first(self, stop: threading.Event) -> bool:
        """Wait for the first reading; False if `stop` came first. Raises the error that prevented it."""
        while not self._first.wait(0.1) and not stop.is_set():
            continue
        if self._error is not None and not self._inventory.known:
            raise self._error
        return self._inventory.known
