"""Instrumentation of the library: none, Prometheus metrics, or an observer of your own.

An `Observer` is called for every answered request, with its outcome and duration, and for every change of the
connection, on worker threads between the answer and the next request, so it must not block. `MetricsObserver`
keeps metrics.

`refused` is an answer with a status that the handler chose (RemoteError), `failed` one after any other error,
`late` one that was sent in the place of a handler that took too long. The three fail the runtime's operation.
"""

from __future__ import annotations

from typing import Final

from koordra.metrics import Metrics, counter, gauge, histogram
from koordra.nri.transport.events import EVENT_METHODS

ANSWERED = "answered"
REFUSED = "refused"
FAILED = "failed"
LATE = "late"

REGISTERED = "registered"
REJECTED = "rejected"
UNREACHABLE = "unreachable"

_METHODS: Final = ("Configure", "Synchronize", "Shutdown", *(row.method for row in EVENT_METHODS))
REQUESTS: Final = counter(
    "koordra_nri_requests_total",
    "Requests of the container runtime, by how they were answered",
    method=_METHODS,
    outcome=(ANSWERED, REFUSED, FAILED, LATE),
)
REQUEST_SECONDS: Final = histogram(
    "koordra_nri_request_seconds",
    "From the arrival of a request to its answer; the runtime drops a plugin after 2 s",
    method=_METHODS,
)
REGISTRATIONS: Final = counter(
    "koordra_nri_registrations_total",
    "Attempts to register with the container runtime",
    outcome=(REGISTERED, REJECTED, UNREACHABLE),
)
IS_REGISTERED: Final = gauge(
    "koordra_nri_registered", "1 while the container runtime has synchronized with this process"
)
DISCONNECTIONS: Final = counter(
    "koordra_nri_disconnections_total", "Connections to the container runtime that ended"
)


class Observer:
    """Called for every event; methods must not block. This one ignores them."""

    def answered(self, method: str, outcome: str, seconds: float, /) -> None:
        """A request has been answered."""

    def registration(self, outcome: str, /) -> None:
        """An attempt to register has ended."""

    def connected(self, synchronized: bool, /) -> None:
        """The runtime has synchronized with us, or its connection has ended."""


class MetricsObserver(Observer):
    def __init__(self, metrics: Metrics) -> None:
        self._requests = metrics.counter(REQUESTS)
        self._seconds = metrics.histogram(REQUEST_SECONDS)
        self._registrations = metrics.counter(REGISTRATIONS)
        self._registered = metrics.gauge(IS_REGISTERED)
        self._ends = metrics.counter(DISCONNECTIONS)
        self._synchronized = False

    @property
    def ready(self) -> bool:
        """Whether a runtime has synchronized with this process and is still connected."""
        return self._synchronized

    def answered(self, method: str, outcome: str, seconds: float, /) -> None:
        self._requests.labels(method, outcome).inc()
        self._seconds.labels(method).observe(seconds)

    def registration(self, outcome: str, /) -> None:
        self._registrations.labels(outcome).inc()

    def connected(self, synchronized: bool, /) -> None:
        if self._synchronized and not synchronized:
            self._ends.inc()
        self._synchronized = synchronized
        self._registered.set(1 if synchronized else 0)
