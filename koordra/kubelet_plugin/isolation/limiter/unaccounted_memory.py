"""How many bytes of a card a claim uses beyond its ledger: contexts, modules, whatever did not go through the
limiter; and what to reserve for a process's first context. Pure, but for the figures of contexts, which are
kept in a file.

The driver knows how much each process holds, the ledger what the process was granted; the difference is
`unseen`, and counts against the claim as soon as the node has written it. The two cannot be read at one
instant, so the ledger is read before and after the driver:

    granted(before), bytes, granted(after) ─> from bytes - the larger to bytes - the smaller, never below 0

A reading whose bounds include the known value changes nothing. Otherwise there are three readings, each
clamps the known value to its bounds, and the median counts: one wrong reading (memory that came and went
between two readings of the ledger) does no harm.

Each process is compared on its own: what one was granted and has not taken (managed memory that is not on the
card) does not hide what another has beyond. A process that computes on the claim's card without a slot in its
region got around the limiter; all its bytes count. A value that the driver does not report leaves the known
one unchanged.

No process is reported without need. A process that is ending has lost its slot and is still listed, for
seconds if the driver has much to clean up; what its slot held counts as granted for as long as the limiter
counts it. If the owner of a slot is not known, any process may be it. And if the plugin is not in the host's
pid namespace (`sure` is false), the driver's pids may be of other processes: only those with a slot are
considered.

**Contexts.** The first context takes hundreds of MiB that no call names, and it cannot be measured from
inside: the free memory of a card can only be queried with a context. So the node decides what to reserve for
one:

    --limiter-context 600Mi   that much, on every card
    --limiter-context auto    what was measured on such a card with this driver; before that, what is usual
                              for the card's architecture, rounded up

Measured is what NVML reports for a process with one context beyond its ledger, in two readings in a row; the
smallest value counts, since modules come on top. A process's own ledger is believed only between LEAST and
MOST, so that a false one can shift others' reserve by no more; `unseen` corrects what the reserve gets wrong.
The values survive a restart of the plugin in <state>/limiter/contexts.json, by card model, MIG or not, and
driver.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from koordra.kubelet_plugin.isolation.limiter.usage import ClaimUse, ProcessUse
from koordra.kubelet_plugin.sampling.host_processes import Process
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses
from koordra.logs import get_logger
from koordra.node_state.disk import Disk
from koordra.node_state.strict_json import load
from koordra.topology.machine import Gpu, Machine

log = get_logger(__name__)

MIB: Final = 1 << 20
LEAST: Final = 32 * MIB
MOST: Final = 2048 * MIB

USUAL: Final = {
    "Pascal": 256 * MIB,
    "Volta": 384 * MIB,
    "Turing": 256 * MIB,
    "Ampere": 512 * MIB,
    "Ada": 512 * MIB,
    "Hopper": 640 * MIB,
    "Blackwell": 768 * MIB,
}
"""Rounded up from commonly observed values, with lazily loaded modules; none was measured for koordra."""

UNKNOWN: Final = 768 * MIB
"""A card of another architecture: no less than any of those."""


class Contexts:
    """`machine` is the node's, asked for at each use; `declared` None learns, else it is the figure for every
    card."""

    def __init__(
        self,
        file: Path,
        *,
        machine: Callable[[], Machine],
        declared: int | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._file = file
        self._machine = machine
        self._declared = declared
        self._disk = disk or Disk()
        self._lock = threading.Lock()
        self._learned: dict[str, int] | None = None

    def bytes_for(self, uuid: str) -> int:
        if self._declared is not None:
            return self._declared
        gpu, key = _card(self._machine(), uuid)
        with self._lock:
            learned = self._known().get(key)
        return learned if learned is not None else USUAL.get(gpu.architecture or "" if gpu else "", UNKNOWN)

    def learn(self, uuid: str, seen: int) -> bool:
        """A process with one context was seen to have this much for it and its modules; whether it is new."""
        if self._declared is not None or not LEAST <= seen <= MOST:
            return False
        gpu, key = _card(self._machine(), uuid)
        with self._lock:
            known = self._known()
            if gpu is None or known.get(key, MOST + 1) <= seen:
                return False
            known[key] = seen
            try:
                self._disk.replace(
                    self._file,
                    json.dumps(known, indent=1, sort_keys=True).encode(),
                    mode=0o644,
                    durable=False,
                )
            except OSError as error:
                log.warning("context_figures_not_kept", file=str(self._file), error=str(error))
        log.info("context_measured", card=key, bytes=seen)
        return True

    def _known(self) -> dict[str, int]:
        if self._learned is None:
            try:
                self._learned = {
                    str(key): int(value)
                    for key, value in load(self._disk.read(self._file) or b"{}").items()
                    if LEAST <= int(value) <= MOST
                }
            except (OSError, ValueError, TypeError, AttributeError) as error:
                log.warning("context_figures_unreadable", file=str(self._file), error=str(error))
                self._learned = {}
        return self._learned


def _card(machine: Machine, uuid: str) -> tuple[Gpu | None, str]:
    wanted = _digits(uuid)
    for gpu in machine.gpus:
        kinds = {_digits(gpu.uuid): ""} | {_digits(each.uuid): " MIG" for each in gpu.mig_instances}
        if wanted in kinds:
            return (
                gpu,
                f"{gpu.product_name or gpu.architecture}{kinds[wanted]}, driver {machine.driver_version}",
            )
    return None, "unknown"


def _digits(uuid: str | None) -> str:
    return (uuid or "").partition("-")[2].lower()


READINGS: Final = 3

Uses = Mapping[str, ClaimUse]
Share = tuple[str, str]
"""A claim's uid and a card's UUID."""


@dataclass(frozen=True, slots=True)
class Interval:
    low: int
    high: int

    def brought(self, figure: int) -> int:
        return min(max(figure, self.low), self.high)


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """`unseen` by share, without those that are not known; `outside`: who computes without a slot, as (claim,
    pid, start); `overheads`: what processes with one context have beyond all that they were granted but it,
    as (card, pid, start, bytes); `in_use`: all bytes of a share's processes but those that are ending, where
    NVML tells them and they are nobody else's."""

    unseen: Mapping[Share, Interval]
    outside: frozenset[tuple[str, int, int]]
    overheads: tuple[tuple[str, int, int, int], ...]
    in_use: Mapping[Share, int] = field(default_factory=dict)


