"""Which GPUs are out of order, from the Xids that were heard and from what a reading shows.

An Xid that an application causes by itself (a bad pointer, its own end) says nothing about the card. Any other makes the
card faulty until one of these shows that it is not:

* the driver says that the card needs no recovery, some seconds after the Xid (drivers since R560 say so);
* the card went away, or its driver did, and it came back whole.

Pure: a ledger is a value, each step gives the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from koordra.kubelet_plugin.discovery.result import Discovery
from koordra.topology.machine import Gpu

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Graphics exception, page fault, stopped channel, preemptive clean-up, video exception, context switch timeout: the
application's doing (NVIDIA, "Xid Errors", and the list that NVIDIA's device plugin ignores)."""

BELIEVED_AFTER = 5.0
"""Seconds after an Xid before the driver's word that nothing is needed is taken for it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``away`` tells that the card has not been whole since."""

    xid: int
    heard_at: float
    away: bool = False


Ledger = Mapping[str, Fault]
"""Bus id -> the fault that was last heard of the card."""


def heard(
    ledger: Ledger, bus_id: str, xid: int, *, now: float, ignored: frozenset[int] = APPLICATION_XIDS
) -> Ledger:
    """After an Xid."""
    if xid in ignored:
        return ledger
    return {**ledger, bus_id: Fault(xid=xid, heard_at=now)}


def settled(ledger: Ledger, found: Discovery, *, now: float) -> Ledger:
    """After a reading: without the faults that it shows to be over."""
    gpus = {gpu.location.bus_id: gpu for gpu in found.machine.gpus}
    after: dict[str, Fault] = {}
    for bus_id, fault in ledger.items():
        gpu = gpus.get(bus_id)
        if gpu is None or not gpu.certain:
            after[bus_id] = replace(fault, away=True)
        elif not _over(fault, gpu, now=now):
            after[bus_id] = fault
    return after


def _over(fault: Fault, gpu: Gpu, *, now: float) -> bool:
    if gpu.recovered is not None:
        return gpu.recovered and now - fault.heard_at >= BELIEVED_AFTER
    return fault.away


def applied(ledger: Ledger, found: Discovery) -> Discovery:
    """The reading with the faults in it."""
    if not ledger:
        return found
    gpus = tuple(
        replace(gpu, faults=(*gpu.faults, f"Xid{ledger[gpu.location.bus_id].xid}"))
        if gpu.location.bus_id in ledger
        else gpu
        for gpu in found.machine.gpus
    )
    return replace(found, machine=replace(found.machine, gpus=gpus))
