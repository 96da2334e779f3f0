"""Reads a machine below a directory that stands for ``/``.

The tree may be the kernel's own, a captured one or a made-up one, and files in it may be missing, empty,
binary, unreadable, looping links, pipes, or vanish between listing and reading. Every read therefore returns
the value, ``None`` or nothing, and never raises or blocks; the caller decides whether a missing value
matters.

Numbers of character devices are always read, never assumed: those of /dev/nvidia-uvm, /dev/nvidia-caps,
rdma_cm and all uverbs above the 32nd change from boot to boot. On the real machine only a character device
counts. In a captured machine, made without the right to mknod, a regular file with the text ``c MAJOR:MINOR``
stands for one.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from koordra.topology.location import DeviceNode
from koordra.topology.problems import Problem

_MOST = 64 * 1024
"""Bytes of the longest kernel file that discovery reads."""

_STAND_IN = re.compile(r"c ([0-9]{1,7}):([0-9]{1,7})", re.ASCII)
_NUMBERS = re.compile(r"([0-9]{1,7}):([0-9]{1,7})", re.ASCII)
_INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|[0-9]+)", re.ASCII)


class MachineRoot:
    """A directory that stands for ``/``; paths are given relative to it, without a leading slash. ``dev``
    are the folders that stand for its ``/dev`` instead, together: in a pod the host's, and a driver
    container's."""

    def __init__(self, directory: Path, dev: Sequence[Path] = ()) -> None:
        self.directory = directory
        self._dev = tuple(map(str, dev))
        self.problems: list[Problem] = []
        """What a reading could not resolve."""

    def problem(self, object: str, field: str, problem: str, remedy: str) -> None:
        self.problems.append(Problem(object, field, problem, remedy))

    @property
    def is_real(self) -> bool:
        """Whether this is the machine itself rather than a captured one."""
        return os.path.abspath(self.directory) == "/"  # noqa: PTH100  resolving could loop

    def data(self, path: str, *, most: int = _MOST) -> bytes | None:
        """Up to ``most`` bytes of a file. Kernel attributes come in one read; longer listings of /proc, for
        which a caller asks for more than 64 KiB, come page by page."""
        try:
            # O_NONBLOCK: a named pipe in a captured machine must not block.
            descriptor = os.open(self._at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except (OSError, ValueError):
            return None
        try:
            found = os.read(descriptor, most)
            while most > _MOST and 0 < len(found) < most and (more := os.read(descriptor, most - len(found))):
                found += more
            return found
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def text(self, path: str, *, most: int = _MOST) -> str:
        """A file's text without surrounding blanks; empty unless it is printable ASCII."""
        try:
            text = (self.data(path, most=most) or b"").decode("ascii").strip()
        except UnicodeDecodeError:
            return ""
        printable = all(character.isprintable() or character in "\n\t" for character in text)
        return text if printable else ""

    def line(self, path: str) -> str:
        """A file that holds one short line; otherwise empty."""
        text = self.text(path)
        return text if "\n" not in text and len(text) <= 256 else ""

    def integer(self, path: str) -> int | None:
        """A file that holds one number, decimal or with 0x."""
        text = self.line(path)
        return int(text, 0 if "x" in text else 10) if _INTEGER.fullmatch(text) else None

    def names(self, path: str) -> list[str]:
        found: set[str] = set()
        for place in self._places(path):
            with contextlib.suppress(OSError, ValueError):
                found.update(os.listdir(place))  # noqa: PTH208  names are what is wanted
        return sorted(found)

    def link(self, path: str) -> list[str]:
        """Where a symbolic link points, as written, in parts; empty where there is none."""
        try:
            return os.readlink(self._at(path)).split("/")  # noqa: PTH115  the text is what is wanted
        except (OSError, ValueError):
            return []

    def status(self, path: str) -> os.stat_result | None:
        """lstat: links are not followed, so that a captured machine never shows this machine's devices."""
        try:
            return os.lstat(self._at(path))
        except (OSError, ValueError):
            return None

    def device_node(self, path: str) -> DeviceNode | None:
        """The character device at ``/dev/...``; None where there is none (links, block devices are none)."""
        inside = path.lstrip("/")
        status = self.status(inside)
        if status is None:
            return None
        mode, gid = stat.S_IMODE(status.st_mode), status.st_gid
        if stat.S_ISCHR(status.st_mode):
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
            return DeviceNode(path=path, major=major, minor=minor, mode=mode, gid=gid)
        written = _STAND_IN.fullmatch(self.line(inside))
        if written and stat.S_ISREG(status.st_mode) and not self.is_real:
            return DeviceNode(path=path, major=int(written[1]), minor=int(written[2]), mode=mode, gid=gid)
        return None

    def device_nodes(self, paths: Iterable[str]) -> tuple[DeviceNode, ...]:
        return tuple(node for node in map(self.device_node, paths) if node)

    def kernel_numbers(self, path: str) -> tuple[int, int] | None:
        """``(major, minor)`` from a sysfs ``dev`` attribute."""
        written = _NUMBERS.fullmatch(self.line(path))
        return (int(written[1]), int(written[2])) if written else None

    def _at(self, path: str) -> str:
        places = self._places(path)
        return next((place for place in places[:-1] if os.path.lexists(place)), places[-1])

    def _places(self, path: str) -> tuple[str, ...]:
        # os.path: called some ten thousand times
        if self._dev and (path == "dev" or path.startswith("dev/")):
            return tuple(folder + path[3:] for folder in self._dev)
        return (os.path.join(self.directory, path),)  # noqa: PTH118
