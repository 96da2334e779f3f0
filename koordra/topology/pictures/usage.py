"""Who holds which device of a machine, and how much of it, for the pictures.

A holder is the claim that was allocated a device, ``namespace/name``. Where a picture is drawn on a node, the
node's own records say it; from anywhere else, the claims of the API do, and how much each has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.topology.machine import Device, Gpu, Machine, Nic

DRAWN: Final = ("memory", "cores", "share")
"""Capacities of which a bar is drawn: those of a card, and that of a NIC."""

Capacities = Mapping[str, Mapping[str, Decimal]]
"""Device name -> capacity, without domain -> all of it."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one claim has of a device: ``amounts`` as they are written, ``fractions`` of 1, by capacity."""

    claim: str
    amounts: Mapping[str, str]
    fractions: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """``holders`` maps published device names to claims; ``offered`` are the published devices, None where
    only the machine itself can be asked (then what is certain counts as offered). ``parts`` are those of
    devices of which claims have shares, where it is known how much they have."""

    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    offered: frozenset[str] | None = None
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)

    def bars(self, device: Device) -> list[tuple[str, list[tuple[Part, float]]]]:
        """Each capacity of which something is given, with who has which fraction of it."""
        found = self.parts.get(device.name, ())
        return [
            (name, given)
            for name in DRAWN
            if (given := [(part, size) for part in found if (size := part.fractions.get(name, 0.0)) > 0])
        ]

    def is_offered(self, device: Device) -> bool:
        """Whether the device, or a part of it, can be allocated."""
        if isinstance(device, Gpu) and device.mig_enabled:
            if self.offered is None:
                return device.certain and bool(device.mig_instances)
            return any(name.startswith(f"{device.name}-mig-") for name in self.offered)
        return device.publishable if self.offered is None else device.name in self.offered

    def state(self, device: Device) -> str:
        """``not offered``, ``unhealthy: GpuLost``, ``held by ns/claim``; empty for a device that waits for
        work."""
        states = [] if self.is_offered(device) else ["not offered"]
        if isinstance(device, Gpu) and device.faults:
            states.append(f"unhealthy: {', '.join(device.faults)}")
        if holders := self.holders_of(device):
            states.append(f"held by {', '.join(holders)}")
        return "; ".join(states)

    def holders_of(self, device: Device) -> tuple[str, ...]:
        """Claims that hold the device or a MIG instance of it, each once, in the order of its parts."""
        parts = sorted(name for name in self.holders if name.startswith(f"{device.name}-mig-"))
        found = [claim for name in (device.name, *parts) for claim in self.holders.get(name, ())]
        return tuple(dict.fromkeys(found))


NOBODY = MachineUsage()


def usage_of_claims(
    claims: Iterable[Mapping[str, Any]],
    *,
    pool: str,
    capacities: Capacities,
) -> MachineUsage:
    """What claims hold of one pool of this driver; ``capacities`` has every device that is published. Raises
    InvalidManifest for a malformed claim."""
    held: dict[str, set[str]] = {}
    parts: dict[str, list[Part]] = {}
    for claim in sorted(claims, key=objects.key):
        allocation = Allocation.of_claim(claim)
        for result in allocation.results if allocation else ():
            if (result.device.driver, result.device.pool) != (names.DRIVER, pool):
                continue
            device = result.device.device
            held.setdefault(device, set()).add(objects.key(claim))
            given = {name.rpartition("/")[2]: amount for name, amount in result.consumed.items()}
            spelled = {name.rpartition("/")[2]: text for name, text in result.consumed_spelled.items()}
            totals = capacities.get(device, {})
            if result.share_id is not None:
                fractions = {
                    name: min(float(given[name] / totals[name]), 1.0)
                    for name in DRAWN
                    if given.get(name) and totals.get(name)
                }
                amounts = {name: spelled.get(name, str(given[name])) for name in fractions}
                parts.setdefault(device, []).append(Part(objects.key(claim), amounts, fractions))
    return MachineUsage(
        holders={device: tuple(sorted(known)) for device, known in sorted(held.items())},
        offered=frozenset(capacities),
        parts={device: tuple(known) for device, known in sorted(parts.items())},
    )


def labels(machine: Machine) -> dict[str, str]:
    """Published device name -> GPU0, NIC0, ... as in the matrix; VF of virtual functions."""
    gpus = {gpu.name: f"GPU{index}" for index, gpu in enumerate(machine.gpus)}
    nics = {nic.name: f"NIC{index}" for index, nic in enumerate(machine.nics)}
    return gpus | nics | {vf.name: "VF" for vf in machine.vfs}


def description(device: Device) -> tuple[str, str]:
    """What it is, and how it is partitioned or linked: ``("mlx5_0", "Ethernet 200 Gb/s")``."""
    if isinstance(device, Gpu):
        return device.product_name or "GPU of unknown model", mig_summary(device)
    return device.ib_device, port_text(device)


def mig_summary(gpu: Gpu) -> str:
    """``"MIG: 7 x 1g.5gb"``; empty for a card that is not partitioned."""
    if not gpu.mig_enabled:
        return ""
    profiles = {profile.id: profile.name for profile in gpu.mig_profiles}
    counts = Counter(profiles.get(instance.profile_id, "?") for instance in gpu.mig_instances)
    cut = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
    return f"MIG: {cut or 'no instance'}"


def port_text(nic: Nic) -> str:
    """``Ethernet 200 Gb/s``, ``InfiniBand down``, with the number of ports where there are several."""
    port = nic.port
    rate = f"{port.rate_gbps} Gb/s" if port and port.rate_gbps else "down"
    layer = port.link_layer if port and port.link_layer else "unknown"
    return f"{layer} {rate}" + (f", {len(nic.ports)} ports" if len(nic.ports) > 1 else "")
