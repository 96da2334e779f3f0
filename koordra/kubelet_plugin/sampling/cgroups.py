"""What containers use of processors and of the host's memory, by the kernel's cgroups of version 2 and 1.

    <hierarchy>/.../pod<uid>/<id>                           with the driver cgroupfs
    <hierarchy>/.../...-pod<uid>.slice/<runtime>-<id>.scope with systemd

A container's folder is found by its number, whatever the hierarchy above it is called; nothing is looked for
below a container, where it may make folders itself, with any name. What is found is kept for as long as it is
there. Memory is what the kubelet calls the working set: what is charged, without files that nobody has used
for a while, which the kernel takes back first.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.sampling.host_processes import container_in, is_pods

ROOT: Final = "sys/fs/cgroup"
MOST_FOLDERS: Final = 20_000
"""That are looked at for containers whose folder is not known; a host of a thousand containers has some
thousands."""
AGAIN_AFTER: Final = 15.0
"""Seconds until a container whose folder was not there is looked for again."""
_MONITOR: Final = "conmon"
"""CRI-O's monitor of a container has a cgroup of its own, with the container's number."""


@dataclass(frozen=True, slots=True)
class CgroupUse:
    """`cpu_seconds` since the cgroup began, of all processors together; `memory` in bytes. None: the kernel
    does not tell."""

    cpu_seconds: float | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerCgroups:
    """Of a container, and of its pod with all that is in it; None where its pod has none of its own."""

    own: CgroupUse
    pod: CgroupUse | None


class CgroupReader:
    """`root` stands for `/`. For one thread."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._machine, self._clock = MachineRoot(root), clock
        self._folders: dict[str, str] = {}
        """Of containers, below the controller's."""
        self._missing: frozenset[str] = frozenset()
        self._looked_at = clock()

    def read(self, containers: Collection[str]) -> dict[str, ContainerCgroups]:
        """Those of the containers (by the runtime's numbers) that have a cgroup now."""
        hierarchies = self._hierarchies()
        if hierarchies is None:
            return {}
        cpu, memory = hierarchies
        wanted = frozenset(containers)
        self._folders = {
            number: folder
            for number, folder in self._folders.items()
            if number in wanted and self._machine.status(f"{cpu}/{folder}") is not None
        }
        self._look_for(wanted - self._folders.keys(), cpu)
        found, pods = {}, dict[str, CgroupUse]()
        for number, folder in self._folders.items():
            pod = folder.rpartition("/")[0]
            if is_pods(pod) and pod not in pods:
                pods[pod] = self._use(f"{cpu}/{pod}", f"{memory}/{pod}")
            own = self._use(f"{cpu}/{folder}", f"{memory}/{folder}")
            found[number] = ContainerCgroups(own, pods.get(pod))
        return found

    def _hierarchies(self) -> tuple[str, str] | None:
        """Where processor time and memory are counted: version 2 has one hierarchy, version 1 one for each
        controller, or for several (`cpu,cpuacct`)."""
        if self._machine.status(f"{ROOT}/cgroup.controllers") is not None:
            return ROOT, ROOT
        names = self._machine.names(ROOT)
        cpu, memory = (
            next((f"{ROOT}/{name}" for name in names if controller in name.split(",")), None)
            for controller in ("cpuacct", "memory")
        )
        return (cpu, memory or ROOT) if cpu else None

    def _look_for(self, wanted: frozenset[str], hierarchy: str) -> None:
        now = self._clock()
        if not wanted - self._missing and now - self._looked_at < AGAIN_AFTER:
            return
        if wanted:
            self._looked_at = now
            for number, folder in _containers(self._machine.directory / hierarchy):
                if number in wanted:
                    self._folders.setdefault(number, folder)
        self._missing = wanted - self._folders.keys()

    def _use(self, cpu: str, memory: str) -> CgroupUse:
        """By the files of version 2, or of version 1, of which only one has each."""
        micro = self._figure(f"{cpu}/cpu.stat", "usage_usec")
        nano = self._machine.integer(f"{cpu}/cpuacct.usage") if micro is None else None
        charged = self._machine.integer(f"{memory}/memory.current")
        idle = "inactive_file"
        if charged is None:
            charged, idle = self._machine.integer(f"{memory}/memory.usage_in_bytes"), "total_inactive_file"
        if charged is not None:
            charged = max(charged - (self._figure(f"{memory}/memory.stat", idle) or 0), 0)
        seconds = micro / 1e6 if micro is not None else nano / 1e9 if nano is not None else None
        return CgroupUse(seconds, charged)

    def _figure(self, path: str, word: str) -> int | None:
        for line in self._machine.text(path).splitlines():
            name, _, value = line.partition(" ")
            if name == word and value.isdecimal():
                return int(value)
        return None


def _containers(hierarchy: Path) -> Iterator[tuple[str, str]]:
    """The number of each outermost container, and its folder; those nearest to the top first."""
    left, looked = deque([""]), 0
    while left and looked < MOST_FOLDERS:
        above = left.popleft()
        looked += 1
        for name in _folders_in(hierarchy / above):
            below = f"{above}/{name}" if above else name
            number = container_in(f"0::/{name}")
            if not number:
                left.append(below)
            elif _MONITOR not in name:
                yield number, below


def _folders_in(folder: Path) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:  # it ends meanwhile
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return []
