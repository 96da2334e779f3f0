"""The open connections of a server that strangers reach: a cap, and a time limit for everything a peer can be
slow at.

    phase        what the peer owes              limit in all, however it trickles
    handshake    TLS                             10 s
    new          the first request's head        10 s
    idle         the next request's head         120 s
    reading      the rest of head and body       10 s
    answering    nothing: the server works       none
    writing      to take the answer              10 s

A connection past its limit is shut down, and its thread ends. At the cap a newcomer takes the place of the
connection that has owed longest, those first that never made a whole request: whoever opens many connections
and says nothing displaces itself, not the API server and not the kubelet's probes. When all are at work the
newcomer is turned away.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from http.server import ThreadingHTTPServer
from typing import Any, Final

from koordra.logs import get_logger

log = get_logger(__name__)

LONGEST_SILENCE: Final = 120.0
"""Seconds for one read or write under TLS; the limits above are those that count."""
REASONS: Final = ("slow", "displaced", "refused")
"""Why a connection is ended: past a time limit; at the cap, for a newcomer; at the cap, as the newcomer."""


class ConnectionPhase(Enum):
    """What a connection is at; the value is the limit in seconds."""

    HANDSHAKE = ("handshake", 10.0)
    NEW = ("new", 10.0)
    IDLE = ("idle", 120.0)
    READING = ("reading", 10.0)
    ANSWERING = ("answering", None)
    WRITING = ("writing", 10.0)


_OWING: Final = (
    ConnectionPhase.HANDSHAKE,
    ConnectionPhase.NEW,
    ConnectionPhase.IDLE,
    ConnectionPhase.READING,
)
"""At the cap these make room."""


@dataclass(slots=True)
class _Connection:
    """`asked`: it has made a whole request before, so its owner is no stranger."""

    phase: ConnectionPhase
    since: float
    asked: bool = False


class Connections:
    """By their sockets. `most` at a time; `closed` is told one of REASONS; `clock` in seconds."""

    def __init__(
        self,
        *,
        most: int,
        closed: Callable[[str], object] = lambda _reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._closed = closed
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, newcomer: socket.socket) -> bool:
        """False where there is no room for it."""
        with self._lock:
            if len(self._open) >= self._most:
                waiting = [sock for sock, one in self._open.items() if one.phase in _OWING]
                if not waiting:
                    self._closed("refused")
                    return False
                self._end(
                    min(waiting, key=lambda sock: (self._open[sock].asked, self._open[sock].since)),
                    "displaced",
                )
            self._open[newcomer] = _Connection(ConnectionPhase.HANDSHAKE, self._clock())
            return True

    def enter(self, sock: socket.socket, phase: ConnectionPhase) -> None:
        """The connection goes on to another phase; its time starts anew."""
        with self._lock:
            if found := self._open.get(sock):
                found.asked = found.asked or phase is ConnectionPhase.ANSWERING
                found.phase, found.since = phase, self._clock()

    def leave(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.pop(sock, None)

    def sweep(self) -> None:
        """Ends what is past its limit."""
        now = self._clock()
        with self._lock:
            for sock, one in list(self._open.items()):
                limit = one.phase.value[1]
                if limit is not None and now - one.since >= limit:
                    self._end(sock, "slow")

    def _end(self, sock: socket.socket, reason: str) -> None:
        """Shut down from outside: the thread that reads or writes there ends, and closes. TLS is not
        asked."""
        del self._open[sock]
        self._closed(reason)
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


class BoundedHTTPServer(ThreadingHTTPServer):
    """A thread a connection, of so many connections. A peer's errors are told where somebody looks for them
    only: it can make as many as it likes."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # a full queue costs who comes then, a probe, say, a second or three

    def __init__(self, address: tuple[str, int], handler: Any, *, connections: Connections) -> None:
        self.connections = connections
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def service_actions(self) -> None:
        """In the accepting thread, after each connection and each of its looks."""
        self.connections.sweep()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self.connections.admit(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("connection_failed", client=str(client_address), exc_info=True)


class SecuredHTTPServer(BoundedHTTPServer):
    """With TLS. `context` may be exchanged while it serves; the next connection has the new one. The
    handshake runs in the connection's own thread, so that a peer that says nothing holds up nobody."""

    def __init__(
        self, address: tuple[str, int], handler: Any, *, connections: Connections, context: ssl.SSLContext
    ) -> None:
        self.context = context
        super().__init__(address, handler, connections=connections)

    def get_request(self) -> tuple[ssl.SSLSocket, Any]:
        """In the accepting thread, so without a word to the peer."""
        request, client_address = super().get_request()
        try:
            secured = self.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            secured.settimeout(LONGEST_SILENCE)
        except (OSError, ValueError) as error:  # gone already, in one of TLS's many ways
            request.close()
            raise OSError(str(error)) from error
        return secured, client_address

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.do_handshake()
        except (OSError, ValueError) as error:
            log.debug("handshake_failed", client=str(client_address), error=str(error))
            self.shutdown_request(request)
        else:
            self.connections.enter(request, ConnectionPhase.NEW)
            super().process_request_thread(request, client_address)
        finally:
            self.connections.leave(request)


def tls() -> ssl.SSLContext:
    """A server's, still without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
