"""Xids as faults of cards, and their ledger, which outlives the plugin.

An Xid that an application causes (a bad pointer, its own end) says nothing about the card. Any other makes
the card faulty until the driver reports, some seconds after the Xid, that the card needs no recovery (drivers
since R560), or until the card, or its driver, went away and came back whole.

A plugin that starts again knows the faults of this boot from its ledger: the kernel's log tells each Xid once
(kernel_log.py), and NVML never again. A reboot resets the cards, so that a ledger of another boot is empty.
Times are those of the monotonic clock, which counts from the boot for every process.

    <state>/gpu-faults.json    {"bootID": ..., "faults": {"0000:0f:00.0": {"xid": 79, "at": 812.4,
                               "away": false}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from koordra.logs import get_logger
from koordra.node_state.disk import Disk
from koordra.topology.location import BUS_ID
from koordra.topology.machine import Gpu
from koordra.topology.problems import Discovery

log = get_logger(__name__)

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Graphics exception, page fault, stopped channel, preemptive clean-up, video exception, context switch
timeout: caused by applications (NVIDIA, "Xid Errors", and the list that NVIDIA's device plugin ignores)."""

RECOVERY_TRUSTED_AFTER = 5.0
"""Seconds after an Xid from which on the driver's report that no recovery is needed counts."""


FILE: Final = "gpu-faults.json"
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Fault:
    """``away``: a reading since then lacked the card, or its identity."""

    xid: int
    at: float
    away: bool = False


Faults = Mapping[str, Fault]
"""Bus id -> the card's last fault."""


def with_xid(faults: Faults, bus_id: str, xid: int, *, now: float) -> Faults:
    return faults if xid in APPLICATION_XIDS else {**faults, bus_id: Fault(xid=xid, at=now)}


def with_driver_reloaded(faults: Faults) -> Faults:
    """The faults of cards whose driver was loaded anew: each is over once its card is whole."""
    return {bus_id: replace(fault, away=True) for bus_id, fault in faults.items()}


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
        return gpu.recovered and now - fault.at >= RECOVERY_TRUSTED_AFTER
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


class FaultFile:
    """The ledger of one boot. One that cannot be read or written is empty: what is wrong with a card then
    shows with its next Xid, or in what NVML says of it (gpu_health.py)."""

    def __init__(self, folder: Path, disk: Disk, *, boot_id: str) -> None:
        self._path = folder / FILE
        self._disk = disk
        self._boot_id = boot_id
        self._saved: Faults = {}

    def load(self) -> Faults:
        try:
            found = json.loads(self._disk.read(self._path) or b"{}")
            if found and found["bootID"] == self._boot_id:
                self._saved = {
                    bus_id: Fault(int(each["xid"]), float(each["at"]), bool(each["away"]))
                    for bus_id, each in found["faults"].items()
                    if BUS_ID.fullmatch(bus_id)
                }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("gpu_faults_unreadable", path=str(self._path), error=str(error))
        return self._saved

    def save(self, faults: Faults) -> None:
        """Does nothing where nothing has changed."""
        if faults == self._saved:
            return
        document = {
            "bootID": self._boot_id,
            "faults": {bus_id: asdict(each) for bus_id, each in faults.items()},
        }
        try:
            self._disk.replace(self._path, json.dumps(document).encode() + b"\n", mode=_MODE)
            self._saved = dict(faults)
        except OSError as error:
            log.warning("gpu_faults_not_saved", path=str(self._path), error=str(error))
