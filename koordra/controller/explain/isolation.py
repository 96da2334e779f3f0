"""What is enforced of an allocated device, and what is only accounted for.

Three things say it: the allocation's parameters with the policy that the node publishes (which backend keeps
a share: koordra.api.opaque.isolation), the kind of the device (a card's own partition, a function of its
own), and the conditions that the node's plugin and hook have written, which say whether it holds. What
nobody has looked at yet is said to be so, not taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koordra.allocator.devices.inventory import PublishedDevice
from koordra.allocator.reasons import amount_text
from koordra.api import names, objects
from koordra.api.allocation import Allocation, DeviceResult
from koordra.api.device_status import device_key
from koordra.api.devices import DeviceID
from koordra.api.objects import Fields, Object
from koordra.api.opaque.configuration import Configuration, configuration
from koordra.api.opaque.isolation import IsolationPolicy, is_share, published_policy
from koordra.api.opaque.isolation_words import AUTO, backend_of
from koordra.api.opaque.share_limits import owner_of, resized_claim
from koordra.errors import InvalidInput
from koordra.inert import inert

KEPT: Final[Mapping[str, tuple[str | None, str | None]]] = {
    "none": (None, None),
    "timeslicing": (None, None),
    "limiter": ("by the limiter inside the container", None),
    "hami-core": ("by HAMi's library inside the container", "by HAMi's library inside the container"),
    "mps": ("by MPS, in each process", "by MPS, in each process"),
}
"""By what a backend keeps memory and cores; None: they are counted. Another one is believed to keep
memory."""


def isolation_of(claim: Fields, devices: Mapping[DeviceID, PublishedDevice]) -> list[Object]:
    """One entry per device of koordra's that the claim has. `devices`: those that are published now."""
    allocation = Allocation.of_claim(claim)
    if allocation is None:
        return []
    try:
        said = configuration(allocation.config, claim=objects.key(claim), holds=True)
    except InvalidInput:  # told as the claim's trouble by who prepares it
        said = Configuration()
    conditions = {
        device_key(entry): list(entry.get("conditions") or ())
        for entry in objects.status_of(claim).get("devices") or ()
        if isinstance(entry, Mapping)
    }
    return [
        _entry(result, devices.get(result.device), said, conditions.get(device_key(result.to_dict()), ()))
        for result in allocation.results
        if result.device.driver == names.DRIVER
    ]


def resized_of(claim: Fields, holds: Iterable[Fields]) -> Object | None:
    """What the shares of a running claim are held to now, where that was changed: beside what was allocated,
    what is held beyond it, and why a wish is not granted."""
    allocation, owner = Allocation.of_claim(claim), owner_of(objects.key(claim))
    mine = (hold for hold in holds if objects.spec_of(hold).get("owner") == owner)
    found = next(filter(None, map(resized_claim, mine)), None)
    if allocation is None or found is None:
        return None
    return {
        "revision": found.revision,
        "limits": [
            f"{one.device.device}: {limits.words(one.consumed)}"
            for one in allocation.results
            if (limits := found.limits.get((one.device.device, one.share_id))) is not None
        ],
        "held": [
            f"{device}: {name} {amount_text(name, amount)} beyond the allocation"
            for (device, _), amounts in sorted(found.held.items(), key=lambda item: str(item[0]))
            for name, amount in sorted(amounts.items())
        ],
        "refused": inert(found.refused),
    }


def _entry(
    result: DeviceResult, offered: PublishedDevice | None, said: Configuration, conditions: Iterable[Fields]
) -> Object:
    kind = offered.plain.get(names.ATTR_TYPE) if offered else None
    enforced, accounted, word = list[str](), list[str](), None
    if result.admin_access:
        accounted = ["admin access: it watches the device and holds nothing of it"]
    elif offered is None:
        accounted = ["the node does not publish the device any more"]
    elif (word := backend_of(result.device.pool)) is not None:
        enforced = [f"{one}, by {word}" for one in _amounts(result, *sorted(result.consumed))]
    elif kind == names.TYPE_MIG:
        enforced = ["memory and cores: a partition of the card, kept by the card itself"]
    elif kind == names.TYPE_VF:
        enforced = ["a function of its own: nobody else is on it"]
        accounted = [*_amounts(result, names.CAPACITY_BANDWIDTH)]
    elif kind == names.TYPE_NIC:
        enforced, accounted = _nic(result, offered)
    else:
        word, enforced, accounted = _gpu(result, offered, said)
    asked = said.isolation(result.request)
    return {
        "request": result.request,
        "device": result.device.device,
        "type": kind,
        "isolation": word,
        **({"auto": list(asked.order)} if word and asked.auto else {}),
        "enforced": enforced,
        "accounted": accounted,
        "conditions": [
            {name: inert(str(one.get(name) or "")) for name in ("type", "status", "reason", "message")}
            for one in conditions
        ],
    }


def _nic(result: DeviceResult, offered: PublishedDevice) -> tuple[list[str], list[str]]:
    whole = offered.device.capacity.get(names.CAPACITY_SHARE)
    taken = result.consumed.get(names.CAPACITY_SHARE)
    if result.share_id is None or (whole is not None and taken == whole.value):
        return ["the whole function: nobody else is on it"], []
    shared = "a shared function: others use the same one"
    return [], [shared, *_amounts(result, names.CAPACITY_SHARE, names.CAPACITY_BANDWIDTH)]


def _gpu(
    result: DeviceResult, offered: PublishedDevice, said: Configuration
) -> tuple[str | None, list[str], list[str]]:
    share = result.share_id is not None and is_share(result.consumed, offered.device.capacity)
    policy = published_policy(offered.plain)
    asked = said.isolation(result.request)
    word = asked.on(policy or IsolationPolicy(), share=share)
    if not share:
        return word, ["the whole card: nobody else is on it"], []
    cores = [*_amounts(result, names.CAPACITY_CORES)]
    memory = [*_amounts(result, names.CAPACITY_MEMORY)]
    if policy is None and asked.wanted in (None, AUTO):
        return None, [], [*memory, *cores, "the node does not say how it keeps shares"]
    enforced, accounted = list[str](), list[str]()
    for amounts, how in zip((memory, cores), KEPT.get(word, (f"by {word}", None)), strict=True):
        enforced += [f"{one}, {how}" for one in amounts if how]
        accounted += [] if how else amounts
    return word, enforced, accounted


def _amounts(result: DeviceResult, *capacities: str) -> Iterator[str]:
    for name in capacities:
        if result.consumed.get(name):
            yield f"{name} {amount_text(name, result.consumed[name])}"
