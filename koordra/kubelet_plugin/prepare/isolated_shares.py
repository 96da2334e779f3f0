"""What keeps each share of a claim's GPUs, by the operator's policy, class and claim
(koordra.api.opaque.isolation). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from koordra.api import names
from koordra.api.opaque.configuration import Configuration
from koordra.api.opaque.isolation import are_apart, is_share
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.isolation import Backend, Share
from koordra.kubelet_plugin.prepare.identified_devices import Prepared
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.quantity import parse


@dataclass(frozen=True, slots=True)
class IsolatedShare:
    """A share that a backend must be prepared for before a container starts. `of_card`: all that the claim
    has of the card, which is what is kept; of several shares of one card the first one's `config` counts."""

    backend: Backend
    share: Share
    of_card: Share
    config: GpuConfig


def isolated_shares(
    record: ClaimRecord,
    config: Configuration,
    *,
    inventory: NodeInventory,
    backends: Mapping[str, Backend],
    holders: Iterable[ClaimRecord],
    prepared: Prepared,
) -> list[IsolatedShare | None]:
    """The backend's part in each device; None for one that is not a GPU, or is allocated with adminAccess. A
    prepared device keeps its isolation: a policy is about what starts. Raises PrepareError."""
    found: list[IsolatedShare | None] = []
    others = [holder for holder in holders if holder.ref.uid != record.ref.uid]
    for index, device in enumerate(record.devices):
        if device.uuid is None or device.admin_access:
            found.append(None)
            continue
        kept = prepared.get(device.assignment)
        word = (kept and kept.isolation) or _decided(record, device, config, inventory, others)
        backend = backends.get(word)
        if backend is None:
            raise PrepareError(
                f"{record.ref}: BackendUnavailable: isolation {word!r} is not available on this node; "
                f"available: {', '.join(sorted(backends))}"
            )
        same = [number for number, each in enumerate(record.devices) if each.device == device.device]
        of_card = _share(record, same, inventory)
        first = record.devices[same[0]].request
        found.append(IsolatedShare(backend, _share(record, [index], inventory), of_card, config.gpu(first)))
    return found


def _decided(
    record: ClaimRecord,
    device: DeviceRecord,
    config: Configuration,
    inventory: NodeInventory,
    others: Iterable[ClaimRecord],
) -> str:
    """The isolation that the operator's policy, class and claim make of it; raises PrepareError where they
    refuse it, and where one of the others has a share of the other kind on the card."""
    asked, policy = config.isolation(device.request), inventory.offering.isolation
    share = _may_be_shared(device, inventory)
    refused = asked.refusal(policy, share=share)
    if refused is not None:
        raise PrepareError(f"{record.ref}: BackendUnavailable: {device.device}: {refused}")
    word = asked.on(policy, share=share)
    neighbours = (
        (other.isolation, holder.ref)
        for holder in (others if share else ())
        for other in holder.devices
        if other.device == device.device and other.isolation and _may_be_shared(other, inventory)
    )
    for theirs, holder in neighbours:
        if are_apart(word, theirs):
            raise PrepareError(
                f"{record.ref}: BackendUnavailable: {device.device}: isolation: requested {word}, and "
                f"{holder} has a share with {theirs}; where one share of a card is limited, all are"
            )
    return word


def _share(record: ClaimRecord, indices: Sequence[int], inventory: NodeInventory) -> Share:
    """The claim's devices of these places, all of one card, as one share."""
    device = record.devices[indices[0]]
    consumed = [
        dict(record.devices[index].consumed) if record.devices[index].share_id else {} for index in indices
    ]
    memory = sum(parse(each.get(names.CAPACITY_MEMORY, "0")) for each in consumed)
    whole = inventory.published[device.device].capacity[names.CAPACITY_MEMORY].value
    cores = sum(int(parse(each.get(names.CAPACITY_CORES, "0"))) for each in consumed)
    limited = all(names.CAPACITY_MEMORY in each for each in consumed) and memory < whole
    return Share(
        claim_uid=record.ref.uid,
        index=indices[0],
        device=device.device,
        uuid=device.uuid or "",
        memory_bytes=int(memory) if limited else None,
        cores=cores if 0 < cores < 100 else None,
    )


def _may_be_shared(device: DeviceRecord, inventory: NodeInventory) -> bool:
    """A device that is given out once only is nobody else's."""
    consumed = {name: parse(amount) for name, amount in device.consumed}
    return device.share_id is not None and is_share(consumed, inventory.published[device.device].capacity)