def reading(
    before: Uses,
    cards: Mapping[str, CardProcesses],
    processes: Mapping[int, Process],
    after: Uses,
    *,
    sure: bool = True,
) -> MemoryReading:
    """One reading. Processes of no limited claim, and those that are not in `processes`, are left out: the
    sampler tells whose they are."""
    unseen: dict[Share, Interval] = {}
    outside: set[tuple[str, int, int]] = set()
    overheads: list[tuple[str, int, int, int]] = []
    in_use: dict[Share, int] = {}
    for uuid, card in cards.items():
        unreported: set[str] = set()
        shared: set[str] = set()
        totals = dict.fromkeys((uid for uid, use in before.items() if _index(use, uuid) is not None), 0)
        bounds: dict[str, tuple[int, int]] = {
            uid: (0, 0) for uid, use in before.items() if _index(use, uuid) is not None
        }
        for pid, used in card.used.items():
            process = processes.get(pid)
            claims = [uid for uid in process.claims if uid in bounds and uid in after] if process else []
            if process is None or not claims:
                continue
            earlier, later = (
                [slot for uid in claims for slot in _slots(uses[uid], process)] for uses in (before, after)
            )
            if not earlier and not later:
                if not sure:
                    continue
                # A slot's owner is unknown if it could not read its namespace, and the broker was not
                # running.
                slots = [each for uid in claims for uses in (before, after) for each in uses[uid].processes]
                nameless = any(not each.host_pid and not each.pid_namespace for each in slots)
                if used is not None and pid in card.computing and not process.ending and not nameless:
                    outside.add((claims[0], pid, process.started))
            if used is None:
                unreported.add(claims[0])
                continue
            totals[claims[0]] += 0 if process.ending else used
            shared |= set(claims) if len(claims) > 1 else set()
            held = [_held(slots, uuid) for slots in (earlier, later)]
            low, high = bounds[claims[0]]
            bounds[claims[0]] = low + max(0, used - max(held)), high + max(0, used - min(held))
            overhead = _overhead(before[claims[0]], earlier, uuid) if len(claims) == 1 else None
            if overhead is not None and held[0] == held[1]:
                overheads.append((uuid, pid, process.started, used - overhead))
        unseen |= {
            (uid, uuid): Interval(*each)
            for uid, each in bounds.items()
            if uid not in unreported and uid in after
        }
        in_use |= {
            (uid, uuid): total
            for uid, total in totals.items()
            if uid not in unreported | shared and uid in after and not card.through_mps
        }
    return MemoryReading(unseen, frozenset(outside), tuple(overheads), in_use)


def settled(known: int, intervals: Sequence[Interval]) -> int:
    """The figure after these readings of one share; as it was where there are none."""
    return int(median(each.brought(known) for each in intervals)) if intervals else known


def changes(known: Mapping[Share, int], read: MemoryReading) -> bool:
    """Whether the reading contradicts what is known, so that it is worth another two."""
    return any(
        each.brought(known.get(share, 0)) != known.get(share, 0) for share, each in read.unseen.items()
    )


def known_unseen(uses: Uses) -> dict[Share, int]:
    return {(uid, device.uuid): device.unseen for uid, use in uses.items() for device in use.devices}


def _index(use: ClaimUse, uuid: str) -> int | None:
    return next((index for index, device in enumerate(use.devices) if device.uuid == uuid), None)


def _slots(use: ClaimUse, process: Process) -> list[tuple[ClaimUse, ProcessUse]]:
    me = process.inner_pid, process.namespace
    return [
        (use, slot)
        for slot in (*use.processes, *use.ended)
        if slot.host_pid == process.pid or (slot.pid, slot.pid_namespace) == me
    ]


def _held(slots: Iterable[tuple[ClaimUse, ProcessUse]], uuid: str) -> int:
    total = 0
    for use, slot in slots:
        index = _index(use, uuid)
        total += slot.held[index] if index is not None else 0
    return total


def _overhead(use: ClaimUse, slots: Sequence[tuple[ClaimUse, ProcessUse]], uuid: str) -> int | None:
    """What a process was granted apart from its one context; None where it has no context or several."""
    index = _index(use, uuid)
    if index is None or len(slots) != 1:
        return None
    slot = slots[0][1]
    context = slot.kinds[index]["context"]
    return slot.held[index] - context if context and context == use.devices[index].context_bytes else None
