"""What other NRI plugins did to a container, looked at before the runtime applies it.

From NRI 0.10 on a plugin may check the sum of all adjustments, and reject it. The rules are those of
`ungranted_access`, on the resulting container: device nodes and rules that open a GPU or NIC that it does not
hold, mounts that bring one, CDI devices of GPUs and NICs, and variables that koordra pins and another plugin
has set. The message names the plugin, so that the operator knows which one to configure. If a validating
plugin is too slow, or dies, the creation fails: validation closes the gap that adjustment alone leaves open.
It also costs one more request per container, so the operator enables it (`--validate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from koordra._proto.nri import nri_pb2
from koordra.api import names
from koordra.node_state.claim_ref import MARKER_PREFIX
from koordra.node_state.prepared_claim import DeviceGuard
from koordra.nri.hook.environment import VISIBLE_DEVICES
from koordra.nri.hook.grants import Grants
from koordra.nri.hook.oci import Container, Refusal, container_of
from koordra.nri.hook.ungranted_access import (
    PRIVATE,
    check_devices,
    check_mounts,
    names_foreign_device,
    of_nvidia,
)

DEVICES: Final = 4
CDI_DEVICES: Final = 5
MOUNTS: Final = 2
ENV: Final = 6
"""Numbers of NRI's fields, under which it lists the owners of what was changed."""


def validate(
    request: nri_pb2.ValidateContainerAdjustmentRequest,
    container: Container,
    *,
    name: str,
    grants: Grants,
    guarded: DeviceGuard | None,
    private: tuple[str, ...] = PRIVATE,
) -> None:
    """Raises Refusal where the adjustment is rejected. `name` is that of this plugin, `grants` what the
    container holds."""
    owners = request.owners.owners.get(request.container.id, nri_pb2.FieldOwners())
    gpus_left = guarded is not None and names.TYPE_GPU in guarded.left
    for device in request.adjust.CDI_devices:
        owner = _owner(owners, CDI_DEVICES, device.name)
        if owner != name and names_foreign_device(device.name) and not (gpus_left and of_nvidia(device.name)):
            raise _rejected(container, owner, f"adds CDI device {device.name!r}")
    for entry in request.adjust.env:
        owner = _owner(owners, ENV, entry.key)
        pinned = entry.key == VISIBLE_DEVICES and not gpus_left
        if owner != name and (entry.key.startswith(MARKER_PREFIX) or pinned):
            raise _rejected(container, owner, f"sets {entry.key}")
    added = container_of(request.pod, _as_container(request.adjust))
    foreign = tuple(node for node in added.devices if _owner(owners, DEVICES, node.path) != name)
    mounts = tuple(mount for mount in added.mounts if _owner(owners, MOUNTS, mount.destination) != name)
    only = replace(
        container, devices=foreign, rules=tuple(rule for rule in added.rules if rule.allow), mounts=mounts
    )
    if not (only.devices or only.mounts or only.rules):
        return
    try:
        check_mounts(
            only,
            gpu=grants.gpu,
            claims=grants.claims,
            devices=grants.devices,
            guarded=guarded,
            private=private,
        )
        if not check_devices(only, grants=grants, guarded=guarded):
            return
        what = "its device rules would open GPUs or NICs that the container does not hold"
    except Refusal as refusal:
        what = str(refusal)
    who = sorted({_owner(owners, DEVICES, node.path) for node in foreign} - {""}) or ["another plugin"]
    raise _rejected(container, ", ".join(who), f"changes it: {what}")


def _as_container(adjust: nri_pb2.ContainerAdjustment) -> nri_pb2.Container:
    """The additions of an adjustment as a container of their own."""
    message = nri_pb2.Container(
        mounts=[each for each in adjust.mounts if not each.destination.startswith("-")]
    )
    message.linux.devices.extend(each for each in adjust.linux.devices if not each.path.startswith("-"))
    message.linux.resources.devices.extend(adjust.linux.resources.devices)
    return message


def _owner(owners: nri_pb2.FieldOwners, field: int, key: str) -> str:
    compound: Mapping[int, nri_pb2.CompoundFieldOwners] = owners.compound
    found = compound[field].owners.get(key, "") if field in compound else ""
    index, dash, name = found.partition("-")
    return name if dash and len(index) == 2 and index.isdigit() else found


def _rejected(container: Container, owner: str, what: str) -> Refusal:
    return Refusal(
        "OtherPlugin",
        f"{container}: NRI plugin {owner or '(unknown)'} {what}; GPUs and RDMA devices are given out by koordra only: "
        "turn that off in the plugin's configuration, or exempt the namespace (koordra nri --exempt-namespace)",
    )
