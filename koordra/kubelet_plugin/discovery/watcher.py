"""Follows a machine: reads it again when an event announces a change, and reports readings that differ.

    events (uevents, links, Xids)  ──┐
    a probe every few seconds      ──┼──> a reading, once events have settled ──> different? report
    a full reading now and then    ──┘

* Events of devices come in bursts (a card with 128 virtual functions takes seconds to appear), so a reading
  waits until no event has come for ``settle`` seconds, but never longer than ``settle_limit``.
* A reading opens NVML and takes a second or more, so two are ``between_readings`` seconds apart: a link that
  goes up and down all the time does not keep the node busy.
* Xids come from NVML and from the kernel's log, which also has those of the time in which nobody listened.
  What both tell, and what comes by the hundred, is one report a second.
* An Xid is reported at once, on the last reading; the reading that follows shows whether the card is still
  there. After one that is no fault (gpu_faults.NO_FAULT) NVML may still say that memory is to be repaired, or
  what the card needs; but programs can make them, so that such a reading comes ``recheck`` seconds after the
  last one.
* While a card is faulty, or the driver has it and it does not answer completely, the machine is read every
  ``recheck`` seconds, since no event announces a recovery.
* The probe is taken before each reading, so a change during the reading shows at the next probe.

Of what was seen in the past two things still count: Xids (gpu_faults.py) and links that went down again and
again (link_flaps.py). Both are values; each step returns the next one.

The driver calls ``MachineWatcher.of(root).run(stop, on_change)``.
"""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from koordra.errors import KoordraError
from koordra.kubelet_plugin.discovery import link_flaps
from koordra.kubelet_plugin.discovery.events import (
    DriverLoaded,
    EventSource,
    HardwareChanged,
    PortsMayHaveChanged,
    XidReported,
)
from koordra.kubelet_plugin.discovery.events.kernel_log import KMSG, KernelLog
from koordra.kubelet_plugin.discovery.events.netlink import LinkChanges, Uevents
from koordra.kubelet_plugin.discovery.events.xid_events import XidEvents
from koordra.kubelet_plugin.discovery.gpu_faults import NO_FAULT, Ledger, LedgerFile
from koordra.kubelet_plugin.discovery.gpus import library_nodes
from koordra.kubelet_plugin.discovery.link_flaps import Flaps, with_flaps
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.nvml_gpus import LastFacts
from koordra.kubelet_plugin.discovery.reading import boot_id, discover_with_driver, probe
from koordra.kubelet_plugin.nvidia_driver.device_nodes import make_missing
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.logs import get_logger
from koordra.node_state.disk import Disk
from koordra.process.progress import step, watched
from koordra.topology.problems import Discovery

log = get_logger(__name__)

ONE_REPORT_IN: Final = 1.0
"""Seconds in which an Xid of one card is reported once: less than passes before the driver's word that the
card needs no recovery is trusted."""


def _make_nodes_of_library(root: MachineRoot) -> None:
    """What NVML opens, in this process's /dev: it makes no nodes itself without nvidia-modprobe."""
    try:
        make_missing(Path("/dev"), library_nodes(root))
    except OSError as error:
        log.warning("device_nodes_not_made", error=str(error))


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """All in seconds. ``stop_within`` bounds how long ``stop`` waits for the watcher; network links that
    change all the time cause at most one probe in ``between_probes``."""

    settle: float = 0.3
    settle_limit: float = 3.0
    probe: float = 5.0
    between_probes: float = 1.0
    between_readings: float = 3.0
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
    remembered: LedgerFile | None = None

    def __post_init__(self) -> None:
        self._ledger = self.remembered.load() if self.remembered else Ledger()
        self._flaps: Flaps = {}
        self._xids: dict[tuple[str, int], float] = {}
        self._seen: Hashable = None
        self._found: Discovery | None = None
        self._reported: Discovery | None = None
        self._read_at = self._probe_at = self._probed_at = 0.0
        self._last_reading = 0.0
        self._first_event: float | None = None

    @classmethod
    def of(
        cls,
        root: Path,
        homes: HomeSource,
        library: NvmlLibrary,
        *,
        state: Path | None = None,
        disk: Disk | None = None,
    ) -> MachineWatcher:
        """A watcher of the machine below ``root``, with the kernel's and NVML's events where it is this
        machine. ``homes``: where its GPU driver lives; one that comes, goes or is replaced shows at a probe,
        since no event announces files. ``state``: where Xids and the place in the kernel's log are
        remembered; None: the log is not read, and they are forgotten with this watcher."""
        remembered = LedgerFile(state, disk or Disk(), boot_id=boot_id(root)) if state else None
        sources: list[EventSource] = []
        xids: XidEvents | None = None
        if root.resolve() == Path("/"):
            kinds: list[Callable[[], EventSource]] = [Uevents, LinkChanges]
            if remembered is not None:
                kinds.append(partial(KernelLog.opened, KMSG, following=remembered.load().following))
            for opened in kinds:
                try:
                    sources.append(opened())
                except OSError as error:
                    log.warning("event_source_unavailable", source=str(opened), error=str(error))
            xids = XidEvents(library)
            xids.start()
            sources.append(xids)

        facts = LastFacts(library)

        def read() -> Discovery:
            with xids.paused() if xids else contextlib.nullcontext():
                if xids:
                    _make_nodes_of_library(MachineRoot(root, homes.dev_folders(homes.now())))
                return discover_with_driver(root, homes, library=facts)

        def look() -> Hashable:
            home = homes.now()
            return probe(root, homes.dev_folders(home)), home

        return cls(read=read, probe=look, sources=sources, remembered=remembered)

    @watched()
    def run(self, stop: threading.Event, on_change: Callable[[Discovery], None]) -> None:
        """Until ``stop``: report the first reading, and each one that differs from the last reported.

        ``on_change`` runs in this thread. If it raises a KoordraError, it is called again within a second.
        """
        with selectors.DefaultSelector() as selector:
            for source in self.sources:
                selector.register(source.fileno(), selectors.EVENT_READ, source)
            try:
                while not stop.is_set():
                    step()
                    self._act(on_change)
                    due = min(self._read_at, self._probe_at) - self.clock()
                    for key, _ in selector.select(max(0.0, min(due, self.timing.stop_within))):
                        self._observe(key.data)
            finally:
                for source in self.sources:
                    source.close()
                if self.remembered is not None:
                    self.remembered.save(self._ledger, also_the_place=True)

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
        current = self._ledger.judge(self._found)
        current = replace(current, machine=with_flaps(self._flaps, current.machine, now=now))
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
        self._flaps = link_flaps.after_reading(self._flaps, self._found.machine, now=now)
        self._remember(self._ledger.after_reading(self._found, now=now))
        self._first_event = None
        self._last_reading = now
        self._probed_at, self._probe_at = now, now + self.timing.probe
        # One that the driver has not bound (vfio) does not recover by itself, nor by a reset.
        recovering = (
            bool(self._ledger.faults)
            or any(
                gpu.faults or (gpu.minor is not None and not gpu.certain) for gpu in self._found.machine.gpus
            )
            or any(history.rose_at for history in self._flaps.values())
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
                    self._observe_xid(event, now)
                case DriverLoaded():
                    self._remember(self._ledger.read_until(event.sequence).with_driver_reloaded())
                    self._expect_change(now)

    def _observe_xid(self, event: XidReported, now: float) -> None:
        ledger = self._ledger.read_until(event.sequence)
        self._remember(ledger.with_xid(event.bus_id, event.number, now=now))
        reported = self._xids.get((event.bus_id, event.number))
        if reported is not None and now - reported < ONE_REPORT_IN:
            return
        self._xids[event.bus_id, event.number] = now
        faulty = event.number not in NO_FAULT
        (log.warning if faulty else log.info)("gpu_xid_error", gpu=event.bus_id, xid=event.number)
        if faulty:
            self._expect_change(now)
        else:
            rechecked_at = max(now + self.timing.settle, self._last_reading + self.timing.recheck)
            self._read_at = min(self._read_at, rechecked_at)

    def _remember(self, ledger: Ledger) -> None:
        self._ledger = ledger
        if self.remembered is not None:
            self.remembered.save(ledger)

    def _expect_change(self, now: float) -> None:
        """Schedule a reading once events have settled, at the latest ``settle_limit`` after the first, and
        not too soon after the last reading."""
        if self._first_event is None:
            self._first_event = now
        settled_at = min(now + self.timing.settle, self._first_event + self.timing.settle_limit)
        settled_at = max(settled_at, self._last_reading + self.timing.between_readings)
        self._read_at = min(self._read_at, settled_at) if self._read_at <= now else settled_at
