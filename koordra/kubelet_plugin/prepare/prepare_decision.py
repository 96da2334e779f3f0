"""The decision behind NodePrepareResources: what a claim gets on this node, or why it is refused. Pure.

From the claim object, the inventory and the claims that already hold devices, in this order:

1. the claim is the one that the kubelet means (uid), it is allocated, and our results are of this node's
   pool;
2. every device exists, is published, and is the same one as at an earlier Prepare of the claim
   (identified_devices.py);
3. a claim of a GPU has a libcuda of the loaded driver to find;
4. no device is used beyond its capacity (allocation_checks.py);
5. IMEX channels have a domain, and the node is in no other one;
6. Required JointAllocation scopes hold on this machine (allocation_checks.py);
7. the isolation of each share follows from the operator's policy, class and claim, this node has the
   backend, it can keep the share, and no card has shares of two kinds (isolated_shares.py);
8. the pod can have the network that the claim asks for (network/network_decision.py);
9. the node can give its holders the parts of the driver that they ask for.

The container edits follow once the shares are made (claim_edits.py). Results of other drivers are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.objects import Object
from koordra.api.opaque.configuration import Configuration, configuration
from koordra.api.opaque.driver_capabilities import DriverCapabilities, chosen
from koordra.api.opaque.gang_member import is_gang_member
from koordra.api.opaque.imex import ImexChannels, is_imex_domain
from koordra.api.opaque.isolation_words import NO_ISOLATION
from koordra.errors import InvalidInput, InvalidParameters, PrepareError
from koordra.kubelet_plugin.cdi.device_edits import legacy_edits
from koordra.kubelet_plugin.cdi.driver_edits import drawing_nodes, unavailable
from koordra.kubelet_plugin.claims.checkpoint import CardRecord
from koordra.kubelet_plugin.claims.claim_record import (
    ClaimRecord,
    ContainerEdits,
    DeviceRecord,
    State,
)
from koordra.kubelet_plugin.isolation.backend import IsolationBackend
from koordra.kubelet_plugin.isolation.shares import IsolatedShare
from koordra.kubelet_plugin.network.consumers import Consumers
from koordra.kubelet_plugin.network.fabric_files import fabric_settings, rules_nccl
from koordra.kubelet_plugin.network.network_decision import UNMANAGED, NetworkPolicy, network_plans
from koordra.kubelet_plugin.prepare.allocation_checks import refuse_overcommit, refuse_unmet_scopes
from koordra.kubelet_plugin.prepare.identified_devices import Prepared, identified
from koordra.kubelet_plugin.prepare.isolated_shares import Fits, isolated_shares
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.node_state.claim_network import NetworkPlan
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.layout import StateFolder
from koordra.node_state.strict_json import Pairs
from koordra.topology.fabrics import clique
from koordra.topology.machine import Nic


@dataclass(frozen=True, slots=True)
class NodeView:
    """The inputs of a decision besides the claim: `pool` is the node's name, `holders` the claims prepared in
    this boot, `files` the plugin's state directory, `consumers` the pods of the claim, None where they are
    not known; `networks` is what the operator says of pods' networks; `hook_program` is the CDI hook
    on the node, None where this koordra was built without it; `imex_holders` are the claims by which the
    node is in an IMEX domain; `cards` are those on which a backend did something, `fits` asks one."""

    pool: str
    inventory: NodeInventory
    backends: Mapping[str, IsolationBackend]
    files: StateFolder
    holders: Sequence[ClaimRecord] = ()
    consumers: Consumers | None = None
    networks: NetworkPolicy = UNMANAGED
    hook_program: str | None = None
    imex_holders: Sequence[ClaimRecord] = ()
    cards: Sequence[CardRecord] = ()
    fits: Fits = IsolationBackend.fits


@dataclass(frozen=True, slots=True)
class Decision:
    """What is placed where. `record` is in state PrepareStarted and without edits, which follow once its
    `shares` are made (claim_edits.py). By device: `capabilities` are the parts of the driver that its holders
    get, `legacy` the variables of the dialect of a legacy pod."""

    record: ClaimRecord
    shares: tuple[IsolatedShare, ...]
    config: Configuration
    capabilities: tuple[DriverCapabilities, ...]
    legacy: tuple[ContainerEdits, ...]


def decide(
    ref: ClaimRef, claim: Object, *, node: NodeView, nonce: str, before: ClaimRecord | None = None
) -> Decision:
    """The decision for one claim. `before` is the claim's record in the checkpoint.

    Raises PrepareError, whose text names the claim, the reason and what was compared.
    """
    prepared: Prepared = {}
    if before and before.state is State.COMPLETED and before.boot_id == node.inventory.boot_id:
        prepared = {device.assignment: device for device in before.devices}
    try:
        allocation = _allocation(ref, claim)
        results = [result for result in allocation.results if result.device.driver == names.DRIVER]
        config = configuration(allocation.config, claim=str(ref), holds=bool(prepared))
        _refuse_controllers_words_in_spec(claim)
        devices = tuple(
            identified(
                ref, result, pool=node.pool, inventory=node.inventory, before=before, prepared=prepared
            )
            for result in results
        )
    except InvalidInput as error:
        raise PrepareError(f"{ref}: {error}") from error
    record = ClaimRecord(
        ref=ref,
        pool=node.pool,
        nonce=nonce,
        boot_id=node.inventory.boot_id,
        state=State.STARTED,
        devices=devices,
        memlock=any(
            device.type in names.NIC_TYPES and config.rdma(device.request).memlock for device in devices
        ),
        pods=node.consumers.pods if node.consumers else (),
        pod_claim=objects.annotations_of(claim).get(names.POD_CLAIM_NAME) or None,
    )
    record = _with_channels(record, config, node)
    _refuse_without_libcuda(record, node.inventory)
    refuse_overcommit(
        record, holders=node.holders, published=node.inventory.published, prepared=prepared.keys()
    )
    refuse_unmet_scopes(record, config, inventory=node.inventory)
    shares = isolated_shares(
        record,
        config,
        inventory=node.inventory,
        backends=node.backends,
        holders=node.holders,
        prepared=prepared,
        cards={card.device: card for card in node.cards},
        fits=node.fits,
    )
    plans = (
        # Its NICs may be in the pod already.
        tuple(
            prepared[device.assignment].network if device.assignment in prepared else None
            for device in devices
        )
        if prepared
        else network_plans(
            record,
            config,
            inventory=node.inventory,
            consumers=node.consumers,
            policy=node.networks,
            # A claim of before the node's restart gets its address again.
            holders=(*node.holders, *filter(None, [before])),
        )
    )
    record = replace(
        record,
        devices=tuple(
            replace(
                device,
                isolation=share.backend.name if share else None,
                journal=share.share.journal if share else (),
                network=plan,
                fabric=prepared[device.assignment].fabric
                if device.assignment in prepared
                else _fabric(record, device, config, plan, inventory=node.inventory),
            )
            for device, share, plan in zip(record.devices, shares, plans, strict=True)
        ),
    )
    capabilities = [_capabilities(record, device, config, node=node) for device in record.devices]
    record = replace(
        record,
        devices=tuple(
            replace(
                device,
                nodes=(*device.nodes, *drawing_nodes(node.inventory.device(device.device), parts)),
            )
            for device, parts in zip(record.devices, capabilities, strict=True)
        ),
    )
    for needed, why in (
        (
            any(share.backend.capabilities.hook for share in shares if share),
            "isolation limiter and hami-core need it, or an image's own driver or C library gets past the limit",
        ),
        (rules_nccl(record), "RdmaConfig.fabric needs it, or NCCL does not read what it says"),
    ):
        if needed and not node.hook_program:
            raise PrepareError(
                f"{ref}: BackendUnavailable: this koordra was built without koordra-cdi-hook (make -C native); {why}"
            )
    return Decision(
        record=record,
        shares=tuple(share for share in shares if share),
        config=config,
        capabilities=tuple(capabilities),
        legacy=legacy_edits(record, claim, inventory=node.inventory),
    )


def _refuse_without_libcuda(record: ClaimRecord, inventory: NodeInventory) -> None:
    """Without this the container would start, and CUDA would find no card, without a reason."""
    why = inventory.without_libcuda
    if why is not None and any(device.type in names.GPU_TYPES for device in record.devices):
        raise PrepareError(f"{record.ref}: NodeUnsuitable: {why}")


def _refuse_controllers_words_in_spec(claim: Object) -> None:
    """Refuse a GangMember or ImexDomain that the claim itself carries: only the controller may write one
    into the allocation, and kube-scheduler copies the claim's config there."""
    for index, entry in enumerate((objects.spec_of(claim).get("devices") or {}).get("config") or ()):
        parameters = (entry.get("opaque") or {}).get("parameters")
        if is_gang_member(parameters) or is_imex_domain(parameters):
            raise InvalidParameters(
                f"{parameters['kind']} is written by koordra's controller into allocations; leave it away",
                object=objects.describe(claim),
                field=f"spec.devices.config[{index}].opaque.parameters",
            )


