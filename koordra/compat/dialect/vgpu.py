"""What HAMi and Volcano vGPU have in common: the section `nvidia` of a device-config.yaml, and lists of
models and UUIDs as CEL.

Fields of the section that say how a node is set up and not what a pod means are checked where a promise
depends on them: memory that is more than the card has (deviceMemoryScaling above 1) makes every pod of the
dialect a refusal.

    model lists    HAMi's names of cards are `NVIDIA-<product name>`; an entry matches any part of it, in
                   either case
    UUID lists     the whole UUID

A card that does not publish the attribute matches no allow list and is on no deny list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from koordra.api import names
from koordra.api.classic.notes import Notes
from koordra.api.reader import Reader
from koordra.compat.dialect import Dialect
from koordra.compat.dialect.pod_view import PodView
from koordra.compat.normalized_request import Share
from koordra.compat.settings import Settings

_OPTION: Final = "vgpu"
LIBRARY: Final = "hami-core"
"""A mode of HAMi's and Volcano's, and the isolation by HAMi's library."""
ISOLATION: Final = "limiter"
"""Of their shares."""
MOST_MIB: Final = 2**31 - 1
"""Of memory, that HAMi and Volcano can hold."""


@dataclass(frozen=True, slots=True)
class VgpuSettings:
    """The fields of `nvidia` in device-config.yaml that change what a pod means, with their defaults."""

    memory_factor: int = 1
    default_memory: int = 0
    default_cores: int = 0
    default_count: int = 1
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    core_policy: str = "default"
    core_limit: bool = True
    mig_profiles: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    """Models, and the profiles that cards of them may be cut into; all where none is said."""


_NUMBERS: Final[Mapping[str, str]] = {
    "memoryFactor": "memory_factor",
    "gpuMemoryFactor": "memory_factor",
    "defaultMemory": "default_memory",
    "defaultMem": "default_memory",
    "defaultCores": "default_cores",
    "defaultGPUNum": "default_count",
}
_SCALES: Final[Mapping[str, str]] = {
    "deviceMemoryScaling": "memory_scaling",
    "deviceCoreScaling": "core_scaling",
}


def vgpu_settings(settings: Settings, dialect: str) -> VgpuSettings:
    found: VgpuSettings = settings.option(dialect, _OPTION, VgpuSettings())
    return found


def vgpu_section(settings: Settings, read: Reader, dialect: Dialect) -> Settings:
    """The settings with what the section says, and notes on what is said on nodes here."""
    settings = settings.with_notes(read, dialect.name, read.data)
    names = {
        (dialect.name, resource): read.text(name)
        for name, resource in dialect.device_config.items()
        if name in read.data
    }
    found: dict[str, Any] = {
        attribute: read.between(name, 0) for name, attribute in _NUMBERS.items() if name in read.data
    }
    for name, attribute in _SCALES.items():
        scale = read.data.get(name)
        if scale is not None and (
            isinstance(scale, bool) or not isinstance(scale, int | float) or scale <= 0
        ):
            raise read.wrong(f"{scale!r} is not a number above 0", at=name)
        found[attribute] = scale
    found["core_policy"] = read.choice("gpuCorePolicy", ("default", "force", "disable")) or None
    if str(read.data.get("disableCoreLimit", "")).lower() == "true":
        found["core_limit"] = False
    found["mig_profiles"] = tuple(_mig_profiles(read)) or None
    own = replace(
        vgpu_settings(settings, dialect.name),
        **{attribute: value for attribute, value in found.items() if value is not None},
    )
    return replace(
        settings.with_option(dialect.name, _OPTION, own),
        own_names={**settings.own_names, **names},
    )


def _mig_profiles(read: Reader) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """HAMi's list of profiles; before 2.10, and in Volcano, sets of instances, of which the profiles count
    here: koordra works out which sets fit."""
    for entry in read.each("migProfileAllowlist"):
        yield entry.texts("models"), entry.texts("profiles")
    for entry in read.each("knownMigGeometries"):
        found: dict[str, None] = {}
        for number, geometry in enumerate(entry.sequence("allowedGeometries")):
            inner = geometry if isinstance(geometry, Mapping) else {"geometries": geometry}
            instances = Reader(
                inner, object=read.object, field=entry.place(f"allowedGeometries[{number}]")
            ).each("geometries")
            found |= dict.fromkeys(instance.required("name") for instance in instances)
        yield entry.texts("models"), tuple(found)


def mig_profile_in(own: VgpuSettings) -> str:
    """CEL of the instances that may be made; "" where all may. Of a card's whole instance the memory in the
    name is the vendor's to round (7g.79gb, 7g.80gb), so its slices tell it."""
    parts = []
    for models, profiles in own.mig_profiles:
        whole = [profile for profile in profiles if profile.startswith("7g.")]
        listed = ", ".join(cel_text(profile) for profile in profiles if profile not in whole)
        of_card = [f"{_ATTRIBUTES}.profile in [{listed}]"] if listed else []
        of_card += [f'{_ATTRIBUTES}.profile.startsWith("7g.")'] if whole else []
        parts.append(f"({model_in(models)} && ({' || '.join(of_card) or 'false'}))")
    return " || ".join(parts)


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


def warn_of_library(view: PodView, mode: str) -> None:
    """The annotation `mode` asks for HAMi's library, which keeps the share where the operator says so."""
    kept = view.settings.isolation.get(view.dialect, ISOLATION)
    if kept != LIBRARY:
        view.warn(
            mode,
            f"isolation {kept} keeps the share, in place of HAMi's library",
            f"set isolation: {{{view.dialect}: {LIBRARY}}} in koordra's settings where nodes have the library",
        )


def as_mig(share: Share, view: PodView, mode: str, *, cores: str, remedy: str) -> Share:
    """The share in mode `mig` (annotation `mode`): instances with enough memory, which may be on one card."""
    who = f"{share.phase} {share.container}"
    if share.memory.bytes is None:
        raise view.refuse(mode, f"{who}: an instance cannot be chosen by {share.memory}", remedy)
    if share.cores:
        view.warn(mode, f"{who}: an instance has the compute of its profile, {cores} is left out")
    return replace(share, mig=True, distinct=False, exclusive=False, cores=0, cores_policy=None)


_ATTRIBUTES: Final = f'device.attributes["{names.DRIVER}"]'


def model_in(entries: Sequence[str], *, deny: bool = False) -> str:
    """Any of the entries is part of the card's name; `deny`: none is."""
    product = names.ATTR_PRODUCT_NAME.removeprefix(names.DOMAIN)
    published = f'"{product}" in {_ATTRIBUTES}'
    found = f'("NVIDIA-" + {_ATTRIBUTES}.{product}).lowerAscii()'
    parts = " || ".join(f"{found}.contains({cel_text(entry.lower())})" for entry in entries)
    return f"!({published}) || !({parts})" if deny else f"{published} && ({parts})"


def uuid_in(entries: Sequence[str], *, deny: bool = False) -> str:
    published = f'"uuid" in {_ATTRIBUTES}'
    listed = f"{_ATTRIBUTES}.uuid in [{', '.join(cel_text(entry) for entry in entries)}]"
    return f"!({published}) || !({listed})" if deny else f"{published} && {listed}"


def cel_text(value: str) -> str:
    """A CEL string; JSON's escapes are CEL's."""
    return json.dumps(value, ensure_ascii=False)
