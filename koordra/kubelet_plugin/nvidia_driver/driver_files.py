"""What a container gets of NVIDIA's driver: every file that `nvidia-ctk cdi generate` gives for the same
tree, by the part of the driver that it belongs to.

A CUDA image contains the toolkit, never the driver: libcuda and its companions must be of exactly the loaded
driver's version. Point by point (NVIDIA/nvidia-container-toolkit, pkg/nvcdi and internal/discover):

    libraries       at their own path below the root, with their links (driver_libraries.py)
    binaries        in /usr/bin, wherever on a PATH the root has them
    configuration   of EGL, GBM, Vulkan, OpenCL and X, where the container's loaders look, wherever the root
                    has it
    X modules       at their own path, which the server's configuration names
    firmware        gsp*.bin of this version
    sockets         of nvidia-persistenced and the fabric manager
    storage         /run/udev and /etc/cufile.json, for GPUDirect Storage

docs/container-contract.md compares all of it, and says what is not given and why. Everything is read below a
root path; links are followed as if that root were `/`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from koordra.api.opaque.driver_capabilities import ALL, DriverCapabilities, DriverCapability
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits, Link, Mount
from koordra.kubelet_plugin.nvidia_driver.driver_libraries import (
    CACHE,
    LIBRARY_FOLDERS,
    SEARCHED,
    VERSION,
    DriverLibrary,
    driver_libraries,
)
from koordra.kubelet_plugin.nvidia_driver.driver_root import DriverRoot
from koordra.kubelet_plugin.nvidia_driver.paths_below import at, names_in, resolved

_COMPUTE = frozenset({DriverCapability.COMPUTE})
_UTILITY = frozenset({DriverCapability.UTILITY})
_GRAPHICS = frozenset({DriverCapability.GRAPHICS})
_DISPLAY = frozenset({DriverCapability.DISPLAY})

_BINARIES: Final = {
    "nvidia-smi": _UTILITY,
    "nvidia-debugdump": _UTILITY,
    "nvidia-persistenced": _UTILITY,
    "nvidia-imex": _UTILITY,
    "nvidia-imex-ctl": _UTILITY,
    "nvidia-cuda-mps-control": _COMPUTE,
    "nvidia-cuda-mps-server": _COMPUTE,
    "nvidia-xconfig": _DISPLAY,
}
_BINARY_FOLDERS: Final = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/bin",
)

_CONFIGURATION_FOLDERS: Final = ("/etc", "/usr/local/share", "/usr/share")
_EGL: Final = "egl/egl_external_platform.d"
_CONFIGURATION: Final = {
    "glvnd/egl_vendor.d/10_nvidia.json": ("/usr/share", _GRAPHICS),
    f"{_EGL}/15_nvidia_gbm.json": ("/usr/share", _GRAPHICS),
    f"{_EGL}/10_nvidia_wayland.json": ("/usr/share", _GRAPHICS),
    f"{_EGL}/09_nvidia_wayland2.json": ("/usr/share", _GRAPHICS),
    f"{_EGL}/20_nvidia_xcb.json": ("/usr/share", _GRAPHICS),
    f"{_EGL}/20_nvidia_xlib.json": ("/usr/share", _GRAPHICS),
    "nvidia/nvoptix.bin": ("/usr/share", _GRAPHICS),
    "X11/xorg.conf.d/10-nvidia.conf": ("/usr/share", _DISPLAY),
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf": ("/usr/share", _DISPLAY),
    "OpenCL/vendors/nvidia.icd": ("/etc", _COMPUTE),
    "vulkan/icd.d/nvidia_icd.json": ("/etc", _GRAPHICS),
    f"vulkan/icd.d/nvidia_icd.{os.uname().machine}.json": ("/etc", _GRAPHICS),
    "vulkan/icd.d/nvidia_layers.json": ("/etc", _GRAPHICS),
    "vulkan/implicit_layer.d/nvidia_layers.json": ("/etc", _GRAPHICS),
}
"""Name below one of the folders -> where the container's loaders look. GKE has Vulkan's at the root."""

_XORG: Final = ("/usr/lib/xorg/modules", "/usr/lib64/xorg/modules", "/usr/X11R6/lib64/modules")
_FIRMWARE: Final = "/lib/firmware"
_SOCKETS: Final = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
_SOCKET_OPTIONS: Final = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_STORAGE: Final = ("/etc/cufile.json", "/run/udev")
_GSP: Final = re.compile(r"gsp[a-z0-9_]*\.bin")


@dataclass(frozen=True, slots=True)
class DriverFile:
    """`capabilities` are the parts of the driver that need the file, empty for one that comes with any."""

    mount: Mount
    capabilities: DriverCapabilities
    links: tuple[Link, ...] = ()
    library: bool = False


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What containers can get of the driver, empty where there is none."""

    version: str | None = None
    files: tuple[DriverFile, ...] = ()
    sockets: tuple[Mount, ...] = ()

    @property
    def has_libcuda(self) -> bool:
        return any(file.library and "/libcuda.so." in file.mount.container_path for file in self.files)

    def edits(self, capabilities: DriverCapabilities = ALL) -> ContainerEdits:
        """The mounts, links and library folders of these parts."""
        chosen = [file for file in self.files if not file.capabilities or file.capabilities & capabilities]
        return ContainerEdits(
            mounts=tuple(sorted(file.mount for file in chosen)),
            links=tuple(sorted({link for file in chosen for link in file.links})),
            library_folders=tuple(
                dict.fromkeys(file.mount.container_path.rpartition("/")[0] for file in chosen if file.library)
            ),
        )


NO_DRIVER: Final = DriverFiles()


