"""Metrics and health over HTTP: what a process counts, for Prometheus and for probes. The only importer of
prometheus_client.

A process makes one `Metrics` and hands it down; a part that counts asks it for its instruments once, when it
is built, and a test makes its own. Names are `koordra_<part>_<what>_<unit>`, labels have few values (a
reason, never a pod's name). `serve` answers `/metrics`, `/healthz` (the process lives, and is well) and
`/readyz` (it does its work): the caller's words.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from koordra.errors import InvalidInput
from koordra.process import lifecycle

__all__ = ["LATENCY_BUCKETS", "Counter", "Gauge", "Histogram", "Metrics", "MetricsServer", "parse_address"]

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


class MetricsServer:
    """A running HTTP server; `port` is the real one where 0 was asked for."""

    def __init__(
        self,
        metrics: Metrics,
        address: tuple[str, int],
        *,
        ready: Callable[[], bool],
        well: Callable[[], bool],
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # a peer that opens a connection and says nothing must not keep a thread

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(200, metrics.text(), CONTENT_TYPE_LATEST)
                elif path == "/healthz":
                    good = well()
                    self._answer(200 if good else 503, "ok\n" if good else "a thread is stuck, see the log\n")
                elif path == "/readyz":
                    good = ready()
                    self._answer(200 if good else 503, "ok\n" if good else "not ready\n")
                else:
                    self._answer(404, "only /metrics, /healthz and /readyz are served here\n")

            def _answer(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

        self._server = Server(address, Handler)
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
