"""Images whose own files would lead a program past the driver that the node mounts, or past the limiter.

    debian       glibc with ldconfig; an older CUDA driver in /usr/local/cuda/compat, in ld.so.conf.d and in
                 the cache (`ldconfig /usr/local/cuda/compat` in the Dockerfile), a copy of it in a
                 glibc-hwcaps folder, a 32-bit program
    newer        the same with one driver, which is newer than the node's
    distroless   glibc alone: no ldconfig, no cache, no configuration
    musl         the loader of musl in place of glibc's

Programs: /tenant (native/test/tenant), /tenant-rpath, which is linked with the driver and has the compat
folder in its RPATH, /tenant32.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.e2e.debian import unpacked

DEBIAN: Final = "local.test/debian:1"
NEWER: Final = "local.test/newer:1"
DISTROLESS: Final = "local.test/distroless:1"
MUSL: Final = "local.test/musl:1"
COMPAT: Final = "/usr/local/cuda/compat"
TRIPLET: Final = f"{platform.machine()}-linux-gnu"
_SMALL: Final = platform.machine() == "x86_64"
_START: Final = 'void _start(void) { __asm__ volatile("int $0x80" : : "a"(1), "b"(0)); }'


def make_images(folder: Path, *, cache: Path, built: Path, newer_version: str) -> dict[str, Path]:
    """The images' own layers, by name; raises debian.Unavailable."""
    packages = unpacked(cache, ("libc6", "libc-bin", *(("libc6-i386",) if _SMALL else ())))
    images = {
        name: folder / name.partition("/")[2].partition(":")[0] for name in (DEBIAN, NEWER, DISTROLESS, MUSL)
    }
    for name, root in images.items():
        if name == MUSL:
            _put(root / "lib" / f"ld-musl-{platform.machine()}.so.1", b"")
            continue
        shutil.copytree(
            packages, root, symlinks=True, ignore=shutil.ignore_patterns("doc", "locale", "gconv", "zoneinfo")
        )
        for program in ("tenant", "tenant-rpath"):
            shutil.copy(built / "test" / program, root / program)
    driver = (built / "test" / "driver" / "libcuda.so.1").read_bytes()
    for name, version in ((DEBIAN, "470.57.02"), (NEWER, newer_version)):
        _with_compat(images[name], driver, version)
    _put(images[DEBIAN] / "usr/local/lib/glibc-hwcaps/x86-64-v2/libcuda.so.1", driver)
    if _SMALL:
        _small_program(images[DEBIAN])
    for name in (DEBIAN, NEWER):
        subprocess.run(["/sbin/ldconfig", "-r", str(images[name])], check=True)
        subprocess.run(["/sbin/ldconfig", "-r", str(images[name]), "-n", COMPAT], check=True)
    for path in ("sbin/ldconfig", "usr/sbin/ldconfig", "etc/ld.so.conf", "etc/ld.so.cache"):
        (images[DISTROLESS] / path).unlink(missing_ok=True)
    shutil.rmtree(images[DISTROLESS] / "etc", ignore_errors=True)
    return images


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _with_compat(root: Path, driver: bytes, version: str) -> None:
    folder = root / COMPAT.lstrip("/")
    _put(folder / f"libcuda.so.{version}", driver)
    for link in ("libcuda.so.1", "libcuda.so"):
        (folder / link).symlink_to(f"libcuda.so.{version}")
    _put(root / "etc/ld.so.conf.d/000_cuda.conf", f"{COMPAT}\n".encode())


def _small_program(root: Path) -> None:
    """Dynamically linked, so that its loader reads ld.so.preload; it does nothing."""
    subprocess.run(
        [
            "cc",
            "-m32",
            "-nostdlib",
            "-no-pie",
            "-x",
            "c",
            "-",
            "-x",
            "none",
            "-Wl,--no-as-needed",
            "-Wl,--dynamic-linker=/lib/ld-linux.so.2",
            "-Wl,--allow-shlib-undefined",
            str(root / "lib32" / "libc.so.6"),
            "-o",
            str(root / "tenant32"),
        ],
        input=_START.encode(),
        check=True,
    )
