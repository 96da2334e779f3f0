"""Koordinator's annotations that ask for something, read strictly: JSON whose every field is known; and its label selectors, as CEL.

device-allocate-hint    {"rdma": {"selector", "vfSelector", "allocateStrategy", "requiredTopologyScope", "exclusivePolicy"}}
device-joint-allocate   {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
gpu-partition-spec      {"allocatePolicy": "Restricted", "ringBusBandwidth": "200Gi"}

In place of a device's label `<label>` koordra reads its attribute `koordinator.sh/<label>`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.api.classic.notes import Notes
from koordra.compat.dialect import PodView
from koordra.compat.dialect.vgpu import cel_text
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


LABELS_DOMAIN: Final = "koordinator.sh"
_LABELS: Final = f'device.attributes["{LABELS_DOMAIN}"]'
PARENT: Final = "parent_"
"""Before the name of a label that the physical function of a virtual one carries."""


def labels(selector: object, *, field: str, notes: Notes, prefix: str = "") -> str:
    """A LabelSelector over devices. Empty for one that matches everything. Raises Refused."""
    if not isinstance(selector, Mapping):
        raise notes.refuse(field, "is not a label selector", "write matchLabels or matchExpressions")
    unknown = sorted(set(map(str, selector)) - {"matchLabels", "matchExpressions"})
    if unknown:
        raise notes.refuse(
            f"{field}.{unknown[0]}", "is no field of a label selector", "use matchLabels or matchExpressions"
        )
    exact = selector.get("matchLabels") or {}
    terms = selector.get("matchExpressions") or []
    if not isinstance(exact, Mapping) or not isinstance(terms, list):
        raise notes.refuse(field, "is not a label selector", "write matchLabels or matchExpressions")
    parts = [_label(str(key), "In", [str(value)], prefix=prefix) for key, value in exact.items()]
    for index, term in enumerate(terms):
        parts.append(_term(term, f"{field}.matchExpressions[{index}]", notes, prefix=prefix))
    if parts:
        asked = [str(key) for key in exact] + [str(term.get("key")) for term in terms]
        attributes = ", ".join(f"{LABELS_DOMAIN}/{prefix}{key}" for key in dict.fromkeys(asked))
        notes.warn(
            field,
            f"labels are looked for as attributes {attributes}",
            "have the nodes publish them, or the claim waits",
        )
    return " && ".join(parts)


def _term(term: Any, field: str, notes: Notes, *, prefix: str) -> str:
    data = term if isinstance(term, Mapping) else {}
    operator, values = str(data.get("operator") or ""), data.get("values") or []
    if not data.get("key") or operator not in _OPERATORS or not isinstance(values, list):
        raise notes.refuse(
            field, "is no requirement of a label selector", f"operators are {', '.join(_OPERATORS)}"
        )
    if bool(values) != (operator in ("In", "NotIn")):
        raise notes.refuse(f"{field}.values", f"{operator} wants {'values' if not values else 'no values'}")
    return _label(str(data["key"]), operator, [str(value) for value in values], prefix=prefix)


_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def _label(key: str, operator: str, values: Sequence[str], *, prefix: str) -> str:
    name = cel_text(prefix + key)
    there = f"{name} in {_LABELS}"
    if operator == "Exists":
        return there
    if operator == "DoesNotExist":
        return f"!({there})"
    listed = f"{_LABELS}[{name}] in [{', '.join(cel_text(value) for value in values)}]"
    return f"({there} && {listed})" if operator == "In" else f"(!({there}) || !({listed}))"
