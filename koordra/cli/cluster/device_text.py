"""Devices that a claim was given, in the words of tables."""

from __future__ import annotations

from collections.abc import Sequence

from koordra.allocator.reasons import amount_text
from koordra.api import names
from koordra.api.objects import Fields
from koordra.api.opaque.configuration import configuration
from koordra.api.opaque.isolation_words import AUTO
from koordra.errors import InvalidInput, InvalidQuantity
from koordra.quantity import parse


def device_lines(results: Sequence[Fields], *, wide: bool) -> list[str]:
    """A line for each device of an allocation where it is `wide`, else one for those of a request that are
    given alike: `gpus: 8 (memory 79.6Gi)`."""
    if wide:
        return [device_text(result) for result in results]
    alike: dict[tuple[str, str], list[str]] = {}
    for result in results:
        alike.setdefault((str(result.get("request")), _amounts(result)), []).append(str(result.get("device")))
    return [
        f"{request}: {devices[0] if len(devices) == 1 else len(devices)}"
        + (f" ({amounts})" if amounts else "")
        for (request, amounts), devices in alike.items()
    ]


def _amounts(result: Fields) -> str:
    """What was given of the device, without what nobody asked for."""
    consumed = (result.get("consumedCapacity") or {}).items()
    return ", ".join(
        amount_shown(name, amount)
        for name, amount in sorted(consumed)
        if str(amount) != "0" and not name.endswith("slots")
    )


def amount_shown(name: str, amount: object) -> str:
    """In the unit that people write it in: `memory 79.6Gi`, `bandwidth 200 Gb/s`; what is no quantity as it
    is."""
    short = name.rpartition("/")[2]
    try:
        return f"{short} {amount_text(short, parse(amount))}"
    except InvalidQuantity:
        return f"{short} {amount}"


def device_text(result: Fields) -> str:
    """A result of an allocation: `gpu: gpu-0000-0f-00-0 (cores 30, memory 10Gi)`."""
    amounts = _amounts(result)
    return f"{result.get('request')}: {result.get('device')}" + (f" ({amounts})" if amounts else "")


def isolation_lines(allocation: Fields) -> list[str]:
    """What `Auto` came to, by request: `gpu: isolation mps (Auto: mps, limiter)`."""
    try:
        said = configuration(allocation.get("config") or (), claim="the claim", holds=True)
    except InvalidInput:
        return []
    results = allocation.get("results") or ()
    requests = dict.fromkeys(str(one.get("request")) for one in results if one.get("driver") == names.DRIVER)
    asked = {request: said.isolation(request) for request in requests}
    return [
        f"{request}: isolation {one.word} (Auto: {', '.join(one.order)})"
        for request, one in asked.items()
        if one.auto and one.word not in (None, AUTO)
    ]
