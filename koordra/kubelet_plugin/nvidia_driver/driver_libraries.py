"""The driver's libraries: which files they are, under which names programs load them, and for what.

Nearly every library of the driver ends in `.so.<version of the driver>`; a few have versions of their own
(OWN_VERSION). They lie in the folders that NVIDIA's container toolkit searches (pkg/lookup/library.go), or
in those that the root's ld.so.cache names (Talos, Bottlerocket). A library that is in several folders counts
once, in the first. 32-bit ones are left out, wherever they lie.

A folder's links to a library are part of it: `libcuda.so.1` is what programs load, and no file has that name.
To these come links that programs expect and hosts often lack (the toolkit makes the same ones):

    libcuda.so                libcuda.so.1: what -lcuda and many calls of dlopen want
    libnvidia-opticalflow.so  libnvidia-opticalflow.so.1
    libGLX_indirect.so.0      libGLX_nvidia.so.<version>: GLVND's indirect rendering
    gbm/nvidia-drm_gbm.so     ../libnvidia-allocator.so.1: GBM finds its backend by the DRM driver's name
    libnvidia-vulkan-producer.so

What a library is for follows NVIDIA's older container library (libnvidia-container, nvc_info.c), which
filters by NVIDIA_DRIVER_CAPABILITIES, but that what serves two parts comes with either. One that the table
does not know is given with any: a newer driver's CUDA may need it.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from koordra.api.opaque.driver_capabilities import DriverCapabilities, DriverCapability
from koordra.kubelet_plugin.claims.claim_record import Link
from koordra.kubelet_plugin.nvidia_driver.driver_root import DriverRoot
from koordra.kubelet_plugin.nvidia_driver.ld_cache import cached_libraries
from koordra.kubelet_plugin.nvidia_driver.paths_below import content, names_in, resolved

_MULTI_ARCH: Final = f"/usr/lib/{os.uname().machine}-linux-gnu"
LIBRARY_FOLDERS: Final = (_MULTI_ARCH, "/usr/lib64")
"""Those that a loader searches without a cache."""
SEARCHED: Final = (
    "/usr/lib64",
    _MULTI_ARCH,
    f"{_MULTI_ARCH}/nvidia/current",
    "/lib64",
    _MULTI_ARCH.removeprefix("/usr"),
    f"{_MULTI_ARCH.removeprefix('/usr')}/nvidia/current",
    "/lib",
)
"""Of a driver's root; the last is that of roots that hold nothing but the driver."""
CACHE: Final = "/etc/ld.so.cache"
_LARGEST_CACHE: Final = 64 << 20

_ELF_32: Final = b"\x7fELF\x01"
_HEADERS: Final = 4096
"""Of a library's bytes; its program headers follow its header."""
_ELF_64: Final = struct.Struct("<32xQ16xH")
"""Where the program headers begin, and how many there are (elf(5), Elf64_Ehdr)."""
_SEGMENT: Final = struct.Struct("<8xQ16xQ16x")
"""Offset and length in the file (Elf64_Phdr)."""

VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}")
_DRIVER_LIBRARY: Final = re.compile(
    r"lib(?:cuda|cudadebugger|nv[a-zA-Z0-9_-]*|(?:EGL|GLX|GLESv1_CM|GLESv2|vdpau)_nvidia)\.so[0-9.]*"
)
OWN_VERSION: Final = re.compile(
    r"libnvidia-nvvm70\.so\.[0-9.]+"
    r"|libnvidia-egl-(?:gbm|wayland|wayland2|xcb|xlib)\.so\.[0-9]+\.[0-9]+[0-9.]*"
)

_PURPOSES: Final[Mapping[DriverCapability, frozenset[str]]] = {
    DriverCapability.COMPUTE: frozenset(
        {
            "libcuda",
            "libcudadebugger",
            "libnvcuextend",
            "libnvidia-allocator",
            "libnvidia-compiler",
            "libnvidia-fatbinaryloader",
            "libnvidia-gpucomp",
            "libnvidia-nvvm",
            "libnvidia-nvvm70",
            "libnvidia-opencl",
            "libnvidia-pkcs11",
            "libnvidia-pkcs11-openssl3",
            "libnvidia-ptxjitcompiler",
            "libnvidia-tileiras",
        }
    ),
    DriverCapability.UTILITY: frozenset(
        {"libnvidia-cfg", "libnvidia-ml", "libnvidia-nscq", "libnvidia-sandboxutils", "libnvsdm"}
    ),
    DriverCapability.VIDEO: frozenset(
        {"libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libvdpau_nvidia"}
    ),
    DriverCapability.NGX: frozenset({"libnvidia-ngx"}),
    DriverCapability.GRAPHICS: frozenset(
        {
            "libEGL_nvidia",
            "libGLESv1_CM_nvidia",
            "libGLESv2_nvidia",
            "libGLX_nvidia",
            "libnvidia-allocator",
            "libnvidia-cbl",
            "libnvidia-egl-gbm",
            "libnvidia-egl-wayland",
            "libnvidia-egl-wayland2",
            "libnvidia-egl-xcb",
            "libnvidia-egl-xlib",
            "libnvidia-eglcore",
            "libnvidia-fbc",
            "libnvidia-glcore",
            "libnvidia-glsi",
            "libnvidia-glvkspirv",
            "libnvidia-gpucomp",
            "libnvidia-gtk2",
            "libnvidia-gtk3",
            "libnvidia-ifr",
            "libnvidia-present",
            "libnvidia-rtcore",
            "libnvidia-tls",
            "libnvidia-vksc-core",
            "libnvidia-vulkan-producer",
            "libnvidia-wayland-client",
            "libnvoptix",
        }
    ),
}


