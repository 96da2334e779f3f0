"""A setting of a systemd service: the unit file and its drop-ins, in systemd's order.

Of the folders that have the unit the first counts (/etc before /run before /usr). Drop-ins
(`<unit>.d/*.conf`) of all folders are read after it, in the order of their file names; of two with the same
name the one of the earlier folder counts. The last assignment wins, an empty one goes back to the default
(systemd.unit(5)).
"""

from __future__ import annotations

from typing import Final

from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.setting import Setting

_FOLDERS: Final = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)


def service_setting(root: HostFiles, unit: str, name: str) -> Setting | None:
    """The effective value of `name` in [Service]; None where nothing sets it."""
    files = [f"{folder}/{unit}" for folder in _FOLDERS if root.is_file(f"{folder}/{unit}")][:1]
    drop_ins: dict[str, str] = {}
    for kind in (f"{unit}.d", "service.d"):
        for folder in _FOLDERS:
            for path in root.matching(f"{folder}/{kind}/*.conf"):
                drop_ins.setdefault(path.rpartition("/")[2], path)
    files += [drop_ins[file] for file in sorted(drop_ins)]
    found = None
    for path in files:
        for number, line in enumerate(_service_lines(root.words(path)), start=1):
            key, equals, value = line.partition("=")
            if equals and key.strip() == name:
                found = Setting(value.strip(), f"/{path}:{number}") if value.strip() else None
    return found


def _service_lines(text: str) -> list[str]:
    """The lines with those outside of [Service], and comments, made empty."""
    inside, lines = False, []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            inside = stripped == "[Service]"
        lines.append("" if not inside or stripped.startswith(("[", "#", ";")) else stripped)
    return lines
