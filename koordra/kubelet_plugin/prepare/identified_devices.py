"""The devices of a claim's results on this node: each the one that was allocated, and that an earlier Prepare
of the claim had (by UUID or GUID). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from koordra.api import names
from koordra.api.allocation import DeviceResult
from koordra.api.opaque.isolation_words import backend_of
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import NO_EDITS, Assignment, ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.publish.devices import MigDevice
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.node_state.claim_network import NetworkKind
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.strict_json import Pairs
from koordra.quantity import canonical
from koordra.topology.location import DeviceNode
from koordra.topology.machine import Gpu, Nic
from koordra.topology.partitions import ImexNodes, MigInstance

Prepared = Mapping[Assignment, DeviceRecord]
"""The devices of a claim that is prepared in this boot already, by assignment: containers may be running with
them."""


def identified(
    ref: ClaimRef,
    result: DeviceResult,
    *,
    pool: str,
    inventory: NodeInventory,
    before: ClaimRecord | None,
    prepared: Prepared,
) -> DeviceRecord:
    """The device of one result, without edits. `before` is the claim's record in the checkpoint. Raises
    PrepareError for a device that is not here, not certain, or another one than before."""
    name = result.device.device
    word = backend_of(result.device.pool)
    if word is not None:
        return _on_no_node(ref, result, word)
    if result.device.pool != pool:
        raise PrepareError(f"{ref}: {name} is of pool {result.device.pool}, and this node's is {pool}")
    earlier = next((known for known in before.devices if known.device == name), None) if before else None
    why = inventory.refusal(name)
    if earlier is None or earlier not in prepared.values():
        why = inventory.given_by_others(name) or why
    if why is not None:
        # RDMA in exclusive mode: the claim's own pod has it.
        moved = earlier and earlier.network and earlier.network.kind is NetworkKind.MOVE
        if earlier is not None and moved and earlier in prepared.values():
            return replace(earlier, request=result.request, edits=NO_EDITS)
        raise PrepareError(f"{ref}: {why}")
    record = _recorded(ref, result, inventory)
    if earlier is not None and earlier.identity not in ("", record.identity, record.uuid):
        raise PrepareError(
            f"{ref}: DeviceUnhealthy: {name} is another device than the one prepared for this claim "
            f"({record.identity} in place of {earlier.identity}); the claim has to be allocated anew"
        )
    return record


def _on_no_node(ref: ClaimRef, result: DeviceResult, word: str) -> DeviceRecord:
    """A device of a backend's pool, of which the backend alone knows what it is."""
    name = result.device.device
    if not name.startswith(f"{word}-") or "/" in name:
        raise PrepareError(
            f"{ref}: NodeUnsuitable: {name} is of pool {result.device.pool}, whose devices are called {word}-..., so that no "
            "node has one of that name; have them published so"
        )
    if result.admin_access:
        raise PrepareError(f"{ref}: NodeUnsuitable: {name} is on no node, and cannot be had with adminAccess")
    return DeviceRecord(
        request=result.request,
        device=name,
        type=names.TYPE_REMOTE,
        share_id=result.share_id,
        pool=result.device.pool,
        consumed=_consumed(result),
    )


def _consumed(result: DeviceResult) -> Pairs:
    return tuple(sorted((name, canonical(amount)) for name, amount in result.consumed.items()))


def _recorded(ref: ClaimRef, result: DeviceResult, inventory: NodeInventory) -> DeviceRecord:
    """Raises PrepareError for a device whose identity or device nodes are not known."""
    device, place = inventory.device(result.device.device), inventory.place(result.device.device)
    record = DeviceRecord(
        request=result.request,
        device=result.device.device,
        type=names.TYPE_GPU,
        identity="",
        share_id=result.share_id,
        admin_access=bool(result.admin_access),
        consumed=_consumed(result),
        numa_node=place.location.numa if place else None,
        cpus=inventory.machine.cpus_near(place) if place else None,
    )
    match device:
        case Gpu(uuid=str(uuid), node=DeviceNode() as card):
            return replace(record, identity=uuid, uuid=uuid, nodes=(card,))
        case MigDevice(gpu=Gpu(node=DeviceNode() as card), instance=instance):
            # The card's own node comes first: an instance is opened through it, and its siblings share it.
            # One that is still to be made gets its UUID and its own nodes then.
            record = replace(record, type=names.TYPE_MIG, identity=device.identity, uuid="", nodes=(card,))
            if isinstance(instance, MigInstance) and instance.uuid and instance.publishable:
                return replace(record, uuid=instance.uuid, nodes=(card, *instance.nodes))
            if inventory.offering.mig_on_demand:
                return record
        case ImexNodes():
            return replace(record, type=names.TYPE_IMEX, nodes=(device.node(0),))
        case Nic(guid=str(guid), verbs=DeviceNode() as verbs):
            return replace(
                record,
                type=names.TYPE_VF if device.parent else names.TYPE_NIC,
                identity=guid,
                ib_device=device.ib_device,
                netdev=device.netdev,
                nodes=(verbs,),
            )
    raise PrepareError(f"{ref}: DeviceUnhealthy: {record.device} has no known identity or device node")
