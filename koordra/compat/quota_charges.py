"""How much a claim made for a legacy pod is, in the words of its dialect: what quotas under those names are charged. Pure.

    claim spec ──> shares of cards, percent of NICs ──> the names of the dialect, and koordra's own

A pod that was rewritten asks for no extended resource any more, so the API server charges it to no ResourceQuota. Its claim's spec
still says what it asked, and cannot be changed; the template's name says the dialect. So the amounts are worked out from these
two and not from what somebody may have edited since.

What the claim does not say as an amount (all of a card's memory, a percentage of it) is None: under a quota it has to be said. MIG
instances have names of their own, but in dialects that give them out under the names of cards.

koordra's own names hold for every dialect: koordra.io/gpu (devices), koordra.io/gpu-memory (bytes), koordra.io/gpu-cores (percent).
Nothing amounts to less than nothing: other pods would be bounded by less.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from koordra.api import names
from koordra.compat.dialect import charges
from koordra.compat.dialect.charges import Charged
from koordra.compat.dialects import DIALECTS, dialect_named
from koordra.compat.normalized_request import Memory, Phase, Share
from koordra.compat.settings import Settings
from koordra.quantity import to_int

OWN_COUNT: Final = "koordra.io/gpu"
OWN_MEMORY: Final = "koordra.io/gpu-memory"
OWN_CORES: Final = "koordra.io/gpu-cores"
TEMPLATE_NAME: Final = re.compile(r"koordra-([a-z-]+)-[0-9a-f]{32}")
_MIG_PROFILE: Final = re.compile(r"""["'](\d+g\.\d+gb(?:\+[a-z0-9.]+)?)["']""")
_OWN: Final[Mapping[str, charges.Charge]] = {
    OWN_COUNT: charges.count,
    OWN_MEMORY: charges.memory_in(lambda _: 1),
    OWN_CORES: charges.compute,
}

Amounts = Mapping[str, int | None]


def dialect_of(template: str) -> str:
    """The dialect in the name of a template; "" for a name of another kind."""
    found = TEMPLATE_NAME.fullmatch(template)
    return found[1] if found else ""


def amounts(dialect: str, spec: Mapping[str, Any], settings: Settings) -> Amounts:
    """Name -> total, of every name of the dialect and of koordra's own."""
    claim = _charged(spec)
    found = {name: charge(claim, settings) for name, charge in _OWN.items()}
    spoken = dialect_named(dialect)
    if spoken is not None:
        cards = [share for share in claim.shares if spoken.charges_partitions or not share.mig]
        for key, charge in spoken.charges.items():
            if name := settings.name(key, dialect):
                found[name] = charge(claim._replace(shares=cards), settings)
    for share in claim.shares:
        if share.profile:
            name = "nvidia.com/mig-" + share.profile.replace("+", ".")
            found[name] = (found.get(name) or 0) + share.count
    return MappingProxyType(found)


def is_in_bytes(name: str) -> bool:
    """Whether amounts under the name are bytes, and written as quantities."""
    return name == OWN_MEMORY or any(name in dialect.bytes for dialect in DIALECTS)


def _charged(spec: Mapping[str, Any]) -> Charged:
    devices = spec.get("devices") or {}
    percents, shares, nics = dict(_percents(devices)), [], 0
    for request in devices.get("requests") or ():
        alternatives = request.get("firstAvailable") or ()
        asked = request.get("exactly") or (alternatives[-1] if alternatives else {})
        capacity = (asked.get("capacity") or {}).get("requests") or {}
        count = int(asked.get("count") or 1)
        if asked.get("deviceClassName") in (names.CLASS_NIC, names.CLASS_VF):
            nics += count * max(0, to_int(capacity.get(names.CAPACITY_SHARE, 100)))
            continue
        memory, name = capacity.get(names.CAPACITY_MEMORY), str(request.get("name"))
        is_mig = asked.get("deviceClassName") == names.CLASS_MIG
        shares.append(
            Share(
                container=name,
                phase=Phase.APP,
                count=count,
                memory=Memory(None if memory is None else max(0, to_int(memory)), percents.get(name)),
                cores=max(0, to_int(capacity.get(names.CAPACITY_CORES, 0))),
                profile=_profile(asked) if is_mig else "",
                mig=is_mig,
            )
        )
    return Charged(shares, nics)


def _profile(asked: Mapping[str, Any]) -> str:
    words = " ".join(str((one.get("cel") or {}).get("expression")) for one in asked.get("selectors") or ())
    found = _MIG_PROFILE.search(words)
    return found[1] if found else ""


def _percents(devices: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    every = [request.get("name") for request in devices.get("requests") or ()]
    for entry in devices.get("config") or ():
        body = (entry.get("opaque") or {}).get("parameters") or {}
        if body.get("kind") == "GpuConfig" and body.get("memoryPercent") is not None:
            percent = max(0, int(body["memoryPercent"]))
            yield from ((str(name), percent) for name in entry.get("requests") or every)


def canonical_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec as it was written: without what the API server filled in."""
    devices = dict(spec.get("devices") or {})
    if devices.get("requests"):
        devices["requests"] = [dict(request) for request in devices["requests"]]
        for request in devices["requests"]:
            if isinstance(request.get("exactly"), Mapping):
                request["exactly"] = _without_defaults(request["exactly"])
            if request.get("firstAvailable"):
                request["firstAvailable"] = [_without_defaults(one) for one in request["firstAvailable"]]
    return {**spec, "devices": devices}


def _without_defaults(asked: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(asked)
    if found.get("allocationMode") == "ExactCount":
        del found["allocationMode"]
    if found.get("allocationMode") is None:
        found.setdefault("count", 1)
    return found
