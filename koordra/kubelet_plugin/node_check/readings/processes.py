"""The processes of a node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles

_MEMLOCK: Final = re.compile(r"Max locked memory\s+(\S+)\s+(\S+)", re.ASCII)
_UNIT: Final = re.compile(r"/([A-Za-z0-9@:_.\\-]+\.service)(?:/|$)", re.ASCII)
_MOST_ARGUMENTS: Final = 512
_MOST_DIGITS: Final = 9
WITH_ARGUMENTS: Final = frozenset({"containerd", "crio", "kubelet"})


@dataclass(frozen=True, slots=True)
class Process:
    """`arguments` are those of WITH_ARGUMENTS only; `cgroup` is the text of its cgroup file."""

    pid: int
    name: str
    arguments: tuple[str, ...]
    cgroup: str

    @property
    def unit(self) -> str | None:
        """The systemd service that it runs in."""
        found = _UNIT.findall(self.cgroup)
        return found[-1] if found else None

    @property
    def in_pod(self) -> bool:
        return "kubepods" in self.cgroup

    def option(self, *names: str) -> str | None:
        return option(self.arguments, *names)


def option(arguments: Sequence[str], *names: str) -> str | None:
    """The value of `--name value` or `--name=value`; the last one given counts."""
    value = None
    for at, argument in enumerate(arguments):
        name, equals, written = argument.partition("=")
        if name in names:
            after = arguments[at + 1 : at + 2]
            value = written if equals else (after[0] if after else None)
    return value


def read_processes(root: HostFiles) -> tuple[Process, ...]:
    """Arguments are read of the few processes that are asked for theirs: a process that hangs in a driver may
    hold the lock of its memory, in which they are, and then whoever reads them hangs, too (as `ps` does)."""
    found = []
    for entry in root.names("proc"):
        name = root.line(f"proc/{entry}/comm") if entry.isdecimal() and len(entry) <= _MOST_DIGITS else ""
        if name:
            pid = int(entry)
            arguments = arguments_of(root, pid) if name in WITH_ARGUMENTS else ()
            found.append(Process(pid, name, arguments, root.text(f"proc/{entry}/cgroup")))
    return tuple(sorted(found, key=lambda process: process.pid))


def arguments_of(root: HostFiles, pid: int) -> tuple[str, ...]:
    words = (root.data(f"proc/{pid}/cmdline") or b"").decode(errors="replace").split("\0")
    return tuple(word for word in words[:_MOST_ARGUMENTS] if word)


def memlock_of(root: HostFiles, pid: int) -> str | None:
    """The soft limit of locked memory, `unlimited` or bytes, that the process has."""
    found = _MEMLOCK.search(root.text(f"proc/{pid}/limits"))
    return found[1] if found else None
