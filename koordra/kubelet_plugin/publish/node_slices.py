"""The ResourceSlices of the node: its devices, their allocator, their taints.

    devices      the inventory's, as the operator offers them (resource_slices.py)
    allocator    the command line's mode, else the Node's label koordra.io/allocation-mode, else joint
    taints       cordons of the Node, devices that another device plugin offers too, devices that are still
                 held

    koordra.io/cordoned         an operator wants nothing new on the device (`koordra cordon-device`)
    koordra.io/mig-mode         the card's MIG mode is being switched (isolation/mig/switching.py)
    koordra.io/held             the node still uses the device for a claim that the API no longer knows;
                                value: that claim's uid
    koordra.io/driver-release   NVIDIA's driver is to be free (nvidia_driver/release.py)
    koordra.io/hand-over        another stack gives out such devices, or is about to (hand_over.py)
    koordra.io/foreign-plugin   another device plugin of the node offers GPUs too, so that cards would be
                                given out twice

**Cordons** are annotations of the Node, one per device, so that two operators never overwrite each other's:

    cordon.koordra.io/gpu-0000-1f-00-0: NoSchedule            effect, and after a blank the reason, for people

An annotation was chosen over DeviceTaintRule, whose feature gate is off by default up to Kubernetes 1.36, and
over a file on the node, which needs access to the node. Setting it needs the right to patch Nodes, as
cordoning a Node does. A cordon does not end running pods (NoSchedule); with NoExecute the cluster evicts the
pods that use the device.

A **held** function also taints its whole NIC, and a held NIC its functions, since their shared counters are
charged only for claims that the API knows.

Pure, except for a warning about a label that is not a mode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Object, annotations_of
from koordra.compat.detection import offered_by_others
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.publish.devices import NO_ABSENT_DEVICES, AbsentDevices, Mode, whole_of
from koordra.kubelet_plugin.publish.hand_over import Standing
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.kubelet_plugin.publish.slice_content import with_devices
from koordra.logs import get_logger

CORDON_PREFIX: Final = "cordon.koordra.io/"
"""Node annotation `cordon.koordra.io/DEVICE`, by `koordra cordon-device`: new claims stay off the device."""
CORDON_TAINT: Final = "koordra.io/cordoned"
"""Device taint of a device that was cordoned."""
FOREIGN_TAINT: Final = "koordra.io/foreign-plugin"
"""Device taint (NoSchedule) of devices that another stack of the node gives out as well."""
EFFECTS: Final = ("NoSchedule", "NoExecute")

_MOST_TAINTS: Final = 16
_LONGEST_VALUE: Final = 63


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    key: str
    value: str
    effect: str = "NoSchedule"

    def to_dict(self) -> dict[str, str]:
        return {"key": self.key, "effect": self.effect, **({"value": self.value} if self.value else {})}


@dataclass(frozen=True, slots=True)
class Cordon:
    """`reason` is the operator's text."""

    device: str
    effect: str = "NoSchedule"
    reason: str = ""

    @property
    def annotation(self) -> tuple[str, str]:
        return f"{CORDON_PREFIX}{self.device}", f"{self.effect} {self.reason}".strip()

    @property
    def taint(self) -> Taint:
        return Taint(CORDON_TAINT, label_value(self.reason), self.effect)


def cordons_of(node: Object) -> tuple[Cordon, ...]:
    """The cordons of a Node, by device. An unknown effect cordons as NoSchedule."""
    found = []
    for key, value in sorted(annotations_of(node).items()):
        if key.startswith(CORDON_PREFIX):
            effect, _, reason = str(value).strip().partition(" ")
            if effect not in EFFECTS:
                effect, reason = EFFECTS[0], str(value)
            found.append(Cordon(key.removeprefix(CORDON_PREFIX), effect, reason.strip()))
    return tuple(found)


DeviceTaint = tuple[str, Taint]
"""A device's name, and a taint of it."""


def held_taints(records: Iterable[ClaimRecord], *, offered: Iterable[str]) -> Iterator[DeviceTaint]:
    """The taints of devices that `records`, claims unknown to the API, still hold. `offered`: names of
    published devices."""
    holders: dict[str, str] = {}
    for record in sorted(records, key=lambda record: record.ref.uid):
        for device in record.devices:
            if not device.admin_access:
                holders.setdefault(device.device, record.ref.uid)
    for name in sorted({*offered, *holders}):
        uid = holders.get(name) or next(
            (
                holder
                for held, holder in sorted(holders.items())
                if held == whole_of(name) or name == whole_of(held)
            ),
            None,
        )
        if uid is not None:
            yield name, Taint(names.HELD_TAINT, label_value(uid))


def foreign_taints(node: Object, *, offered: Mapping[str, str]) -> Iterator[DeviceTaint]:
    """The taints of GPUs on a node where another device plugin offers GPUs. `offered`: devices and their
    types."""
    for resource in offered_by_others(node)[:1]:
        for name, kind in offered.items():
            if kind in names.GPU_TYPES:
                yield name, Taint(FOREIGN_TAINT, label_value(resource))


