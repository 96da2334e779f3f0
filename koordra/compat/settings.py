"""What a cluster's operator has set: names that differ, units, defaults. Read from plain values, strictly.

Three forms are read, alone or inside the data of a ConfigMap:

1. koordra's own:

       defaultDialect: plain | hami | koordinator      whose `nvidia.com/gpu` alone is (plain)
       names: {nvidia.com/gpu: corp.example/gpu}       the name here for a name of the tables; any dialect
       isolation: {aliyun: limiter}                    backend for the shares of a dialect
       aliyun: {memoryUnit: MiB}                       GiB (default) or MiB
       volcanoGpu: {gpuMemoryFactor: 10}
       elastic: {memoryUnit: GiB}                      MiB (default) or GiB
       plain: {replicas: 4}                            how many replicas a card has under nvidia.com/gpu.shared
       schedulers: [koord-scheduler, volcano]          names that pods give and that are not there any more; taken out
       runtimeClasses: [nvidia]                        runtime classes that are taken out: CDI makes devices visible
       hami: {...}  volcano: {...}                     the fields of `nvidia` in form 2

2. HAMi's device-config.yaml, whose section `nvidia` carries resource names, defaults and scaling factors. Volcano's file
   has the same form; it is told by its names, which begin with `volcano.sh/`. Other vendors' sections are skipped.
3. A ConfigMap with one of these under any key of `data` (the file's parser is given by the caller: this package does no I/O).

Fields of `nvidia` that say how a node is set up and not what a pod means are looked at where a promise hangs on them:
memory that is more than the card has (deviceMemoryScaling above 1) makes every pod of the dialect a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from koordra.api.opaque.parameters import isolations
from koordra.errors import InvalidManifest

HAMI: Final = "hami"
VOLCANO: Final = "volcano-vgpu"
PLAIN_DIALECTS: Final = ("plain", "hami", "koordinator")
DIALECTS: Final = (
    "plain",
    "hami",
    "koordinator",
    "volcano-vgpu",
    "volcano-gpu",
    "aliyun",
    "alnair",
    "elastic-gpu",
    "tke",
)

_NAME_FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    HAMI: {
        "resourceCountName": "nvidia.com/gpu",
        "resourceMemoryName": "nvidia.com/gpumem",
        "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
        "resourceCoreName": "nvidia.com/gpucores",
        "resourcePriorityName": "nvidia.com/priority",
    },
    VOLCANO: {
        "resourceCountName": "volcano.sh/vgpu-number",
        "resourceMemoryName": "volcano.sh/vgpu-memory",
        "resourceMemoryPercentageName": "volcano.sh/vgpu-memory-percentage",
        "resourceCoreName": "volcano.sh/vgpu-cores",
        "resourcePriorityName": "volcano.sh/vgpu-priority",
    },
}


@dataclass(frozen=True, slots=True)
class VgpuSettings:
    """The fields of `nvidia` in device-config.yaml that change what a pod means, with their defaults."""

    memory_factor: int = 1
    default_memory: int = 0
    default_cores: int = 0
    default_count: int = 1
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    split_count: int = 10
    core_policy: str = "default"
    core_limit: bool = True


_NUMBERS: Final[Mapping[str, str]] = {
    "memoryFactor": "memory_factor",
    "gpuMemoryFactor": "memory_factor",
    "defaultMemory": "default_memory",
    "defaultMem": "default_memory",
    "defaultCores": "default_cores",
    "defaultGPUNum": "default_count",
    "deviceSplitCount": "split_count",
}
_SCALES: Final[Mapping[str, str]] = {
    "deviceMemoryScaling": "memory_scaling",
    "deviceCoreScaling": "core_scaling",
}
_UNITS: Final[Mapping[str, int]] = {"MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True)
class Settings:
    """`names` maps a name of the tables to the cluster's, `own_names` (dialect, name) what one dialect alone calls otherwise:
    with HAMi's cards renamed `nvidia.com/gpu` is still everybody else's. `known` remembers answers about names (detection.py). `vgpu` holds the settings of HAMi and of Volcano."""

    default_dialect: str = "plain"
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    own_names: Mapping[tuple[str, str], str] = field(default_factory=lambda: MappingProxyType({}))
    vgpu: Mapping[str, VgpuSettings] = field(default_factory=lambda: MappingProxyType({}))
    isolation: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    aliyun_unit: int = 1 << 30
    elastic_unit: int = 1 << 20
    volcano_gpu_factor: int = 1
    replicas: int | None = None
    schedulers: tuple[str, ...] | None = None
    runtime_classes: tuple[str, ...] | None = None
    known: dict[tuple[str, str], bool] = field(init=False, repr=False, compare=False, default_factory=dict)

    def name(self, key: str, dialect: str = "") -> str:
        """The cluster's name for a dialect's name of the tables; "" where the operator has taken it away."""
        return self.own_names.get((dialect, key), self.names.get(key, key))

    def of(self, dialect: str) -> VgpuSettings:
        return self.vgpu.get(dialect, VgpuSettings())

    def with_document(self, document: object, *, source: str) -> Settings:
        """These settings with what a document says on top. Raises InvalidManifest."""
        data = _mapping(document, source, "")
        if "nvidia" in data:
            return _device_config(
                self, _mapping(data["nvidia"], source, "nvidia"), source=f"{source}: nvidia"
            )
        return _own(self, data, source)


def is_device_config(document: object) -> bool:
    """Whether this is the content of a device-config.yaml."""
    section = document.get("nvidia") if isinstance(document, Mapping) else None
    return isinstance(section, Mapping) and any(name in section for name in _NAME_FIELDS[HAMI])


_Values = dict[str, Any]


def _device_config(
    settings: Settings, section: Mapping[str, Any], *, source: str, dialect: str = ""
) -> Settings:
    if not dialect:
        volcano = str(section.get("resourceCountName") or "").startswith("volcano.sh/")
        dialect = VOLCANO if volcano else HAMI
    names = dict(settings.own_names)
    for name, default in _NAME_FIELDS[dialect].items():
        if name in section:
            names[dialect, default] = _text(section[name], source, name)
    now = settings.of(dialect)
    for name, attribute in _NUMBERS.items():
        if section.get(name) is not None:
            whole: _Values = {attribute: _whole(section[name], source, name)}
            now = replace(now, **whole)
    for name, attribute in _SCALES.items():
        if section.get(name) is not None:
            scale: _Values = {attribute: _number(section[name], source, name)}
            now = replace(now, **scale)
    if section.get("gpuCorePolicy"):
        now = replace(
            now,
            core_policy=_word(
                section["gpuCorePolicy"], ("default", "force", "disable"), source, "gpuCorePolicy"
            ),
        )
    if str(section.get("disableCoreLimit", "")).lower() == "true":
        now = replace(now, core_limit=False)
    return replace(
        settings, own_names=MappingProxyType(names), vgpu=MappingProxyType({**settings.vgpu, dialect: now})
    )


_OWN: Final = (
    "defaultDialect",
    "names",
    "isolation",
    "aliyun",
    "volcanoGpu",
    "elastic",
    "plain",
    "schedulers",
    "runtimeClasses",
    "hami",
    "volcano",
)


def _own(settings: Settings, data: Mapping[str, Any], source: str) -> Settings:
    unknown = sorted(set(map(str, data)) - set(_OWN))
    if unknown:
        raise InvalidManifest(
            "is no setting",
            object=source,
            field=unknown[0],
            remedy=f"settings are {', '.join(_OWN)}, or nvidia",
        )
    if "defaultDialect" in data:
        word = _word(data["defaultDialect"], PLAIN_DIALECTS, source, "defaultDialect")
        settings = replace(settings, default_dialect=word)
    if "names" in data:
        given = _mapping(data["names"], source, "names")
        names = {str(key): _text(value, source, f"names[{key}]") for key, value in given.items()}
        settings = replace(settings, names=MappingProxyType({**settings.names, **names}))
    if "isolation" in data:
        chosen = {
            _word(key, DIALECTS, source, "isolation"): _word(value, isolations(), source, f"isolation.{key}")
            for key, value in _mapping(data["isolation"], source, "isolation").items()
        }
        settings = replace(settings, isolation=MappingProxyType({**settings.isolation, **chosen}))
    for name, attribute in (("schedulers", "schedulers"), ("runtimeClasses", "runtime_classes")):
        if name in data:
            listed: _Values = {attribute: _texts(data[name], source, name)}
            settings = replace(settings, **listed)
    for name, dialect in (("hami", HAMI), ("volcano", VOLCANO)):
        if name in data:
            section = _mapping(data[name], source, name)
            settings = _device_config(settings, section, source=f"{source}: {name}", dialect=dialect)
    return _units(settings, data, source)


def _units(settings: Settings, data: Mapping[str, Any], source: str) -> Settings:
    for name, attribute in (("aliyun", "aliyun_unit"), ("elastic", "elastic_unit")):
        if name in data:
            unit = _word(
                _only(data[name], "memoryUnit", source, name), tuple(_UNITS), source, f"{name}.memoryUnit"
            )
            chosen: _Values = {attribute: _UNITS[unit]}
            settings = replace(settings, **chosen)
    if "volcanoGpu" in data:
        factor = _only(data["volcanoGpu"], "gpuMemoryFactor", source, "volcanoGpu")
        settings = replace(
            settings, volcano_gpu_factor=_whole(factor, source, "volcanoGpu.gpuMemoryFactor", least=1)
        )
    if "plain" in data:
        replicas = _only(data["plain"], "replicas", source, "plain")
        settings = replace(settings, replicas=_whole(replicas, source, "plain.replicas", least=1))
    return settings


def _only(raw: object, name: str, source: str, field: str) -> Any:
    data = _mapping(raw, source, field)
    if list(data) != [name]:
        raise InvalidManifest("has other fields", object=source, field=field, remedy=f"write {name} alone")
    return data[name]


def _mapping(raw: object, source: str, field: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise InvalidManifest("is not an object", object=source, field=field)
    return raw


def _texts(raw: object, source: str, field: str) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise InvalidManifest("is not a list", object=source, field=field)
    return tuple(_text(entry, source, f"{field}[{index}]") for index, entry in enumerate(raw))


def _text(raw: object, source: str, field: str) -> str:
    if not isinstance(raw, str):
        raise InvalidManifest(f"{raw!r} is not a text", object=source, field=field)
    return raw


def _word(raw: object, words: tuple[str, ...], source: str, field: str) -> str:
    if raw not in words:
        raise InvalidManifest(
            f"{raw!r} is not allowed", object=source, field=field, remedy=f"use one of {', '.join(words)}"
        )
    return str(raw)


def _whole(raw: object, source: str, field: str, *, least: int = 0) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < least:
        raise InvalidManifest(f"{raw!r} is not a whole number from {least} up", object=source, field=field)
    return raw


def _number(raw: object, source: str, field: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or raw <= 0:
        raise InvalidManifest(f"{raw!r} is not a number above 0", object=source, field=field)
    return float(raw)
