"""The node's own checks of an allocation, before a container gets the devices.

**Capacity.** The prepared claims and the new one together fit the published capacity. The API server does not
check this (a second share of 70Gi on an 80Gi card is accepted), and the allocator may be wrong or have lost a
race. So the node sums, per device, over every claim it holds, also over claims whose objects are gone:

- a result without a share id has the device exclusively;
- results with share ids sum up, capacity by capacity, to at most the published value. A capacity that a
  result does not name counts with the request policy's default, or in full if there is none, as in upstream's
  allocator;
- a card excludes its MIG instances, a NIC its virtual functions, and vice versa. Their names tell what is
  part of what, so this also holds for a part that is no longer published or has gone since;
- no device is given out whose device number is open to another device's holder: after a part was destroyed
  and another created, or a driver was reloaded, the kernel may reuse the number, and the old container may
  still open it;
- results with adminAccess use nothing;
- capacity may shrink under claims that hold it, when a new driver keeps more of a card's memory for itself.
  What is prepared already is not refused for that, nor what is alone on its device.

**Scope.** The devices meet each Required JointAllocation. The allocator guarantees it; the node verifies it
against its own topology, since in native mode kube-scheduler allocates and knows nothing of scopes. Only GPUs
and NICs count, each once, however many shares of it the claim has (as in
`koordra.allocator.joint_allocation`):

    PerDevice   every GPU has a NIC of its own in scope    no scope with more GPUs than NICs
    PerGroup    every GPU has some NIC in scope            no scope with GPUs and without NIC
    Together    all devices are in one scope

A device of unknown place (no switch above it, NUMA node unknown) shares a scope with no other. If the claim
has only one kind of device there is nothing to check: the other kind may be in another claim of the pod,
which the node does not see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from koordra.api import names
from koordra.api.devices import Capacity, Device
from koordra.api.opaque.configuration import Configuration
from koordra.api.opaque.parameters import Enforcement, JointAllocation, Pairing
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import Assignment, ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.publish.devices import whole_of
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.quantity import canonical, parse
from koordra.topology.levels import scope_key, together


def refuse_overcommit(
    wanted: ClaimRecord,
    *,
    holders: Iterable[ClaimRecord],
    published: Mapping[str, Device],
    prepared: Collection[Assignment] = (),
) -> None:
    """`prepared`: what of the claim is prepared already. Raises PrepareError naming device, capacity, both
    figures and the holders."""
    claims = [*(holder for holder in holders if holder.ref.uid != wanted.ref.uid), wanted]
    held = [(claim, device) for claim in claims for device in claim.devices if not device.admin_access]
    for name in dict.fromkeys(device.device for device in wanted.devices if not device.admin_access):
        uses = [(claim, device) for claim, device in held if device.device == name]
        _refuse_dedicated(name, wanted=wanted, uses=uses)
        if len(uses) == 1 or all(
            device.assignment in prepared for device in wanted.devices if device.device == name
        ):
            continue
        if uses[0][1].pool:  # claims of other nodes have shares of it, too: the allocator alone sees all
            continue
        for capacity_name, capacity in sorted(published[name].capacity.items()):
            _refuse_excess(name, capacity_name, capacity, wanted=wanted, uses=uses)
    for device in wanted.devices:
        for claim, other in held:
            if other.device != device.device and not device.admin_access:
                _refuse_overlap(wanted, device, claim=claim, other=other)


def _refuse_overlap(
    wanted: ClaimRecord, device: DeviceRecord, *, claim: ClaimRecord, other: DeviceRecord
) -> None:
    """Refuse a device that another one is part of, or whose device numbers are those of another one."""
    whole, whole_of_other = whole_of(device.device), whole_of(other.device)
    if other.device == whole or device.device == whole_of_other:
        if claim is wanted:
            raise PrepareError(
                f"{wanted.ref}: CountersExhausted: {device.device} and {other.device} are in the allocation, and one is part "
                "of the other"
            )
        raise PrepareError(
            f"{wanted.ref}: CountersExhausted: {device.device} cannot be had, since {other.device}, which "
            f"{'contains it' if other.device == whole else 'is part of it'}, {_in_use(claim)}"
        )
    siblings = device.type == names.TYPE_MIG and whole == whole_of_other
    # Instances of one card are opened through the card's node, which comes first.
    own = device.nodes[1:] if siblings else device.nodes
    both = {(node.major, node.minor) for node in own} & {(node.major, node.minor) for node in other.nodes}
    if both and claim is not wanted:
        major, minor = min(both)
        raise PrepareError(
            f"{wanted.ref}: AlreadyAllocated: {device.device} has the device number {major}:{minor}, which was that of "
            f"{other.device} and {_in_use(claim)}"
        )


def _in_use(claim: ClaimRecord) -> str:
    return f"is in use by {_claims([claim])}; it is free once that claim is unprepared here"


def _refuse_dedicated(
    name: str, *, wanted: ClaimRecord, uses: list[tuple[ClaimRecord, DeviceRecord]]
) -> None:
    dedicated = [claim for claim, device in uses if device.share_id is None]
    if not dedicated or len(uses) == 1:
        return
    others = [claim for claim, _ in uses if claim is not wanted]
    if not others:
        raise PrepareError(
            f"{wanted.ref}: AlreadyAllocated: {name} is in the allocation twice without share ids"
        )
    raise PrepareError(
        f"{wanted.ref}: AlreadyAllocated: {name} is in use by {_claims(others)}, and "
        + ("this claim wants it alone" if wanted in dedicated else "it is held alone")
        + "; it is free once the other claim is unprepared here"
    )


def _refuse_excess(
    name: str,
    capacity_name: str,
    capacity: Capacity,
    *,
    wanted: ClaimRecord,
    uses: list[tuple[ClaimRecord, DeviceRecord]],
) -> None:
    amounts = [(claim, _used(device, capacity_name, capacity)) for claim, device in uses]
    asked = sum((amount for claim, amount in amounts if claim is wanted), Decimal())
    held = sum((amount for claim, amount in amounts if claim is not wanted), Decimal())
    if asked + held <= capacity.value:
        return
    others = [claim for claim, _ in uses if claim is not wanted]
    raise PrepareError(
        f"{wanted.ref}: InsufficientCapacity: {name} has {canonical(capacity.value)} of {capacity_name}, "
        f"{canonical(held)} in use"
        + (f" by {_claims(others)}" if others else "")
        + f", {canonical(asked)} asked"
    )


def _used(device: DeviceRecord, name: str, capacity: Capacity) -> Decimal:
    amount = dict(device.consumed).get(name)
    if amount is not None:
        return parse(amount)
    default = capacity.policy.default if capacity.policy else None
    return capacity.value if default is None else default


def _claims(claims: Iterable[ClaimRecord]) -> str:
    return ", ".join(dict.fromkeys(f"{claim.ref.namespace}/{claim.ref.name}" for claim in claims))


Placed = tuple[str, Mapping[str, Any]]
"""A device's name and its published attributes as plain values."""


