"""What HAMi and Volcano vGPU have in common: the section `nvidia` of a device-config.yaml, and lists of models and UUIDs as CEL.

Fields of the section that say how a node is set up and not what a pod means are checked where a promise depends on them: memory
that is more than the card has (deviceMemoryScaling above 1) makes every pod of the dialect a refusal.

    model lists    HAMi's names of cards are `NVIDIA-<product name>`; an entry matches any part of it, in either case
    UUID lists     the whole UUID

A card that does not publish the attribute matches no allow list and is on no deny list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from koordra.api import names
from koordra.api.classic.notes import Notes
from koordra.compat.settings import Settings, mapping, number, text, whole, word

_OPTION: Final = "vgpu"


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


def vgpu_settings(settings: Settings, dialect: str) -> VgpuSettings:
    found: VgpuSettings = settings.option(dialect, _OPTION, VgpuSettings())
    return found


def read(
    settings: Settings, section: object, source: str, *, dialect: str, resources: Mapping[str, str]
) -> Settings:
    """The settings with what the section says. `resources`: field -> the name of the tables that it renames."""
    data = mapping(section, source, "")
    names = dict(settings.own_names)
    for name, default in resources.items():
        if name in data:
            names[dialect, default] = text(data[name], source, name)
    found: dict[str, Any] = {}
    for name, attribute in _NUMBERS.items():
        if data.get(name) is not None:
            found[attribute] = whole(data[name], source, name)
    for name, attribute in _SCALES.items():
        if data.get(name) is not None:
            found[attribute] = number(data[name], source, name)
    if data.get("gpuCorePolicy"):
        found["core_policy"] = word(
            data["gpuCorePolicy"], ("default", "force", "disable"), source, "gpuCorePolicy"
        )
    if str(data.get("disableCoreLimit", "")).lower() == "true":
        found["core_limit"] = False
    now = replace(vgpu_settings(settings, dialect), **found)
    return replace(settings.with_option(dialect, _OPTION, now), own_names=MappingProxyType(names))


def check_scaling(own: VgpuSettings, notes: Notes) -> None:
    """Raises Refused for memory that is not there."""
    if own.memory_scaling > 1:
        raise notes.refuse(
            "deviceMemoryScaling",
            f"{own.memory_scaling:g} gives out more memory than a card has, which koordra does not",
            "set it to 1 and ask for what the pod needs",
        )
    if own.core_scaling > 1:
        notes.warn(
            "deviceCoreScaling", f"{own.core_scaling:g} is not honoured: the compute of a card adds up to 100"
        )


_ATTRIBUTES: Final = f'device.attributes["{names.DRIVER}"]'


def model_in(entries: Sequence[str], *, deny: bool = False) -> str:
    """Any of the entries is part of the card's name; `deny`: none is."""
    product = names.ATTR_PRODUCT_NAME.removeprefix(names.DOMAIN)
    told = f'"{product}" in {_ATTRIBUTES}'
    found = f'("NVIDIA-" + {_ATTRIBUTES}.{product}).lowerAscii()'
    parts = " || ".join(f"{found}.contains({cel_text(entry.lower())})" for entry in entries)
    return f"!({told}) || !({parts})" if deny else f"{told} && ({parts})"


def uuid_in(entries: Sequence[str], *, deny: bool = False) -> str:
    told = f'"uuid" in {_ATTRIBUTES}'
    listed = f"{_ATTRIBUTES}.uuid in [{', '.join(cel_text(entry) for entry in entries)}]"
    return f"!({told}) || !({listed})" if deny else f"{told} && {listed}"


def cel_text(value: str) -> str:
    """A CEL string; JSON's escapes are CEL's."""
    return json.dumps(value, ensure_ascii=False)
