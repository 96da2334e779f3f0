"""HTTPS for the API server's calls: one thread a connection, kept alive; the certificate can be changed while
it serves.

koordra.process.connections bounds their number and how long a peer may take. A new certificate is used from
the next connection on. Besides the paths of the handlers there are /healthz and /readyz.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final

from koordra.controller.webhook import keys, review
from koordra.controller.webhook.refusal_log import RefusalLog
from koordra.controller.webhook.review import AdmissionRequest, AdmissionResponse
from koordra.errors import InvalidInput
from koordra.logs import get_logger
from koordra.metrics import Metrics, bounded, counter, gauge, histogram
from koordra.process.connections import REASONS, ConnectionPhase, Connections, SecuredHTTPServer, tls
from koordra.process.lifecycle import spawn
from koordra.process.progress import step, watched

log = get_logger(__name__)

MOST_BODY: Final = 8 * 1024 * 1024
"""An object of 1.5 MB, old and new, with room."""
MAX_CONNECTIONS: Final = 512
"""An API server keeps a few connections; this is room for many API servers."""
SWEEP_PERIOD: Final = 0.5
NOTHING_HERE: Final = b"nothing is served here\n"


OUTCOMES: Final = ("allowed", "changed", "refused")
_PATH: Final = bounded("the paths that are served, - for a body that cannot be read")
REQUESTS: Final = counter(
    "koordra_webhook_requests_total",
    "Admission reviews that were answered",
    path=_PATH,
    outcome=(*OUTCOMES, "malformed"),
)
REQUEST_SECONDS: Final = histogram(
    "koordra_webhook_request_seconds", "From the body read to the answer made", path=_PATH
)
CLOSED: Final = counter(
    "koordra_webhook_connections_closed_total",
    "Connections that the webhook ended by itself: slow (past a time limit), displaced, refused (at the cap)",
    reason=REASONS,
)
OPEN: Final = gauge("koordra_webhook_connections", "Open connections of the webhook")
CERTIFICATE_END: Final = gauge(
    "koordra_webhook_certificate_end_timestamp_seconds",
    "When the certificate ends that the webhook serves with, in Unix time; 0 before it serves",
)


def counted_connections(
    metrics: Metrics, *, most: int = MAX_CONNECTIONS, clock: Callable[[], float] = time.monotonic
) -> Connections:
    """The webhook's, which are bounded."""
    closed = metrics.counter(CLOSED)
    connections = Connections(most=most, closed=lambda reason: closed.labels(reason).inc(), clock=clock)
    metrics.gauge(OPEN).set_function(lambda: len(connections))
    return connections


Get = Callable[[str, Callable[[str], str | None]], tuple[int, bytes]]
"""(path, a header by its name) -> (HTTP status, body)."""


