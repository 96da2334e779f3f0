"""Links that go down again and again.

A link that is up at every look may have been down between them, and jobs that span nodes fail with it. The
kernel counts: `carrier_down_count` of a network interface, `link_downed` of an InfiniBand port
(Documentation/ABI/testing/sysfs-class-net, IB specification 16.1.3.5). A NIC whose count rose by FLAPS within
WITHIN seconds is faulty (`LinkFlapping`) until it has not risen for as long.

The history is a value; each reading returns the next one. It begins with the plugin: a count that was high
before says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from koordra.topology.machine import Machine, Nic

FLAPS: Final = 3
WITHIN: Final = 600.0
LINK_FLAPPING: Final = "LinkFlapping"


@dataclass(frozen=True, slots=True)
class LinkHistory:
    """`downs`: the count at the last reading; `rose_at`: when each of the last FLAPS was seen."""

    downs: int
    rose_at: tuple[float, ...] = ()


Flaps = Mapping[str, LinkHistory]
"""By the NIC's name."""


def after_reading(history: Flaps, machine: Machine, *, now: float) -> Flaps:
    """A NIC that is gone, or whose count cannot be read or began anew, begins anew."""
    found: dict[str, LinkHistory] = {}
    for nic in (*machine.nics, *machine.vfs):
        if nic.downs is None:
            continue
        before = history.get(nic.name)
        rose = nic.downs - before.downs if before else 0
        kept = before.rose_at if before and rose >= 0 else ()
        recent = [at for at in (*kept, *[now] * min(max(rose, 0), FLAPS)) if now - at < WITHIN]
        found[nic.name] = LinkHistory(nic.downs, tuple(recent[-FLAPS:]))
    return found


def is_flapping(history: Flaps, nic: Nic, *, now: float) -> bool:
    seen = history.get(nic.name)
    return seen is not None and sum(now - at < WITHIN for at in seen.rose_at) >= FLAPS


def with_flaps(history: Flaps, machine: Machine, *, now: float) -> Machine:
    def judged(nics: tuple[Nic, ...]) -> tuple[Nic, ...]:
        return tuple(
            replace(nic, faults=(*nic.faults, LINK_FLAPPING)) if is_flapping(history, nic, now=now) else nic
            for nic in nics
        )

    if not any(is_flapping(history, nic, now=now) for nic in (*machine.nics, *machine.vfs)):
        return machine
    return replace(machine, nics=judged(machine.nics), vfs=judged(machine.vfs))
