"""Which GPUs are faulty, from Xids and from readings.

An Xid that an application causes (a bad pointer, its own end) says nothing about the card. Any other makes
the card faulty until one of these shows that it has recovered:

* the driver reports that the card needs no recovery, some seconds after the Xid (drivers since R560 report
  it);
* the card, or its driver, went away and came back whole.

Pure: the faults are a value, each step returns the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from koordra.kubelet_plugin.discovery.result import Discovery
from koordra.topology.machine import Gpu

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
    """The faults after an Xid."""
    if xid in APPLICATION_XIDS:
        return faults
    return {**faults, bus_id: Fault(xid=xid, observed_at=now)}


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
    """The reading with the faults on its GPUs."""
    if not faults:
        return found
    gpus = tuple(
        replace(gpu, faults=(*gpu.faults, f"Xid{faults[gpu.location.bus_id].xid}"))
        if gpu.location.bus_id in faults
        else gpu
        for gpu in found.machine.gpus
    )
    return replace(found, machine=replace(found.machine, gpus=gpus))