class WebhookServer(SecuredHTTPServer):
    """`address` (host, port); port 0 takes any free one. Serves `paths` once `use` and `start` have been
    called, and `gets` by the beginnings of their paths. `connections`: other limits than the usual."""

    request_queue_size = 1024  # a full queue costs the API server a second

    def __init__(
        self,
        address: tuple[str, int],
        paths: Mapping[str, Callable[[AdmissionRequest], AdmissionResponse]],
        *,
        metrics: Metrics,
        ready: Callable[[], bool] = lambda: True,
        well: Callable[[], bool] = lambda: True,
        connections: Connections | None = None,
        gets: Mapping[str, Get] | None = None,
    ) -> None:
        self._paths = paths
        self.gets = gets or {}
        self.is_ready = ready
        self.is_well = well
        self._closed = threading.Event()
        self._refusals = RefusalLog()
        self._requests = metrics.counter(REQUESTS)
        self._seconds = metrics.histogram(REQUEST_SECONDS)
        self._certificate_end = metrics.gauge(CERTIFICATE_END)
        for path in paths:
            self._seconds.labels(path)
            for outcome in OUTCOMES:
                self._requests.labels(path, outcome)
        self._requests.labels("-", "malformed")
        if connections is None:
            connections = counted_connections(metrics)
        try:
            super().__init__(address, _Handler, connections=connections, context=tls())
        except OSError as error:
            raise InvalidInput(
                f"webhook address {address[0]}:{address[1]}: {error.strerror or error}"
            ) from error

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def use(self, certificate: bytes, key: bytes) -> None:
        """Serve with this certificate (PEM) from the next connection on. The key touches the disk unreadable
        to others.

        In a context of its own: one that is being loaded has for a moment a certificate without its key, and
        handshakes fail.
        """
        context = tls()
        handle, path = tempfile.mkstemp(prefix="koordra-webhook-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(key + b"\n" + certificate)
            context.load_cert_chain(path)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidInput(f"the webhook's certificate cannot be used: {error}") from error
        finally:
            Path(path).unlink()
        self.context = context
        self._certificate_end.set(keys.end_of(certificate))

    def start(self) -> None:
        serve = watched()(partial(self.serve_forever, poll_interval=SWEEP_PERIOD))
        spawn(serve, name="webhook", until=self._closed)

    def close(self) -> None:
        self._closed.set()
        self.shutdown()
        self.server_close()

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """(HTTP status, body) of one POST."""
        began = time.perf_counter()
        try:
            asked = review.decode(body)
        except InvalidInput as error:
            self._requests.labels("-", "malformed").inc()
            return 400, str(error).encode()
        if path not in self._paths:
            return 404, NOTHING_HERE
        try:
            found = self._paths[path](asked)
        except InvalidInput as error:
            found = AdmissionResponse((error,))
        outcome = "refused" if found.problems else "changed" if found.object is not None else "allowed"
        self._requests.labels(path, outcome).inc()
        if found.problems:
            self._refusals.tell(found.problems, path=path, namespace=asked.namespace)
        written = review.encode(asked, found)
        self._seconds.labels(path).observe(time.perf_counter() - began)
        return 200, written

    def service_actions(self) -> None:
        """In the accepting thread, after each connection and each SWEEP_PERIOD."""
        step()
        super().service_actions()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebhookServer
    wbufsize = -1  # head and body leave in one packet
    disable_nagle_algorithm = True

    def parse_request(self) -> bool:
        self._enter(ConnectionPhase.READING)
        return super().parse_request()

    def do_POST(self) -> None:
        declared = self.headers.get("Content-Length") or ""
        if not (declared.isascii() and declared.isdigit()):  # -1 would be read until the memory is full
            self._send(411, b"say the length of the body\n", last=True)
            return
        length = int(declared)
        if length > MOST_BODY:
            self._send(413, b"too large\n", last=True)
            return
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        self._enter(ConnectionPhase.ANSWERING)
        try:
            with watched(f"webhook {self.path}"):
                status, answer = self.server.answer(self.path.partition("?")[0], body)
            self._send(status, answer)
        except Exception:  # a defect met in one review must not end the connection of all
            log.exception("review_failed", path=self.path)
            self._send(500, b"internal error\n")

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/healthz":
                well = self.server.is_well()
                self._send(200 if well else 503, b"ok\n" if well else b"a thread is stuck, see the log\n")
            case "/readyz":
                good = self.server.is_ready()
                self._send(200 if good else 503, b"ok\n" if good else b"not ready\n")
            case path:
                self._send(*self._got(path))

    def _got(self, path: str) -> tuple[int, bytes]:
        get = next((one for prefix, one in self.server.gets.items() if path.startswith(prefix)), None)
        if get is None:
            return 404, NOTHING_HERE
        self._enter(ConnectionPhase.ANSWERING)
        try:
            with watched(f"webhook {path.split('/')[1]}"):
                return get(path, self.headers.get)
        except Exception:
            log.exception("get_failed", path=path)
            return 500, b"internal error\n"

    def _send(self, code: int, body: bytes, *, last: bool = False) -> None:
        self._enter(ConnectionPhase.WRITING)
        self.close_connection = self.close_connection or last
        self.send_response(code)
        self.send_header(
            "Content-Type", "application/json" if body[:1] == b"{" else "text/plain; charset=utf-8"
        )
        self.send_header("Content-Length", str(len(body)))
        with contextlib.suppress(OSError):  # the peer has gone, in one of TLS's many ways
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()
        self._enter(ConnectionPhase.IDLE)

    def _enter(self, phase: ConnectionPhase) -> None:
        self.server.connections.enter(self.connection, phase)

    def log_message(self, format: str, *args: object) -> None:
        del format, args