def _with_channels(record: ClaimRecord, config: Configuration, node: NodeView) -> ClaimRecord:
    """The record with the domain of its IMEX channels, and with all of them where its class says so. Raises
    PrepareError for channels that nobody gave a domain, or while the node is in another one."""
    if all(device.type != names.TYPE_IMEX for device in record.devices):
        return record
    wanted, here, channels = config.imex, clique(node.inventory.machine), node.inventory.machine.imex
    if wanted is None or channels is None:
        raise PrepareError(
            f"{record.ref}: NodeUnsuitable: its allocation has IMEX channels and names no domain; koordra's controller allocates "
            "them, for a node in joint mode"
        )
    if wanted.clique != here:
        raise PrepareError(
            f"{record.ref}: DeviceUnhealthy: its IMEX domain is in clique {wanted.clique}, and the node is in {here or 'none'} now; "
            "the claim has to be allocated anew"
        )
    for holder in node.imex_holders:
        if holder.ref.uid == record.ref.uid or holder.imex == wanted:
            continue
        if holder.imex is not None or holder.in_unknown_domain:
            whose = (
                f"that of {holder.imex.domain}" if holder.imex else "one that was lost with the checkpoint"
            )
            raise PrepareError(
                f"{record.ref}: ImexDomainInUse: by {holder.ref} this node is in another IMEX domain, {whose}; "
                "it is free once that claim is unprepared here"
            )
    devices = tuple(
        replace(device, nodes=channels.all)
        if device.type == names.TYPE_IMEX and config.imex_channels(device.request) is ImexChannels.ALL
        else device
        for device in record.devices
    )
    return replace(record, devices=devices, imex=wanted)


