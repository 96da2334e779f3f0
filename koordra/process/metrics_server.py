"""`/metrics` and the answers to probes over HTTP: `/healthz` (the process lives, and is well) and `/readyz`
(it does its work), in the caller's words; and JSON documents that a process has ready (`documents`).

Every pod of the cluster reaches these addresses, and a process that is out of threads, files or memory no
longer isolates anybody. So connections are bounded, what many ask at once is answered once, and an answer
that costs something is made MOST_ANSWERS times a second: who asks oftener gets the last one. Nobody is turned
away for asking often. A hook whose probes are turned away is restarted, and behind an address there may be
the kubelet as well as somebody who wants that.

The port may still be an older instance's, which ends soon (an update of a pod on the host's network): with
`patient` it is asked for again until it is free.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Final, Generic, TypeVar

from koordra.errors import InvalidInput
from koordra.metrics import Metrics, counter
from koordra.process import lifecycle
from koordra.process.connections import REASONS, BoundedHTTPServer, ConnectionPhase, Connections

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MOST_CONNECTIONS: Final = 32
"""Of metrics and probes: a kubelet and a Prometheus or two ask, each with one connection."""
MOST_ANSWERS: Final = 5
"""Of one question in a second. A Prometheus asks every 15 s, a kubelet every two at most."""
AGAIN: Final = 1.0
"""Seconds until a port that is taken is asked for again."""

CLOSED: Final = counter(
    "koordra_metrics_connections_closed_total",
    "Connections for metrics and probes that were ended: slow (past a time limit), displaced, refused (at the cap)",
    reason=REASONS,
)

T = TypeVar("T")


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
    answer is newer than the own question. But it is put MOST_ANSWERS times in a second of `clock`, and who
    asks beyond that gets the last answer."""

    def __init__(self, ask: Callable[[], T], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._second, self._made = -1, 0
        self._begun = self._answered = 0
        """The last question that was begun, and the one that `_answer` is of."""
        self._answer: T

    def __call__(self) -> T:
        earliest = self._begun + 1
        with self._lock:
            if self._answered < earliest and (self._may_ask() or not self._answered):
                self._begun += 1
                number = self._begun
                self._answer, self._answered = self._ask(), number
            return self._answer

    def _may_ask(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second, self._made = second, 0
        self._made += 1
        return self._made <= MOST_ANSWERS


def health(stuck: Sequence[str]) -> str:
    """What `/healthz` says of a process that is well, or that goes on with threads that are stuck."""
    return f"ok, but stuck: {', '.join(stuck)}; see the log\n" if stuck else "ok\n"


class MetricsServer:
    """A running HTTP server; `port` is the real one where 0 was asked for."""

    def __init__(
        self,
        metrics: Metrics,
        address: tuple[str, int],
        *,
        ready: Callable[[], bool],
        well: Callable[[], bool],
        stuck: Callable[[], Collection[str]] = tuple,
        patient: bool = False,
        documents: Mapping[str, Callable[[], str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        pages = documents or {}
        connections = Connections(
            most=MOST_CONNECTIONS, closed=lambda reason: closed.labels(reason).inc(), clock=clock
        )
        text = Shared(metrics.text, clock=clock)

        class Handler(BaseHTTPRequestHandler):
            wbufsize = -1  # head and body leave at once

            def parse_request(self) -> bool:
                connections.enter(self.connection, ConnectionPhase.READING)
                return super().parse_request()

            def do_GET(self) -> None:
                connections.enter(self.connection, ConnectionPhase.ANSWERING)
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(200, text(), CONTENT_TYPE)
                elif path == "/healthz":
                    good = well()
                    self._answer(
                        200 if good else 503, health(sorted(stuck())) if good else "not well, see the log\n"
                    )
                elif path == "/readyz":
                    good = ready()
                    self._answer(200 if good else 503, "ok\n" if good else "not ready\n")
                elif path in pages:
                    self._answer(200, pages[path](), "application/json")
                else:
                    served = ", ".join(("/metrics", "/healthz", "/readyz", *pages))
                    self._answer(404, f"only {served} are served here\n")

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

        make = partial(BoundedHTTPServer, address, Handler, connections=connections)
        self._closed, self._lock = threading.Event(), threading.Lock()
        self._server: BoundedHTTPServer | None = None
        self.port = address[1]
        try:
            self._server = make()
            self.port = self._server.server_address[1]
        except OSError as error:
            if not patient or error.errno != errno.EADDRINUSE:
                raise
        closed = metrics.counter(CLOSED)
        lifecycle.spawn(partial(self._serve, make), name="metrics", until=self._closed)

    def _serve(self, make: Callable[[], BoundedHTTPServer]) -> None:
        while self._server is None:
            if self._closed.wait(AGAIN):
                return
            with self._lock, suppress(OSError):
                if not self._closed.is_set():
                    self._server = make()
        self._server.serve_forever()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def serve(
    metrics: Metrics,
    address: str,
    *,
    ready: Callable[[], bool] = lambda: True,
    well: Callable[[], bool] = lambda: True,
    stuck: Callable[[], Collection[str]] = tuple,
    patient: bool = False,
    documents: Mapping[str, Callable[[], str]] | None = None,
) -> MetricsServer | None:
    """Serve on `host:port`; an empty address means none. `well`: false has the kubelet restart the container;
    `stuck`: the threads that are told at `/healthz` and are no reason to restart it. `documents`: by path,
    and at no cost.

    Raises:
        InvalidInput: the address is malformed or cannot be listened on.
    """
    if not address:
        return None
    try:
        return MetricsServer(
            metrics,
            parse_address(address),
            ready=ready,
            well=well,
            stuck=stuck,
            patient=patient,
            documents=documents,
        )
    except OSError as error:
        raise InvalidInput(f"metrics address {address!r}: {error.strerror or error}") from error
