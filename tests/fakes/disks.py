"""Disks that die, fail or fill up at a chosen step."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

from koordra.node_state.disk import Disk


class Killed(BaseException):
    """The process is gone: nothing may catch it, and nothing it does afterwards reaches the disk."""


def kill_process() -> None:
    """A real one."""
    os.kill(os.getpid(), signal.SIGKILL)


def raise_killed() -> None:
    raise Killed


class StepDisk(Disk):
    """Calls `at_step(name, path)` before every step that changes the disk; `steps` lists those that were
    reached."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def at_step(self, step: str, path: Path) -> None:
        self.steps.append((step, path.name))

    def make_directory(self, directory: Path) -> None:
        self.at_step("mkdir", directory)
        super().make_directory(directory)

    def write(self, path: Path, data: bytes, mode: int, *, durable: bool = True) -> None:
        self.at_step("create", path)
        # A kill may also fall between the first and the last byte.
        super().write(path, data[: len(data) // 2], mode, durable=durable)
        self.at_step("write", path)
        super().write(path, data, mode, durable=durable)

    def make_device(self, path: Path, number: int) -> None:
        self.at_step("mknod", path)
        super().make_device(path, number)

    def sync(self, descriptor: int) -> None:
        """fsync costs time and proves nothing here; test_files.py checks its place."""

    def rename(self, source: Path, target: Path) -> None:
        self.at_step("rename", target)
        super().rename(source, target)

    def sync_directory(self, directory: Path) -> None:
        self.at_step("fsync", directory)
        super().sync_directory(directory)

    def unlink(self, path: Path) -> None:
        self.at_step("unlink", path)
        super().unlink(path)

    def remove_directory(self, directory: Path) -> None:
        self.at_step("rmdir", directory)
        super().remove_directory(directory)


class DyingDisk(StepDisk):
    """Dies before step number `at` (from 0), and stays dead."""

    def __init__(self, at: int, die: Callable[[], None] = raise_killed) -> None:
        super().__init__()
        self._at = at
        self._die = die

    @property
    def died(self) -> bool:
        return len(self.steps) > self._at

    def at_step(self, step: str, path: Path) -> None:
        super().at_step(step, path)
        if self.died:
            self._die()


class FailingDisk(StepDisk):
    """Answers one step, or from one step on all that need space, with an error of the operating system."""

    def __init__(
        self,
        at: int | None = None,
        *,
        error: int = errno.EIO,
        full: bool = False,
        read_only: Path | None = None,
    ) -> None:
        super().__init__()
        self.at = at
        self._error = error
        self.full = full
        self.read_only = read_only

    def at_step(self, step: str, path: Path) -> None:
        super().at_step(step, path)
        if self.at is not None and len(self.steps) == self.at + 1:
            raise OSError(self._error, os.strerror(self._error), str(path))
        if self.full and step in {"create", "write", "mkdir"}:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if self.read_only is not None and path.parent == self.read_only and step != "mkdir":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


class UnreadableDisk(StepDisk):
    """Answers read number `at` (from 0; of a file, a folder or what a file is) with an error, and no other;
    `reads` lists those that were reached."""

    def __init__(self, at: int | None = None, *, error: int = errno.EIO) -> None:
        super().__init__()
        self.at = at
        self._error = error
        self.reads: list[tuple[str, str]] = []

    def _at_read(self, what: str, path: Path) -> None:
        self.reads.append((what, path.name))
        if self.at is not None and len(self.reads) == self.at + 1:
            raise OSError(self._error, os.strerror(self._error), str(path))

    def read(self, path: Path) -> bytes | None:
        self._at_read("read", path)
        return super().read(path)

    def names(self, directory: Path) -> list[str]:
        self._at_read("list", directory)
        return super().names(directory)

    def identity(self, path: Path) -> tuple[int, ...] | None:
        self._at_read("stat", path)
        return super().identity(path)
