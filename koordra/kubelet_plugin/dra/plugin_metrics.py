"""What the plugin counts: calls of the kubelet, claims, and what is wrong with devices.

Every series is there from the start, so that a dashboard is never empty; those of single devices are as many
as the node has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from typing import Final

from koordra.errors import ApiError, CDIError, CheckpointError, KoordraError, NotFound
from koordra.kubelet_plugin.discovery.gpu_health import COUNTERS
from koordra.kubelet_plugin.dra.health import DeviceHealth, Health
from koordra.kubelet_plugin.publish.devices import faults_of
from koordra.kubelet_plugin.publish.hand_over import Phase, Standing
from koordra.kubelet_plugin.publish.peers_on_node import KINDS
from koordra.metrics import Metrics, bounded, counter, gauge, histogram
from koordra.topology.machine import Machine

_CALL: Final = ("prepare", "unprepare")
_DEVICE: Final = bounded("the node's devices")
CALLS: Final = counter(
    "koordra_plugin_calls_total",
    "Claims that were prepared and unprepared, and how that went; failed: by what is wrong with the node's disk, the API server or koordra, not with the claim",
    call=_CALL,
    result=("ok", "refused", "failed"),
)
CALL_SECONDS: Final = histogram(
    "koordra_plugin_call_seconds", "How long Prepare or Unprepare of one claim took", call=_CALL
)
RUNNING: Final = gauge(
    "koordra_plugin_calls_in_progress", "Claims that are being prepared or unprepared now", call=_CALL
)
CLAIMS: Final = gauge(
    "koordra_plugin_claims",
    "Claims of this node; held: the API no longer knows them, and their devices are still in use",
    state=("prepared", "held"),
)
DEVICES: Final = gauge(
    "koordra_plugin_devices", "Devices of this node by health", health=("healthy", "unhealthy")
)
FAULTS: Final = gauge(
    "koordra_plugin_device_fault",
    "1 for each fault that a device has now",
    device=_DEVICE,
    fault=bounded("the faults of docs/health.md"),
)
ERRORS: Final = counter(
    "koordra_plugin_gpu_errors_total",
    "Errors of a GPU, as the driver counts them",
    device=_DEVICE,
    kind=tuple(COUNTERS.values()),
)
LINK_DOWNS: Final = counter(
    "koordra_plugin_nic_link_downs_total", "How often the link of a NIC went down", device=_DEVICE
)
HAND_OVER: Final = gauge(
    "koordra_plugin_hand_over",
    "Who gives out the node's devices: 1 for the phase of each kind (docs/migrate/node-by-node.md)",
    devices=tuple(kind.type for kind in KINDS),
    phase=tuple(Phase),
)
SLICE_WRITES: Final = counter("koordra_plugin_slice_writes_total", "Publications of the ResourceSlices")
SLICES_IN_ORDER: Final = gauge(
    "koordra_plugin_slices_in_order_timestamp_seconds",
    "When the ResourceSlices of the node were last known to say what it has, in Unix time; 0 before",
)
SOCKETS_RESTORED: Final = counter(
    "koordra_plugin_sockets_restored_total", "Sockets of the plugin that had vanished, and were made again"
)


class PluginMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._calls = metrics.counter(CALLS)
        self._seconds = metrics.histogram(CALL_SECONDS)
        self._running = metrics.gauge(RUNNING)
        self._claims = metrics.gauge(CLAIMS)
        self._devices = metrics.gauge(DEVICES)
        self._hand_over = metrics.gauge(HAND_OVER)
        self._faults = metrics.table(FAULTS)
        self._errors = metrics.table(ERRORS)
        self._downs = metrics.table(LINK_DOWNS)
        self.slice_writes = metrics.counter(SLICE_WRITES)
        self.slices_in_order = metrics.gauge(SLICES_IN_ORDER)
        self.sockets_restored = metrics.counter(SOCKETS_RESTORED)

    @contextmanager
    def observe_call(self, call: str) -> Iterator[None]:
        result = "failed"
        try:
            with self._running.labels(call).track_inprogress(), self._seconds.labels(call).time():
                yield
            result = "ok"
        except KoordraError as error:
            if isinstance(error, NotFound) or not isinstance(error, (CheckpointError, CDIError, ApiError)):
                result = "refused"
            raise
        finally:
            self._calls.labels(call, result).inc()

    def observe_claims(self, prepared: Callable[[], Sized], *, held: int) -> None:
        """Nothing where the prepared claims cannot be read, which is reported elsewhere."""
        with suppress(KoordraError):
            self._claims.labels("prepared").set(len(prepared()))
            self._claims.labels("held").set(held)

    def observe_hand_over(self, standings: Iterable[Standing]) -> None:
        for each in standings:
            for phase in Phase:
                self._hand_over.labels(each.kind.type, phase.value).set(float(each.phase is phase))

    def observe_devices(self, devices: Iterable[DeviceHealth], machine: Machine) -> None:
        found = [device.health for device in devices]
        self._devices.labels("healthy").set(found.count(Health.HEALTHY))
        self._devices.labels("unhealthy").set(found.count(Health.UNHEALTHY))
        self._faults.set(
            {(device.name, fault): 1.0 for device in machine.devices() for fault in faults_of(device)}
        )
        self._errors.set(
            {(gpu.name, kind): count for gpu in machine.gpus for kind, count in gpu.errors.items()}
        )
        self._downs.set(
            {(nic.name,): nic.downs for nic in (*machine.nics, *machine.vfs) if nic.downs is not None}
        )
