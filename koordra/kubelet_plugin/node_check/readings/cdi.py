"""The folder of dynamic CDI specs, and the hook programs that koordra's specs name.

A container runtime starts a hook on the host, inside of nothing: the program has to be there, be allowed to
be executed where it lies, need no loader (static: an image's libraries must not get into it), and, for pods
with a user namespace of their own, be reachable for a user who is nobody on the node.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import names
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles

_MOUNTS: Final = "proc/1/mountinfo"
_MOST: Final = 4 << 20
_MOUNT_POINT, _OPTIONS = 4, 5
_MOST_SPECS: Final = 1000
_HOOK_FOLDERS: Final = ("/var/lib/koordra/hook", "/opt/koordra/hook")
_HOOK: Final = "koordra-cdi-hook-*"
_ELF_64, _HEADERS_AT, _HEADER_SIZE, _HEADER_COUNT = b"\x7fELF\x02", 0x20, 0x36, 0x38
_INTERPRETER: Final = 3
"""PT_INTERP of elf(5): the program asks for a loader."""


@dataclass(frozen=True, slots=True)
class CdiHook:
    """`static`: None where it is no program for this kind of machine; `barred`: the first folder above it
    that not everybody may pass."""

    path: str
    exists: bool
    executable: bool = False
    static: bool | None = None
    noexec: bool = False
    barred: str | None = None


@dataclass(frozen=True, slots=True)
class Cdi:
    """`folder` of dynamic specs; `exists`: it is there; `read_only`: its file system is, None where the
    mounts of the host cannot be read. `hooks`: those that koordra installed, or that a claim's spec names."""

    folder: str
    exists: bool
    read_only: bool | None
    hooks: tuple[CdiHook, ...] = ()


def read_cdi(root: HostFiles, folder: str, *, kubelet_root: str | None) -> Cdi:
    options = _mount_options(root, folder)
    places = (*_HOOK_FOLDERS, *([f"{kubelet_root}/plugins/{names.DRIVER}/hook"] if kubelet_root else []))
    installed = [path for place in places for path in root.matching(f"{place}/{_HOOK}")]
    return Cdi(
        folder,
        root.is_folder(folder),
        None if options is None else "ro" in options,
        tuple(_hook(root, path) for path in dict.fromkeys((*installed, *_hooks_of_claims(root, folder)))),
    )


def _mount_options(root: HostFiles, path: str) -> frozenset[str] | None:
    """Of the file system that the path is on, by the mounts that the host's first process sees: inside a pod
    the same one may be mounted with other options."""
    listed = root.data(_MOUNTS, most=_MOST)
    if listed is None:
        return None
    found, longest = frozenset[str](), -1
    here = f"/{root.resolved(path)}"
    for line in listed.decode(errors="replace").splitlines():
        fields = line.split()
        if len(fields) <= _OPTIONS or "-" not in fields:
            continue
        point = fields[_MOUNT_POINT].rstrip("/")
        # Of two mounts over each other the later one is seen.
        if (here == point or here.startswith(f"{point}/")) and len(point) >= longest:
            longest = len(point)
            found = frozenset((*fields[_OPTIONS].split(","), *fields[-1].split(",")))
    return found


def _hooks_of_claims(root: HostFiles, folder: str) -> Iterator[str]:
    for path in root.matching(f"{folder}/{names.DRIVER}-*.json")[:_MOST_SPECS]:
        try:
            document = json.loads(root.words(path))
        except (ValueError, RecursionError):
            continue
        devices = _get(document, "devices")
        for part in (document, *(devices if isinstance(devices, list) else [])):
            hooks = _get(_get(part, "containerEdits"), "hooks")
            for hook in hooks if isinstance(hooks, list) else []:
                named = _get(hook, "path")
                if isinstance(named, str) and named.startswith("/"):
                    yield named


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _hook(root: HostFiles, path: str) -> CdiHook:
    mode = root.mode(path)
    if not stat.S_ISREG(mode):
        return CdiHook(path, exists=False)
    above = [path[:at] for at, character in enumerate(path) if character == "/" and at]
    return CdiHook(
        path,
        exists=True,
        executable=mode & 0o005 == 0o005,
        static=_is_static(root.data(path) or b""),
        noexec="noexec" in (_mount_options(root, path) or ()),
        barred=next((folder for folder in above if not root.mode(folder) & stat.S_IXOTH), None),
    )


def _is_static(program: bytes) -> bool | None:
    """Whether no program header of the ELF file names an interpreter."""
    if not program.startswith(_ELF_64) or len(program) < _HEADER_COUNT + 2:
        return None
    start = int.from_bytes(program[_HEADERS_AT : _HEADERS_AT + 8], "little")
    size = int.from_bytes(program[_HEADER_SIZE : _HEADER_SIZE + 2], "little")
    count = int.from_bytes(program[_HEADER_COUNT : _HEADER_COUNT + 2], "little")
    kinds = [program[start + n * size : start + n * size + 4] for n in range(count)]
    if any(len(kind) < 4 for kind in kinds):
        return None
    return all(int.from_bytes(kind, "little") != _INTERPRETER for kind in kinds)
