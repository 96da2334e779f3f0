"""Folders that are a small file system in memory: what containers write there fills no disk of the node, and
is over with the boot.

The container runtime must see what is mounted here. It does where mounts are shared with the host: in a pod
with `mountPropagation: Bidirectional`, and on a host whose mounts are shared, as systemd makes them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.sampling.host_processes import mount_of, mounts

_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_DETACH: Final = 2
_libc = ctypes.CDLL(None, use_errno=True)


def make_folder(folder: Path, options: str) -> str | None:
    """Make the folder, with a file system of its own (`options` of tmpfs), and answer why it has none; one
    that is there stays as it is. Raises OSError."""
    if folder.exists() and (mounted(folder) or any(folder.iterdir())):
        return None
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    if not shared(folder):
        return "this mount is not shared with the host"
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC)
    if _libc.mount(b"koordra", os.fsencode(folder), b"tmpfs", flags, options.encode()) != 0:
        return os.strerror(ctypes.get_errno())
    return None


def unmount(folder: Path) -> None:
    """A container that still has it keeps it until it ends. Raises NodeError."""
    if _libc.umount2(os.fsencode(folder), _DETACH) != 0:
        raise NodeError(f"{folder} cannot be unmounted: {os.strerror(ctypes.get_errno())}")


def remove_tree(folder: Path, mounts_in: Iterable[str]) -> None:
    """Take the folder away, and what is in it; folders of these names may be mounts. Also one that is gone.
    Raises NodeError, OSError."""
    for name in mounts_in:
        while mounted(folder / name):
            unmount(folder / name)
    if folder.exists():
        shutil.rmtree(folder)


def mounted(folder: Path) -> bool:
    """Whether the folder is a mount of its own; a bind mount of the same file system counts too."""
    return os.path.ismount(folder)


def shared(folder: Path) -> bool:
    """Whether what is mounted below the folder shows on the host too, if there is another host than this."""
    found = mount_of(str(folder.resolve()), mounts(Path("/proc/self")))
    return found is not None and found.shared
