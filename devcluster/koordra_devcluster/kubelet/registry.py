"""plugins_registry: every socket there is a plugin that wants to be known.

    socket appears ─> GetInfo ─> type and versions checked ─> Drivers.add ─> NotifyRegistrationStatus
    socket goes (or is replaced: another inode) ─> Drivers.remove

A plugin that does not answer yet is asked again after a growing pause.
"""

from __future__ import annotations

import stat
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from koordra._proto.dra import pluginregistration_pb2, pluginregistration_pb2_grpc
from koordra.errors import PrepareError
from koordra.logs import get_logger
from koordra_devcluster.kubelet.directory import DirectoryWatch
from koordra_devcluster.kubelet.drivers import Drivers

log = get_logger(__name__)

PLUGIN_TYPE: Final = "DRAPlugin"
CALL_TIMEOUT: Final = 5.0
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0

Identity = tuple[int, int]
"""Inode and when it was made: a socket that is made again is another one, whoever may use it then. Looking at
when its rights changed would end the calls of a plugin that restricts its socket."""


@dataclass(slots=True)
class _Socket:
    identity: Identity
    driver: str = ""
    endpoint: str = ""
    registered: bool = False
    failures: int = 0
    try_at: float = 0.0


@dataclass(slots=True)
class PluginRegistry:
    """Watches one directory and keeps `drivers` in step with it."""

    path: Path
    drivers: Drivers
    _known: dict[Path, _Socket] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        watch = DirectoryWatch(self.path)
        try:
            while not stop.is_set():
                self.reconcile()
                watch.wait(self._pause())
        finally:
            watch.close()

    def reconcile(self) -> None:
        """Compare what is there with what is known, once."""
        present = {
            path: identity for path in self.path.iterdir() if (identity := _identity(path)) is not None
        }
        for path, known in list(self._known.items()):
            if present.get(path) != known.identity:
                del self._known[path]
                if known.registered:
                    self.drivers.remove(known.driver, known.endpoint)
        now = time.monotonic()
        for path, identity in present.items():
            known = self._known.setdefault(path, _Socket(identity))
            if not known.registered and known.try_at <= now:
                self._register(path, known)

    def _register(self, path: Path, known: _Socket) -> None:
        try:
            _introduce(path, known, self.drivers)
            known.registered = True
        except (grpc.RpcError, PrepareError) as error:
            known.failures += 1
            known.try_at = time.monotonic() + min(FIRST_PAUSE * 2.0 ** (known.failures - 1), LONGEST_PAUSE)
            log.warning("plugin_not_registered", socket=str(path), error=str(error).splitlines()[0])

    def _pause(self) -> float:
        waiting = [known.try_at for known in self._known.values() if not known.registered]
        return max(0.01, min([LONGEST_PAUSE, *(at - time.monotonic() for at in waiting)]))


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def _introduce(path: Path, known: _Socket, drivers: Drivers) -> None:
    """GetInfo, add, NotifyRegistrationStatus. Raises RpcError and PrepareError."""
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = pluginregistration_pb2_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
        info = stub.GetInfo(pluginregistration_pb2.InfoRequest(), timeout=CALL_TIMEOUT)
        try:
            if info.type != PLUGIN_TYPE:
                raise PrepareError(f"no handler registered for plugin type {info.type!r} at socket {path}")
            known.driver, known.endpoint = info.name, info.endpoint
            drivers.add(info.name, info.endpoint, list(info.supported_versions))
        except PrepareError as error:
            status = pluginregistration_pb2.RegistrationStatus(plugin_registered=False, error=str(error))
            stub.NotifyRegistrationStatus(status, timeout=CALL_TIMEOUT)
            raise
        status = pluginregistration_pb2.RegistrationStatus(plugin_registered=True)
        stub.NotifyRegistrationStatus(status, timeout=CALL_TIMEOUT)
