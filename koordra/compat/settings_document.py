"""The settings of a cluster's operator, read from plain values, strictly.

Three forms are read, alone or inside the data of a ConfigMap:

1. koordra's own:

       defaultDialect: plain | hami | koordinator      whose `nvidia.com/gpu` alone is (plain)
       names: {nvidia.com/gpu: corp.example/gpu}       the name here for a name of the tables; any dialect
       isolation: {aliyun: limiter}                    backend for the shares of a dialect
       aliyun: {memoryUnit: MiB}                       GiB (default) or MiB
       volcanoGpu: {gpuMemoryFactor: 10}
       elastic: {memoryUnit: GiB}                      MiB (default) or GiB; tflopsPrecision: FP16
       plain: {replicas: 4}                            how many replicas a card has under
                                                       nvidia.com/gpu.shared
       schedulers: [koord-scheduler, volcano]          names that pods give and that are not there any more;
                                                       taken out
       runtimeClasses: [nvidia]                        runtime classes that are taken out (nvidia): CDI makes
                                                       devices visible
       nics: {openshift.io/vfs: {kind: VF}}            names of NICs' device plugins: kind Share or VF,
                                                       share (percent), interfaces, required (near the GPUs)
       hami: {...}  volcano: {...}                     the fields of `nvidia` in form 2

2. HAMi's device-config.yaml, whose section `nvidia` carries resource names, defaults and scaling factors.
   Volcano's file has the same form; it is recognised by its names, which begin with `volcano.sh/`. Other
   vendors' sections are skipped.
3. What HAMi's and Volcano's plugins read on nodes (`nodeconfig`), and NVIDIA's plugin (`version: v1`):
   nothing of it is a pod's, but for memory that a node gives out twice; every field is reported.
4. A ConfigMap with one of these under any key of `data` (the file's parser is given by the caller: this
   package does no I/O).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from koordra.api.opaque.isolation_words import isolations
from koordra.api.reader import Reader
from koordra.compat.dialect.nic_names import nics_section
from koordra.compat.dialect.vgpu import vgpu_section
from koordra.compat.dialects import DIALECTS
from koordra.compat.keys import Place, of_peer
from koordra.compat.settings import Settings

SHARED_NAME: Final = "nvidia.com/gpu"
"""What several dialects call their cards; whose it is where nothing else decides is the default dialect."""


def is_device_config(document: object) -> bool:
    """Whether this is the content of a device-config.yaml."""
    section = document.get("nvidia") if isinstance(document, Mapping) else None
    return (
        isinstance(section, Mapping)
        and any(name in section for dialect in DIALECTS for name in dialect.device_config)
    ) or is_of_nodes(document)


def is_of_nodes(document: object) -> bool:
    """Whether this is what a device plugin reads on its node."""
    if not isinstance(document, Mapping):
        return False
    return bool(_NODES & document.keys()) or (
        document.get("version") == "v1" and bool(_PLUGIN & document.keys())
    )


def with_document(settings: Settings, document: object, *, source: str) -> Settings:
    """The settings with what a document says on top. Raises InvalidManifest."""
    read = Reader(document, object=source)
    if is_of_nodes(document):
        return _with_nodes(settings, read)
    if "nvidia" in read.data:
        return _with_device_config(settings, read.inner("nvidia"))
    sections = {name: reader for dialect in DIALECTS for name, reader in dialect.sections.items()}
    sections |= {
        dialect.device_section: partial(vgpu_section, dialect=dialect)
        for dialect in DIALECTS
        if dialect.device_section
    }
    common = ("defaultDialect", "names", "isolation", "schedulers", "runtimeClasses")
    sections["nics"] = nics_section
    read.only(*common, *sections, problem="is no setting")
    settings = _common(settings, read)
    for name, reader in sections.items():
        if name in read.data:
            settings = reader(settings, read.inner(name))
    return settings


_NODES: Final = {"nodeconfig": "", "configList": "rdma", "resourceList": "sriov"}
"""Lists in a device plugin's configuration, and whose fields they have where that is no dialect."""
_PLUGIN: Final = {"sharing", "flags", "resources", "imex"}
"""Of NVIDIA's configuration: sharing and resources hold fields that the table has one by one."""


def _with_nodes(settings: Settings, read: Reader) -> Settings:
    having = next(dialect for dialect in DIALECTS if dialect.device_config)
    for name, peer in _NODES.items():
        for entry in read.each(name) if peer else ():
            settings = settings.with_notes(entry, peer, entry.data)
    if "nodeconfig" not in read.data:
        plugin = next(dialect.name for dialect in DIALECTS if dialect.extended_resources)
        for name in sorted(_PLUGIN & read.data.keys()):
            if name == "imex":
                settings = settings.with_notes(read, plugin, (name,))
            else:
                inner = read.inner(name)
                settings = settings.with_notes(inner, plugin, inner.data, where=f"{name}.")
        return settings
    for entry in read.each("nodeconfig"):
        fields = {str(name).lower(): value for name, value in entry.data.items() if name != "name"}
        known = {key.name.lower(): key.name for key in of_peer(having.name, Place.SETTING)}
        settings = settings.with_notes(entry, having.name, [known.get(name, name) for name in fields])
        scale = fields.get("devicememoryscaling")
        if isinstance(scale, int | float) and scale > 1:
            settings = vgpu_section(settings, entry.over({"deviceMemoryScaling": scale}), having)
    return settings


def _with_device_config(settings: Settings, section: Reader) -> Settings:
    """It is the dialect's whose cards are named in the domain that the section names; HAMi's, the first, for
    any other name."""
    having = [dialect for dialect in DIALECTS if dialect.device_config]
    domain = section.text("resourceCountName").partition("/")[0]
    owners = (
        each for each in having if any(name.startswith(f"{domain}/") for name in each.device_config.values())
    )
    return vgpu_section(settings, section, next(owners, having[0]))


def _common(settings: Settings, read: Reader) -> Settings:
    shared = [each for each in DIALECTS if SHARED_NAME in each.resources]
    default = read.choice("defaultDialect", [each.name for each in shared])
    names, isolation = read.inner("names"), read.inner("isolation")
    isolation.only(*(dialect.name for dialect in DIALECTS), problem="is not allowed")
    own = {str(key): names.text(key) for key in names.data}
    chosen = {key: isolation.choice(key, isolations()) for key in isolation.data}
    return replace(
        settings,
        default_dialect=default or settings.default_dialect,
        names={**settings.names, **own},
        isolation={**settings.isolation, **chosen},
        schedulers=read.texts("schedulers") if "schedulers" in read.data else settings.schedulers,
        runtime_classes=(
            read.texts("runtimeClasses") if "runtimeClasses" in read.data else settings.runtime_classes
        ),
    )
