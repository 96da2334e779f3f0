"""Where a claim's region is: on a small file system of its own, where the node can mount one.

A claim's processes write to `usage`. On a disk they could extend it and fill the file system of the plugin's state. So the folder
is a tmpfs, no larger than the region needs; being in memory, it does not survive a boot, nor does any process.

The container runtime must see what is mounted here. It does where mounts are shared with the host: in a pod with
`mountPropagation: Bidirectional`, and on a host whose mounts are shared, as systemd makes them. Elsewhere (private mounts, no
right to mount) the folder stays on the disk, which is logged once; the node then truncates what grew (reconcile.py).
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.limiter.layout import POLICY_BYTES, USAGE_BYTES
from koordra.logs import get_logger

log = get_logger(__name__)

_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_DETACH: Final = 2
_PAGE: Final = 4096
SIZE: Final = sum(-(-size // _PAGE) * _PAGE for size in (POLICY_BYTES, USAGE_BYTES)) + 16 * _PAGE
INODES: Final = 64
_libc = ctypes.CDLL(None, use_errno=True)
_logged: set[str] = set()


def make(folder: Path) -> None:
    """Make the claim's folder; one that is there stays as it is. Raises OSError."""
    if folder.exists() and (mounted(folder) or any(folder.iterdir())):
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    if not shared(folder):
        _log_once("this mount is not shared with the host")
        return
    options = f"size={SIZE},nr_inodes={INODES},mode=0755".encode()
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC)
    if _libc.mount(b"koordra-limiter", os.fsencode(folder), b"tmpfs", flags, options) != 0:
        _log_once(os.strerror(ctypes.get_errno()))


def remove(folder: Path, names: tuple[str, ...]) -> None:
    """Take the folder away, with files of these names; also one that is gone. Raises OSError."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    if not folder.exists():
        return
    # A container that still has it keeps it until it ends.
    while mounted(folder):
        if _libc.umount2(os.fsencode(folder), _DETACH) != 0:
            raise NodeError(f"{folder} cannot be unmounted: {os.strerror(ctypes.get_errno())}")
        for name in names:
            (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def mounted(folder: Path) -> bool:
    """Whether the folder is a mount of its own; a bind mount of the same file system counts too."""
    return os.path.ismount(folder)


def shared(folder: Path) -> bool:
    """Whether what is mounted below the folder shows on the host too, if there is another host than this."""
    best, found = -1, False
    path = str(folder.resolve())
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        fields, _, _ = line.partition(" - ")
        words = fields.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[4])
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, found = len(point), any(word.startswith("shared:") for word in words[6:])
    return found


def _log_once(reason: str) -> None:
    if reason not in _logged:
        _logged.add(reason)
        log.info("regions_on_disk", reason=reason, effect="a tenant can fill it for a second at a time")
