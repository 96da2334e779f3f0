"""The NVIDIA driver of a node: its cards on the PCI bus, its module, the home of its libraries, and what it
has for MPS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from koordra.kubelet_plugin.isolation.mps.daemon import CONTROL
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.live_node import LiveNode
from koordra.kubelet_plugin.nvidia_driver.card_settings import SMI
from koordra.kubelet_plugin.nvidia_driver.driver_files import program
from koordra.kubelet_plugin.nvidia_driver.driver_libraries import library_paths
from koordra.kubelet_plugin.nvidia_driver.homes import FoundHome, HostRoot, find_home
from koordra.topology.problems import Problem

NVIDIA_VENDOR: Final = 0x10DE
PROGRAMS: Final = (CONTROL, SMI)
"""That isolation `mps` runs."""
_PCI: Final = "sys/bus/pci/devices"
_DISPLAY: Final = 0x03
_PROC_VERSION: Final = re.compile(r"NVRM version:.*?\s([0-9]{3,4}(?:\.[0-9]+){1,3})\s", re.ASCII)
_SUFFIX: Final = re.compile(r"\.so\.([0-9]{3,4}(?:\.[0-9]+){1,3})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Driver:
    """`cards`: PCI addresses of NVIDIA GPUs; `loaded_version` and `module_version`: what
    /proc/driver/nvidia/version and /sys/module/nvidia/version say; `open_modules`: the loaded modules are
    NVIDIA's open ones; `nouveau`: the kernel's own driver has the cards; `cuda_versions`: of the home's
    libcuda."""

    cards: tuple[str, ...] = ()
    loaded_version: str | None = None
    module_version: str | None = None
    open_modules: bool = False
    nouveau: bool = False
    home: FoundHome = field(default_factory=FoundHome)
    cuda_versions: frozenset[str] = frozenset()

    @property
    def refused(self) -> Problem | None:
        """The mark of a platform that koordra does not serve: the problem of a path of the host."""
        return next((one for one in self.home.problems if one.field.startswith("/")), None)

    @property
    def dev(self) -> str:
        """Where the device nodes are, in the host's names."""
        return str(self.home.driver.dev_on_host) if self.home.driver else "/dev"


@dataclass(frozen=True, slots=True)
class Mps:
    """`missing`: programs that the driver has not got; `protocol`: the newest version that its control
    daemon speaks, None where it was not asked, or did not answer."""

    missing: tuple[str, ...] = ()
    protocol: str | None = None


def read_driver(root: HostFiles) -> Driver:
    proc = root.text("proc/driver/nvidia/version")
    matched = _PROC_VERSION.search(f"{proc} ")
    module = root.line("sys/module/nvidia/version") or None
    loaded = matched[1] if matched else None
    home = find_home(HostRoot(root.directory, Path("/")), loaded=module or loaded)
    cuda = library_paths(home.driver, "libcuda.so.1") if home.driver else ()
    return Driver(
        cards=tuple(
            name
            for name in root.names(_PCI)
            if root.integer(f"{_PCI}/{name}/vendor") == NVIDIA_VENDOR
            and (root.integer(f"{_PCI}/{name}/class") or 0) >> 16 == _DISPLAY
        ),
        loaded_version=loaded,
        module_version=module,
        open_modules="Open Kernel Module" in proc,
        nouveau=root.is_folder("sys/module/nouveau"),
        home=home,
        cuda_versions=frozenset(
            found[1] if (found := _SUFFIX.search(path)) else PurePosixPath(path).name for path in cuda
        ),
    )


def read_mps(root: HostFiles, driver: Driver, live: LiveNode) -> Mps | None:
    """None where no driver is found."""
    home = driver.home.driver
    if home is None:
        return None
    missing = tuple(name for name in PROGRAMS if program(home, name) is None)
    return Mps(missing, None if missing else live.mps_protocol(root.directory))
