"""The isolation that a claim asks for, held against the classes of its requests: the operator's word stands above the claim's. Pure.

Nodes have a word too. It is found where a claim waits for one that allows what it asks for (reason BackendUnavailable).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from koordra.api import names, objects
from koordra.api.opaque import parameters
from koordra.api.opaque.isolation import IsolationPolicy, asked_isolation
from koordra.controller.webhook.claims import devices_of, our_config
from koordra.errors import InvalidInput, InvalidParameters


def answers(
    obj: Mapping[str, Any], classes: Mapping[str, Mapping[str, Any]]
) -> tuple[list[InvalidInput], list[str]]:
    """What the classes of a claim's requests say of the isolation that the claim asks for: problems, and warnings where the
    class's own word stands above it. Nodes have a word too, which is told where the claim waits for one."""
    about = objects.describe(obj)
    path, devices = devices_of(obj)
    entries = [
        (place, tuple(entry.get("requests") or ()), entry["opaque"].get("parameters"))
        for place, entry in our_config(devices, path)
    ]
    found: list[InvalidInput] = []
    told: list[str] = []
    for name, request in _alternatives(devices):
        of_claim = [
            (place, value)
            for place, requests, body in entries
            if (not requests or {name, name.partition("/")[0]} & set(requests))
            and isinstance(value := _decoded(body), parameters.GpuConfig)
        ]
        device_class = classes.get(str(request.get("deviceClassName")))
        if device_class is None or not of_claim:
            continue
        of_class = [
            _decoded(entry["opaque"].get("parameters"))
            for _, entry in our_config(objects.spec_of(device_class), "spec")
        ]
        asked = asked_isolation(of_class, (value for _, value in of_claim))
        own = asked_isolation((), (value for _, value in of_claim)).word
        if own is None:
            continue
        place = next(place for place, value in of_claim if value.isolation == own)
        field = f"{place}.opaque.parameters.isolation"
        if asked.word != own:
            told.append(f"{field}: {own} is not what request {name} gets: its class says {asked.word}")
        why = asked.refusal(IsolationPolicy(), share=_may_share(request, of_claim))
        if why is not None:
            remedy = f"use one of {', '.join(asked.policy.allowed or ())}, or another class"
            found.append(
                InvalidParameters(f"request {name}: {why}", object=about, field=field, remedy=remedy)
            )
    return found, told


def _alternatives(devices: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every request, and every alternative of one, by the name that results have."""
    for request in devices.get("requests") or ():
        if isinstance(request, Mapping):
            if isinstance(request.get("exactly"), Mapping):
                yield str(request.get("name")), request["exactly"]
            for alternative in request.get("firstAvailable") or ():
                if isinstance(alternative, Mapping):
                    yield f"{request.get('name')}/{alternative.get('name')}", alternative


def _may_share(request: Mapping[str, Any], of_claim: Sequence[tuple[str, parameters.GpuConfig]]) -> bool:
    """Whether the request may be met by a part of a card."""
    amounts = (request.get("capacity") or {}).get("requests") or {}
    part = any(str(name).rpartition("/")[2] == names.CAPACITY_MEMORY for name in amounts)
    configs = [value for _, value in of_claim]
    part = part or any(value.memory_percent not in (None, 100) for value in configs)
    return part and not any(value.exclusive for value in configs)


def _decoded(body: object) -> parameters.Parameters | None:
    """None for what is told elsewhere to be wrong."""
    try:
        return parameters.decode(body, object="", field="")
    except InvalidInput:
        return None