def release_taints(phase: str, *, offered: Mapping[str, str]) -> Iterator[DeviceTaint]:
    """The taints of GPUs whose driver is to be free; `phase`: how far that is, empty where it is in use."""
    for name, kind in offered.items() if phase else ():
        if kind in names.GPU_TYPES:
            yield name, Taint(names.RELEASE_TAINT, phase)


def hand_over_taints(standings: Iterable[Standing], *, offered: Mapping[str, str]) -> Iterator[DeviceTaint]:
    """The taints of devices that are not koordra's to give out, or not for long any more."""
    for standing in standings:
        for name, kind in offered.items() if standing.taint else ():
            if kind in standing.kind.types:
                yield name, Taint(names.HAND_OVER_TAINT, standing.taint)


MODE_REFUSED: Final = "MigModeRefused"


def mode_taints(inventory: NodeInventory, cordons: Iterable[Cordon]) -> Iterator[DeviceTaint]:
    """The taints of cards whose MIG mode is being switched, and of what nobody is to have them switched for:
    the driver refused it, or the card is cordoned."""
    cordoned = {cordon.device: cordon.taint for cordon in cordons}
    for name, device in inventory.published.items():
        card = whole_of(name)
        if not any(taint.key == names.MIG_MODE_TAINT for taint in device.taints):
            if token := inventory.modes.switching.get(card):
                yield name, Taint(names.MIG_MODE_TAINT, token)
        elif card in inventory.modes.refused:
            yield name, Taint(names.UNHEALTHY_TAINT, MODE_REFUSED)
        elif card != name and card in cordoned:
            yield name, cordoned[card]


def with_taints(slices: Sequence[Object], taints: Iterable[DeviceTaint]) -> list[Object]:
    """The slices with the taints added to the devices of these names; the API allows a device 16."""
    added: dict[str, list[Object]] = {}
    for name, taint in dict.fromkeys(taints):
        added.setdefault(name, []).append(taint.to_dict())

    def tainted(device: Object) -> Object:
        more = added.get(device["name"])
        return {**device, "taints": [*device.get("taints", ()), *more][:_MOST_TAINTS]} if more else device

    return with_devices(slices, tainted)


def label_value(text: str) -> str:
    """The text as a taint's value: characters that a label value cannot hold become dashes."""
    return re.sub(r"[^0-9A-Za-z._-]+", "-", text)[:_LONGEST_VALUE].strip("-_.")


log = get_logger(__name__)


def node_slices(
    node: Object,
    *,
    generation: int,
    node_name: str,
    mode: Mode | None,
    inventory: NodeInventory,
    held: tuple[ClaimRecord, ...],
    release: str = "",
    standings: tuple[Standing, ...] = (),
    absent: AbsentDevices = NO_ABSENT_DEVICES,
    own: Collection[str] = (),
) -> Sequence[Object]:
    """Every slice of the pool; `mode` None follows the Node's label. `held` are the claims that hold devices
    although the API no longer knows them; `release`: how far NVIDIA's driver is released; `standings`: who
    gives devices out; `absent`: devices that claims hold and that cannot be offered; `own`: identities of the
    MIG instances that claims hold."""
    slices = build_slices(
        inventory.machine,
        node_name=node_name,
        node_uid=objects.uid(node),
        mode=mode or mode_of(node),
        generation=generation,
        offering=inventory.offering,
        absent=absent,
        own=own,
    )
    cordons = cordons_of(node)
    types = {name: str(inventory.attributes(name).get(names.ATTR_TYPE)) for name in inventory.published}
    taints = (
        *release_taints(release, offered=types),
        *hand_over_taints(standings, offered=types),
        *((cordon.device, cordon.taint) for cordon in cordons),
        *mode_taints(inventory, cordons),
        *held_taints(held, offered=types),
        *foreign_taints(node, offered=types),
    )
    return with_taints(slices, taints)


class NodeChanges:
    """Listener of the watch on the Node, whose status changes often: calls `changed` with a Node of which
    something else is new, or what other device plugins offer, or the runtime's version."""

    def __init__(self, changed: Callable[[Object], None]) -> None:
        self._changed = changed
        self._seen: object = None

    def __call__(self, _event: str, node: Object) -> None:
        labels, annotations = dict(objects.labels_of(node)), dict(objects.annotations_of(node))
        cordoned = objects.spec_of(node).get("unschedulable")
        runtime = (objects.status_of(node).get("nodeInfo") or {}).get("containerRuntimeVersion")
        seen = objects.uid(node), labels, annotations, cordoned, offered_by_others(node), runtime
        if seen != self._seen:
            self._seen = seen
            self._changed(node)


def mode_of(node: Object) -> Mode:
    """The node's label `koordra.io/allocation-mode`; joint where it is absent or not a mode."""
    label = objects.labels_of(node).get(names.MODE_LABEL, names.MODE_JOINT)
    if label == names.MODE_NATIVE:
        return "native"
    if label != names.MODE_JOINT:
        log.warning("unknown_allocation_mode", node=objects.name(node), label=label, used=names.MODE_JOINT)
    return "joint"
