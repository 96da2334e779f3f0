"""The configuration of CRI-O: /etc/crio/crio.conf, then /etc/crio/crio.conf.d in the order of the names;
later files win, setting by setting (crio.conf.d(5))."""

from __future__ import annotations

from typing import Final

from koordra.kubelet_plugin.node_check.readings.container_runtime.toml_settings import (
    Key,
    Settings,
    TomlFile,
    read_toml,
)
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.setting import Setting

PATH: Final = "etc/crio/crio.conf"
DROP_INS: Final = "etc/crio/crio.conf.d"
SOCKETS: Final = ("run/crio/crio.sock", "var/run/crio/crio.sock")


def read_crio(root: HostFiles, path: str, drop_ins: str) -> tuple[Settings, tuple[TomlFile, ...]]:
    paths = [path, *(f"{drop_ins}/{name}" for name in root.names(drop_ins) if not name.startswith("."))]
    files = tuple(filter(None, (read_toml(root, one) for one in paths)))
    effective: dict[Key, Setting] = {}
    for file in files:
        effective.update(file.settings)
    return effective, files