@dataclass(frozen=True, slots=True)
class DriverLibrary:
    """`path` is the file's below the driver's root, every link followed; `links` are those beside it."""

    path: str
    links: tuple[Link, ...]
    capabilities: DriverCapabilities

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def folder(self) -> str:
        return str(PurePosixPath(self.path).parent)


def library_folders(driver: DriverRoot) -> tuple[str, ...]:
    """The folders below the root that may hold libraries of the driver, links followed, each once."""
    folders = [*driver.library_folders, *SEARCHED]
    folders += [
        str(PurePosixPath(path).parent)
        for name, path in cached_libraries(_cache(driver))
        if _DRIVER_LIBRARY.fullmatch(name)
    ]
    real = (resolved(driver.root, folder) for folder in dict.fromkeys(folders))
    return tuple(dict.fromkeys(folder for folder in real if folder is not None))


def driver_libraries(driver: DriverRoot, version: str) -> tuple[DriverLibrary, ...]:
    """The libraries of the driver of this version; empty where its libcuda and NVML are not there."""
    found: dict[str, DriverLibrary] = {}
    for folder in library_folders(driver):
        for at in (folder, f"{folder}/vdpau"):
            for library in _in_folder(driver, at, version):
                found.setdefault(library.name, library)
    versioned = any(name.endswith(f".so.{version}") for name in found)
    return tuple(sorted(found.values(), key=lambda library: library.path)) if versioned else ()


def _in_folder(driver: DriverRoot, folder: str, version: str) -> Iterator[DriverLibrary]:
    names = [name for name in names_in(driver.root, folder) if name.startswith("lib")]
    wanted = {name for name in names if name.endswith(f".so.{version}") or OWN_VERSION.fullmatch(name)}
    stems = {name.partition(".so")[0] for name in wanted}
    files: dict[str, dict[str, str]] = {}
    for name in names:
        if name.partition(".so")[0] in stems:
            real, target = _followed(driver, folder, name)
            if real is not None:
                files.setdefault(real, {})[name] = target
    for real, beside in sorted(files.items()):
        if wanted & beside.keys() and _can_be_loaded(driver, real):
            at, _, own = real.rpartition("/")
            links = {**(beside if at == folder else {}), **_expected_links(own, version)}
            yield DriverLibrary(
                path=real,
                links=tuple(
                    Link(target, f"{at}/{link}") for link, target in sorted(links.items()) if link != own
                ),
                capabilities=_capabilities(own),
            )


def _followed(driver: DriverRoot, folder: str, name: str) -> tuple[str | None, str]:
    """The file below the root that the name stands for, and what a container's link of that name says: a
    link's own text, or the file's name where the way leads through other folders (/etc/alternatives). The
    folder is one whose links are followed already."""
    try:
        text = os.readlink(f"{driver.root}{folder}/{name}")  # noqa: PTH115  called for every library
    except OSError:
        return f"{folder}/{name}", name
    real = resolved(driver.root, f"{folder}/{text}" if not text.startswith("/") else text)
    return real, text if "/" not in text else (real or "").rpartition("/")[2]


def _capabilities(name: str) -> DriverCapabilities:
    stem = name.partition(".so")[0]
    return frozenset(capability for capability, stems in _PURPOSES.items() if stem in stems)


def _expected_links(name: str, version: str) -> dict[str, str]:
    match name.removesuffix(f".{version}"):
        case "libcuda.so":
            return {"libcuda.so": "libcuda.so.1", "libcuda.so.1": name}
        case "libnvidia-ml.so":
            return {"libnvidia-ml.so.1": name}
        case "libnvidia-opticalflow.so":
            return {"libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1"}
        case "libGLX_nvidia.so":
            return {"libGLX_indirect.so.0": name}
        case "libnvidia-allocator.so":
            return {"gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1"}
        case "libnvidia-vulkan-producer.so":
            return {"libnvidia-vulkan-producer.so": name}
    return {}


def _can_be_loaded(driver: DriverRoot, path: str) -> bool:
    """Not a 32-bit library, nor one that an installer is still writing: while a segment is longer than the
    file, whoever loads it ends by SIGBUS. Such a one counts as missing."""
    head = content(driver.root, path, most=_HEADERS)
    if head[:5] == _ELF_32:
        return False
    if len(head) < _ELF_64.size:
        return True
    start, count = _ELF_64.unpack_from(head)
    last = min(count, (len(head) - start) // _SEGMENT.size)
    segments = (_SEGMENT.unpack_from(head, start + index * _SEGMENT.size) for index in range(last))
    try:
        size = driver.here(path).stat().st_size
    except OSError:
        return False
    return all(offset + length <= size for offset, length in segments)


def _cache(driver: DriverRoot) -> bytes:
    return content(driver.root, CACHE, most=_LARGEST_CACHE)


def library_paths(driver: DriverRoot, name: str) -> tuple[str, ...]:
    """Every file below the root that the name stands for in one of the folders, links followed, in their
    order."""
    found = (resolved(driver.root, f"{folder}/{name}") for folder in library_folders(driver))
    return tuple(dict.fromkeys(path for path in found if path and _can_be_loaded(driver, path)))
