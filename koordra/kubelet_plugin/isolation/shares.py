"""The claims' parts of GPUs as backends are told of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from koordra.api import names
from koordra.api.allocation import Allocation
from koordra.api.objects import Object
from koordra.api.opaque.isolation_words import backend_of
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import InvalidInput
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation.backend import IsolationBackend, Share
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.quantity import parse


@dataclass(frozen=True, slots=True)
class IsolatedShare:
    """A share that a backend must make before a container starts; of a claim's several shares of one card the
    first one's `config` counts."""

    backend: IsolationBackend
    share: Share
    config: GpuConfig


def share_of(record: ClaimRecord, index: int, inventory: NodeInventory) -> Share:
    """What devices[index] of the claim is for a backend."""
    device = record.devices[index]
    same = [
        at for at, each in enumerate(record.devices) if each.device == device.device and not each.admin_access
    ]
    own = _share(record, [index], inventory)
    return replace(own, of_card=_share(record, same, inventory)) if len(same) > 1 else own


def _share(record: ClaimRecord, indices: Sequence[int], inventory: NodeInventory) -> Share:
    """The claim's devices of these places, all of one card, as one share."""
    device = record.devices[indices[0]]
    consumed = [
        dict(record.devices[index].consumed) if record.devices[index].share_id else {} for index in indices
    ]
    memory = sum(parse(each.get(names.CAPACITY_MEMORY, "0")) for each in consumed)
    published = inventory.published.get(device.device)
    whole = published.capacity[names.CAPACITY_MEMORY].value if published else memory + 1
    cores = sum(int(parse(each.get(names.CAPACITY_CORES, "0"))) for each in consumed)
    limited = all(names.CAPACITY_MEMORY in each for each in consumed) and memory < whole
    return Share(
        claim_uid=record.ref.uid,
        index=indices[0],
        device=device.device,
        uuid=device.uuid or "",
        memory_bytes=int(memory) if limited else None,
        cores=cores if 0 < cores < 100 else None,
        namespace=record.ref.namespace,
        journal=device.journal,
        cards=tuple(dict.fromkeys(each.device for each in record.devices if each.uuid is not None)),
    )


def shares_on(
    claims: Iterable[ClaimRecord], device: str, isolation: str, inventory: NodeInventory
) -> tuple[Share, ...]:
    """The shares of the card that a backend keeps."""
    return tuple(
        share_of(claim, index, inventory)
        for claim in claims
        for index, each in enumerate(claim.devices)
        if (each.device, each.isolation) == (device, isolation)
    )


def cards_of(claim: Object | None, record: ClaimRecord | None, inventory: NodeInventory) -> set[str]:
    """The node's GPUs, and instances of them, and the devices of backends, that a claim is to have by its
    allocation, or has by its record."""
    devices = record.devices if record else ()
    found = {device.device for device in devices if device.uuid is not None or device.pool}
    with suppress(InvalidInput):  # who decides refuses it
        allocation = Allocation.of_claim(claim) if claim is not None else None
        results = allocation.results if allocation else ()
        mine = (each.device.device for each in results if each.device.driver == names.DRIVER)
        found |= {name for name in mine if inventory.attributes(name).get(names.ATTR_TYPE) in names.GPU_TYPES}
        ours = (each.device for each in results if each.device.driver == names.DRIVER)
        found |= {
            each.device for each in ours if backend_of(each.pool) is not None and "/" not in each.device
        }
    return found
