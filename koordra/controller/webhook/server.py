"""HTTPS for the API server's calls: one thread a connection, kept alive; the certificate can be changed while it serves.

The handshake runs in the connection's own thread, so that a peer that says nothing holds up nobody; connections.py bounds their
number and how long a peer may take. A new certificate is loaded into the same context and used from the next connection on. Besides the paths of handlers there are
/healthz and /readyz.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from koordra.controller.webhook import handlers, review
from koordra.controller.webhook.connections import Connection, Connections, Phase
from koordra.controller.webhook.keys import Pair
from koordra.controller.webhook.lookups import Lookups
from koordra.controller.webhook.review import AdmissionRequest, Answer
from koordra.errors import InvalidInput
from koordra.logs import get_logger
from koordra.metrics import Metrics

log = get_logger(__name__)

MOST_BODY: Final = 8 * 1024 * 1024
"""An object of 1.5 MB, old and new, with room."""
LONGEST_SILENCE: Final = 120.0
"""Seconds for one read or write; connections.py has the limits that count."""


class WebhookServer:
    """`address` (host, port); port 0 takes any free one. Serves once `use` has been called. `more`: paths besides those of
    handlers.py, that answer by themselves. `connections`: other limits than the usual."""

    def __init__(
        self,
        address: tuple[str, int],
        lookups: Lookups,
        *,
        metrics: Metrics,
        ready: Callable[[], bool] = lambda: True,
        more: Mapping[str, Callable[[AdmissionRequest], Answer]] | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._more = more or {}
        self._stop = threading.Event()
        self._connections = connections or Connections(metrics)
        self._requests = metrics.counter(
            "koordra_webhook_requests", "Admission reviews answered.", ("path", "outcome")
        )
        self._seconds = metrics.histogram(
            "koordra_webhook_request_seconds", "From the body read to the answer made.", ("path",)
        )
        self._lookups = lookups
        self._ready = ready
        try:
            self._server = _Server(address, _handler_of(self), self._connections)
        except OSError as error:
            raise InvalidInput(
                f"webhook address {address[0]}:{address[1]}: {error.strerror or error}"
            ) from error

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def use(self, pair: Pair) -> None:
        """Serve with this certificate from the next connection on. The key touches the disk unreadable to others.

        In a context of its own: one that is being loaded has for a moment a certificate without its key, and handshakes fail.
        """
        context = _tls()
        handle, path = tempfile.mkstemp(prefix="koordra-webhook-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(pair.key + b"\n" + pair.certificate)
            context.load_cert_chain(path)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidInput(f"the webhook's certificate cannot be used: {error}") from error
        finally:
            Path(path).unlink()
        self._server.context = context

    def start(self) -> None:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, name="webhook", daemon=True
        ).start()

        threading.Thread(
            target=self._connections.run, args=(self._stop,), name="webhook-connections", daemon=True
        ).start()

    def close(self) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """(HTTP status, body) of one POST."""
        began = time.perf_counter()
        try:
            asked = review.decode(body)
        except InvalidInput as error:
            self._requests.labels("-", "malformed").inc()
            return 400, str(error).encode()
        more = self._more.get(path)
        found = more(asked) if more else handlers.answer(path, asked, self._lookups)
        if found is None:
            return 404, b"nothing is served here\n"
        outcome = "refused" if found.problems else "changed" if found.object is not None else "allowed"
        self._requests.labels(path, outcome).inc()
        if found.problems:
            log.info("refused", path=path, problems=[str(problem) for problem in found.problems])
        written = review.encode(asked, found)
        self._seconds.labels(path).observe(time.perf_counter() - began)
        return 200, written

    def is_ready(self) -> bool:
        return self._ready()


def _tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024  # a full queue costs the API server a second

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        connections: Connections,
    ) -> None:
        self.context = _tls()
        self._connections = connections
        self._mine = threading.local()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In the accepting thread, so without a word to the peer: a place for the connection, and a thread."""
        try:
            secured = self.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            secured.settimeout(LONGEST_SILENCE)
        except (OSError, ValueError):  # gone already, in one of TLS's many ways
            self.shutdown_request(request)
            return
        connection = self._connections.admit(secured)
        if connection is None:
            self._drop(secured)
            return
        threading.Thread(
            target=self._serve, args=(secured, client_address, connection), name="webhook-peer", daemon=True
        ).start()

    def _serve(self, secured: ssl.SSLSocket, client_address: Any, connection: Connection) -> None:
        self._mine.connection = connection
        try:
            secured.do_handshake()
        except (OSError, ValueError) as error:
            log.debug("handshake_failed", client=str(client_address), error=str(error))
            self._drop(secured)
        else:
            self.enter(Phase.NEW)
            super().process_request_thread(secured, client_address)
        finally:
            self._connections.leave(connection)

    def enter(self, phase: Phase) -> None:
        """Where the connection of the present thread is now."""
        self._connections.enter(self._mine.connection, phase)

    def _drop(self, secured: ssl.SSLSocket) -> None:
        """Without a goodbye: the peer may never read it."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(secured, socket.SHUT_RDWR)
        secured.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("connection_failed", client=str(client_address))


def _handler_of(owner: WebhookServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server: _Server
        wbufsize = -1  # head and body leave in one packet
        disable_nagle_algorithm = True

        def parse_request(self) -> bool:
            self.server.enter(Phase.READING)
            return super().parse_request()

        def do_POST(self) -> None:
            declared = self.headers.get("Content-Length") or ""
            if not (declared.isascii() and declared.isdigit()):  # -1 would be read until the memory is full
                self.close_connection = True
                self._send(411, b"say the length of the body\n")
                return
            length = int(declared)
            if length > MOST_BODY:
                self.close_connection = True
                self._send(413, b"too large\n")
                return
            body = self.rfile.read(length)
            if len(body) < length:
                self.close_connection = True
                return
            self.server.enter(Phase.ANSWERING)
            try:
                self._send(*owner.answer(self.path.partition("?")[0], body))
            except Exception:  # a defect met in one review must not end the connection of all
                log.exception("review_failed", path=self.path)
                self._send(500, b"internal error\n")

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/healthz":
                    self._send(200, b"ok\n")
                case "/readyz":
                    good = owner.is_ready()
                    self._send(200 if good else 503, b"ok\n" if good else b"not ready\n")
                case _:
                    self._send(404, b"nothing is served here\n")

        def _send(self, code: int, body: bytes) -> None:
            self.server.enter(Phase.WRITING)
            kind = "application/json" if body[:1] == b"{" else "text/plain; charset=utf-8"
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            with contextlib.suppress(OSError):  # the peer has gone, in one of TLS's many ways
                self.end_headers()
                self.wfile.write(body)
                self.wfile.flush()
            self.server.enter(Phase.IDLE)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    return Handler
