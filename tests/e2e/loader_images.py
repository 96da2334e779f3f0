"""Images whose own files would lead a program past the driver that the node mounts, or past the limiter.

    debian       glibc with ldconfig; an older CUDA driver in /usr/local/cuda/compat, in ld.so.conf.d and in
                 the cache (`ldconfig /usr/local/cuda/compat` in the Dockerfile), copies of it in a
                 glibc-hwcaps folder and among conda's stubs, a 32-bit program, a linker
    newer        the same with one driver, which is newer than the node's
    distroless   glibc alone: no ldconfig, no cache, no configuration
    musl         the loader of musl in place of glibc's
    gcompat      the same, and gcompat's starter under the name of glibc's loader

Programs: /tenant (native/test/tenant), /tenant-rpath, which is linked with the driver and has the compat
folder in its RPATH, /tenant-setuid, /tenant32; WRAPPER, a library for LD_PRELOAD that wraps
dlopen, as profilers do; CALLER, what a program that calls the driver is linked from.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.e2e.debian import unpacked

DEBIAN: Final = "local.test/debian:1"
NEWER: Final = "local.test/newer:1"
DISTROLESS: Final = "local.test/distroless:1"
MUSL: Final = "local.test/musl:1"
GCOMPAT: Final = "local.test/gcompat:1"
COMPAT: Final = "/usr/local/cuda/compat"
STUBS: Final = "/opt/conda/lib/stubs"
WRAPPER: Final = "/usr/lib/libwraps-dlopen.so"
CALLER: Final = "/caller.o"
TRIPLET: Final = f"{platform.machine()}-linux-gnu"
_SMALL: Final = platform.machine() == "x86_64"
_WRAPS: Final = """
#include <dlfcn.h>
void *dlopen(const char *name, int mode) { return ((void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen"))(name, mode); }
"""
_CALLS: Final = "extern int cuInit(unsigned); int call(void) { return cuInit(0); }"
_START: Final = 'void _start(void) { __asm__ volatile("int $0x80" : : "a"(1), "b"(0)); }'


def make_images(folder: Path, *, cache: Path, built: Path, newer_version: str) -> dict[str, Path]:
    """The images' own layers, by name; raises debian.Unavailable."""
    packages = unpacked(cache, ("libc6", "libc-bin", *(("libc6-i386",) if _SMALL else ())))
    images = {
        name: folder / name.partition("/")[2].partition(":")[0]
        for name in (DEBIAN, NEWER, DISTROLESS, MUSL, GCOMPAT)
    }
    for name, root in images.items():
        if name in {MUSL, GCOMPAT}:
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
    for path in ("usr/local/lib/glibc-hwcaps/x86-64-v2/libcuda.so.1", f"{STUBS[1:]}/libcuda.so"):
        _put(images[DEBIAN] / path, driver)
    for path in ("lib/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1"):
        _put(images[GCOMPAT] / path, b"starts musl's loader")
    _more_programs(images[DEBIAN], built)
    _linker(images[DEBIAN])
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


def _more_programs(root: Path, built: Path) -> None:
    shutil.copy(built / "test" / "tenant", root / "tenant-setuid")
    (root / "tenant-setuid").chmod(0o4755)
    for options, source, path in (
        (("-shared", "-fPIC", "-D_GNU_SOURCE"), _WRAPS, WRAPPER),
        (("-c", "-fPIC"), _CALLS, CALLER),
    ):
        command = ["cc", *options, "-x", "c", "-", "-o", f"{root}{path}"]
        subprocess.run(command, input=source.encode(), check=True)


def _linker(root: Path) -> None:
    """This machine's own, with its libraries; the image's glibc is of the same suite. Nothing where there is
    none."""
    linker = shutil.which("ld.bfd")
    if linker is None:
        return
    shutil.copy(linker, root / "usr/bin/ld")
    listed = subprocess.run(["ldd", linker], check=True, capture_output=True, text=True).stdout
    for path in re.findall(r"=> (/\S+)", listed):
        target = root / "usr/lib" / TRIPLET / Path(path).name
        if not target.exists():
            shutil.copy(path, target)


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
