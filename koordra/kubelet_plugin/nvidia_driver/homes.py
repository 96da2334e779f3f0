"""Finds the home of NVIDIA's driver on the node, so that no operator has to name it.

    place                         what lies there                                  device nodes
    /                             packages of the distribution; /usr/local/lib of  /dev
                                  Talos, /usr/lib/nvidia/tesla of Bottlerocket,
                                  /opt/bin of Flatcar
    /run/nvidia/driver            a driver container's root (GPU Operator)         its own dev, else /dev
    /home/kubernetes/bin/nvidia   Container-Optimized OS: lib64, bin, vulkan       /dev
    /usr/local/nvidia             an installer's folder, which may be read-only    /dev

A place counts where it has libnvidia-ml.so.1. Of several, that counts whose library is of the loaded kernel
module's version, since another could not talk to it (NVML answers 18), else one that does not say its
version: a node that had packages and now has a driver container has both. The GPU Operator writes its own
verdict to /run/nvidia/validations/driver-ready (NVIDIA/gpu-operator, cmd/nvidia-validator); the place that it
names is looked at first. Before any module is loaded the first place counts.

Two kinds of machines are refused, since their drivers have neither these libraries nor these device nodes:
WSL, where CUDA talks to Windows' driver through /dev/dxg, and Tegra, whose GPU is no PCI device.

All is read below the host's `/`, as this process sees it, with links followed inside it: where a driver
comes and goes while this process runs, what is mounted there later is found too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.nvidia_driver.driver_libraries import library_paths
from koordra.kubelet_plugin.nvidia_driver.driver_root import DriverRoot, Home, NamedRoot
from koordra.kubelet_plugin.nvidia_driver.paths_below import at, content, resolved
from koordra.topology.problems import Problem

DRIVER_CONTAINER: Final = "/run/nvidia/driver"
DRIVER_READY: Final = "/run/nvidia/validations/driver-ready"
COS: Final = "/home/kubernetes/bin/nvidia"
USR_LOCAL_NVIDIA: Final = "/usr/local/nvidia"

_OWN_FOLDERS: Final = {
    Home.HOST: (
        ("/usr/lib/nvidia/tesla", "/usr/local/lib", "/usr/local/glibc/usr/lib"),
        ("/usr/libexec/nvidia/tesla/bin", "/usr/local/bin", "/opt/bin"),
    ),
    Home.DRIVER_CONTAINER: ((), ()),
    Home.COS: (("/lib64",), ("/bin",)),
    Home.USR_LOCAL_NVIDIA: (("/lib64", "/lib"), ("/bin",)),
}
"""Where a home has its libraries and programs, besides the folders that every root may have them in."""

_PLACES: Final = (
    (Home.HOST, "/"),
    (Home.DRIVER_CONTAINER, DRIVER_CONTAINER),
    (Home.COS, COS),
    (Home.USR_LOCAL_NVIDIA, USR_LOCAL_NVIDIA),
)
_KINDS: Final = {place: kind for kind, place in _PLACES}
_ASSIGNMENT: Final = re.compile(r"(?:export +)?([A-Z_]+)=[\"']?([^\"'\n]*)")
_VERSION: Final = re.compile(r"\.so\.([0-9]{3}(?:\.[0-9]+){1,3})$")
_MOST: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class HostRoot:
    """The host's `/`: `here` as this process sees it, `on_host` as mounts of containers must name it. They
    are the same where the plugin runs on the host itself."""

    here: Path
    on_host: Path


@dataclass(frozen=True, slots=True)
class FoundHome:
    """`driver` is None where there is none; `nvml` is its libnvidia-ml.so.1, `version` that library's;
    `loaded` the kernel module's, None where none is loaded; `searched` the places that exist."""

    driver: DriverRoot | None = None
    nvml: Path | None = None
    version: str | None = None
    loaded: str | None = None
    searched: tuple[Path, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def matches(self) -> bool:
        """Whether library and kernel module can talk to each other, as far as their versions are known."""
        return None in (self.version, self.loaded) or self.version == self.loaded

    def __str__(self) -> str:
        if self.driver is None:
            return f"no driver below {', '.join(map(str, self.searched)) or 'any known place'}"
        driver, version = self.driver, self.version or "unknown"
        return (
            f"{driver.kind} below {driver.on_host}, device nodes in {driver.dev_on_host}, version {version}"
        )


def find_home(host: HostRoot, *, loaded: str | None, named: DriverRoot | None = None) -> FoundHome:
    """The driver's home on the host, and what is wrong with it. `loaded` is the kernel module's version,
    `named` the home that the operator named, which is taken as it is."""
    refused = _refused(host.here)
    if refused is not None:
        return FoundHome(loaded=loaded, problems=(refused,))
    places = [named] if named else list(_candidates(host))
    searched = tuple(driver.on_host for driver in places)
    found = [
        FoundHome(driver, *nvml, loaded, searched) for driver in places for nvml in _nvml(driver, loaded)
    ]
    if not found:
        nothing = FoundHome(loaded=loaded, searched=searched)
        return replace(nothing, problems=(_missing(nothing),)) if loaded else nothing
    best = max(found, key=lambda home: (home.matches, home.version == loaded))
    return best if best.matches else replace(best, problems=(_mismatch(best),))


def named_home(
    root: Path, host: HostRoot, *, on_host: Path | None = None, dev_root: Path | None = None
) -> DriverRoot:
    """The home that an operator named, as this process sees it. What it is called on the host follows where
    it is below the host's `/`. Its device nodes are below `dev_root`; by default its own, where it has a
    `dev`, else the host's."""
    on_host = on_host or _on_host(root, host)
    dev_root = dev_root or (root if (root / "dev").is_dir() else host.here)
    return DriverRoot(
        kind=Home.OPERATOR,
        root=root,
        on_host=on_host,
        dev=dev_root / "dev",
        dev_on_host=(on_host if dev_root == root else _on_host(dev_root, host)) / "dev",
        library_folders=("/lib64",),
        binary_folders=("/bin",),
    )


def _on_host(path: Path, host: HostRoot) -> Path:
    return host.on_host / path.relative_to(host.here) if path.is_relative_to(host.here) else path


def loaded_version(root: Path) -> str | None:
    """The version of the loaded kernel module; None where none is."""
    return _text(root, "/sys/module/nvidia/version").strip() or None


def _candidates(host: HostRoot) -> Iterator[DriverRoot]:
    """Every place that exists, once, with that which the GPU Operator names first."""
    places: dict[str, str | None] = {}
    ready = dict(_ASSIGNMENT.findall(_text(host.here, DRIVER_READY)))
    said = ready.get("NVIDIA_DRIVER_ROOT", "")
    if said.startswith("/"):
        places[said] = ready.get("NVIDIA_DEV_ROOT")
    for _, place in _PLACES:
        places.setdefault(place, None)
    for place, dev_root in places.items():
        real = resolved(host.here, place)
        if real is not None and at(host.here, real).is_dir():
            yield _driver_root(host, place, real, dev_root)


def _driver_root(host: HostRoot, place: str, real: str, dev_root: str | None) -> DriverRoot:
    kind = _KINDS.get(place, Home.DRIVER_CONTAINER)
    libraries, programs = _OWN_FOLDERS[kind]
    dev = "/dev"
    for folder in filter(None, (dev_root, real)):
        own = resolved(host.here, f"{folder}/dev")
        if own is not None and (at(host.here, own) / "nvidiactl").exists():
            dev = own
            break
    return DriverRoot(
        kind=kind,
        root=at(host.here, real),
        on_host=at(host.on_host, real),
        dev=at(host.here, dev),
        dev_on_host=at(host.on_host, dev),
        library_folders=libraries,
        binary_folders=programs,
    )


def _nvml(driver: DriverRoot, loaded: str | None) -> list[tuple[Path, str | None]]:
    """The home's libnvidia-ml.so.1 and its version: that of the module's version, else the first."""
    found = []
    for path in library_paths(driver, "libnvidia-ml.so.1"):
        version = _VERSION.search(path)
        found.append((driver.here(path), version[1] if version else None))
    return sorted(found, key=lambda nvml: nvml[1] != loaded)[:1]


def _refused(host: Path) -> Problem | None:
    if at(host, "/dev/dxg").exists():
        return Problem(
            "NVIDIA driver",
            "/dev/dxg",
            "this is WSL: its GPUs are Windows', without device nodes that can be given out one by one",
            "run GPU pods on a Linux node",
        )
    if resolved(host, "/etc/nv_tegra_release") is not None:
        return Problem(
            "NVIDIA driver",
            "/etc/nv_tegra_release",
            "this is a Tegra (Jetson): its GPU is no PCI device and its driver is part of the system",
            "run GPU pods on a node with PCIe GPUs",
        )
    return None


def _missing(nothing: FoundHome) -> Problem:
    return Problem(
        "NVIDIA driver",
        "libnvidia-ml.so.1",
        f"the kernel module {nothing.loaded} is loaded, but there is {nothing}",
        "install the driver's user-space part, or name its root with --driver-root",
    )


def _mismatch(home: FoundHome) -> Problem:
    return Problem(
        "NVIDIA driver",
        "version",
        f"the loaded kernel module is {home.loaded}, the libraries are {home.version} ({home.nvml})",
        "reload the module or reboot the node; until then CUDA and NVML refuse to start",
    )


def _text(root: Path, path: str) -> str:
    return content(root, path, most=_MOST).decode("ascii", errors="replace")


class HomeSource:
    """The driver's home now. Looking costs about a millisecond, so nothing is kept but what the operator
    said. `root` is the machine, whose /sys says which module is loaded."""

    def __init__(self, host: HostRoot, *, root: Path, named: NamedRoot | None = None) -> None:
        self.host = host
        self._root = root
        self._named = named

    @classmethod
    def of(cls, root: Path) -> HomeSource:
        """That of a machine which is seen as it is."""
        return cls(HostRoot(root, root), root=root)

    def now(self) -> FoundHome:
        named = self._named() if self._named else None
        return find_home(self.host, loaded=loaded_version(self._root), named=named)

    def nvml(self) -> Path | None:
        return self.now().nvml

    def dev_folders(self, home: FoundHome) -> tuple[Path, ...]:
        """Where device nodes of the machine are: the host's /dev, and that of the driver's home."""
        host = self.host.here / "dev"
        return (host,) if home.driver is None else tuple(dict.fromkeys((host, home.driver.dev)))
