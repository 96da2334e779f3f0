"""The ResourceSlices of the node: its devices, their allocator, their taints.

    devices      the inventory's, as the operator offers them (resource_slices.py)
    allocator    the command line's mode, else the Node's label koordra.io/allocation-mode, else joint
    taints       cordons of the Node, devices that another device plugin offers too, devices that are still held

Pure, except for a warning about a label that is not a mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.publish.device_attributes import Mode
from koordra.kubelet_plugin.publish.device_taints import (
    cordons_of,
    foreign_taints,
    held_taints,
    merged,
    with_taints,
)
from koordra.kubelet_plugin.publish.inventory import Inventory
from koordra.logs import get_logger

log = get_logger(__name__)


def node_slices(
    node: Object,
    *,
    generation: int,
    node_name: str,
    mode: Mode | None,
    inventory: Inventory,
    held: tuple[ClaimRecord, ...],
) -> Sequence[Object]:
    """Every slice of the pool; `mode` None follows the Node's label. `held` are the claims that hold devices
    although the API no longer knows them."""
    slices = inventory.offering.slices(
        inventory.machine,
        node_name=node_name,
        node_uid=objects.uid(node),
        mode=mode or mode_of(node),
        generation=generation,
    )
    cordons = {cordon.device: (cordon.taint,) for cordon in cordons_of(node)}
    kinds_of = {name: str(inventory.attributes(name).get(names.ATTR_TYPE)) for name in inventory.published}
    foreign = foreign_taints(node, offered=kinds_of)
    return with_taints(slices, merged(cordons, held_taints(held, offered=inventory.published), foreign))


def mode_of(node: Object) -> Mode:
    """The node's label `koordra.io/allocation-mode`; joint where it is absent or not a mode."""
    label = objects.labels_of(node).get(names.MODE_LABEL, names.MODE_JOINT)
    if label == names.MODE_NATIVE:
        return "native"
    if label != names.MODE_JOINT:
        log.warning("unknown_allocation_mode", node=objects.name(node), label=label, used=names.MODE_JOINT)
    return "joint"
