"""The isolation that a claim asks for, held against the classes of its requests: the operator's word stands above the claim's. Pure.

Nodes have a word too. It is found where a claim waits for one that allows what it asks for (reason BackendUnavailable). In native
mode, where kube-scheduler reads no policies, a selector says it: devices whose node does not allow the word do not match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.opaque import parameters
from koordra.api.opaque.isolation import IsolationPolicy, asked_isolation, attribute
from koordra.controller.webhook.claims import devices_of, our_config
from koordra.errors import InvalidInput, InvalidParameters


def answers(
    obj: Mapping[str, Any], classes: Mapping[str, Mapping[str, Any]]
) -> tuple[list[InvalidInput], list[str]]:
    """Problems where the class of a request does not allow what the claim asks for, and warnings where the class's own word
    stands above the claim's."""
    about = objects.describe(obj)
    path, devices = devices_of(obj)
    of_claim = [
        (f"{place}.opaque.parameters.isolation", _names(entry.get("requests")), value)
        for place, entry in our_config(devices, path)
        if (value := _gpu_config(entry)) is not None
    ]
    found: list[InvalidInput] = []
    told: list[str] = []
    for name, request in _alternatives(devices) if of_claim else ():
        own = [
            (field, value)
            for field, requests, value in of_claim
            if not requests or {name, name.partition("/")[0]} & requests
        ]
        wanted = asked_isolation((), (value for _, value in own)).word
        device_class = classes.get(str(request.get("deviceClassName")))
        if wanted is None or device_class is None:
            continue
        field = next(field for field, value in own if value.isolation == wanted)
        of_class = [_gpu_config(entry) for _, entry in our_config(objects.spec_of(device_class), "spec")]
        configs = [value for value in (*of_class, *(value for _, value in own)) if value is not None]
        asked = asked_isolation(of_class, (value for _, value in own))
        if asked.word != wanted:
            told.append(f"{field}: {wanted} is not what request {name} gets: its class says {asked.word}")
        why = asked.refusal(IsolationPolicy(), share=_may_share(request, configs))
        if why is not None:
            remedy = f"use one of {', '.join(asked.policy.allowed or ())}, or another class"
            found.append(
                InvalidParameters(f"request {name}: {why}", object=about, field=field, remedy=remedy)
            )
    return found, told


def selecting(devices: Mapping[str, Any], path: str) -> list[Any]:
    """The requests, those of GPUs for which the claim names a backend with a selector on what nodes publish."""
    of_claim = [
        (_names(entry.get("requests")), value)
        for _, entry in our_config(devices, path)
        if (value := _gpu_config(entry)) is not None
    ]

    def selected(name: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        own = [value for named, value in of_claim if not named or {name, name.partition("/")[0]} & named]
        word = asked_isolation((), own).word
        if word is None or (word == parameters.NO_ISOLATION and not _may_share(request, own)):
            return request
        selector = {"cel": {"expression": _ALLOWED.format(attribute(word).partition("/")[2])}}
        before = request.get("selectors") or []
        return request if selector in before else {**request, "selectors": [*before, selector]}

    found: list[Any] = []
    for request in devices.get("requests") or ():
        changed = dict(request) if isinstance(request, Mapping) else request
        if isinstance(changed, dict) and isinstance(changed.get("exactly"), Mapping):
            changed["exactly"] = selected(str(changed.get("name")), changed["exactly"])
        if isinstance(changed, dict) and isinstance(changed.get("firstAvailable"), list):
            changed["firstAvailable"] = [
                selected(f"{changed.get('name')}/{one.get('name')}", one) if isinstance(one, Mapping) else one
                for one in changed["firstAvailable"]
            ]
        found.append(changed)
    return found


_ALLOWED: Final = (
    f'!("isolationNone" in device.attributes["{names.DRIVER}"]) || ("{{0}}" in device.attributes["{names.DRIVER}"] && '
    f'device.attributes["{names.DRIVER}"].{{0}})'
)
"""True of a device that is no GPU, or whose node publishes no policy, too."""


def _alternatives(devices: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every request, and every alternative of one, by the name that results have."""
    for request in _mappings(devices.get("requests")):
        if isinstance(request.get("exactly"), Mapping):
            yield str(request.get("name")), request["exactly"]
        for alternative in _mappings(request.get("firstAvailable")):
            yield f"{request.get('name')}/{alternative.get('name')}", alternative


def _may_share(request: Mapping[str, Any], configs: Sequence[parameters.GpuConfig]) -> bool:
    """Whether the request may be met by a part of a card."""
    capacity = request.get("capacity")
    amounts = capacity.get("requests") if isinstance(capacity, Mapping) else None
    part = any(name.rpartition("/")[2] == names.CAPACITY_MEMORY for name in _names(amounts))
    part = part or any(value.memory_percent not in (None, 100) for value in configs)
    return part and not any(value.exclusive for value in configs)


def _gpu_config(entry: Mapping[str, Any]) -> parameters.GpuConfig | None:
    """None for another kind, and for what is told elsewhere to be wrong."""
    try:
        value = parameters.decode(entry["opaque"].get("parameters"), object="", field="")
    except InvalidInput:
        return None
    return value if isinstance(value, parameters.GpuConfig) else None


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _names(value: object) -> frozenset[str]:
    """The texts of a list, or the keys of an object."""
    return frozenset(map(str, value)) if isinstance(value, list | Mapping) else frozenset()
