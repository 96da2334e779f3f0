"""The settings of a cluster's operator, read from plain values, strictly.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from koordra.api.opaque.parameters import isolations
from koordra.compat.dialect.vgpu import read
from koordra.compat.dialect.vocabulary import Place
from koordra.compat.dialects import DIALECTS
from koordra.compat.settings import Settings, mapping, text, texts, word
from koordra.errors import InvalidManifest

SHARED_NAME: Final = "nvidia.com/gpu"
"""What several dialects call their cards."""


def default_dialects() -> tuple[str, ...]:
    """Those that nvidia.com/gpu may be of where nothing else tells."""
    return tuple(
        dialect.name for dialect in DIALECTS if dialect.vocabulary.covering(SHARED_NAME, Place.RESOURCE)
    )


def is_device_config(document: object) -> bool:
    """Whether this is the content of a device-config.yaml."""
    section = document.get("nvidia") if isinstance(document, Mapping) else None
    return isinstance(section, Mapping) and any(
        name in section for dialect in DIALECTS for name in dialect.device_config
    )


def with_document(settings: Settings, document: object, *, source: str) -> Settings:
    """The settings with what a document says on top. Raises InvalidManifest."""
    data = mapping(document, source, "")
    if "nvidia" in data:
        section = mapping(data["nvidia"], source, "nvidia")
        return _with_device_config(settings, section, source=f"{source}: nvidia")
    sections = {name: reader for dialect in DIALECTS for name, reader in dialect.sections.items()}
    known = ("defaultDialect", "names", "isolation", "schedulers", "runtimeClasses", *sections)
    unknown = sorted(set(map(str, data)) - set(known))
    if unknown:
        raise InvalidManifest(
            "is no setting",
            object=source,
            field=unknown[0],
            remedy=f"settings are {', '.join(known)}, or nvidia",
        )
    settings = _common(settings, data, source)
    for name, reader in sections.items():
        if name in data:
            settings = reader(settings, data[name], source)
    return settings


def _with_device_config(settings: Settings, section: Mapping[str, Any], *, source: str) -> Settings:
    """It is the dialect's whose cards are named in the domain that the section names; HAMi's, the first, for any other name."""
    having = [dialect for dialect in DIALECTS if dialect.device_config]
    domain = str(section.get("resourceCountName") or "").partition("/")[0]
    owner = next(
        (
            each
            for each in having
            if domain in {name.partition("/")[0] for name in each.device_config.values()}
        ),
        having[0],
    )
    return read(settings, section, source, dialect=owner.name, resources=owner.device_config)


def _common(settings: Settings, data: Mapping[str, Any], source: str) -> Settings:
    found: dict[str, Any] = {}
    if "defaultDialect" in data:
        found["default_dialect"] = word(data["defaultDialect"], default_dialects(), source, "defaultDialect")
    if "names" in data:
        given = mapping(data["names"], source, "names")
        names = {str(key): text(value, source, f"names[{key}]") for key, value in given.items()}
        found["names"] = MappingProxyType({**settings.names, **names})
    if "isolation" in data:
        dialects = tuple(dialect.name for dialect in DIALECTS)
        chosen = {
            word(key, dialects, source, "isolation"): word(value, isolations(), source, f"isolation.{key}")
            for key, value in mapping(data["isolation"], source, "isolation").items()
        }
        found["isolation"] = MappingProxyType({**settings.isolation, **chosen})
    for name, attribute in (("schedulers", "schedulers"), ("runtimeClasses", "runtime_classes")):
        if name in data:
            found[attribute] = texts(data[name], source, name)
    return replace(settings, **found)
