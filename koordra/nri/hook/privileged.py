"""A privileged container on a runtime that cannot deny it any device. Pure.

A privileged container may open every device of the node. From NRI 0.10 on (containerd 2.2, CRI-O 1.34) rules
that deny GPUs and NICs are appended to its own; older runtimes drop them without a word. There it is decided
by who the container is:

    it holds every card of the node               starts: no other pod has one
    it holds some cards or NICs by its claims     starts, and is reported; CUDA is told which cards it has
    its pod is critical to the node               starts, and is reported (system_pods)
    anyone else                                   refused

With `--privileged refuse` the first alone starts, beside the exempt namespaces, from which nothing is ever
taken away. That a pod is critical spares a privileged container on every runtime the refusals of SPARED: it
is root on the node whatever it mounts, and the node may not come up without it.

A holder of some cards sees all of them, so CUDA would begin with another pod's. CUDA_VISIBLE_DEVICES gets the
numbers that its own cards have on the node in the order of the PCI addresses, and CUDA_DEVICE_ORDER says that
this order is meant; numbers of its own that the pod wrote would mean other pods' cards, and are replaced.
UUIDs, which some programs do not read, are written where a number cannot name what is held: MIG instances,
and cards that the driver's list in /proc lacks. This keeps mistakes away and nobody with intent.

What is reported is the condition `NotConfined` of the claims, an Event of the pod, and a metric
(verify/drift.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from koordra.api import names
from koordra.node_state.prepared_claim import DeviceGuard
from koordra.nri.hook.environment import CUDA_VISIBLE_DEVICES
from koordra.nri.hook.grants import Grants
from koordra.nri.hook.oci import Container, Refusal

SPARED: Final = frozenset({"CannotDeny", "ForeignCDIDevice", "ForeignMount", "NodeState", "UngrantedDevice"})
"""Rules by which a privileged container of a critical pod is not refused."""

_CARD: Final = re.compile(r"/dev/nvidia[0-9]+")


class PrivilegedPolicy(StrEnum):
    """Of the operator."""

    REPORT = "report"
    REFUSE = "refuse"


def check_unconfined(
    container: Container,
    grants: Grants,
    *,
    guarded: DeviceGuard | None,
    policy: PrivilegedPolicy,
) -> None:
    """Refuse a container to which nothing can be denied, unless it may start so by what it holds."""
    if _holds_every_card(grants, guarded):
        return
    if policy is PrivilegedPolicy.REPORT and grants.held:
        return
    remedy = "drop `privileged`"
    if grants.held:
        remedy += ", or claim every GPU of the node"
    raise Refusal(
        "CannotDeny",
        f"{container}: its device rules open GPUs or NICs that it does not hold (it is privileged), and this "
        f"container runtime cannot take them away; {remedy}, or have the operator exempt the namespace (label "
        "koordra.io/exempt=true, or koordra nri --exempt-namespace) or update the runtime (containerd 2.2, CRI-O 1.34)",
    )


def _holds_every_card(grants: Grants, guarded: DeviceGuard | None) -> bool:
    """Whether the container holds all of the node's cards; a MIG instance is none."""
    whole = [grant.device for grant in grants.held if grant.device.type == names.TYPE_GPU]
    held = {node.number for device in whole for node in device.nodes}
    cards = {
        node.number
        for device in (guarded.devices if guarded else ())
        if device.type == names.TYPE_GPU
        for node in device.nodes
        if _CARD.fullmatch(node.path)
    }
    return bool(cards) and cards <= held


def cards_on_node(grants: Grants, minors: Sequence[int], guarded: DeviceGuard | None) -> dict[str, str]:
    """The variables by which CUDA keeps to the held cards where it sees the node's; none where all are held.
    `minors`: of the node's cards, in the order of their PCI addresses."""
    gpus = [grant.device for grant in grants.held if grant.device.type in names.GPU_TYPES]
    if not gpus or _holds_every_card(grants, guarded):
        return {}
    held = list(dict.fromkeys(device.nodes[0].minor for device in gpus if device.nodes))
    if any(device.type != names.TYPE_GPU for device in gpus) or not set(held) <= set(minors):
        return {CUDA_VISIBLE_DEVICES: ",".join(grants.uuids)}
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        CUDA_VISIBLE_DEVICES: ",".join(str(minors.index(minor)) for minor in held),
    }
