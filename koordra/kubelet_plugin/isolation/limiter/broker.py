"""Learns which host process owns which slot of a claim's region.

A process in a container knows only its pid in its own namespace. When it takes a slot it connects to the
claim's socket and sends slot and generation; SO_PEERCRED gives this end the pid in the host's namespace. The
process never waits, and its limit does not depend on the answer: the host pid serves people and the
comparison with what NVML reports. A process that got no slot connects too, with a number that no slot has.
Each connection triggers a reconciliation (reconcile.py).

    <claims>/<uid>/broker.sock, one per claim: so a process cannot speak for another claim

One thread serves all claims, those of an earlier plugin process included. Each claim has one open connection
at a time: a process that connects and sends nothing delays its own claim's others for _PATIENCE seconds, and
no other claim. The pid and start time of every process that connected are kept as long as the claim exists
(processes.py).
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.sampling.host_processes import start_time
from koordra.logs import get_logger
from koordra.process.lifecycle import count_failure, spawn

log = get_logger(__name__)

_MESSAGE: Final = struct.Struct("=QQ")
_CREDENTIALS: Final = struct.Struct("=iII")
MOST_CALLERS: Final = 8192
"""Processes of a claim that are remembered; its oldest is dropped, and none of another's."""
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_REST: Final = 0.2
"""Seconds without files or memory, after which the sockets that are ready are looked at again."""
_PATIENCE: Final = 0.2
"""Seconds that a connection may take to send its 16 bytes, which usually arrive before it is accepted."""


class Broker:
    """`claims` is the folder with one folder per claim. Nothing runs before the first `listen`. `on_call`
    runs after each connection."""

    def __init__(self, claims: Path) -> None:
        self._claims = claims
        self.on_call: Callable[[], None] = lambda: None
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[str, socket.socket] = {}
        self._callers_connected: dict[str, tuple[socket.socket, float]] = {}
        """By claim: the open connection, and its deadline; meanwhile the claim's socket accepts no other."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._callers: dict[tuple[int, int], str] = {}
        self._callers_of: dict[str, dict[tuple[int, int], None]] = {}
        """By claim, in the order of their calls."""

    def resume(self) -> None:
        """Listen for the claims from before. A disk that does not give their folders keeps the plugin from
        nothing else; the next claim that is prepared tries again."""
        try:
            with self._lock:
                if self._claims.is_dir() and any(self._claims.iterdir()):
                    self._begin()
        except OSError as error:
            log.error("limiter_broker_not_resumed", error=str(error))

    def caller(self, pid: int, started: int) -> str | None:
        """The claim on whose socket this process of the host has called."""
        with self._lock:
            return self._callers.get((pid, started))

    def last_caller(self, pid: int) -> str | None:
        """The claim on whose socket the last process of this number has called, whether it lives or not."""
        with self._lock:
            found = [(started, claim) for (number, started), claim in self._callers.items() if number == pid]
        return max(found)[1] if found else None

    def listen(self, claim_uid: str) -> None:
        with self._lock:
            self._open(claim_uid)
            self._begin()

    def _begin(self) -> None:
        if self._thread is not None:
            return
        for folder in self._claims.iterdir():
            with suppress(OSError):
                self._open(folder.name)
        self._thread = spawn(self._serve, name="limiter-broker", until=threading.Event())

    def forget(self, claim_uid: str) -> None:
        with self._lock:
            for caller in self._callers_of.pop(claim_uid, ()):
                self._callers.pop(caller, None)
            self._close(claim_uid)

    def _close(self, claim_uid: str) -> None:
        listening = self._sockets.pop(claim_uid, None)
        self._disconnect(claim_uid)
        if listening is not None:
            with suppress(KeyError):  # while a connection is open
                self._selector.unregister(listening)
            listening.close()

    def _open(self, claim_uid: str) -> None:
        path = self._claims / claim_uid / "broker.sock"
        if claim_uid in self._sockets and path.exists():
            return
        self._close(claim_uid)
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # A path may be longer than a socket's name; the folder's descriptor stands for it.
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                listening.bind(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
            path.chmod(0o666)
            listening.listen(1024)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
        self._sockets[claim_uid] = listening
        self._selector.register(listening, selectors.EVENT_READ, claim_uid)

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=_PATIENCE if self._callers_connected else 1.0):
                try:
                    assert isinstance(key.fileobj, socket.socket)
                    self._ready(key.fileobj, str(key.data))
                except OSError as error:
                    if error.errno in _SHORT:  # its socket stays readable
                        time.sleep(_REST)
                except Exception as defect:  # met with one tenant's message, and there are others
                    count_failure(defect)
                    log.exception("broker_failed", claim=str(key.data))
            with self._lock:
                now = time.monotonic()
                for claim_uid, (_, until) in list(self._callers_connected.items()):
                    if now >= until:
                        self._disconnect(claim_uid)

    def _ready(self, ready: socket.socket, claim_uid: str) -> None:
        """A socket is readable: a new connection, or the message of the open one."""
        with self._lock:
            if self._callers_connected.get(claim_uid, (None,))[0] is not ready:
                connection, _ = ready.accept()
                connection.setblocking(False)
                self._selector.unregister(ready)
                self._selector.register(connection, selectors.EVENT_READ, claim_uid)
                self._callers_connected[claim_uid] = connection, time.monotonic() + _PATIENCE
                return
        try:
            raw = ready.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            message = ready.recv(_MESSAGE.size)
        finally:
            with self._lock:
                self._disconnect(claim_uid)
        if len(message) == _MESSAGE.size:
            self._answer(claim_uid, _CREDENTIALS.unpack(raw)[0], message)

    def _disconnect(self, claim_uid: str) -> None:
        """Close the claim's connection and accept the next one, if the claim still exists. Lock held."""
        connection, _ = self._callers_connected.pop(claim_uid, (None, 0.0))
        if connection is None:
            return
        self._selector.unregister(connection)
        connection.close()
        if claim_uid in self._sockets:
            self._selector.register(self._sockets[claim_uid], selectors.EVENT_READ, claim_uid)

    def _answer(self, claim_uid: str, pid: int, message: bytes) -> None:
        started = start_time(pid)
        if started is not None:
            with self._lock:
                self._remember(claim_uid, (pid, started))
        slot, generation = _MESSAGE.unpack(message)
        if region.write_host_pid(self._claims / claim_uid, slot=slot, generation=generation, pid=pid):
            log.debug("limited_process", claim=claim_uid, slot=slot, pid=pid)
        self.on_call()

    def _remember(self, claim_uid: str, caller: tuple[int, int]) -> None:
        """Lock held. A container of two claims calls both sockets: the last counts."""
        before = self._callers.get(caller)
        if before is not None:
            del self._callers_of[before][caller]
        self._callers[caller] = claim_uid
        known = self._callers_of.setdefault(claim_uid, {})
        known[caller] = None
        if len(known) > MOST_CALLERS:
            oldest = next(iter(known))
            del known[oldest], self._callers[oldest]
