"""Metrics and health over HTTP: what a process counts, for Prometheus and for probes. The only importer of
prometheus_client.

A process makes one `Metrics` and hands it down; a part that counts asks it for its instruments once, when it
is built, and a test makes its own. Names are `koordra_<part>_<what>_<unit>`, labels have few values (a
reason, never a pod's name). `serve` answers `/metrics`, `/healthz` (the process lives, and is well) and
`/readyz` (it does its work): the caller's words.

Every pod of the cluster reaches these addresses, and a process that is out of threads, files or memory no
longer isolates anybody. So connections are bounded, and what many ask at once is answered once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from koordra.errors import InvalidInput
from koordra.process import lifecycle
from koordra.process.connections import REASONS, BoundedHTTPServer, ConnectionPhase, Connections

__all__ = [
    "LATENCY_BUCKETS",
    "Counter",
    "Gauge",
    "Histogram",
    "Metrics",
    "MetricsServer",
    "Shared",
    "parse_address",
]

MOST_CONNECTIONS: Final = 32
"""Of metrics and probes: a kubelet and a Prometheus or two ask, each with one connection."""

T = TypeVar("T")

LATENCY_BUCKETS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Seconds: from a look-up in memory to a request that nearly timed out."""


class _LoopFailures(Collector):
    """What koordra.process.lifecycle counts, which is one for the whole process."""

    def collect(self) -> Iterable[CounterMetricFamily]:
        meaning = "Errors after which a loop of this process went on, by thread and class of the error"
        family = CounterMetricFamily("koordra_loop_failures", meaning, labels=("thread", "error"))
        for labels, number in sorted(lifecycle.failures.copy().items()):
            family.add_metric(labels, number)
        return [family]


class Metrics:
    """Instruments of one process. Asking twice for a name is a programming error and raises ValueError."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_LoopFailures())

    def counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        """Something that only grows; Prometheus appends `_total` to the name."""
        return Counter(name, meaning, labels, registry=self._registry)

    def gauge(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, meaning, labels, registry=self._registry)

    def histogram(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float] = LATENCY_BUCKETS,
    ) -> Histogram:
        """How a quantity is spread; seconds unless the name says otherwise."""
        return Histogram(name, meaning, labels, registry=self._registry, buckets=buckets)

    def text(self) -> str:
        return generate_latest(self._registry).decode()


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` or `:port` (all addresses), IPv6 in brackets.

    Raises:
        InvalidInput: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(f"address {text!r}: expected host:port, for example 127.0.0.1:9400")
    return host.strip("[]"), int(port)


class Shared(Generic[T]):
    """A question that costs something, put once for all who ask while it is being answered: everybody's
    answer is newer than the own question."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._begun = self._answered = 0
        """The last question that was begun, and the one that `_answer` is of."""
        self._answer: T

    def __call__(self) -> T:
        earliest = self._begun + 1
        with self._lock:
            if self._answered < earliest:
                self._begun += 1
                number = self._begun
                self._answer, self._answered = self._ask(), number
            return self._answer


class MetricsServer:
    """A running HTTP server; `port` is the real one where 0 was asked for."""

    def __init__(
        self,
        metrics: Metrics,
        address: tuple[str, int],
        *,
        ready: Callable[[], bool],
        well: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        connections = Connections(
            most=MOST_CONNECTIONS, closed=lambda reason: closed.labels(reason).inc(), clock=clock
        )
        text = Shared(metrics.text)

        class Handler(BaseHTTPRequestHandler):
            wbufsize = -1  # head and body leave at once

            def parse_request(self) -> bool:
                connections.enter(self.connection, ConnectionPhase.READING)
                return super().parse_request()

            def do_GET(self) -> None:
                connections.enter(self.connection, ConnectionPhase.ANSWERING)
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(200, text(), CONTENT_TYPE_LATEST)
                elif path == "/healthz":
                    good = well()
                    self._answer(200 if good else 503, "ok\n" if good else "not well, see the log\n")
                elif path == "/readyz":
                    good = ready()
                    self._answer(200 if good else 503, "ok\n" if good else "not ready\n")
                else:
                    self._answer(404, "only /metrics, /healthz and /readyz are served here\n")

            def _answer(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
                connections.enter(self.connection, ConnectionPhase.WRITING)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self._server = BoundedHTTPServer(address, Handler, connections=connections)
        closed = metrics.counter(
            "koordra_metrics_connections_closed",
            "Connections for metrics and probes that were ended: slow (past a time limit), displaced, refused (at the cap)",
            ("reason",),
        )
        for reason in REASONS:
            closed.labels(reason)
        self.port: int = self._server.server_address[1]
        self._closed = threading.Event()
        lifecycle.spawn(self._server.serve_forever, name="metrics", until=self._closed)

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()


def serve(
    metrics: Metrics,
    address: str,
    *,
    ready: Callable[[], bool] = lambda: True,
    well: Callable[[], bool] = lambda: True,
) -> MetricsServer | None:
    """Serve on `host:port`; an empty address means none.

    Raises:
        InvalidInput: the address is malformed or cannot be listened on.
    """
    if not address:
        return None
    try:
        return MetricsServer(metrics, parse_address(address), ready=ready, well=well)
    except OSError as error:
        raise InvalidInput(f"metrics address {address!r}: {error.strerror or error}") from error
