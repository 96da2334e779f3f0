"""How state reaches the disk, and survives the process and the power failing at any moment.

A file is replaced as a whole, in four steps that a reader never sees half done:

    write a temporary file beside it, fsync it ──> rename it onto the name ──> fsync the directory

Before the rename the old file stands, after it the new one; the first fsync keeps a power failure from
leaving a name with nothing behind it, the second keeps the name itself. Temporary names end in `.tmp`: the
CDI loader reads only `.json` and `.yaml`, and notices a rename but not a write in progress.

`Disk` is an argument of everything that writes, and each step is a method of its own, so that a test can fail
or kill the process between any two of them. Errors leave as OSError; the caller knows whether it was a
checkpoint or a CDI file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from koordra.errors import KoordraError
from koordra.topology.location import DeviceNode

TEMPORARY = ".tmp"

LARGEST: Final = 64 << 20
"""Bytes of a file that is read: ten thousand claims in a checkpoint have room."""


class NotAFile(OSError):
    """A link, a pipe, a device or a folder stands where a file of ours should, or one that is too large."""


def read_file(path: Path, *, largest: int = LARGEST) -> tuple[bytes, os.stat_result]:
    """The content of a regular file, and what it is. Whatever else may stand there holds nobody up: no link
    is followed, no pipe waited for, and no more than `largest` bytes are read. OSError; NotAFile."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # a link, a socket, a device of no driver
            raise NotAFile(errno.EINVAL, "it is not a regular file") from error
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotAFile(errno.EINVAL, "it is not a regular file")
        if found.st_size > largest:
            raise NotAFile(errno.EFBIG, f"it has {found.st_size} bytes; {largest} is the most")
        data, piece = bytearray(), max(found.st_size + 1, 1 << 16)  # files of /proc say 0
        while len(data) < largest and (read := os.read(descriptor, min(piece, largest - len(data)))):
            data += read
        return bytes(data), found
    finally:
        os.close(descriptor)


@contextmanager
def reported(
    kind: type[KoordraError],
    path: Path,
    verb: str,
    *,
    remedy: str = "free space or make it writable, the call is repeated",
) -> Iterator[None]:
    """An OSError about the file becomes an error of this kind, with a remedy."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path} cannot be {verb}: {error.strerror or error}; {remedy}") from error


class Disk:
    """The file system. Every method is one step; `replace` and `remove` put them together."""

    def replace(self, path: Path, data: bytes, *, mode: int, durable: bool = True) -> None:
        """Make `path` hold `data` with permissions `mode` (the umask does not count), at once for every
        reader. Not durably for what is made anew in every boot."""
        temporary = path.with_name(path.name + TEMPORARY)
        self.make_directory(path.parent)
        try:
            self._write_and_rename(temporary, path, data, mode, durable=durable)
        except IsADirectoryError:
            # Who mounts a file that is not there makes an empty folder of its name.
            for folder in (temporary, path):
                with suppress(OSError):
                    self.remove_directory(folder)
            self._write_and_rename(temporary, path, data, mode, durable=durable)
        if durable:
            self.sync_directory(path.parent)

    def _write_and_rename(
        self, temporary: Path, path: Path, data: bytes, mode: int, *, durable: bool
    ) -> None:
        try:
            self.write(temporary, data, mode, durable=durable)
            self.rename(temporary, path)
        except OSError:
            # A full disk: give the space back, then report the first error.
            with suppress(OSError):
                self.unlink(temporary)
            raise

    def make_node(self, path: Path, node: DeviceNode) -> None:
        """Make `path` this character device, open to everybody who may open the device at all."""
        self.make_directory(path.parent)
        with suppress(FileNotFoundError):
            self.unlink(path)
        self.make_device(path, os.makedev(node.major, node.minor))

    def remove_folder(self, path: Path) -> None:
        """Remove a folder of ours and its files, which are not durable; success where there is none."""
        for name in self.names(path):
            with suppress(FileNotFoundError):
                self.unlink(path / name)
        with suppress(FileNotFoundError):
            self.remove_directory(path)

    def remove(self, path: Path) -> bool:
        """Durably remove; False where there was nothing to remove: what should be its folder may be none."""
        try:
            self.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        self.sync_directory(path.parent)
        return True

    def read(self, path: Path) -> bytes | None:
        """The file's content, None where there is none. NotAFile: see `read_file`."""
        try:
            return read_file(path)[0]
        except FileNotFoundError:
            return None

    def identity(self, path: Path) -> tuple[int, ...] | None:
        """Numbers of a regular file that change with its content, its permissions or the file itself; None
        for what is none. The kernel sets the time of the last change (ctime), and no program can set it
        back."""
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode, found.st_uid

    def names(self, directory: Path) -> list[str]:
        """Sorted names in a directory; a directory that does not exist is empty."""
        try:
            return sorted(entry.name for entry in directory.iterdir())
        except FileNotFoundError:
            return []

    def make_directory(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o755)

    def remove_directory(self, directory: Path) -> None:
        directory.rmdir()

    def write(self, path: Path, data: bytes, mode: int, *, durable: bool = True) -> None:
        """Create or truncate, write, fsync unless it need not last. Links are not followed: the state
        directory must not be redirected. Nor is a pipe of that name waited for."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags, mode)
        try:
            os.fchmod(descriptor, mode)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if durable:
                self.sync(descriptor)
        finally:
            os.close(descriptor)

    def make_device(self, path: Path, number: int) -> None:
        os.mknod(path, stat.S_IFCHR | 0o666, number)
        path.chmod(0o666)  # the umask does not count

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def unlink(self, path: Path) -> None:
        path.unlink()
