"""NICs that are in a pod, in a reading of the host. Pure.

The host does not see a network interface that has moved into a pod's network namespace, nor, where RDMA
devices belong to namespaces, its RDMA device, so that the NIC seems to be gone. It stays published as it was
last seen, until its pod returns it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from koordra.topology.machine import Machine, Nic, bus_order


def with_moved(now: Machine, before: Machine | None, moved: Collection[str]) -> Machine:
    """`now` with the NICs named in `moved` as `before` had them, as far as `now` does not show them."""
    if before is None or not moved:
        return now
    return replace(now, nics=_kept(now.nics, before.nics, moved), vfs=_kept(now.vfs, before.vfs, moved))


def _kept(now: tuple[Nic, ...], before: tuple[Nic, ...], moved: Collection[str]) -> tuple[Nic, ...]:
    known = {nic.name: nic for nic in before if nic.name in moved}
    seen = {nic.name for nic in now}
    found = [
        replace(nic, netdev=nic.netdev or known[nic.name].netdev) if nic.name in known else nic for nic in now
    ]
    found += [nic for name, nic in known.items() if name not in seen]
    return tuple(sorted(found, key=lambda nic: (bus_order(nic.location.bus_id), nic.ib_device)))
