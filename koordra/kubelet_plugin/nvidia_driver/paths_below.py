"""Paths below a folder that stands for `/`: links are followed as if the folder were the root, never out of
it.

A driver's root is written by others (a driver container, a host's packages), and a link in it that leads
elsewhere on the host must not make the host's files mounts of a container.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

_MOST_LINKS: Final = 16


def at(root: Path, path: str) -> Path:
    """The path as this process names it; the links in it are not followed."""
    return root / path.lstrip("/")


def resolved(root: Path, path: str) -> str | None:
    """The path below the root with every link followed; None where something is missing or links go in
    circles."""
    top = str(root).rstrip("/")
    parts, real, links = path.split("/")[::-1], "", 0
    while parts:
        part = parts.pop()
        if part in ("", "."):  # the root itself may be a link, and is not resolved
            continue
        if part == "..":
            real = real.rpartition("/")[0]
            continue
        here = f"{real}/{part}"
        try:
            target = os.readlink(top + here)  # noqa: PTH115  called some thousand times
        except OSError as error:
            if error.errno != errno.EINVAL:  # which says: there, and no link
                return None
            real = here
            continue
        links += 1
        if links > _MOST_LINKS:
            return None
        if target.startswith("/"):
            real = ""
        parts += target.split("/")[::-1]
    return real or "/"


def content(root: Path, path: str, *, most: int) -> bytes:
    """Up to `most` bytes of a file below the root; nothing where there is none. Neither a pipe that nobody
    writes to nor a link out of the root is followed."""
    real = resolved(root, path)
    if real is None:
        return b""
    try:
        descriptor = os.open(at(root, real), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = b""
        while len(found) < most and (more := os.read(descriptor, most - len(found))):
            found += more
        return found
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def names_in(root: Path, folder: str) -> list[str]:
    """What the folder has, sorted; nothing where it is missing."""
    real = resolved(root, folder)
    try:
        return sorted(os.listdir(at(root, real))) if real is not None else []  # noqa: PTH208  names are wanted
    except OSError:
        return []
