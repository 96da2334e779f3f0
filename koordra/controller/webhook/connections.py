"""The webhook's open connections: a cap, and a time limit for everything a peer can be slow at.

    phase        what the peer owes              limit in all, however it trickles
    handshake    TLS                             10 s
    new          the first request's head        10 s
    idle         the next request's head         120 s
    reading      the rest of head and body       10 s
    answering    nothing: the server works       none
    writing      to take the answer              10 s

A connection past its limit is shut down, and its thread ends. At the cap a newcomer takes the place of the connection that has
owed longest, those first that never made a whole request: whoever opens many connections and says nothing displaces itself,
not the API server. When all are at work the newcomer is turned away.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from koordra.metrics import Metrics

MAX_CONNECTIONS: Final = 512
"""An API server keeps a few connections; this is room for many API servers."""
SWEEP_PERIOD: Final = 0.5


class Phase(Enum):
    """What a connection is at; the value is the limit in seconds."""

    HANDSHAKE = ("handshake", 10.0)
    NEW = ("new", 10.0)
    IDLE = ("idle", 120.0)
    READING = ("reading", 10.0)
    ANSWERING = ("answering", None)
    WRITING = ("writing", 10.0)


@dataclass(slots=True)
class Connection:
    """`asked`: it has made a whole request before, so its owner is no stranger."""

    sock: socket.socket
    phase: Phase
    since: float
    asked: bool = False


class Connections:
    """`limits`: other limits than those of the phases; `clock` in seconds."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        most: int = MAX_CONNECTIONS,
        limits: Mapping[Phase, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._limits = {phase: phase.value[1] for phase in Phase} | dict(limits or {})
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[int, Connection] = {}
        self._closed = metrics.counter(
            "koordra_webhook_connections_closed",
            "Connections the webhook ended by itself: slow (past a time limit), displaced (at the cap), refused (at the cap).",
            ("reason",),
        )
        metrics.gauge("koordra_webhook_connections", "Open connections.").set_function(
            lambda: len(self._open)
        )

    def admit(self, sock: socket.socket) -> Connection | None:
        """A newcomer; None where there is no room for it."""
        now = self._clock()
        with self._lock:
            if len(self._open) >= self._most and not self._displace():
                self._closed.labels("refused").inc()
                return None
            found = Connection(sock, Phase.HANDSHAKE, now)
            self._open[id(found)] = found
            return found

    def _displace(self) -> bool:
        waiting = [
            one
            for one in self._open.values()
            if one.phase in (Phase.HANDSHAKE, Phase.NEW, Phase.IDLE, Phase.READING)
        ]
        if not waiting:
            return False
        victim = min(waiting, key=lambda one: (one.asked, one.since))
        self._end(victim, "displaced")
        return True

    def enter(self, connection: Connection, phase: Phase) -> None:
        """The connection goes on to another phase; its time starts anew."""
        with self._lock:
            connection.asked = connection.asked or phase is Phase.ANSWERING
            connection.phase, connection.since = phase, self._clock()

    def leave(self, connection: Connection) -> None:
        with self._lock:
            self._open.pop(id(connection), None)

    def sweep(self) -> None:
        """Ends what is past its limit."""
        now = self._clock()
        with self._lock:
            for one in list(self._open.values()):
                limit = self._limits[one.phase]
                if limit is not None and now - one.since >= limit:
                    self._end(one, "slow")

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(SWEEP_PERIOD):
            self.sweep()

    def _end(self, connection: Connection, reason: str) -> None:
        """Shut down from outside: the thread that reads or writes there ends, and closes. TLS is not asked."""
        self._open.pop(id(connection), None)
        self._closed.labels(reason).inc()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
