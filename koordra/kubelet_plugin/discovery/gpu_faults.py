"""Xids as faults of cards, and their ledger, which outlives the plugin.

After most Xids there is nothing wrong with the card: a program did something that it may not, or an error was
contained (NO_FAULT). Any other makes the card faulty until the driver reports, some seconds after the Xid,
that the card needs no recovery (drivers since R550), or until the card, or its driver, went away and came
back whole, or until another card is in its place.

A plugin that starts again knows the faults of this boot from its ledger, and what was reported meanwhile
from the kernel's log, which it reads from where the ledger ends (events/kernel_log.py). Both are in one file,
which is replaced as a whole: a plugin that is killed has either remembered an Xid, or reads it again. A
reboot resets the cards, so that a ledger of another boot is empty. Times are those of the monotonic clock,
which counts from the boot for every process.

    <state>/gpu-faults.json    {"bootID": ..., "following": 1204, "faults": {"0000:0f:00.0":
                               {"xids": [79, 48], "at": 812.4, "uuid": "GPU-...", "away": false}}}

An error that comes by the thousand is written once: the file is written when it says of some card what it did
not say before. Until then a successor reads the repetitions from the log again, and thinks the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from koordra.logs import get_logger
from koordra.node_state.disk import Disk
from koordra.node_state.strict_json import load
from koordra.topology.location import BUS_ID
from koordra.topology.machine import Gpu
from koordra.topology.problems import Discovery

log = get_logger(__name__)

NO_FAULT: Final = frozenset(
    {8, 11, 13, 14, 25, 31, 32, 37, *range(38, 42), 43, 44, 45, 60, 63, *range(66, 73), 75, 76, 77, 80}
    | {*range(82, 87), 88, 89, 92, 93, 94, *range(96, 108), 109, 121, *range(126, 136), 137, 139, 141}
    | {152, 153, 154}
)
"""Xids after which NVIDIA's catalogue asks for no more than a restart of the program ("Analyzing Xid Errors
with the Xid Catalog", immediate action IGNORE, RESTART_APP or, after 45, to look for another Xid). Programs
can cause many of them at will. 109 (context switch timeout) is there for a reset, and NVIDIA's own device
plugin and DRA driver leave it out like these. 154: the recovery action has changed, maybe to none."""

RECOVERY_TRUSTED_AFTER = 5.0
"""Seconds after an Xid from which on the driver's report that no recovery is needed counts."""


FILE: Final = "gpu-faults.json"
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Fault:
    """``xids``: what was reported of the card since it was well, each once; ``at``: when the last was.
    ``uuid``: the card's, empty while it is not known. ``away``: a reading since then lacked the card, or its
    identity."""

    xids: tuple[int, ...]
    at: float
    uuid: str = ""
    away: bool = False

    @property
    def known(self) -> tuple[object, ...]:
        return self.xids, self.uuid, self.away


Faults = Mapping[str, Fault]
"""By the card's bus id."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """``following``: the first record of the kernel's log that is not in it."""

    faults: Faults = field(default_factory=dict)
    following: int = 0

    def read_until(self, sequence: int | None) -> Ledger:
        return self if sequence is None else replace(self, following=max(self.following, sequence + 1))

    def with_xid(self, bus_id: str, xid: int, *, now: float) -> Ledger:
        if xid in NO_FAULT:
            return self
        before = self.faults.get(bus_id, Fault((), now))
        fault = Fault(tuple(dict.fromkeys((*before.xids, xid))), now, before.uuid)
        return replace(self, faults={**self.faults, bus_id: fault})

    def with_driver_reloaded(self) -> Ledger:
        """Each fault is over once its card is whole."""
        away = {bus_id: replace(fault, away=True) for bus_id, fault in self.faults.items()}
        return replace(self, faults=away)

    def after_reading(self, found: Discovery, *, now: float) -> Ledger:
        """Without the faults that the reading shows to be over."""
        gpus = {gpu.location.bus_id: gpu for gpu in found.machine.gpus}
        after: dict[str, Fault] = {}
        for bus_id, fault in self.faults.items():
            gpu = gpus.get(bus_id)
            if gpu is None or not gpu.certain:
                after[bus_id] = replace(fault, away=True)
            elif not _over(fault, gpu, now=now):
                after[bus_id] = replace(fault, uuid=gpu.uuid or "")
        return replace(self, faults=after)

    def judge(self, found: Discovery) -> Discovery:
        """The reading with what is remembered of its cards."""
        if not self.faults:
            return found
        gpus = tuple(
            replace(
                gpu, faults=(*gpu.faults, *(f"Xid{xid}" for xid in self.faults[gpu.location.bus_id].xids))
            )
            if gpu.location.bus_id in self.faults
            else gpu
            for gpu in found.machine.gpus
        )
        return replace(found, machine=replace(found.machine, gpus=gpus))


def _over(fault: Fault, gpu: Gpu, *, now: float) -> bool:
    if fault.uuid and fault.uuid != gpu.uuid:
        return True
    if gpu.recovered is not None:
        return gpu.recovered and now - fault.at >= RECOVERY_TRUSTED_AFTER
    return fault.away


class LedgerFile:
    """Where the ledger of one boot outlives the plugin. One that cannot be read is empty, and what the
    kernel's log still has is read again; one that cannot be written is written with the next change."""

    def __init__(self, folder: Path, disk: Disk, *, boot_id: str) -> None:
        self._path = folder / FILE
        self._disk = disk
        self._boot_id = boot_id
        self._saved = Ledger()

    def load(self) -> Ledger:
        try:
            found = load(self._disk.read(self._path) or b"{}")
            if self._boot_id and found and found["bootID"] == self._boot_id:
                self._saved = Ledger(
                    {
                        bus_id: Fault(
                            tuple(map(int, each["xids"])),
                            float(each["at"]),
                            str(each["uuid"]),
                            bool(each["away"]),
                        )
                        for bus_id, each in found["faults"].items()
                        if BUS_ID.fullmatch(bus_id)
                    },
                    int(found["following"]),
                )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("gpu_faults_unreadable", path=str(self._path), error=str(error))
        return self._saved

    def save(self, ledger: Ledger, *, also_the_place: bool = False) -> None:
        """Does nothing where no card has changed, but for the place in the kernel's log if that is wanted."""
        faults, saved = (
            {bus_id: fault.known for bus_id, fault in each.faults.items()} for each in (ledger, self._saved)
        )
        if faults == saved and not (also_the_place and ledger.following > self._saved.following):
            return
        document = {
            "bootID": self._boot_id,
            "following": ledger.following,
            "faults": {bus_id: asdict(each) for bus_id, each in ledger.faults.items()},
        }
        try:
            self._disk.replace(self._path, json.dumps(document).encode() + b"\n", mode=_MODE)
            self._saved = ledger
        except OSError as error:
            log.warning("gpu_faults_not_saved", path=str(self._path), error=str(error))
