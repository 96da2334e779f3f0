"""`koordra imex`: NVIDIA's daemon runs for the domain that domain.json names, and for no other.

At each step, once a second and when something changed:

    no domain, or another one    the daemon is ended, and what it left is removed
    a domain, no daemon          its files are written, and it is started; one that ends by itself is started
                                 again, after a pause that grows
    other nodes than before      hosts is rewritten, and it is told (SIGUSR1, once in 5 s: it ignores more)

and status.json says how far it is: ready is who answers READY (nvidia-imex-ctl -q) and has a connection to
each node of the domain, tried here by TCP to the daemons' port. What the daemon keeps across its restarts
(run/) stays as long as the domain.

The supervisor's end ends the daemon; so it is not updated while a node is in a domain (OnDelete).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from koordra.api.opaque.imex import ImexDomain
from koordra.errors import NodeError
from koordra.imex.config_files import (
    CONFIG,
    HOSTS,
    NODES,
    PORT,
    RUN,
    config_file,
    hosts_file,
    nodes_file,
)
from koordra.imex.daemon import Daemon
from koordra.logs import get_logger
from koordra.node_state.disk import Disk, reported
from koordra.node_state.imex import (
    DomainNode,
    DomainStatus,
    ImexFolder,
    NodeDomain,
    decode_domain,
    encode_status,
)
from koordra.process.backoff import Backoff

log = get_logger(__name__)

STEP: Final = 1.0
BETWEEN_SIGNALS: Final = 5.0
LONGEST_PAUSE: Final = 30.0
CONNECTS_WITHIN: Final = 1.0
READY: Final = "READY"
MODE: Final = 0o600

Reaches = Callable[[Iterable[DomainNode]], tuple[int, ...]]
"""The numbers of the nodes whose daemons accept connections."""


def reaches(nodes: Iterable[DomainNode]) -> tuple[int, ...]:
    return tuple(node.number for node in nodes if _accepts(node.address))


def _accepts(address: str) -> bool:
    try:
        with socket.create_connection((address, PORT), timeout=CONNECTS_WITHIN):
            return True
    except OSError:
        return False


@dataclass
class Supervisor:
    """Not thread-safe. `clock` is monotonic."""

    folder: ImexFolder
    daemon: Daemon
    disk: Disk
    clock: Callable[[], float]
    reaches: Reaches = reaches
    _running: ImexDomain | None = None
    _hosts: str = ""
    _signal_at: float | None = None
    _signalled: float = float("-inf")
    _start_at: float = 0.0
    _why: str = ""
    """Why it does not run."""
    _status: DomainStatus | None = None
    _backoff: Backoff = field(default_factory=lambda: Backoff(longest=LONGEST_PAUSE))

    def run(self, stop: threading.Event) -> None:
        """Until `stop`; then the daemon ends."""
        try:
            while not stop.is_set():
                try:
                    self.step()
                except NodeError as error:
                    log.error("imex_step_failed", error=str(error))
                stop.wait(STEP)
        finally:
            self.daemon.stop()

    def step(self) -> None:
        """Raises NodeError."""
        domain = self._read()
        if self._running is not None and (domain is None or domain.of != self._running):
            self._end()
        if domain is None:
            self._tell(None)
            return
        if self._running is None:
            self._begin(domain)
        if not self.daemon.runs:
            self._start()
        self._tell_nodes(domain)
        self._tell(self._seen(domain))

    def _read(self) -> NodeDomain | None:
        with reported(NodeError, self.folder.domain, "read"):
            data = self.disk.read(self.folder.domain)
        if data is None:
            return None
        try:
            return decode_domain(data)
        except ValueError as error:
            raise NodeError(f"{self.folder.domain}: {error}") from error

    def _begin(self, domain: NodeDomain) -> None:
        hosts = hosts_file(domain)
        with reported(NodeError, self.folder.path / RUN, "made"):
            self.disk.make_directory(self.folder.path / RUN)
        self._write(CONFIG, config_file())
        self._write(NODES, nodes_file())
        self._write(HOSTS, hosts)
        self._running, self._hosts, self._signal_at = domain.of, hosts, None
        self._start_at = self.clock()
        self._backoff.reset()
        log.info("imex_domain_begins", domain=domain.domain, clique=domain.clique, number=domain.own)

    def _write(self, name: str, text: str) -> None:
        """In place: the daemon has the file bound into its root."""
        path = self.folder.path / name
        with reported(NodeError, path, "written"):
            self.disk.make_directory(path.parent)
            self.disk.write(path, text.encode(), MODE)

    def _start(self) -> None:
        """Unless it has just ended."""
        now, code = self.clock(), self.daemon.ended
        if code is not None:
            self.daemon.stop()
            self._start_at = now + self._backoff.next()
            self._why = f"it ended with code {code}"
            log.error("imex_daemon_ended", code=code, again_in=round(self._start_at - now, 1))
        if now >= self._start_at:
            try:
                self.daemon.start()
            except NodeError as error:
                self._start_at = now + self._backoff.next()
                if self._why != str(error):
                    log.error("imex_daemon_not_started", error=str(error))
                self._why = str(error)
                return
            log.info("imex_daemon_started", domain=self._running and self._running.domain)

    def _tell_nodes(self, domain: NodeDomain) -> None:
        now, hosts = self.clock(), hosts_file(domain)
        if hosts != self._hosts:
            self._write(HOSTS, hosts)
            self._hosts, self._signal_at = hosts, max(now, self._signalled + BETWEEN_SIGNALS)
        if self._signal_at is not None and now >= self._signal_at:
            self.daemon.resolve_again()
            self._signal_at, self._signalled = None, now

    def _seen(self, domain: NodeDomain) -> DomainStatus:
        said = self.daemon.answer() if self.daemon.runs else self._why
        if said == READY:
            self._backoff.reset()
        reached = self.reaches(domain.nodes) if said == READY else ()
        detail = "" if said == READY else f"the IMEX daemon is not ready: {said}"
        return DomainStatus(domain.domain, domain.clique, said == READY, reached, detail)

    def _end(self) -> None:
        log.info("imex_domain_ends", domain=self._running and self._running.domain)
        self._tell(None)
        self.daemon.stop()
        for name in (CONFIG, NODES, HOSTS):
            with reported(NodeError, self.folder.path / name, "removed"):
                self.disk.remove(self.folder.path / name)
        with reported(NodeError, self.folder.path / RUN, "removed"):
            self.disk.remove_folder(self.folder.path / RUN)
        self._running = None

    def _tell(self, status: DomainStatus | None) -> None:
        if status == self._status and status is not None:
            return
        path = self.folder.status
        with reported(NodeError, path, "written"):
            if status is not None:
                self.disk.replace(path, encode_status(status), mode=MODE, durable=False)
            elif self._status is not None or self.disk.read(path) is not None:
                self.disk.remove(path)
        self._status = status