def _allocation(ref: ClaimRef, claim: Object) -> Allocation:
    uid = objects.uid(claim)
    if uid != ref.uid:
        raise PrepareError(
            f"{ref}: the API has another claim under this name (uid {uid}, the kubelet's is {ref.uid})"
        )
    allocation = Allocation.of_claim(claim)
    if allocation is None:
        raise PrepareError(f"{ref}: it is not allocated")
    return allocation


def _fabric(
    record: ClaimRecord,
    device: DeviceRecord,
    config: Configuration,
    plan: NetworkPlan | None,
    *,
    inventory: NodeInventory,
) -> Pairs:
    nic = inventory.device(device.device)
    if device.type not in names.NIC_TYPES or device.admin_access:
        return ()
    port = nic.port if isinstance(nic, Nic) else None
    try:
        return fabric_settings(device, config.rdma(device.request), plan=plan, port=port)
    except PrepareError as error:
        raise PrepareError(f"{record.ref}: {error}") from error


def _capabilities(
    record: ClaimRecord, device: DeviceRecord, config: Configuration, *, node: NodeView
) -> DriverCapabilities:
    """The parts of the driver that holders of the GPU get; none for another device. Raises PrepareError where
    this node cannot give one that is asked for."""
    if device.uuid is None:
        return frozenset()
    limited = device.isolation not in (None, NO_ISOLATION)
    found = chosen(config.gpu(device.request).driver_capabilities or frozenset(), limited=limited)
    refused = unavailable(found, inventory=node.inventory)
    if refused is not None:
        raise PrepareError(f"{record.ref}: BackendUnavailable: {device.device}: {refused}")
    return found
