"""Nodes whose GPUs or NICs are another stack's by the operator's word, and pods that have some of it.

An operator sets the label koordra.io/gpu-owner (nic-owner) of a Node. koordra gives no such device of it out
from then on. Once the node's plugin has left them (the device taint koordra.io/hand-over=Left) and no claim
is allocated one, the Node's annotation koordra.io/gpus-given-to (nics-given-to) names the new owner: what he
runs on the node may start. docs/migrate/node-by-node.md has the whole procedure.

The other way round, pods that were bound to the node under another stack's names keep its cards until they
have ended, although that stack's amounts are gone from the Node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.api.pods import SIDES
from koordra.compat.detection import publishers
from koordra.controller.cache.slice_index import is_ours
from koordra.controller.claims import ClaimEntry

_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class OwnedKind:
    """`others`: classes whose claims can take no such device."""

    title: str
    types: frozenset[str]
    label: str
    given_to: str
    others: frozenset[str]


GPUS: Final = OwnedKind(
    "GPUs",
    names.GPU_TYPES | {names.TYPE_IMEX},
    names.GPU_OWNER_LABEL,
    names.GPUS_GIVEN_TO,
    frozenset({names.CLASS_NIC, names.CLASS_VF}),
)
NICS: Final = OwnedKind(
    "NICs",
    names.NIC_TYPES,
    names.NIC_OWNER_LABEL,
    names.NICS_GIVEN_TO,
    frozenset({names.CLASS_GPU, names.CLASS_MIG}) | names.IMEX_CLASSES,
)
KINDS: Final = (GPUS, NICS)


def owner_of(node: Object, kind: OwnedKind) -> str:
    """Whom the operator names; empty for koordra."""
    name = str(objects.labels_of(node).get(kind.label) or "")
    return "" if name == names.OWNER_KOORDRA else name


def why_not(owner: str, kind: OwnedKind) -> str:
    return (
        f"the node's {kind.title} are handed over to {owner} (label {kind.label} of the Node); set the label to "
        f"{names.OWNER_KOORDRA} to have them back"
    )


def is_free(kind: OwnedKind, slices: Iterable[Object], claims: Iterable[ClaimEntry]) -> bool:
    """Whether the node's plugin has left its devices of the kind, and no claim (`claims`: of its pool) is
    allocated one."""
    devices = [
        device
        for entry in slices
        if is_ours(entry)
        for device in objects.spec_of(entry).get("devices") or ()
        if _type_of(device) in kind.types
    ]
    mine = {str(device.get("name")) for device in devices}
    return (
        bool(devices)
        and all(map(_is_left, devices))
        and not any(name in mine for entry in claims for _, name in entry.places)
    )


def _type_of(device: Fields) -> object:
    attributes = device.get("attributes") or {}
    return (attributes.get(names.DOMAIN + "type") or attributes.get("type") or {}).get("string")


def _is_left(device: Fields) -> bool:
    taints = device.get("taints") or ()
    return any(
        (each.get("key"), each.get("value")) == (names.HAND_OVER_TAINT, names.HAND_OVER_LEFT)
        for each in taints
    )


def peers_resource(pod: Object) -> str:
    """The resource under which a pod on a node has cards of another stack; empty where it has none. One whose
    resources a DRA driver serves (extended resources of DeviceClasses) has a claim instead."""
    status = objects.status_of(pod)
    if not objects.spec_of(pod).get("nodeName") or objects.pod_is_finished(pod):
        return ""
    return "" if status.get("extendedResourceClaimStatus") else next(_asked(pod), "")


def _asked(pod: Object) -> Iterator[str]:
    for group in ("containers", "initContainers"):
        for container in objects.spec_of(pod).get(group) or ():
            for side in SIDES:
                amounts = objects.fields(objects.fields(container.get("resources")).get(side))
                for name, value in amounts.items():
                    if value not in (0, "0") and publishers((str(name),)):
                        yield str(name)


def told_of(pods: Mapping[str, str]) -> str:
    """Pod -> the resource."""
    resources = tuple(sorted(set(pods.values())))
    shown = ", ".join(sorted(pods)[:_NAMED]) + (
        f" and {len(pods) - _NAMED} more" if len(pods) > _NAMED else ""
    )
    return (
        f"pods have cards of {publishers(resources)} here ({', '.join(resources)}): {shown}; koordra gives none out until "
        "they have ended"
    )
