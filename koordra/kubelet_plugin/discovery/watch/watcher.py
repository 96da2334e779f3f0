"""Follows a machine: reads it again when something announces a change, and tells when the result differs.

    events (uevents, links, Xids)  ──┐
    a glance every few seconds     ──┼──> a reading, once things have calmed down ──> different? tell
    a full reading now and then    ──┘

* Devices come in bursts (a card with 128 virtual functions takes seconds to appear), so a reading waits until nothing
  has been announced for ``settle`` seconds, but never longer than ``longest``.
* An Xid is told at once, from the last reading; the reading that follows says whether the card is still there.
* While a card is faulty, or the driver has it and it does not answer whole, the machine is read every ``recheck``
  seconds, since a recovery announces nothing.
* The glance is taken before each reading: what changes while the machine is read shows at the next one.

The driver's side is one line: ``MachineWatcher.of(root).run(stop, on_change)``.
"""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from koordra.errors import KoordraError
from koordra.kubelet_plugin.discovery.nvml.gpu_facts import GpuFactsSource
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.discovery.result import Discovery
from koordra.kubelet_plugin.discovery.watch import gpu_health
from koordra.kubelet_plugin.discovery.watch.change_probe import look
from koordra.kubelet_plugin.discovery.watch.events import (
    EventSource,
    HardwareChanged,
    PortsMayHaveChanged,
    XidReported,
)
from koordra.kubelet_plugin.discovery.watch.netlink import LinkChanges, Uevents
from koordra.kubelet_plugin.discovery.watch.xid_events import XidEvents
from koordra.logs import get_logger
from koordra.topology.machine import Gpu

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """All in seconds. ``stop_within`` bounds how long the end of the process waits for the watcher; network links
    that change all the time cause no more than one glance in ``between_glances``."""

    settle: float = 0.3
    longest: float = 3.0
    glance: float = 5.0
    between_glances: float = 1.0
    recheck: float = 30.0
    full: float = 900.0
    stop_within: float = 0.25


class MachineWatcher:
    """Watches one machine. All state belongs to the thread that runs ``run``."""

    def __init__(
        self,
        *,
        read: Callable[[], Discovery],
        glance: Callable[[], Hashable],
        sources: Sequence[EventSource] = (),
        rhythm: Rhythm | None = None,
        ignored_xids: frozenset[int] = gpu_health.APPLICATION_XIDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._glance = glance
        self._sources = sources
        self._rhythm = rhythm or Rhythm()
        self._ignored = ignored_xids
        self._clock = clock
        self._faults: gpu_health.Ledger = {}
        self._seen: Hashable = None
        self._found: Discovery | None = None
        self._told: Discovery | None = None
        self._read_at = 0.0
        self._glance_at = 0.0
        self._glanced_at = 0.0
        self._first_event: float | None = None

    @classmethod
    def of(
        cls, root: Path, *, nvml: GpuFactsSource | None = None, rhythm: Rhythm | None = None
    ) -> MachineWatcher:
        """A watcher of the machine below ``root``, with the kernel's and NVML's events where it is this machine."""
        sources: list[EventSource] = []
        xids: XidEvents | None = None
        if root.resolve() == Path("/"):
            for kind in (Uevents, LinkChanges):
                try:
                    sources.append(kind())
                except OSError as error:
                    log.warning("event_source_unavailable", source=kind.__name__, error=str(error))
            if nvml is None:
                xids = XidEvents()
                xids.start()
                sources.append(xids)

        def read() -> Discovery:
            with xids.paused() if xids else contextlib.nullcontext():
                return discover(root, nvml=nvml)

        return cls(read=read, glance=lambda: look(root), sources=sources, rhythm=rhythm)

    def run(self, stop: threading.Event, on_change: Callable[[Discovery], None]) -> None:
        """Until ``stop``: tell the first reading, and each one that differs from what was told last.

        ``on_change`` runs in this thread. If it raises a KoordraError, it is told again within a second.
        """
        with selectors.DefaultSelector() as selector:
            for source in self._sources:
                selector.register(source.fileno(), selectors.EVENT_READ, source)
            try:
                while not stop.is_set():
                    self._act(on_change)
                    timeout = min(self._due() - self._clock(), self._rhythm.stop_within)
                    for key, _ in selector.select(max(0.0, timeout)):
                        self._hear(key.data)
            finally:
                for source in self._sources:
                    source.close()

    def _due(self) -> float:
        return min(self._read_at, self._glance_at)

    def _act(self, on_change: Callable[[Discovery], None]) -> None:
        now = self._clock()
        if now >= self._read_at:
            self._look_closely()
        elif now >= self._glance_at:
            self._glanced_at, self._glance_at = now, now + self._rhythm.glance
            if self._glance() != self._seen:
                self._expect_change(now)
        if self._found is None:
            return
        current = gpu_health.applied(self._faults, self._found)
        if current != self._told:
            try:
                on_change(current)
                self._told = current
            except KoordraError as error:
                log.error("machine_change_not_taken", error=str(error))

    def _look_closely(self) -> None:
        self._seen = self._glance()
        self._found = self._read()
        now = self._clock()
        self._faults = gpu_health.settled(self._faults, self._found, now=now)
        self._first_event = None
        self._glanced_at, self._glance_at = now, now + self._rhythm.glance
        ailing = bool(self._faults) or any(map(_ailing, self._found.machine.gpus))
        self._read_at = now + (self._rhythm.recheck if ailing else self._rhythm.full)

    def _hear(self, source: EventSource) -> None:
        now = self._clock()
        for event in source.take():
            match event:
                case HardwareChanged():
                    log.debug("machine_event", what=event.what)
                    self._expect_change(now)
                case PortsMayHaveChanged():
                    soon = max(now + self._rhythm.settle, self._glanced_at + self._rhythm.between_glances)
                    self._glance_at = min(self._glance_at, soon)
                case XidReported():
                    log.warning("xid", gpu=event.bus_id, xid=event.number)
                    self._faults = gpu_health.heard(
                        self._faults, event.bus_id, event.number, now=now, ignored=self._ignored
                    )
                    self._expect_change(now)

    def _expect_change(self, now: float) -> None:
        """A reading when things have calmed down, at the latest ``longest`` after the first sign."""
        if self._first_event is None:
            self._first_event = now
        calm = min(now + self._rhythm.settle, self._first_event + self._rhythm.longest)
        self._read_at = min(self._read_at, calm) if self._read_at <= now else calm


def _ailing(gpu: Gpu) -> bool:
    """Whether the card may recover by itself or by a reset. One that the driver does not have (vfio) may not."""
    return bool(gpu.faults) or (gpu.minor is not None and not gpu.certain)
