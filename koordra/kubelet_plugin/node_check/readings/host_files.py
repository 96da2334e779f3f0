"""A machine's files below a root, with symbolic links followed as if that root were `/`.

Kernel files link relatively, which MachineRoot relies on. Configuration does not: `/etc/containerd` may be a
link to `/var/lib/rancher/...`, and inside a pod, where the host is below `/host`, that would be followed into
the pod's own files.
"""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.nvidia_driver import paths_below

_MOST_BYTES: Final = 64 * 1024
_MOST_TEXT: Final = 1 << 20
_OF_THE_KERNEL: Final = ("proc/", "sys/")
_NOWHERE: Final = "proc/0/nowhere"
_BOOT_ID: Final = "proc/sys/kernel/random/boot_id"


class HostFiles(MachineRoot):
    """The machine below a directory. `is_live`: its kernel is the one that this process runs on, so that it
    can also be asked by other ways than files: on the host, and in a pod that has the host's files below a
    folder."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        here = self.line(_BOOT_ID)
        self.is_live = bool(here) and here == MachineRoot(Path("/")).line(_BOOT_ID)

    def words(self, path: str) -> str:
        """A configuration file's text; empty for none, for binary content, and beyond 1 MiB."""
        found = self.data(path, most=_MOST_TEXT + 1) or b""
        try:
            text = found.decode()
        except UnicodeDecodeError:
            return ""
        return "" if "\0" in text or len(found) > _MOST_TEXT else text

    def tail(self, path: str) -> str:
        """The last 64 KiB of a log, as far as they are text."""
        try:
            descriptor = os.open(self.path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return ""
        try:
            os.lseek(descriptor, max(0, os.fstat(descriptor).st_size - _MOST_BYTES), os.SEEK_SET)
            return os.read(descriptor, _MOST_BYTES).decode(errors="replace")
        except OSError:
            return ""
        finally:
            os.close(descriptor)

    def data(self, path: str, *, most: int = _MOST_BYTES) -> bytes | None:
        return super().data(self.resolved(path), most=most)

    def names(self, path: str) -> list[str]:
        return super().names(self.resolved(path))

    def matching(self, pattern: str) -> list[str]:
        """The paths of a folder whose last part matches, as a shell's glob of one folder, sorted."""
        folder, _, last = pattern.rpartition("/")
        return [f"{folder}/{name}" for name in self.names(folder) if fnmatchcase(name, last)]

    def mode(self, path: str) -> int:
        """The file's type and permissions, links followed; 0 where there is none."""
        status = self.status(self.resolved(path))
        return status.st_mode if status else 0

    def is_folder(self, path: str) -> bool:
        return stat.S_ISDIR(self.mode(path))

    def is_file(self, path: str) -> bool:
        return stat.S_ISREG(self.mode(path))

    def is_socket(self, path: str) -> bool:
        return stat.S_ISSOCK(self.mode(path))

    def path(self, path: str) -> Path:
        """The file as this process names it, for what is not read but asked (a socket) or run."""
        return self.directory / self.resolved(path)

    def resolved(self, path: str) -> str:
        """The path, relative to the root, that it leads to; one that leads nowhere is where nothing is."""
        if path.startswith(_OF_THE_KERNEL):
            return path
        try:
            found = paths_below.resolved(self.directory, path)
        except ValueError:  # a zero in a garbled path
            found = None
        return PurePosixPath(found).relative_to("/").as_posix() if found is not None else _NOWHERE
