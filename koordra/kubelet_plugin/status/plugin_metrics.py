"""The kubelet plugin's metrics.

    koordra_plugin_calls_total{call,result}        claims prepared and unprepared; result: ok, refused, failed
    koordra_plugin_call_seconds{call}              how long one claim took
    koordra_plugin_calls_in_progress{call}
    koordra_plugin_claims{state}                   prepared, held (the API no longer knows them)
    koordra_plugin_devices{health}                 healthy, unhealthy
    koordra_plugin_slice_writes_total              publications of the node's ResourceSlices
    koordra_plugin_sockets_restored_total

Every series is initialised at the start, so that a dashboard is never empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from koordra.errors import KoordraError
from koordra.kubelet_plugin.status.health import DeviceHealth, Health
from koordra.metrics import Metrics

CALLS: Final = ("prepare", "unprepare")
RESULTS: Final = ("ok", "refused", "failed")


class PluginMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._calls = metrics.counter(
            "koordra_plugin_calls", "Claims prepared and unprepared.", ("call", "result")
        )
        self._seconds = metrics.histogram(
            "koordra_plugin_call_seconds", "How long one claim took.", ("call",)
        )
        self._running = metrics.gauge("koordra_plugin_calls_in_progress", "Claims under way.", ("call",))
        self._claims = metrics.gauge("koordra_plugin_claims", "Claims of this node.", ("state",))
        self._devices = metrics.gauge("koordra_plugin_devices", "Devices of this node.", ("health",))
        self.slice_writes = metrics.counter(
            "koordra_plugin_slice_writes", "Publications of the ResourceSlices."
        )
        self.sockets_restored = metrics.counter(
            "koordra_plugin_sockets_restored", "Sockets that had vanished."
        )
        for call in CALLS:
            self._seconds.labels(call)
            self._running.labels(call)
            for result in RESULTS:
                self._calls.labels(call, result)
        for state in ("prepared", "held"):
            self._claims.labels(state)
        self.observe_devices(())

    @contextmanager
    def observe_call(self, call: str) -> Iterator[None]:
        started = time.monotonic()
        result = "failed"
        self._running.labels(call).inc()
        try:
            yield
            result = "ok"
        except KoordraError:
            result = "refused"
            raise
        finally:
            self._running.labels(call).dec()
            self._calls.labels(call, result).inc()
            self._seconds.labels(call).observe(time.monotonic() - started)

    def observe_claims(self, *, prepared: int, held: int) -> None:
        self._claims.labels("prepared").set(prepared)
        self._claims.labels("held").set(held)

    def observe_devices(self, devices: Iterable[DeviceHealth]) -> None:
        found = [device.health for device in devices]
        self._devices.labels("healthy").set(found.count(Health.HEALTHY))
        self._devices.labels("unhealthy").set(found.count(Health.UNHEALTHY))
