"""Follows a machine: reads it again when an event announces a change, and reports readings that differ.

    events (uevents, links, Xids)  ──┐
    a probe every few seconds      ──┼──> a reading, once events have settled ──> different? report
    a full reading now and then    ──┘

* Events of devices come in bursts (a card with 128 virtual functions takes seconds to appear), so a reading
  waits until no event has come for ``settle`` seconds, but never longer than ``settle_limit``.
* An Xid is reported at once, on the last reading; the reading that follows shows whether the card is still
  there.
* While a card is faulty, or the driver has it and it does not answer completely, the machine is read every
  ``recheck`` seconds, since no event announces a recovery.
* The probe is taken before each reading, so a change during the reading shows at the next probe.

An Xid that an application causes (a bad pointer, its own end) says nothing about the card. Any other makes
the card faulty until the driver reports, some seconds after the Xid, that the card needs no recovery (drivers
since R560), or until the card, or its driver, went away and came back whole. The faults are a value; each
step returns the next one.

The driver calls ``MachineWatcher.of(root).run(stop, on_change)``.
"""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from koordra.errors import KoordraError
from koordra.kubelet_plugin.discovery.events import (
    EventSource,
    HardwareChanged,
    LinkChanges,
    PortsMayHaveChanged,
    Uevents,
    XidEvents,
    XidReported,
)
from koordra.kubelet_plugin.discovery.reading import discover, probe
from koordra.logs import get_logger
from koordra.topology.machine import Gpu
from koordra.topology.problems import Discovery

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Graphics exception, page fault, stopped channel, preemptive clean-up, video exception, context switch
timeout: caused by applications (NVIDIA, "Xid Errors", and the list that NVIDIA's device plugin ignores)."""

RECOVERY_TRUSTED_AFTER = 5.0
"""Seconds after an Xid from which on the driver's report that no recovery is needed counts."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``away``: a reading since then lacked the card, or its identity."""

    xid: int
    observed_at: float
    away: bool = False


Faults = Mapping[str, Fault]
"""Bus id -> the card's last fault."""


def with_xid(faults: Faults, bus_id: str, xid: int, *, now: float) -> Faults:
    return faults if xid in APPLICATION_XIDS else {**faults, bus_id: Fault(xid=xid, observed_at=now)}


def after_reading(faults: Faults, found: Discovery, *, now: float) -> Faults:
    """The faults after a reading, without those that it shows to be over."""
    gpus = {gpu.location.bus_id: gpu for gpu in found.machine.gpus}
    after: dict[str, Fault] = {}
    for bus_id, fault in faults.items():
        gpu = gpus.get(bus_id)
        if gpu is None or not gpu.certain:
            after[bus_id] = replace(fault, away=True)
        elif not _over(fault, gpu, now=now):
            after[bus_id] = fault
    return after


def _over(fault: Fault, gpu: Gpu, *, now: float) -> bool:
    if gpu.recovered is not None:
        return gpu.recovered and now - fault.observed_at >= RECOVERY_TRUSTED_AFTER
    return fault.away


def with_faults(faults: Faults, found: Discovery) -> Discovery:
    if not faults:
        return found
    gpus = tuple(
        replace(gpu, faults=(*gpu.faults, f"Xid{faults[gpu.location.bus_id].xid}"))
        if gpu.location.bus_id in faults
        else gpu
        for gpu in found.machine.gpus
    )
    return replace(found, machine=replace(found.machine, gpus=gpus))


log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """All in seconds. ``stop_within`` bounds how long ``stop`` waits for the watcher; network links that
    change all the time cause at most one probe in ``between_probes``."""

    settle: float = 0.3
    settle_limit: float = 3.0
    probe: float = 5.0
    between_probes: float = 1.0
    recheck: float = 30.0
    full: float = 900.0
    stop_within: float = 0.25


@dataclass
class MachineWatcher:
    """Watches one machine. All state belongs to the thread that runs ``run``."""

    read: Callable[[], Discovery]
    probe: Callable[[], Hashable]
    sources: Sequence[EventSource] = ()
    timing: WatchTiming = WatchTiming()
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._faults: Faults = {}
        self._seen: Hashable = None
        self._found: Discovery | None = None
        self._reported: Discovery | None = None
        self._read_at = self._probe_at = self._probed_at = 0.0
        self._first_event: float | None = None

    @classmethod
    def of(cls, root: Path) -> MachineWatcher:
        """A watcher of the machine below ``root``, with the kernel's and NVML's events where it is this
        machine."""
        sources: list[EventSource] = []
        xids: XidEvents | None = None
        if root.resolve() == Path("/"):
            for kind in (Uevents, LinkChanges):
                try:
                    sources.append(kind())
                except OSError as error:
                    log.warning("event_source_unavailable", source=kind.__name__, error=str(error))
            xids = XidEvents()
            xids.start()
            sources.append(xids)

        def read() -> Discovery:
            with xids.paused() if xids else contextlib.nullcontext():
                return discover(root)

        return cls(read=read, probe=lambda: probe(root), sources=sources)

    def run(self, stop: threading.Event, on_change: Callable[[Discovery], None]) -> None:
        """Until ``stop``: report the first reading, and each one that differs from the last reported.

        ``on_change`` runs in this thread. If it raises a KoordraError, it is called again within a second.
        """
        with selectors.DefaultSelector() as selector:
            for source in self.sources:
                selector.register(source.fileno(), selectors.EVENT_READ, source)
            try:
                while not stop.is_set():
                    self._act(on_change)
                    due = min(self._read_at, self._probe_at) - self.clock()
                    for key, _ in selector.select(max(0.0, min(due, self.timing.stop_within))):
                        self._observe(key.data)
            finally:
                for source in self.sources:
                    source.close()

    def _act(self, on_change: Callable[[Discovery], None]) -> None:
        now = self.clock()
        if now >= self._read_at:
            self._read_machine()
        elif now >= self._probe_at:
            self._probed_at, self._probe_at = now, now + self.timing.probe
            if self.probe() != self._seen:
                self._expect_change(now)
        if self._found is None:
            return
        current = with_faults(self._faults, self._found)
        if current != self._reported:
            try:
                on_change(current)
                self._reported = current
            except KoordraError as error:
                log.error("machine_change_failed", error=str(error))

    def _read_machine(self) -> None:
        self._seen = self.probe()
        self._found = self.read()
        now = self.clock()
        self._faults = after_reading(self._faults, self._found, now=now)
        self._first_event = None
        self._probed_at, self._probe_at = now, now + self.timing.probe
        # One that the driver has not bound (vfio) does not recover by itself, nor by a reset.
        recovering = bool(self._faults) or any(
            gpu.faults or (gpu.minor is not None and not gpu.certain) for gpu in self._found.machine.gpus
        )
        self._read_at = now + (self.timing.recheck if recovering else self.timing.full)

    def _observe(self, source: EventSource) -> None:
        now = self.clock()
        for event in source.take():
            match event:
                case HardwareChanged():
                    log.debug("machine_event", what=event.what)
                    self._expect_change(now)
                case PortsMayHaveChanged():
                    self._probe_at = min(
                        self._probe_at,
                        max(now + self.timing.settle, self._probed_at + self.timing.between_probes),
                    )
                case XidReported():
                    log.warning("gpu_xid_error", gpu=event.bus_id, xid=event.number)
                    self._faults = with_xid(self._faults, event.bus_id, event.number, now=now)
                    self._expect_change(now)

    def _expect_change(self, now: float) -> None:
        """Schedule a reading once events have settled, at the latest ``settle_limit`` after the first."""
        if self._first_event is None:
            self._first_event = now
        settled_at = min(now + self.timing.settle, self._first_event + self.timing.settle_limit)
        self._read_at = min(self._read_at, settled_at) if self._read_at <= now else settled_at
