"""Where NVIDIA's driver lives on this node: the root of its files, and the folder of its device nodes.

Both have two names: the one this process uses (in its pod the host's `/` is /host) and the host's own, which
mounts and device nodes of a CDI spec must use. They are apart from each other, since a driver container has
its files below /run/nvidia/driver and its device nodes below /run/nvidia/driver/dev, while COS has its files
below /home/kubernetes/bin/nvidia and its device nodes in the host's /dev.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from koordra.kubelet_plugin.nvidia_driver import paths_below


class Home(StrEnum):
    """The kind of place; OPERATOR: the operator named it."""

    HOST = "host"
    DRIVER_CONTAINER = "driver container"
    COS = "Container-Optimized OS"
    USR_LOCAL_NVIDIA = "/usr/local/nvidia"
    OPERATOR = "--driver-root"


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """`root` stands for `/` of the driver's files, `dev` for its /dev; `on_host` and `dev_on_host` are the
    same folders in the host's names. `library_folders` and `binary_folders` are searched before the usual
    ones; they are paths below the root."""

    kind: Home
    root: Path
    on_host: Path
    dev: Path
    dev_on_host: Path
    library_folders: tuple[str, ...] = ()
    binary_folders: tuple[str, ...] = ()

    def here(self, path: str) -> Path:
        """A path below the root, as this process names it."""
        return paths_below.at(self.root, path)

    def host_path(self, path: str) -> str:
        """A path below the root, as the host names it."""
        return str(paths_below.at(self.on_host, path))


NamedRoot = Callable[[], DriverRoot]
"""The root that an operator named, as it is now: it may come later, with or without a `dev` of its own."""
