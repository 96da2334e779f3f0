"""Whether the devices of an allocation meet a Required JointAllocation.

The allocator guarantees the scope; the node verifies it against its own topology before a container gets the
devices, since in native mode kube-scheduler allocates and knows nothing of scopes. Only GPUs and NICs count,
each once, however many shares of it the claim has (as in `koordra.allocator.joint_allocation`):

    PerDevice   every GPU has a NIC of its own in scope    no scope with more GPUs than NICs
    PerGroup    every GPU has some NIC in scope            no scope with GPUs and without NIC
    Together    all devices are in one scope

A device of unknown place (no switch above it, NUMA node unknown) shares a scope with no other. If the claim
has only one kind of device there is nothing to check: the other kind may be in another claim of the pod,
which the node does not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koordra.api import names
from koordra.api.opaque.parameters import JointAllocation, Pairing
from koordra.topology.scopes import scope_key, together

Placed = tuple[str, Mapping[str, Any]]
"""A device's name and its published attributes as plain values."""


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
    served: dict[str, int] = {}
    for gpu, attributes in gpus.items():
        near = [name for name, nic in nics.items() if together((attributes, nic), wanted.scope)]
        if not near:
            return f"{gpu} has no NIC of the claim in its {wanted.scope}"
        place = scope_key(attributes, wanted.scope) or ""
        served[place] = served.get(place, 0) + 1
        if wanted.pairing is Pairing.PER_DEVICE and served[place] > len(near):
            return (
                f"{gpu} has no NIC of its own in its {wanted.scope}: "
                f"{served[place]} GPUs of the claim and {len(near)} of its NICs are there"
            )
    return None
