"""Devices of claims that are not what they were: gone, moved to another address, or another card in their
place. Pure.

A device's name is its place (PCI address, and of a MIG instance its profile and start), its identity is what
is there: the UUID of a GPU, the GUID of a NIC, and of a MIG instance the card's UUID with profile and
placement, since an instance that is made again after a reset or a reboot has another UUID and is the same
device. Names and identities part when a board is swapped, when the addresses of a machine are renumbered, or
when another machine takes over a node's name with its disk.

Nothing is said of what cannot be known now: a card without an answer of the driver has no identity, and while
the driver is released none has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from koordra.errors import KoordraError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.isolation.mig.backend import MigIsolation
from koordra.kubelet_plugin.isolation.mig.journal import is_given
from koordra.kubelet_plugin.publish.devices import MigDevice, mig_devices, whole_of
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.node_state.claim_network import NetworkKind
from koordra.topology.machine import Gpu, Nic

GONE: Final = "DeviceGone"
"""the device of a prepared claim is not on the node any more"""
MOVED: Final = "DeviceMoved"
"""the device of a prepared claim is at another address"""
OTHER: Final = "OtherDevice"
"""another device is at the address of a prepared claim's"""
INSTANCE_GONE: Final = "InstanceGone"
"""the claim's MIG instance is not there any more"""


@dataclass(frozen=True, slots=True)
class LostDevice:
    """`reason` is one of the above."""

    device: str
    reason: str
    message: str


def identities(inventory: NodeInventory) -> dict[str, str]:
    """What is at each name of the machine now, as far as that is certain."""
    machine = inventory.machine
    found: dict[str, str] = {}
    for gpu in machine.gpus:
        if gpu.certain and gpu.uuid:
            found[gpu.name] = gpu.uuid
            found.update((part.name, part.identity) for part in mig_devices(gpu))
    found.update((nic.name, nic.guid) for nic in (*machine.nics, *machine.vfs) if nic.guid)
    return found


def lost_devices(record: ClaimRecord, inventory: NodeInventory) -> tuple[LostDevice, ...]:
    """The claim's devices that are not where they were prepared."""
    if inventory.withheld:
        return ()
    now = identities(inventory)
    places = {identity: name for name, identity in now.items()}
    return tuple(_lost(record.devices, now, places, inventory))


def made_on_demand(records: Callable[[], Iterable[ClaimRecord]]) -> frozenset[str]:
    """Identities of the MIG instances that koordra made for claims; none where the claims cannot be read."""
    try:
        claims = list(records())
    except KoordraError:
        return frozenset()
    devices = (device for record in claims for device in record.devices)
    return frozenset(
        device.identity
        for device in devices
        if device.isolation == MigIsolation.name and not is_given(device.journal)
    )


def absent_devices(
    records: Callable[[], Iterable[ClaimRecord]],
    inventory: NodeInventory,
    *,
    stuck: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, tuple[str, ...]]:
    """MIG instances that claims hold and that do not exist, or that are not let go of (`stuck`), and what
    claims hold of a faulty card that does not say any more what it is, each with its faults; none where the
    claims cannot be read, which is reported elsewhere."""
    try:
        claims = [] if inventory.withheld else list(records())
    except KoordraError:
        return {}
    cards = (inventory.machine.device(whole_of(each.device)) for record in claims for each in record.devices)
    silent = {card.name: card.faults for card in cards if isinstance(card, Gpu) and not card.certain}
    found = {
        each.device: silent.get(whole_of(each.device), ()) for record in claims for each in record.devices
    }
    found |= {
        lost.device: (INSTANCE_GONE,)
        for record in claims
        for lost in lost_devices(record, inventory)
        if lost.reason == GONE and "-mig-" in lost.device
    }
    found |= {device: (why,) for device, why in stuck.items()}
    return {name: faults for name, faults in sorted(found.items()) if faults}


def _lost(
    devices: Iterable[DeviceRecord], now: dict[str, str], places: dict[str, str], inventory: NodeInventory
) -> Iterator[LostDevice]:
    for device in devices:
        away = device.network is not None and device.network.kind is NetworkKind.MOVE
        there = now.get(device.device)
        if not device.identity or away or is_same(device, there, inventory):
            continue
        what = f"{device.device} was {device.identity}"
        if device.identity in places:
            text = f"{what}, which is {places[device.identity]} now"
            yield LostDevice(device.device, MOVED, f"{text}; the claim has to be allocated anew")
        elif there is not None:
            text = f"{what}, and is {there} now"
            yield LostDevice(device.device, OTHER, f"{text}; the claim has to be allocated anew")
        elif not _is_unknown(device.device, inventory):
            yield LostDevice(device.device, GONE, f"{what}, and is gone; the claim has to be allocated anew")


def is_same(device: DeviceRecord, identity: str | None, inventory: NodeInventory) -> bool:
    """Whether what is there is what the claim has. Records of earlier versions, and those that were recovered
    from the hook's files, name an instance by its UUID."""
    if identity is None or device.identity == identity:
        return identity is not None
    part = inventory.device(device.device)
    return isinstance(part, MigDevice) and part.instance is not None and device.identity == part.instance.uuid


def _is_unknown(name: str, inventory: NodeInventory) -> bool:
    """Whether the device, or the card that it is part of, is there and does not say what it is."""
    found = inventory.machine.device(whole_of(name))
    return (isinstance(found, Gpu) and not (found.certain and found.uuid)) or (
        isinstance(found, Nic) and found.name == name and not found.guid
    )
