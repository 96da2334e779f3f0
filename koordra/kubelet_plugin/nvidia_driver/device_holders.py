"""Who holds the GPUs' device nodes open: the processes that keep the driver's kernel module from being
unloaded.

    /proc/<pid>/fd/*           descriptors that are device nodes of the driver's majors (/proc/devices)
    /proc/<pid>/cgroup         the pod that the process is of
    /sys/module/*/refcnt       what the kernel itself counts: also mappings, and what /proc does not show

The driver's installer refuses to unload a module that is used by more than the modules that depend on it
(NVIDIA/gpu-driver-container, nvidia-driver: refcnt against holders/). The same is compared here, so that
"nobody" is what the kernel thinks, too.

A descriptor counts by the number of what is behind it: its link is a text that a process chooses. Only links
below /dev, and those that name nvidia, are looked behind, since a look at a file of a dead network file
system may never return. What is open under another name shows in the counts of the modules.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from koordra.kubelet_plugin.nvidia_driver.paths_below import content

MODULES: Final = (
    "nvidia",
    "nvidia_uvm",
    "nvidia_modeset",
    "nvidia_drm",
    "nvidia_peermem",
    "nvidia_fs",
    "gdrdrv",
)
"""Those that go with the driver."""

_MAJORS: Final = re.compile(r"^\s*(\d+)\s+(nvidia\S*|gdrdrv)$", re.MULTILINE | re.ASCII)
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})", re.ASCII)
"""Of a static pod the uid is a digest."""
_LONGEST_NAME: Final = 64
_MOST: Final = 64 * 1024


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A process with device nodes of the driver open. `pod`: the uid of its pod, None outside of pods."""

    pid: int
    command: str
    devices: tuple[str, ...]
    pod: str | None = None

    def line(self, pods: Mapping[str, str]) -> str:
        """In words. `pods`: names by uid."""
        where = f"pod {pods.get(self.pod, self.pod)}" if self.pod else "no pod"
        return f"{self.command} (pid {self.pid}, {where}) holds {', '.join(self.devices)}"


@dataclass(frozen=True, slots=True)
class DriverUsers:
    """`holders`: processes; `uncounted`: modules that the kernel says are used, by how much more than the
    modules that depend on them, where no process is seen to use any."""

    holders: tuple[Holder, ...] = ()
    uncounted: tuple[tuple[str, int], ...] = ()

    @property
    def nobody(self) -> bool:
        return not self.holders and not self.uncounted

    def lines(self, pods: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """In words, one line each."""
        return [holder.line(pods) for holder in self.holders] + [
            f"module {module} is used {count} times by what no process shows"
            for module, count in self.uncounted
        ]


def driver_users(root: Path) -> DriverUsers:
    """Whoever uses the driver of the machine below `root`. Where the kernel counts nobody, no process is
    looked at: a node may have ten thousand."""
    uses, majors = tuple(_uses_of_modules(root)), driver_majors(root)
    counted = (root / "sys/module/nvidia/refcnt").exists()
    holders = tuple(sorted(_holders(root, majors))) if majors and (uses or not counted) else ()
    return DriverUsers(holders, () if holders else uses)


def driver_majors(root: Path) -> frozenset[int]:
    """The numbers under which the kernel knows the driver; none while it is not loaded."""
    return frozenset(int(number) for number, _ in _MAJORS.findall(_text(root / "proc/devices")))


def _holders(root: Path, majors: frozenset[int]) -> Iterator[Holder]:
    for process in sorted((root / "proc").iterdir()):
        if process.name.isdecimal():
            devices = tuple(sorted(set(_open_devices(process, majors))))
            if devices:
                found = _POD.search(_text(process / "cgroup"))
                yield Holder(
                    int(process.name),
                    _printable(_text(process / "comm").strip()) or "?",
                    devices,
                    found[1].replace("_", "-") if found else None,
                )


def _open_devices(process: Path, majors: frozenset[int]) -> Iterator[str]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:  # it has ended, or is a kernel thread
        return
    for descriptor in descriptors:
        try:
            name = str(descriptor.readlink())
            if not _may_be_device(name):
                continue
            found = descriptor.stat()
        except OSError:
            continue
        if stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) in majors:
            yield _printable(name)


def _printable(name: str) -> str:
    """Bounded, without line ends and escape sequences: whoever runs the process chose it."""
    return "".join(each if each.isprintable() else "?" for each in name[:_LONGEST_NAME])


def _may_be_device(name: str) -> bool:
    return name.startswith("/dev/") or "nvidia" in name


def _uses_of_modules(root: Path) -> Iterator[tuple[str, int]]:
    for module in MODULES:
        folder = root / "sys/module" / module
        count = _text(folder / "refcnt").strip()
        if count.isdecimal():
            try:
                dependants = len(list((folder / "holders").iterdir()))
            except OSError:
                dependants = 0
            if int(count) > dependants:
                yield module, int(count) - dependants


def _text(path: Path) -> str:
    return content(path.parent, path.name, most=_MOST).decode(errors="replace")
