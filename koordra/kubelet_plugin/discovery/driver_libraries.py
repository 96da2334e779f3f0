"""The NVIDIA driver's user-space files that CUDA programs in containers need, mounted read-only from the
host.

A CUDA image contains the toolkit, never the driver: libcuda.so.1 and its companions must be of exactly the
loaded driver's version. They are found through the host's ld cache, where every library of the driver ends in
`.so.<driver version>`, or, without a cache, in the well-known library folders.

Each file is mounted under its own name and under every name the cache has for it (`libcuda.so.1` is what
programs load, `libnvidia-gpucomp.so.<version>` what the driver itself loads), in both folders that a
container's loader searches without a cache: Debian's multi-arch folder and /usr/lib64. So LD_LIBRARY_PATH,
which would replace the image's own, is not set, and no hook has to run ldconfig. Nothing is mounted if the
machine has no driver.

Everything is read below a root path; links are followed as if that root were `/`.
"""

from __future__ import annotations

import os
import platform
import re
import struct
from pathlib import Path, PurePosixPath
from typing import Final

from koordra.kubelet_plugin.claims.claim_record import Mount

LIBRARY_FOLDERS: Final = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")
"""Those that a loader searches without a cache."""
_BINARIES: Final = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-cuda-mps-control")
_DRIVER_LIBRARY: Final = re.compile(r"lib(?:cuda|cudadebugger|nv[a-zA-Z0-9_-]*|vdpau_nvidia)\.so[0-9.]*")
_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}")

_CACHE_MAGIC: Final = b"glibc-ld.so.cache1.1"
_CACHE_HEADER: Final = 48
_CACHE_ENTRY: Final = struct.Struct("=iIIIQ")
_WORD_SIZE_64: Final = frozenset({0x0300, 0x0A00})
"""Architecture bits of an entry's flags: x86-64 and AArch64; other words of an x86-64 cache are 32-bit
libraries."""

_MOST_LINKS: Final = 16


def driver_files(root: Path, driver_version: str | None, *, on_host: Path | None = None) -> tuple[Mount, ...]:
    """The mounts of the driver at `root`, sorted by container path; empty where no driver of that version is
    found.

    `on_host` is the root's path on the host, which mounts must use; by default the root itself.
    """
    host = on_host or root
    if driver_version is None or not _VERSION.fullmatch(driver_version):
        return ()
    names = {
        (alias, real)
        for name, path in _library_names(root)
        if (real := _resolved(root, path)) is not None and real.endswith(f".so.{driver_version}")
        for alias in (name, PurePosixPath(real).name)
    }
    mounts = {
        Mount(_on_host(host, real), f"{target}/{alias}")
        for alias, real in names
        for target in LIBRARY_FOLDERS
    }
    if mounts:
        mounts |= {
            Mount(_on_host(host, real), path)
            for path in _BINARIES
            if (real := _resolved(root, path)) is not None
        }
    return tuple(sorted(mounts, key=lambda mount: mount.container_path))


def _library_names(root: Path) -> list[tuple[str, str]]:
    """(name a program may load, path below the root) of everything that looks like the driver's."""
    try:
        cache = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        cache = b""
    found = [entry for entry in cached_libraries(cache) if _DRIVER_LIBRARY.fullmatch(entry[0])]
    return found or [
        (name, f"{folder}/{name}")
        for folder in LIBRARY_FOLDERS
        for name in filter(_DRIVER_LIBRARY.fullmatch, _listed(root, folder))
    ]


def cached_libraries(cache: bytes) -> list[tuple[str, str]]:
    """(soname, path) of the 64-bit libraries in an ld.so.cache; nothing for bytes that are not one.

    Source: glibc elf/cache.c and sysdeps/generic/dl-cache.h. The format of glibc 2.32 and later starts with
    the magic; before that an old table comes first, and offsets count from the new header all the same.
    """
    start = cache.find(_CACHE_MAGIC)
    if start < 0 or len(cache) < start + _CACHE_HEADER:
        return []
    body = cache[start:]
    count = struct.unpack_from("=I", body, len(_CACHE_MAGIC))[0]
    found = []
    for index in range(min(count, (len(body) - _CACHE_HEADER) // _CACHE_ENTRY.size)):
        flags, key, value, _, _ = _CACHE_ENTRY.unpack_from(body, _CACHE_HEADER + index * _CACHE_ENTRY.size)
        name, path = _string(body, key), _string(body, value)
        if flags & 0xFF00 in _WORD_SIZE_64 and name and path.startswith("/"):
            found.append((name, path))
    return found


def _string(body: bytes, offset: int) -> str:
    end = body.find(b"\0", offset)
    return body[offset:end].decode(errors="replace") if 0 < offset < end else ""


def _listed(root: Path, folder: str) -> list[str]:
    real = _resolved(root, folder)
    try:
        return sorted(os.listdir(_on_host(root, real))) if real is not None else []  # noqa: PTH208  names are wanted
    except OSError:
        return []


def _resolved(root: Path, path: str) -> str | None:
    """The path with every link followed inside the root; None where something is missing or links go in
    circles."""
    parts, real, links = path.split("/"), PurePosixPath("/"), 0
    while parts:
        part = parts.pop(0)
        if part in ("", "."):  # the root itself may be a link, and is not resolved
            continue
        if part == "..":
            real = real.parent
            continue
        here = real / part
        try:
            target = os.readlink(_on_host(root, str(here)))  # noqa: PTH115  the text is what is wanted
        except OSError:
            if not os.path.lexists(_on_host(root, str(here))):
                return None
            real = here
            continue
        links += 1
        if links > _MOST_LINKS:
            return None
        if target.startswith("/"):
            real = PurePosixPath("/")
        parts = target.split("/") + parts
    return str(real)


def _on_host(root: Path, path: str) -> str:
    return str(root / path.lstrip("/"))


def nvml_library(root: Path) -> Path | None:
    """The driver's libnvidia-ml.so.1 below `root`, with which this process can ask the driver; None where
    there is none."""
    paths = (path for name, path in _library_names(root) if name == "libnvidia-ml.so.1")
    real = next(filter(None, (_resolved(root, path) for path in paths)), None)
    return Path(_on_host(root, real)) if real else None
