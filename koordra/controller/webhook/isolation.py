"""The isolation that a claim asks for, held against the classes of its requests: the operator's word stands above the claim's. Pure.

Nodes have a word too. It is found where a claim waits for one that allows what it asks for (reason BackendUnavailable). In native
mode, where kube-scheduler reads no policies, a selector says it: devices whose node does not allow the word do not match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.opaque.isolation import IsolationPolicy, asked_isolation, attribute
from koordra.api.opaque.parameters import NO_ISOLATION, GpuConfig
from koordra.controller.webhook.claims import Entry, alternatives, devices_of, entries_of
from koordra.errors import InvalidInput, InvalidParameters


def answers(
    obj: Mapping[str, Any], classes: Mapping[str, Mapping[str, Any]]
) -> tuple[list[InvalidInput], list[str]]:
    """Problems where the class of a request does not allow what the claim asks for, and warnings where the class's own word
    stands above the claim's."""
    about = objects.describe(obj)
    found: list[InvalidInput] = []
    overruled: list[str] = []
    of_claim = [(entry, entry.value) for entry in entries_of(obj) if isinstance(entry.value, GpuConfig)]
    for _, name, request in alternatives(devices_of(obj)[1]) if of_claim else ():
        own = [(entry, value) for entry, value in of_claim if entry.covers(name)]
        values = [value for _, value in own]
        wanted = asked_isolation((), values).word
        device_class = classes.get(str(request.get("deviceClassName")))
        if wanted is None or device_class is None:
            continue
        field = next(f"{entry.field}.isolation" for entry, value in own if value.isolation == wanted)
        of_class = [entry.value for entry in entries_of({"kind": "DeviceClass", **device_class})]
        asked = asked_isolation(of_class, values)
        if asked.word != wanted:
            text = f"{wanted} is not what request {name} gets: its class says {asked.word}"
            overruled.append(f"{field}: {text}")
        configs = [*(value for value in of_class if isinstance(value, GpuConfig)), *values]
        why = asked.refusal(IsolationPolicy(), share=_may_share(request, configs))
        if why is not None:
            problem = f"request {name}: {why}"
            remedy = f"use one of {', '.join(asked.policy.allowed or ())}, or another class"
            found.append(InvalidParameters(problem, object=about, field=field, remedy=remedy))
    return found, overruled


def selecting(devices: Mapping[str, Any], entries: Sequence[Entry]) -> list[Any]:
    """The requests, those of GPUs for which the claim names a backend with a selector on what nodes publish."""

    def selected(name: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        own = [entry.value for entry in entries if entry.covers(name) and isinstance(entry.value, GpuConfig)]
        word = asked_isolation((), own).word
        if word is None or (word == NO_ISOLATION and not _may_share(request, own)):
            return request
        selector = {"cel": {"expression": _ALLOWED.format(attribute(word).partition("/")[2])}}
        before = request.get("selectors") or []
        return request if selector in before else {**request, "selectors": [*before, selector]}

    def changed(request: Mapping[str, Any]) -> Mapping[str, Any]:
        name, found = str(request.get("name")), dict(request)
        if isinstance(found.get("exactly"), Mapping):
            found["exactly"] = selected(name, found["exactly"])
        if isinstance(found.get("firstAvailable"), list):
            found["firstAvailable"] = [
                selected(f"{name}/{one.get('name')}", one) if isinstance(one, Mapping) else one
                for one in found["firstAvailable"]
            ]
        return found

    return [
        changed(request) if isinstance(request, Mapping) else request
        for request in devices.get("requests") or ()
    ]


_ALLOWED: Final = (
    f'!("isolationNone" in device.attributes["{names.DRIVER}"]) || ("{{0}}" in device.attributes["{names.DRIVER}"] && '
    f'device.attributes["{names.DRIVER}"].{{0}})'
)
"""True of a device that is no GPU, or whose node publishes no policy, too."""


def _may_share(request: Mapping[str, Any], configs: Sequence[GpuConfig]) -> bool:
    """Whether the request may be met by a part of a card."""
    capacity = request.get("capacity")
    amounts = capacity.get("requests") if isinstance(capacity, Mapping) else None
    asked = amounts if isinstance(amounts, Mapping) else ()
    part = any(str(name).rpartition("/")[2] == names.CAPACITY_MEMORY for name in asked)
    part = part or any(value.memory_percent not in (None, 100) for value in configs)
    return part and not any(value.exclusive for value in configs)
