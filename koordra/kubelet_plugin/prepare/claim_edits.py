"""What a claim's containers get, once its shares are made: the last part of the decision. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from koordra.api.opaque.configuration import Configuration
from koordra.kubelet_plugin.cdi.device_edits import with_edits
from koordra.kubelet_plugin.claims.checkpoint import Checkpoint
from koordra.kubelet_plugin.claims.claim_record import NO_EDITS, ClaimRecord, ContainerEdits, DeviceRecord
from koordra.kubelet_plugin.isolation.backend import Realised
from koordra.kubelet_plugin.prepare.prepare_decision import Decision, NodeView
from koordra.node_state.prepared_claim import NUMA_AFFINITY


def finished(
    decision: Decision, made: Mapping[int, Realised], *, node: NodeView, kept: Checkpoint
) -> ClaimRecord:
    """The claim's record with its edits. `made` are its shares by index of the device; `kept` has what their
    backends wrote down. Raises PrepareError."""
    written = kept.get(decision.record.ref.uid)
    devices = tuple(
        _realised(device, made.get(index), written.devices[index] if written else device)
        for index, device in enumerate(decision.record.devices)
    )
    record = replace(decision.record, devices=devices)
    isolation = [
        (made[index].edits if index in made else NO_EDITS)
        + _affinity(device, decision.config)
        + decision.legacy[index]
        for index, device in enumerate(devices)
    ]
    return with_edits(
        record,
        inventory=node.inventory,
        isolation=isolation,
        capabilities=decision.capabilities,
        files=node.files,
        own_users=node.consumers is not None and node.consumers.own_users,
        member=decision.config.member,
        hook_program=node.hook_program,
    )


def _realised(device: DeviceRecord, made: Realised | None, written: DeviceRecord) -> DeviceRecord:
    if made is None:
        return device
    return replace(
        device,
        journal=written.journal,
        uuid=device.uuid if made.uuid is None else made.uuid,
        nodes=device.nodes if made.nodes is None else made.nodes,
    )


def _affinity(device: DeviceRecord, config: Configuration) -> ContainerEdits:
    """The variable by which the NRI hook sets the container's cpuset near this GPU."""
    near = device.uuid is not None and config.gpu(device.request).numa_affinity
    return ContainerEdits(env=((NUMA_AFFINITY, "true"),)) if near else NO_EDITS
