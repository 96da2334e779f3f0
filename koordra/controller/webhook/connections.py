"""The webhook's open connections: a cap, and a time limit for everything a peer can be slow at.

    phase        what the peer owes              limit in all, however it trickles
    handshake    TLS                             10 s
    new          the first request's head        10 s
    idle         the next request's head         120 s
    reading      the rest of head and body       10 s
    answering    nothing: the server works       none
    writing      to take the answer              10 s

A connection past its limit is shut down, and its thread ends. At the cap a newcomer takes the place of the
connection that has owed longest, those first that never made a whole request: whoever opens many connections
and says nothing displaces itself, not the API server. When all are at work the newcomer is turned away.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from koordra.metrics import Metrics

MAX_CONNECTIONS: Final = 512
"""An API server keeps a few connections; this is room for many API servers."""


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
    """By their sockets. `clock` in seconds."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        most: int = MAX_CONNECTIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Connection] = {}
        self._closed = metrics.counter(
            "koordra_webhook_connections_closed",
            "Connections the webhook ended by itself: slow (past a time limit), displaced (at the cap), refused (at the cap).",
            ("reason",),
        )
        metrics.gauge("koordra_webhook_connections", "Open connections.").set_function(
            lambda: len(self._open)
        )

    def admit(self, newcomer: socket.socket) -> bool:
        """False where there is no room for it."""
        with self._lock:
            if len(self._open) >= self._most:
                waiting = [sock for sock, one in self._open.items() if one.phase in _OWING]
                if not waiting:
                    self._closed.labels("refused").inc()
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
        self._closed.labels(reason).inc()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
