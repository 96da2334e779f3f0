"""A gRPC server on one unix socket, for one local user, that binds again when its socket file vanishes.

Socket files get lost: somebody cleans /var/lib/kubelet, an older instance removes the path when it stops, a
newer one takes it over. The kubelet finds a plugin only by those files, so `ensure` compares the file with
the one that was bound and binds again. gRPC removes its path when a server stops, so the old server is
stopped before the new one binds.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from koordra.errors import NodeError
from koordra.logs import get_logger

log = get_logger(__name__)

LONGEST_PATH: Final = 107
"""Bytes of a unix socket's path (sun_path of unix(7), without the closing zero)."""

Identity = tuple[int, int]


class SocketServer:
    """`add` puts the services onto a fresh gRPC server; it is called again after each loss of the socket.
    `stopping` is called with each end, so that calls that would never end by themselves do."""

    def __init__(
        self,
        path: Path,
        add: Callable[[Any], None],
        *,
        workers: int = 16,
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
        """Bind again if the socket file is gone or belongs to another process; True if that was needed. Raises
        NodeError."""
        if self._server is not None and self._bound is not None and self._identity() == self._bound:
            return False
        log.warning("socket_lost", path=str(self.path))
        self.stop(grace=5.0)
        self.start()
        log.info("socket_restored", path=str(self.path))
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