def driver_files(driver: DriverRoot, version: str | None) -> DriverFiles:
    """The files of the driver of this version; none where its libraries are not below the root."""
    if version is None or not VERSION.fullmatch(version):
        return NO_DRIVER
    libraries = driver_libraries(driver, version)
    if not libraries:
        return NO_DRIVER
    found = [
        DriverFile(
            Mount(driver.host_path(library.path), library.path), library.capabilities, library.links, True
        )
        for library in libraries
    ]
    found += _binaries(driver)
    found += _configuration(driver)
    found += _xorg_modules(driver, version, libraries)
    found += _firmware(driver, version)
    found += _storage(driver)
    return DriverFiles(version, tuple(found), tuple(_sockets(driver)))


def in_default_folders(edits: ContainerEdits) -> ContainerEdits:
    """With every library also under each of its names in the folders that a loader searches without a
    cache."""
    hosts = {mount.container_path: mount.host_path for mount in edits.mounts}
    names = {
        path.rpartition("/")[2]: host
        for path, host in hosts.items()
        if _folder(path) in edits.library_folders
    }
    links = {
        link.path.rpartition("/")[2]: link.target.rpartition("/")[2]
        for link in edits.links
        if _folder(link.path) in edits.library_folders
    }
    for name in links:
        real = name
        while real in links:
            real = links[real]
        if real in names:
            names[name] = names[real]
    mounts = {Mount(host, f"{folder}/{name}") for name, host in names.items() for folder in LIBRARY_FOLDERS}
    return replace(edits, mounts=tuple(sorted(mounts | set(edits.mounts))))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


class DriverFilesSource:
    """The driver's files, read again when its home is another, or something there has changed: one of the
    folders that are searched, or the loader's cache. What was installed without touching any of them is found
    after AGE_S all the same."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: tuple[object, ...] = ()
        self._read_at = 0.0
        self._files = NO_DRIVER

    def files(self, driver: DriverRoot | None, version: str | None) -> DriverFiles:
        if driver is None:
            return NO_DRIVER
        watched = (*driver.library_folders, *driver.binary_folders, *_WATCHED)
        seen = (driver, version, *(_stamp(driver.here(path)) for path in watched))
        if seen != self._seen or self._clock() - self._read_at >= AGE_S:
            self._files = driver_files(driver, version)
            self._seen, self._read_at = seen, self._clock()
        return self._files


AGE_S: Final = 60.0
_WATCHED: Final = (CACHE, *SEARCHED, *_BINARY_FOLDERS, "/etc", "/usr/share", "/lib/firmware/nvidia")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def program(driver: DriverRoot, name: str) -> str | None:
    """The path below the driver's root of a program that comes with it."""
    return _first(driver, (f"{folder}/{name}" for folder in (*driver.binary_folders, *_BINARY_FOLDERS)))


def _binaries(driver: DriverRoot) -> Iterator[DriverFile]:
    for name, capabilities in _BINARIES.items():
        real = program(driver, name)
        if real is not None:
            yield DriverFile(Mount(driver.host_path(real), f"/usr/bin/{name}"), capabilities)


def _configuration(driver: DriverRoot) -> Iterator[DriverFile]:
    for name, (target, capabilities) in _CONFIGURATION.items():
        folders = (*_CONFIGURATION_FOLDERS, "") if name.startswith("vulkan/") else _CONFIGURATION_FOLDERS
        real = _first(driver, (f"{folder}/{name}" for folder in folders))
        if real is not None:
            yield DriverFile(Mount(driver.host_path(real), f"{target}/{name}"), capabilities)


def _xorg_modules(
    driver: DriverRoot, version: str, libraries: Iterable[DriverLibrary]
) -> Iterator[DriverFile]:
    folders = dict.fromkeys(library.folder for library in libraries)
    roots = (*(f"{folder}/xorg/modules" for folder in folders), *_XORG)
    places = [f"{folder}/nvidia/xorg" for folder in folders]
    places += [
        f"{root}{update}/{kind}"
        for root in dict.fromkeys(roots)
        for update in ("", "/updates")
        for kind in ("drivers", "extensions")
    ]
    for name, link in (
        ("nvidia_drv.so", None),
        (f"libglxserver_nvidia.so.{version}", "libglxserver_nvidia.so"),
    ):
        real = _first(driver, (f"{place}/{name}" for place in places))
        if real is not None:
            links = (Link(name, f"{real.rpartition('/')[0]}/{link}"),) if link else ()
            yield DriverFile(Mount(driver.host_path(real), real), _DISPLAY, links)


def _firmware(driver: DriverRoot, version: str) -> Iterator[DriverFile]:
    release = os.uname().release
    for above in (f"/updates/{release}", "/updates", f"/{release}", ""):
        folder = f"{_FIRMWARE}{above}/nvidia/{version}"
        for name in filter(_GSP.fullmatch, names_in(driver.root, folder)):
            real = resolved(driver.root, f"{folder}/{name}")
            if real is not None:
                yield DriverFile(Mount(driver.host_path(real), f"{folder}/{name}"), _UTILITY)


def _storage(driver: DriverRoot) -> Iterator[DriverFile]:
    for path in _STORAGE:
        if (real := resolved(driver.root, path)) is not None:
            yield DriverFile(Mount(driver.host_path(real), path), frozenset({DriverCapability.GDS}))


def _sockets(driver: DriverRoot) -> Iterator[Mount]:
    for path in _SOCKETS:
        if (real := resolved(driver.root, path)) is not None:
            yield Mount(driver.host_path(real), path, _SOCKET_OPTIONS)


def _first(driver: DriverRoot, paths: Iterable[str]) -> str | None:
    """The first of the paths below the root that is a file, links followed."""
    for path in paths:
        real = resolved(driver.root, path)
        if real is not None and at(driver.root, real).is_file():
            return real
    return None
