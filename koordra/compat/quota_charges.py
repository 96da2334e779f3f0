"""How much a claim made for a legacy pod is, in the words of its dialect: what quotas under those names are charged. Pure.

    claim spec ──> parts: so many devices, memory and compute on each ──> the names of the dialect, and koordra's own

A pod that was rewritten asks for no extended resource any more, so the API server charges it to no ResourceQuota. Its claim's spec
still says what it asked, and cannot be changed; the template's name says the dialect. So the amounts are worked out from these
two and not from what somebody may have edited since.

Amounts are totals: memory on each of two cards counts twice, as HAMi counts it. What the claim does not say as an amount (all
of a card's memory, a percentage of it) is None: under a quota it has to be said. A whole card is 100 of compute where the
dialect counts whole cards so. HAMi gives out MIG instances under its own names (vgpu-mode), so they count there; elsewhere they have
names of their own.

koordra's own names hold for every dialect: koordra.io/gpu (devices), koordra.io/gpu-memory (bytes), koordra.io/gpu-cores (percent).
Nothing amounts to less than nothing: other pods would be bounded by less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from koordra.api import names
from koordra.compat.normalized_request import GIB, MIB
from koordra.compat.settings import HAMI, VOLCANO, Settings
from koordra.quantity import to_int

OWN_COUNT: Final = "koordra.io/gpu"
OWN_MEMORY: Final = "koordra.io/gpu-memory"
OWN_CORES: Final = "koordra.io/gpu-cores"
TEMPLATE_NAME: Final = re.compile(r"koordra-([a-z-]+)-[0-9a-f]{32}")
_MIG_PROFILE: Final = re.compile(r"""["'](\d+g\.\d+gb(?:\+[a-z0-9.]+)?)["']""")
_BLOCK: Final = 256 * MIB

Amounts = Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Part:
    """One request: `memory` in bytes on each device, None where it is all or `percent`; `nic` is percent of each NIC."""

    count: int
    memory: int | None = None
    percent: int | None = None
    cores: int = 0
    profile: str = ""
    mig: bool = False
    nic: int | None = None

    @property
    def whole(self) -> bool:
        return self.memory is None and self.percent is None


def dialect_of(template: str) -> str:
    """The dialect in the name of a template; "" for a name of another kind."""
    found = TEMPLATE_NAME.fullmatch(template)
    return found[1] if found else ""


def amounts(dialect: str, spec: Mapping[str, Any], settings: Settings) -> Amounts:
    """Name -> total, of every name of the dialect and of koordra's own."""
    parts = list(_parts(spec))
    served = parts if dialect == HAMI else [part for part in parts if not part.mig]
    found: dict[str, int | None] = {
        OWN_COUNT: sum(part.count for part in parts if part.nic is None),
        OWN_MEMORY: _memory([part for part in parts if part.nic is None], 1),
        OWN_CORES: _compute(parts),
    }
    for key, measure in _MEASURES.get(dialect, {}).items():
        name = settings.name(key, dialect)
        if name:
            found[name] = measure([part for part in served if part.nic is None], settings)
    if dialect == "koordinator":
        found[settings.name("koordinator.sh/rdma", dialect)] = sum(
            part.count * (part.nic or 0) for part in parts
        )
    for part in parts:
        if part.profile:
            name = "nvidia.com/mig-" + part.profile.replace("+", ".")
            found[name] = (found.get(name) or 0) + part.count
    return MappingProxyType(found)


def _parts(spec: Mapping[str, Any]) -> Iterator[Part]:
    devices = spec.get("devices") or {}
    percents = dict(_percents(devices))
    for request in devices.get("requests") or ():
        alternatives = request.get("firstAvailable") or ()
        asked = request.get("exactly") or (alternatives[-1] if alternatives else {})
        yield _part(str(request.get("name")), asked, percents)


def _part(name: str, asked: Mapping[str, Any], percents: Mapping[str, int]) -> Part:
    capacity = (asked.get("capacity") or {}).get("requests") or {}
    of_class, count = str(asked.get("deviceClassName")), int(asked.get("count") or 1)
    if of_class in (names.CLASS_NIC, names.CLASS_VF):
        return Part(count, nic=max(0, to_int(capacity.get(names.CAPACITY_SHARE, 100))))
    memory = capacity.get(names.CAPACITY_MEMORY)
    words = " ".join(str((one.get("cel") or {}).get("expression")) for one in asked.get("selectors") or ())
    profile = _MIG_PROFILE.search(words) if of_class == names.CLASS_MIG else None
    return Part(
        count,
        memory=None if memory is None else max(0, to_int(memory)),
        percent=percents.get(name),
        cores=max(0, to_int(capacity.get(names.CAPACITY_CORES, 0))),
        profile=profile[1] if profile else "",
        mig=of_class == names.CLASS_MIG,
    )


def _percents(devices: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    every = [str(request.get("name")) for request in devices.get("requests") or ()]
    for entry in devices.get("config") or ():
        body = (entry.get("opaque") or {}).get("parameters") or {}
        if body.get("kind") == "GpuConfig" and body.get("memoryPercent") is not None:
            percent = max(0, int(body["memoryPercent"]))
            yield from ((str(name), percent) for name in entry.get("requests") or every)


def _memory(parts: Sequence[Part], unit: int) -> int | None:
    """Units, rounded up; None where some part says no amount."""
    if any(part.memory is None for part in parts):
        return None
    return sum(part.count * -(-(part.memory or 0) // unit) for part in parts)


def _compute(parts: Sequence[Part]) -> int:
    return sum(
        part.count * (part.cores or (100 if part.whole else 0))
        for part in parts
        if part.nic is None and not part.mig
    )


Measure = Callable[[Sequence[Part], Settings], int | None]


def _count(parts: Sequence[Part], _settings: Settings) -> int:
    return sum(part.count for part in parts)


def _shared(parts: Sequence[Part], _settings: Settings) -> int:
    return sum(part.count for part in parts if not part.whole)


def _cores(parts: Sequence[Part], _settings: Settings) -> int:
    return sum(part.count * part.cores for part in parts)


def _cards(parts: Sequence[Part], _settings: Settings) -> int:
    """Percent, where whole cards count 100 each."""
    return _compute(parts)


def _percent(parts: Sequence[Part], _settings: Settings) -> int | None:
    if any(part.memory is not None for part in parts):
        return None
    return sum(part.count * (100 if part.percent is None else part.percent) for part in parts)


def _in(unit: Callable[[Settings], int]) -> Measure:
    return lambda parts, settings: _memory(parts, unit(settings))


def _shares_in(unit: Callable[[Settings], int]) -> Measure:
    """For dialects in which a whole card is asked for without memory: those count nothing here."""
    return lambda parts, settings: _memory([part for part in parts if not part.whole], unit(settings))


_MEASURES: Final[Mapping[str, Mapping[str, Measure]]] = {
    "plain": {
        "nvidia.com/gpu": lambda parts, _: sum(part.count for part in parts if part.whole),
        "nvidia.com/gpu.shared": _shared,
    },
    "hami": {
        "nvidia.com/gpu": _count,
        "nvidia.com/gpumem": _in(lambda settings: MIB * settings.of(HAMI).memory_factor),
        "nvidia.com/gpumem-percentage": _percent,
        "nvidia.com/gpucores": _cores,
    },
    "koordinator": {
        "nvidia.com/gpu": _count,
        "koordinator.sh/gpu": _cards,
        "koordinator.sh/gpu-core": _cards,
        "koordinator.sh/gpu-memory": _in(lambda _: 1),
        "koordinator.sh/gpu-memory-ratio": _percent,
        "koordinator.sh/gpu.shared": _count,
    },
    "volcano-vgpu": {
        "volcano.sh/vgpu-number": _count,
        "volcano.sh/vgpu-memory": _in(lambda settings: MIB * settings.of(VOLCANO).memory_factor),
        "volcano.sh/vgpu-memory-percentage": _percent,
        "volcano.sh/vgpu-cores": _cores,
    },
    "volcano-gpu": {
        "volcano.sh/gpu-number": lambda parts, _: sum(part.count for part in parts if part.whole),
        "volcano.sh/gpu-memory": _shares_in(lambda settings: MIB * settings.volcano_gpu_factor),
    },
    "aliyun": {"aliyun.com/gpu-mem": _in(lambda settings: settings.aliyun_unit)},
    "alnair": {"alnair/vgpu-memory": _in(lambda _: GIB), "alnair/vgpu-compute": _cores},
    "elastic-gpu": {
        "elasticgpu.io/gpu-core": _cards,
        "elasticgpu.io/gpu-memory": _shares_in(lambda settings: settings.elastic_unit),
        "elasticgpu.com/gpu-core": _cards,
        "elasticgpu.com/gpu-memory": _shares_in(lambda settings: settings.elastic_unit),
        "tke.cloud.tencent.com/qgpu-core": _cards,
        "tke.cloud.tencent.com/qgpu-memory": _shares_in(lambda _: GIB),
    },
    "tke": {"tencent.com/vcuda-core": _cards, "tencent.com/vcuda-memory": _shares_in(lambda _: _BLOCK)},
}
"""Dialect -> name of its tables -> how it is counted over the claim's GPUs."""


def canonical_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec as it was written: without what the API server filled in."""
    devices = dict(spec.get("devices") or {})
    if devices.get("requests"):
        devices["requests"] = [_canonical_request(request) for request in devices["requests"]]
    return {**spec, "devices": devices}


def _canonical_request(request: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(request)
    if isinstance(found.get("exactly"), Mapping):
        found["exactly"] = _without_defaults(found["exactly"])
    if found.get("firstAvailable"):
        found["firstAvailable"] = [_without_defaults(one) for one in found["firstAvailable"]]
    return found


def _without_defaults(asked: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: value for name, value in asked.items() if (name, value) != ("allocationMode", "ExactCount")
    }
    if found.get("allocationMode") is None:
        found.setdefault("count", 1)
    return found
