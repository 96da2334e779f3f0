"""Whether the host runs an IMEX daemon of its own.

It would be in the way of the domain's: of one driver there is one daemon, and the host's serves a domain of
all nodes that its file lists, so that jobs which are kept apart would share memory. It has to be off, and to
stay off after a reboot. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.processes import Process, read_processes

UNIT: Final = "nvidia-imex.service"
REMEDY: Final = f"systemctl disable --now {UNIT} (in the image of the nodes, too)"
_WANTED_BY: Final = ("multi-user.target.wants", "graphical.target.wants", "default.target.wants")


def host_imex(processes: Iterable[Process], *, enabled: bool) -> str:
    """What of it there is; empty where there is none. Those of pods are koordra's."""
    own = [process.pid for process in processes if process.name == "nvidia-imex" and not process.in_pod]
    if own:
        return f"the host runs an nvidia-imex of its own (pid {', '.join(map(str, own))})"
    return f"{UNIT} is enabled, and would start at the next boot" if enabled else ""


def is_enabled(root: HostFiles) -> bool:
    return any(UNIT in root.names(f"etc/systemd/system/{folder}") for folder in _WANTED_BY)


def read_host_imex(root: HostFiles) -> str:
    return host_imex(read_processes(root), enabled=is_enabled(root))