def refuse_unmet_scopes(wanted: ClaimRecord, config: Configuration, *, inventory: NodeInventory) -> None:
    """Raises PrepareError naming the devices, the scope and where they are."""
    for entry in config.entries:
        joint = entry.parameters
        if not isinstance(joint, JointAllocation) or joint.enforcement is not Enforcement.REQUIRED:
            continue
        why = unmet(
            [
                (device.device, inventory.attributes(device.device))
                for device in wanted.devices
                if entry.covers(device.request) and not device.admin_access
            ],
            joint,
        )
        if why is not None:
            raise PrepareError(
                f"{wanted.ref}: TopologyScopeUnmet: {why}, and its JointAllocation is Required"
            )


def unmet(devices: Sequence[Placed], wanted: JointAllocation) -> str | None:
    """Why these devices do not meet the scope; None if they do, or if there is nothing to compare."""
    if wanted.pairing is Pairing.TOGETHER:
        if together((attributes for _, attributes in devices), wanted.scope):
            return None
        where = ", ".join(
            f"{name} in {scope_key(attributes, wanted.scope) or 'an unknown place'}"
            for name, attributes in devices
        )
        return f"the devices are not in one {wanted.scope}: {where}"
    # Two shares of one GPU or NIC count once.
    gpus = dict(device for device in devices if device[1].get(names.ATTR_TYPE) in names.GPU_TYPES)
    nics = dict(device for device in devices if device[1].get(names.ATTR_TYPE) in names.NIC_TYPES)
    if not gpus or not nics:
        return None
    served: Counter[str] = Counter()
    for gpu, attributes in gpus.items():
        near = [name for name, nic in nics.items() if together((attributes, nic), wanted.scope)]
        if not near:
            return f"{gpu} has no NIC of the claim in its {wanted.scope}"
        place = scope_key(attributes, wanted.scope) or ""
        served[place] += 1
        if wanted.pairing is Pairing.PER_DEVICE and served[place] > len(near):
            return (
                f"{gpu} has no NIC of its own in its {wanted.scope}: "
                f"{served[place]} GPUs of the claim and {len(near)} of its NICs are there"
            )
    return None
