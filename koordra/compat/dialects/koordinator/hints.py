"""Koordinator's annotations that ask for something, read strictly: JSON whose every field is known.

device-allocate-hint    {"rdma": {"selector", "vfSelector", "allocateStrategy", "requiredTopologyScope", "exclusivePolicy"}}
device-joint-allocate   {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
gpu-partition-spec      {"allocatePolicy": "Restricted", "ringBusBandwidth": "200Gi"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordra.api.classic.notes import Notes
from koordra.compat.dialect import PodView
from koordra.errors import InvalidQuantity
from koordra.quantity import parse

HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
JOINT: Final = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION: Final = "scheduling.koordinator.sh/gpu-partition-spec"

_TYPES: Final = ("gpu", "rdma", "fpga")
_STRATEGIES: Final = ("ApplyForAll", "RequestsAsCount")
_SCOPES: Final = ("Device", "PCIe", "NUMANode", "Node")
_EXCLUSIVE: Final = ("DeviceLevel", "PCIeLevel")


@dataclass(frozen=True, slots=True)
class Hint:
    """About one type of device. Selectors are None where they are absent; an empty one matches everything."""

    where: str
    selector: Any = None
    vf_selector: Any = None
    strategy: str = ""
    scope: str = ""
    exclusive: str = ""


@dataclass(frozen=True, slots=True)
class JointAllocate:
    types: tuple[str, ...]
    same_pcie: bool


@dataclass(frozen=True, slots=True)
class Partition:
    """That the pod wants whole partitions of the NVLink fabric; `restricted`: the best of them."""

    restricted: bool
    bandwidth: str = ""


def hints(view: PodView, notes: Notes) -> dict[str, Hint]:
    """By device type. Raises Refused."""
    found: dict[str, Hint] = {}
    for kind, raw in _json(view, HINT, notes).items():
        where = f"{view.field(HINT)}.{kind}"
        if kind not in _TYPES:
            raise notes.refuse(where, "is no type of device", f"types are {', '.join(_TYPES)}")
        if raw is None:
            continue
        data = _fields(
            raw,
            ("selector", "vfSelector", "allocateStrategy", "requiredTopologyScope", "exclusivePolicy"),
            where,
            notes,
        )
        found[kind] = Hint(
            where,
            selector=data.get("selector"),
            vf_selector=data.get("vfSelector"),
            strategy=_word(data, "allocateStrategy", _STRATEGIES, where, notes),
            scope=_word(data, "requiredTopologyScope", _SCOPES, where, notes),
            exclusive=_word(data, "exclusivePolicy", _EXCLUSIVE, where, notes),
        )
    return found


def joint(view: PodView, notes: Notes) -> JointAllocate | None:
    data = _json(view, JOINT, notes)
    if not data:
        return None
    where = view.field(JOINT)
    _fields(data, ("deviceTypes", "requiredScope"), where, notes)
    types = data.get("deviceTypes")
    if not isinstance(types, list) or not all(kind in _TYPES for kind in types):
        raise notes.refuse(
            f"{where}.deviceTypes", "is no list of types of devices", f"types are {', '.join(_TYPES)}"
        )
    return JointAllocate(
        tuple(types), _word(data, "requiredScope", ("SamePCIe",), where, notes) == "SamePCIe"
    )


def partition(view: PodView, notes: Notes) -> Partition | None:
    if view.annotation(PARTITION) is None:
        return None
    data, where = _json(view, PARTITION, notes), view.field(PARTITION)
    _fields(data, ("allocatePolicy", "ringBusBandwidth"), where, notes)
    bandwidth = data.get("ringBusBandwidth")
    if bandwidth is not None:
        try:
            parse(bandwidth)
        except InvalidQuantity as error:
            raise notes.refuse(f"{where}.ringBusBandwidth", error.problem, error.remedy) from error
    restricted = _word(data, "allocatePolicy", ("Restricted", "BestEffort"), where, notes) == "Restricted"
    return Partition(restricted, str(bandwidth or ""))


def _json(view: PodView, key: str, notes: Notes) -> dict[str, Any]:
    text = view.annotation(key)
    if text is None or not text.strip():
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise notes.refuse(
            view.field(key), f"is not JSON: {error}", "Koordinator would not place the pod either"
        ) from error
    if not isinstance(found, dict):
        raise notes.refuse(view.field(key), "is not a JSON object", "write it in braces")
    return found


def _fields(raw: object, known: tuple[str, ...], where: str, notes: Notes) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise notes.refuse(where, "is not an object", f"fields are {', '.join(known)}")
    unknown = sorted(set(map(str, raw)) - set(known))
    if unknown:
        raise notes.refuse(
            f"{where}.{unknown[0]}", "is no field that Koordinator reads", f"fields are {', '.join(known)}"
        )
    return raw


def _word(data: Mapping[str, Any], field: str, words: tuple[str, ...], where: str, notes: Notes) -> str:
    said = data.get(field)
    if said in (None, ""):
        return ""
    if said not in words:
        raise notes.refuse(
            f"{where}.{field}", f"{said!r} is none that Koordinator has", f"use {' or '.join(words)}"
        )
    return str(said)
