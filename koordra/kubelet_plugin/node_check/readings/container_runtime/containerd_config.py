"""The configuration of containerd, of every version since 1.7, with the line of each setting.

A file may import others (`imports`, globs, relative to the file). They are read breadth first, each after the
file that names it. The CRI plugin's table is `io.containerd.cri.v1.runtime` in files of version 3,
`io.containerd.grpc.v1.cri` in those of version 2, which containerd 2 migrates, and `cri` in those of version
1. How several files become one configuration differs:

    before 2.0   a later file replaces whole plugins: a drop-in with two lines of the CRI plugin takes all
                 its other settings away
    2.0 to 2.2   single settings; tables of version 2 are migrated at the end, if the last file is of
                 version 2, and then those of version 3 win, wherever they stand
    since 2.3    single settings; each file is migrated, then a later one wins

Sources: containerd cmd/containerd/server/config/config.go and plugins/cri/runtime/plugin.go of main and 2.1,
services/server/config/config.go of 1.7, docs/cri/config.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from koordra.kubelet_plugin.node_check.readings.container_runtime.toml_settings import (
    Key,
    Settings,
    TomlFile,
    read_toml,
)
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.setting import Setting

PATHS: Final = (
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "var/snap/microk8s/current/args/containerd.toml",
    "etc/k0s/containerd.toml",
    "etc/cri/containerd.toml",
)
SOCKETS: Final = (
    "run/containerd/containerd.sock",
    "run/k3s/containerd/containerd.sock",
    "var/snap/microk8s/common/run/containerd.sock",
    "run/k0s/containerd.sock",
)
CRI_PLUGINS: Final = {3: "io.containerd.cri.v1.runtime", 2: "io.containerd.grpc.v1.cri", 1: "cri"}
"""By the version of a file."""
NRI_PLUGIN: Final = "io.containerd.nri.v1.nri"
_CRI: Final = "cri"
_NEWEST: Final = 3
_MOST_FILES: Final = 200


def read_containerd(
    root: HostFiles, path: str, *, release: tuple[int, int] | None
) -> tuple[Settings, tuple[TomlFile, ...]]:
    """The effective settings, keys of the CRI plugin as `cri` names them, whatever their version, and the
    files that were read. `release` of containerd that is not known counts as the newest."""
    files = _files(root, path)
    if release is not None and release < (2, 0):
        return _replaced(files), files
    if release is not None and release < (2, 3):
        return _migrated_at_the_end(files), files
    effective: dict[Key, Setting] = {}
    for file in files:
        effective.update(_of_table(file.settings, _version(file)))
    return effective, files


def cri(name: str, *more: str) -> Key:
    """The key of a setting of the CRI plugin."""
    return ("plugins", _CRI, name, *more)


def nri(name: str, *more: str) -> Key:
    return ("plugins", NRI_PLUGIN, name, *more)


def _files(root: HostFiles, path: str) -> tuple[TomlFile, ...]:
    files: list[TomlFile] = []
    pending, seen = [path.lstrip("/")], set()
    while pending and len(files) < _MOST_FILES:
        here = pending.pop(0)
        file = None if here in seen else read_toml(root, here)
        seen.add(here)
        if file is not None:
            files.append(file)
            pending += _imports(root, here, file.settings)
    return tuple(files)


def _imports(root: HostFiles, path: str, settings: Settings) -> list[str]:
    named: Any = settings[("imports",)].value if ("imports",) in settings else []
    found: list[str] = []
    for one in named if isinstance(named, list) else []:
        if not isinstance(one, str):
            continue
        target = one.lstrip("/") if one.startswith("/") else f"{path.rpartition('/')[0]}/{one}"
        found += root.matching(target) if "*" in target else [target]
    return found


def _replaced(files: Sequence[TomlFile]) -> Settings:
    effective: dict[Key, Setting] = {}
    for file in files:
        settings = _of_table(file.settings, _version(file))
        plugins = {key[1] for key in settings if key[0] == "plugins" and len(key) > 1}
        effective = {
            key: setting for key, setting in effective.items() if key[0] != "plugins" or key[1] not in plugins
        } | settings
    return effective


def _migrated_at_the_end(files: Sequence[TomlFile]) -> Settings:
    joined: dict[Key, Setting] = {}
    for file in files:
        joined.update(file.settings)
    newest = _of_table(joined, _NEWEST)
    older = _version(files[-1]) if files else _NEWEST
    return _of_table(joined, older) | newest if older < _NEWEST else newest


def _version(file: TomlFile) -> int:
    found = file.settings.get(("version",))
    return found.value if found and isinstance(found.value, int) else 1


def _of_table(settings: Settings, version: int) -> dict[Key, Setting]:
    """The settings with the CRI plugin's table of that version under one name, and without its others, which
    containerd does not look at."""
    here = CRI_PLUGINS.get(version, CRI_PLUGINS[_NEWEST])
    found = {}
    for key, setting in settings.items():
        if key[0] == "plugins" and len(key) > 1 and key[1] in CRI_PLUGINS.values():
            if key[1] == here:
                found[("plugins", _CRI, *key[2:])] = setting
        else:
            found[key] = setting
    return found
