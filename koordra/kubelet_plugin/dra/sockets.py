"""The plugin's two unix sockets: their paths, and a gRPC server on one, which binds again when its file
vanishes.

The kubelet watches <kubelet root>/plugins_registry, dials each new socket there, calls GetInfo, dials the DRA
socket named in the answer, and reports the outcome. So the DRA server must be serving before the registration
socket appears, and stops after it. An instance that is killed leaves its sockets. One that starts under the
same pod uid binds them again; if the pod is gone, the next instance removes them (`remove_abandoned`), or the
kubelet would dial them at each of its starts.

Socket files get lost: somebody cleans /var/lib/kubelet, an older instance removes the path when it stops, a
newer one takes it over. The kubelet finds a plugin only by those files, so `ensure` compares the file with
the one that was bound and binds again. gRPC removes its path when a server stops, so the old server is
stopped before the new one binds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from koordra.api import names
from koordra.errors import NodeError
from koordra.logs import get_logger
from koordra.node_state.locks import abandoned, sole_instance

log = get_logger(__name__)

LONGEST_PATH: Final = 107
"""Bytes of a unix socket's path (sun_path of unix(7), without the closing zero)."""

Identity = tuple[int, int]

_REGISTRATION: Final = "-reg.sock"
_INSTANCE: Final = ".lock"


@dataclass(frozen=True, slots=True)
class PluginSockets:
    """The paths of the two sockets. With a pod uid the names are the instance's own, so that two instances of
    the plugin can serve side by side during an update; the kubelet then uses the one that registered last."""

    registration: Path
    dra: Path

    @classmethod
    def below(cls, kubelet_root: Path, *, pod_uid: str | None = None) -> PluginSockets:
        mark = f"-{pod_uid}" if pod_uid else ""
        return cls(
            registration=kubelet_root / "plugins_registry" / f"{names.DRIVER}{mark}{_REGISTRATION}",
            dra=kubelet_root / "plugins" / names.DRIVER / f"dra{mark}.sock",
        )

    def owned(self, state: Path, stop: threading.Event) -> AbstractContextManager[bool]:
        """Own these names for the time of a block; False when `stop` came before their other owner ended."""
        lock = self.instance(state)
        remedy = "give each a --pod-uid, or end one"
        return sole_instance(
            lock,
            stop,
            waiting=lambda: log.warning("sockets_owned_by_another_instance", lock=str(lock), remedy=remedy),
        )

    def instance(self, state: Path) -> Path:
        """The lock file by which an instance owns these names (node_state.locks.sole_instance)."""
        return state / f"{self.registration.name}{_INSTANCE}"


def remove_abandoned(kubelet_root: Path, state: Path) -> None:
    """Remove the sockets of instances that were killed and did not come back. What cannot be removed is
    logged."""
    for lock in sorted(state.glob(f"{names.DRIVER}*{_REGISTRATION}{_INSTANCE}")):
        mark = lock.name.removeprefix(names.DRIVER).removesuffix(f"{_REGISTRATION}{_INSTANCE}")
        sockets = PluginSockets.below(kubelet_root, pod_uid=mark.removeprefix("-") or None)
        try:
            with abandoned(lock) as found:
                if found:
                    sockets.registration.unlink(missing_ok=True)
                    sockets.dra.unlink(missing_ok=True)
                    log.info("stale_sockets_removed", socket=str(sockets.registration))
        except OSError as error:
            log.warning("stale_sockets_not_removed", socket=str(sockets.registration), error=str(error))


class SocketServer:
    """`add` puts the services onto a fresh gRPC server; it is called again after each loss of the socket.
    `restored` is called after such a loss, `stopping` with each end, so that calls that would never end by
    themselves do."""

    def __init__(
        self,
        path: Path,
        add: Callable[[Any], None],
        *,
        workers: int = 16,
        restored: Callable[[], None] = lambda: None,
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        if len(bytes(path)) > LONGEST_PATH:
            raise NodeError(
                f"{path} has {len(bytes(path))} bytes, and a unix socket's path at most {LONGEST_PATH}; "
                "use a shorter kubelet root"
            )
        self.path = path
        self._add = add
        self._workers = workers
        self._restored = restored
        self._stopping = stopping
        self._server: Any = None
        self._bound: Identity | None = None

    def start(self) -> None:
        """Bind and serve; the socket is readable and writable for its owner only. Raises NodeError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            server = grpc.server(ThreadPoolExecutor(self._workers, thread_name_prefix=self.path.stem))
            self._add(server)
            # What a killed process left behind; gRPC itself replaces only sockets.
            self.path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix://{self.path}")
            self.path.chmod(0o600)
        except (OSError, RuntimeError) as error:
            raise NodeError(f"{self.path} cannot be bound: {error}; check the kubelet root") from error
        server.start()
        self._server, self._bound = server, self._identity()

    def ensure(self) -> bool:
        """Bind again if the socket file is gone or belongs to another process; True if that was needed.
        Raises NodeError."""
        if self._server is not None and self._bound is not None and self._identity() == self._bound:
            return False
        log.warning("socket_lost", path=str(self.path))
        self.stop(grace=5.0)
        self.start()
        log.info("socket_restored", path=str(self.path))
        self._restored()
        return True

    def stop(self, *, grace: float) -> None:
        """Take no new calls, wait up to `grace` seconds for those in progress, remove the socket file."""
        if self._server is not None:
            ended = self._server.stop(grace)
            self._stopping()
            ended.wait()
            self._server = None

    def _identity(self) -> Identity | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino
