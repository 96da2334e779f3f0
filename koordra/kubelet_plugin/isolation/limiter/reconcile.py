"""Reconciles the limiters' ledgers with what the driver reports: ten times a second while something changes,
else once.

    regions ──> ledger ─┐
    NVML ──> processes ─┼──> unseen bytes ──> policy of each claim: they count now  (unaccounted_memory.py)
    /proc ──> claims   ─┘    computing without a slot, twice in a row ──> policy: `bypassed`
                             what a context takes ──> kept for the next one         (unaccounted_memory.py)
                             more than the share, three times ──> `overused`        (overuse.py)
    sampler ──> more time than the share for a while ────────────> `overused`        (overtime.py)
    regions ──> has a handshake changed? ──> `changed`: the claim's condition is written
            ──> grown beyond its size? ──> cut back

A source that does not answer changes nothing: without NVML contexts are what was reserved for them and
modules stay uncounted; without the host's pid namespace a process without a slot is neither counted nor
reported. That is logged once, and counted (docs/metrics.md).

Nothing announces that a process takes memory past the limiter: NVML has events for errors, power and MIG,
none for memory or processes, and the device nodes that a container opens are not the host's. So the node
polls, often while something happens and seldom while nothing does:

    a process takes a slot, or is refused          a poll at once (it calls the broker), then every BRISK
                                                   seconds
    unseen bytes, processes or a verdict changed   every BRISK seconds
    BRISK_FOR seconds without any of that          every QUIET seconds

A poll takes LOAD of one processor's time at most: after a slow one (many claims, a driver that is slow to
answer) the pause is as much longer, up to LONGEST, so that overuse is told within 10 s where a poll takes a
second. Bytes that the limiter does not see are counted within BRISK and one poll where a process has just
started or such bytes have just changed, and within QUIET, or that pause, and one poll in a program that was
quiet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from koordra.errors import KoordraError, NodeError
from koordra.kubelet_plugin.isolation.limiter import region, unaccounted_memory
from koordra.kubelet_plugin.isolation.limiter.overtime import OverTime
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse, OveruseSamples, over_limit
from koordra.kubelet_plugin.isolation.limiter.report import (
    LimiterMetrics,
    LimiterVerdict,
    overused,
    read_all,
    verdict,
    verdicts,
)
from koordra.kubelet_plugin.isolation.limiter.unaccounted_memory import Contexts, MemoryReading
from koordra.kubelet_plugin.isolation.limiter.usage import ClaimUse
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses
from koordra.logs import get_logger
from koordra.metrics import Metrics, counter, gauge, histogram
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.granted_claims import ContainerName
from koordra.process.wakeable import Pause, Wakeable

QUIET: Final = 1.0
BRISK: Final = 0.1
BRISK_FOR: Final = 3.0
LOAD: Final = 0.05
LONGEST: Final = 2.0


def pause_after(*, took: float, quiet_for: float) -> Pause:
    """After a reconciliation that `took` so many seconds, `quiet_for` seconds after the last change."""
    rest = min(took / LOAD, LONGEST)
    return Pause(at_least=max(BRISK, rest), at_most=max(QUIET if quiet_for > BRISK_FOR else BRISK, rest))


LOOKS: Final = counter(
    "koordra_limiter_looks_total",
    "Comparisons of the limiters' ledgers with NVML; failed: NVML did not answer",
    result=("ok", "failed"),
)
OUTSIDE: Final = gauge(
    "koordra_limiter_outside_processes",
    "Processes of this node that compute without a limit on a card of limited claims",
)
CUT_BACK: Final = counter(
    "koordra_limiter_cut_back_total",
    "Files of the limiter that a tenant had made longer, and that were cut back",
)
LOOK_SECONDS: Final = histogram(
    "koordra_limiter_look_seconds", "How long one comparison of the limiters' ledgers with NVML takes"
)

log = get_logger(__name__)

SURE_AFTER: Final = 1.0
"""Seconds for which a process must appear in every reading before it is reported as computing without a
limit, or before its memory counts as its whole context: a process that starts or ends is neither."""

ProcessLists = Callable[[Iterable[str]], Mapping[str, CardProcesses]]
"""By UUID; a card that does not answer is left out. Raises NodeError where none can be asked."""

Suspect = tuple[str, int, int]
"""Claim or card, pid, and when it started."""


class Reconciler(Wakeable):
    """`claims` is the folder with one folder per claim. All state belongs to the thread of `run`, or to the
    caller of `once`."""

    def __init__(
        self,
        claims: Path,
        *,
        contexts: Contexts,
        metrics: Metrics,
        processes: HostProcesses,
        lists: ProcessLists,
        changed: Callable[[], None] = lambda: None,
        ref_of: Callable[[str], ClaimRef | None] = lambda _uid: None,
        containers: Callable[[], Mapping[str, Sequence[ContainerName]]] = dict,
        over_time: Callable[[], Mapping[str, OverTime]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._claims = claims
        self._contexts = contexts
        self._processes = processes
        self._lists = lists
        self._changed = changed
        self._clock = clock
        self._changed_at = clock()
        self._report = LimiterMetrics(metrics, ref_of=ref_of, containers=containers)
        self._looks = metrics.counter(LOOKS)
        self._outside = metrics.gauge(OUTSIDE)
        self._cut = metrics.counter(CUT_BACK)
        self._took = metrics.histogram(LOOK_SECONDS)
        self._samples = OveruseSamples()
        self._over_time = over_time
        self._over_limit: Mapping[str, Overuse] = {}
        self.overused: Mapping[str, Overuse | OverTime] = {}
        self._suspects: dict[Suspect, float] = {}
        self._seen: dict[Suspect, float] = {}
        self._state: object = None
        self._verdicts: dict[str, LimiterVerdict] = {}
        self._blind = False
        self._warned = False

    def step(self) -> Pause:
        began, changed = self._clock(), False
        try:
            changed = self.once()
        except (OSError, ValueError, KoordraError) as error:
            log.warning("limiter_not_compared", error=str(error))
        ended = self._clock()
        self._took.observe(ended - began)
        if self.was_woken or changed:
            self._changed_at = ended
        return pause_after(took=ended - began, quiet_for=ended - self._changed_at)

    def once(self) -> bool:
        """One reconciliation; returns whether anything has changed since the last one."""
        self._cut_back()
        uses = read_all(self._claims)
        if uses:
            self._compare(uses)
        else:
            self._over_limit = self._samples.add({}, now=self._clock())
            self._outside.set(0)
        self.overused = {**self._over_time(), **self._over_limit}
        uses = read_all(self._claims)
        now = verdicts(uses)
        now |= {uid: overused(each, before=now[uid]) for uid, each in self.overused.items() if uid in now}
        self._report.observe(uses, now.values())
        if now != self._verdicts:
            for uid, each in now.items():
                if each != self._verdicts.get(uid):
                    log.info("limiter_state", claim=uid, state=each.reason)
            self._verdicts = now
            self._changed()
        # Without the bytes held: a program that allocates and frees all day is no change.
        owners = {(uid, each.slot, each.generation) for uid, use in uses.items() for each in use.processes}
        unseen = unaccounted_memory.known_unseen(uses)
        before, self._state = self._state, (now, owners, unseen, frozenset(self._suspects))
        return before != self._state

    def verdict(self, uid: str) -> LimiterVerdict | None:
        over, found = self.overused.get(uid), verdict(self._claims, uid)
        return overused(over, before=found) if over and found else found

    def _compare(self, uses: dict[str, ClaimUse]) -> None:
        if not self._warned and not self._processes.all_seen:
            log.warning("limiter_not_among_hosts_processes", remedy="run the plugin with hostPID: true")
        self._warned = True
        known = unaccounted_memory.known_unseen(uses)
        readings: list[MemoryReading] = []
        try:
            while len(readings) < unaccounted_memory.READINGS:
                reading, uses = self._read_driver(uses)
                readings.append(reading)
                if len(readings) == 1 and not unaccounted_memory.changes(known, reading):
                    break
        except NodeError as error:
            self._looks.labels("failed").inc()
            if not self._blind:
                log.warning(
                    "gpu_memory_not_readable",
                    error=str(error),
                    effect="modules and other interfaces stay uncounted",
                )
            self._blind = True
            return
        self._blind = False
        self._looks.labels("ok").inc()
        self._write_policies(uses, known, readings)
        # Each of the readings has to be over: one may have met memory that came and went.
        over = over_limit(uses, readings[-1].in_use)
        for earlier in readings[:-1]:
            over = {share: over[share] for share in over.keys() & over_limit(uses, earlier.in_use).keys()}
        self._over_limit = self._samples.add(over, now=self._clock())
        self._learn(readings)

    def _read_driver(self, before: Mapping[str, ClaimUse]) -> tuple[MemoryReading, dict[str, ClaimUse]]:
        """One reading of the driver between two of the ledger. A pid counts if it was the same process
        throughout."""
        cards = self._lists(sorted({device.uuid for use in before.values() for device in use.devices}))
        processes = self._processes.find(sorted({pid for card in cards.values() for pid in card.used}))
        after = read_all(self._claims)
        sure = self._processes.all_seen
        return unaccounted_memory.reading(before, cards, processes, after, sure=sure), after

    def _write_policies(
        self,
        uses: Mapping[str, ClaimUse],
        known: Mapping[tuple[str, str], int],
        readings: list[MemoryReading],
    ) -> None:
        suspects = frozenset.intersection(*(reading.outside for reading in readings))
        now = self._clock()
        self._suspects = {each: self._suspects.get(each, now) for each in suspects}
        certain = {each for each, since in self._suspects.items() if now - since >= SURE_AFTER}
        self._outside.set(len(certain))
        for uid, use in uses.items():
            # After a restart of the plugin, processes that were reported stay reported while they exist.
            outside = max(
                sum(1 for each in certain if each[0] == uid),
                min(sum(1 for each in suspects if each[0] == uid), use.outside),
            )
            try:
                for device in use.devices:
                    share = uid, device.uuid
                    figure = unaccounted_memory.settled(
                        known.get(share, 0),
                        [reading.unseen[share] for reading in readings if share in reading.unseen],
                    )
                    context = self._contexts.bytes_for(device.uuid)
                    if (figure, context) != (device.unseen, device.context_bytes):
                        region.write_unaccounted(
                            self._claims / uid, device.uuid, figure, context_bytes=context
                        )
                if outside != use.outside:
                    region.write_outside(self._claims / uid, outside)
            except (OSError, NodeError) as error:
                log.debug("limiter_policy_not_written", claim=uid, error=str(error))  # it is being taken away

    def _learn(self, readings: list[MemoryReading]) -> None:
        seen = {(uuid, pid, started) for reading in readings for uuid, pid, started, _ in reading.overheads}
        now = self._clock()
        self._seen = {each: self._seen.get(each, now) for each in seen}
        for uuid, pid, started, overhead in readings[-1].overheads:
            if now - self._seen[uuid, pid, started] >= SURE_AFTER:
                self._contexts.learn(uuid, overhead)

    def _cut_back(self) -> None:
        """Truncate what a tenant has written past the end of its `usage`, which would fill the disk."""
        for folder in self._claims.iterdir() if self._claims.is_dir() else ():
            path = folder / "usage"
            try:
                if path.stat().st_size > region.USAGE_BYTES:
                    os.truncate(path, region.USAGE_BYTES)
                    self._cut.inc()
                    log.warning("region_cut_back", claim=folder.name)
            except OSError:
                continue
