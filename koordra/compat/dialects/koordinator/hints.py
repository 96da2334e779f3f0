"""Koordinator's annotations that ask for something, read strictly: JSON whose every field is known; and its
label selectors, as CEL.

device-allocate-hint    {"rdma": {"selector", "vfSelector", "allocateStrategy", "requiredTopologyScope",
                        "exclusivePolicy"}}
device-joint-allocate   {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
gpu-partition-spec      {"allocatePolicy": "Restricted", "ringBusBandwidth": "200Gi"}
numa-topology-spec      {"numaTopologyPolicy": "SingleNUMANode", "singleNUMANodeExclusive": "Required"}

In place of a device's label `<label>` koordra reads its attribute `koordinator.sh/<label>`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from koordra.api.classic.notes import Notes
from koordra.api.reader import Reader
from koordra.compat.dialect import PodView
from koordra.compat.dialect.vgpu import cel_text

HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
JOINT: Final = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION: Final = "scheduling.koordinator.sh/gpu-partition-spec"
NUMA: Final = "scheduling.koordinator.sh/numa-topology-spec"

_TYPES: Final = ("gpu", "rdma", "fpga")
_HINT_FIELDS: Final = (
    "selector",
    "vfSelector",
    "allocateStrategy",
    "requiredTopologyScope",
    "exclusivePolicy",
)
_UNKNOWN: Final = "is no field that Koordinator reads"


@dataclass(frozen=True, slots=True)
class Hint:
    """About one type of device. Selectors are None where they are absent; an empty one matches everything."""

    where: str = ""
    selector: Reader | None = None
    vf_selector: Reader | None = None
    strategy: str = ""
    scope: str = ""
    exclusive: str = ""


def hints_of(view: PodView) -> dict[str, Hint]:
    """By device type. Raises Refused."""
    read = _json(view, HINT)
    found: dict[str, Hint] = {}
    for kind, raw in read.data.items():
        if kind not in _TYPES:
            raise read.wrong("is no type of device", f"types are {', '.join(_TYPES)}", at=kind)
        if raw is None:
            continue
        hint = read.inner(kind)
        hint.only(*_HINT_FIELDS, problem=_UNKNOWN)
        found[kind] = Hint(
            hint.field,
            selector=hint.optional("selector"),
            vf_selector=hint.optional("vfSelector"),
            strategy=_word(hint, "allocateStrategy", "ApplyForAll", "RequestsAsCount"),
            scope=_word(hint, "requiredTopologyScope", "Device", "PCIe", "NUMANode", "Node"),
            exclusive=_word(hint, "exclusivePolicy", "DeviceLevel", "PCIeLevel"),
        )
    return found


def joint(view: PodView) -> tuple[Set[str], bool]:
    """Types of devices that are to be near each other, and whether they have to be on one PCIe root. Raises
    Refused."""
    read = _json(view, JOINT)
    if not read.data:
        return set(), False
    read.only("deviceTypes", "requiredScope", problem=_UNKNOWN)
    types = read.data.get("deviceTypes")
    if not isinstance(types, list) or not all(kind in _TYPES for kind in types):
        raise read.wrong("is no list of types of devices", f"types are {', '.join(_TYPES)}", at="deviceTypes")
    return set(types), _word(read, "requiredScope", "SamePCIe") == "SamePCIe"


def partition_bandwidth(view: PodView) -> str | None:
    """The bandwidth that a pod asks of a partition of the NVLink fabric, "" for any; None where it asks for
    no partition."""
    if view.annotations.get(PARTITION) is None:
        return None
    read = _json(view, PARTITION)
    read.only("allocatePolicy", "ringBusBandwidth", problem=_UNKNOWN)
    read.amount_or_none("ringBusBandwidth")
    _word(read, "allocatePolicy", "Restricted", "BestEffort")
    return str(read.data.get("ringBusBandwidth") or "")


def numa(view: PodView) -> bool | None:
    """Whether CPUs, memory and devices have to be on one NUMA node (True), better are (False); None where the
    pod says nothing of it. Restricted refuses a node where it takes more NUMA nodes than it could; here the
    fewest are preferred."""
    read = _json(view, NUMA)
    read.only("numaTopologyPolicy", "singleNUMANodeExclusive", problem=_UNKNOWN)
    policy = _word(read, "numaTopologyPolicy", "None", "BestEffort", "Restricted", "SingleNUMANode")
    if _word(read, "singleNUMANodeExclusive", "Required", "Preferred"):
        view.notes.warn(
            f"{view.field(NUMA)}.singleNUMANodeExclusive",
            "is not kept: pods of several NUMA nodes may come beside this one",
            "write numaTopologyPolicy SingleNUMANode into those pods too",
        )
    if policy == "Restricted":
        view.notes.warn(
            f"{view.field(NUMA)}.numaTopologyPolicy",
            "Restricted is preferred here and not demanded",
            "write SingleNUMANode where the devices fit on one NUMA node",
        )
    return {"BestEffort": False, "Restricted": False, "SingleNUMANode": True}.get(policy)


def _json(view: PodView, key: str) -> Reader:
    text = view.annotations.get(key)
    try:
        found = json.loads(text) if text and text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise view.refuse(
            key, f"is not JSON: {error}", "Koordinator would not place the pod either"
        ) from error
    if not isinstance(found, dict):
        raise view.refuse(key, "is not a JSON object", "write it in braces")
    return Reader(found, object=view.notes.object, field=view.field(key))


def _word(read: Reader, name: str, *words: str) -> str:
    return read.choice(
        name, words, problem="is none that Koordinator has", remedy=f"use {' or '.join(words)}"
    )


LABELS_DOMAIN: Final = "koordinator.sh"
_LABELS: Final = f'device.attributes["{LABELS_DOMAIN}"]'
PARENT: Final = "parent_"
"""Before the name of a label that the physical function of a virtual one carries."""


def labels(selector: Reader, notes: Notes, *, prefix: str = "") -> str:
    """CEL of a LabelSelector over devices. Empty for one that matches everything. Raises InvalidManifest."""
    selector.only("matchLabels", "matchExpressions", problem="is no field of a label selector")
    exact = selector.inner("matchLabels").data.items()
    wanted = [(str(key), "In", [str(value)]) for key, value in exact]
    wanted += map(_requirement, selector.each("matchExpressions"))
    if wanted:
        attributes = dict.fromkeys(f"{LABELS_DOMAIN}/{prefix}{key}" for key, _, _ in wanted)
        notes.warn(
            selector.field,
            f"labels are looked for as attributes {', '.join(attributes)}",
            "have the nodes publish them, or the claim waits",
        )
    return " && ".join(_label(prefix + key, operator, values) for key, operator, values in wanted)


def _requirement(read: Reader) -> tuple[str, str, list[str]]:
    operator = read.text("operator")
    values = list(map(str, read.sequence("values")))
    if operator not in _OPERATORS:
        known = f"operators are {', '.join(_OPERATORS)}"
        raise read.wrong(f"{operator!r} is no operator of a label selector", known, at="operator")
    if bool(values) != (operator in ("In", "NotIn")):
        raise read.wrong(f"{operator} wants {'no values' if values else 'values'}", at="values")
    return read.required("key"), operator, values


_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def _label(key: str, operator: str, values: Sequence[str]) -> str:
    name = cel_text(key)
    there = f"{name} in {_LABELS}"
    listed = f"{_LABELS}[{name}] in [{', '.join(map(cel_text, values))}]"
    return {
        "Exists": there,
        "DoesNotExist": f"!({there})",
        "In": f"({there} && {listed})",
        "NotIn": f"(!({there}) || !({listed}))",
    }[operator]
