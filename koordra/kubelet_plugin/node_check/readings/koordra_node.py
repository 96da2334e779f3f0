"""koordra's own parts on a node, and other programs that give out the same devices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.api import names
from koordra.kubelet_plugin.isolation.hami_core import FOLDER, LIBRARY, faults
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.live_node import LiveNode
from koordra.kubelet_plugin.node_check.readings.processes import arguments_of, option
from koordra.kubelet_plugin.publish.hand_over import FILE, left_by
from koordra.kubelet_plugin.publish.peers_on_node import CHECKPOINT, DEVICE_PLUGINS
from koordra.node_state.imex import LOCK
from koordra.node_state.locks import HOOK_LOCK
from koordra.node_state.prepared_claim import NUMA_AFFINITY

_LOCK: Final = re.compile(r"FLOCK\s+\w+\s+WRITE\s+(-?[0-9]+)\s+[0-9a-f]+:[0-9a-f]+:([0-9]+)\s", re.ASCII)
_CDI: Final = ("etc/cdi", "run/cdi", "var/run/cdi")
_MOST_LOCKS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class KoordraNode:
    """`installed`: the plugin's state directory exists. `registered`: registration sockets, each with whether
    it answers (None: not asked). `hook_registered`: the hook's lock is held, None where that cannot be seen.
    `pod_network`: the running plugin moves NICs into pods, None where none is seen. `near_gpus`: a prepared
    claim asks for processors near its GPUs. `runs_imex`: `koordra imex` holds its lock. `left`: types of
    devices (gpu, nic) that the plugin leaves to another stack. `allowed`: the isolation that the running
    plugin's options allow; `hami_core`: the folder that they name for HAMi's library, None where none.

    Plugin and hook are known by their locks: anybody can give a process their names, the lock files are
    root's."""

    installed: bool = False
    registered: tuple[tuple[str, bool | None], ...] = ()
    hook_registered: bool | None = None
    pod_network: bool | None = None
    near_gpus: bool = False
    runs_imex: bool = False
    left: tuple[str, ...] = ()
    allowed: frozenset[str] = frozenset()
    hami_core: str | None = None


@dataclass(frozen=True, slots=True)
class HamiFolder:
    """Where HAMi's library is looked for. `faults`: what is wrong with it and what to do about it, None where
    the node has none and nobody says that it is to be there."""

    path: str = FOLDER
    faults: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class Rivals:
    """`resources`: extended resources that the kubelet has devices of, and how many; `device_plugins`:
    sockets in the kubelet's folder of device plugins; `dra_drivers`: DRA drivers registered with the kubelet,
    koordra's not counted; `cdi_specs`: CDI files of NVIDIA's tools."""

    resources: Mapping[str, int] = field(default_factory=dict)
    device_plugins: tuple[str, ...] = ()
    dra_drivers: tuple[str, ...] = ()
    cdi_specs: tuple[str, ...] = ()


def read_koordra(root: HostFiles, kubelet_root: str | None, live: LiveNode) -> KoordraNode:
    if kubelet_root is None:
        return KoordraNode()
    state = f"{kubelet_root}/plugins/{names.DRIVER}"
    registry = f"{kubelet_root}/plugins_registry"
    held = _holders_of_locks(root)
    locks = [_inode(root, path) for path in root.matching(f"{state}/{names.DRIVER}*.lock")]
    plugins = [held[inode] for inode in locks if held is not None and inode in held]
    arguments = [arguments_of(root, pid) for pid in plugins]
    return KoordraNode(
        installed=root.is_folder(state),
        registered=tuple(
            (f"{registry}/{name}", live.answers(root.path(f"{registry}/{name}")))
            for name in root.names(registry)
            if name.startswith(names.DRIVER) and root.is_socket(f"{registry}/{name}")
        ),
        hook_registered=None if held is None else _inode(root, f"{state}/{HOOK_LOCK}") in held,
        left=_left(root, f"{state}/{FILE}"),
        runs_imex=held is not None and _inode(root, f"{state}/{LOCK}") in held,
        pod_network=any("--pod-network" in one for one in arguments) if plugins else None,
        allowed=frozenset(
            word
            for one in arguments
            for word in (option(one, "--allowed-isolation") or "").split(",")
            if word
        ),
        hami_core=next(filter(None, (option(one, "--hami-core") for one in arguments)), None),
        near_gpus=any(
            f'"{NUMA_AFFINITY}"' in root.words(path) for path in root.matching(f"{state}/prepared/*.json")
        ),
    )


def _left(root: HostFiles, path: str) -> tuple[str, ...]:
    try:
        return left_by(root.data(path) or b"")
    except ValueError:
        return ()


def read_hami(root: HostFiles, said: str | None) -> HamiFolder:
    folder = said or FOLDER
    if said is None and not root.is_file(LIBRARY):
        return HamiFolder()
    return HamiFolder(folder, tuple(faults(root.directory, folder)))


def read_rivals(root: HostFiles, kubelet_root: str | None, live: LiveNode) -> Rivals:
    home = kubelet_root or "/var/lib/kubelet"

    def served(folder: str) -> list[str]:
        """Sockets that somebody serves; those of a plugin that was killed stay behind."""
        sockets = [name for name in root.names(folder) if name.endswith(".sock")]
        return [name for name in sockets if live.answers(root.path(f"{folder}/{name}")) is not False]

    return Rivals(
        resources=_resources(root, f"{DEVICE_PLUGINS}/{CHECKPOINT}"),
        device_plugins=tuple(name for name in served(DEVICE_PLUGINS) if name != "kubelet.sock"),
        dra_drivers=tuple(
            name for name in served(f"{home}/plugins_registry") if not name.startswith(names.DRIVER)
        ),
        cdi_specs=tuple(
            dict.fromkeys(
                f"/{root.resolved(folder)}/{name}"
                for folder in _CDI
                for name in root.names(folder)
                if "nvidia" in name and name.endswith((".json", ".yaml"))
            )
        ),
    )


def _resources(root: HostFiles, path: str) -> dict[str, int]:
    """Of the checkpoint of the kubelet's device manager: Data.RegisteredDevices, name -> healthy devices."""
    try:
        document = json.loads(root.words(path))
        registered = document["Data"]["RegisteredDevices"]
        return {name: len(devices) for name, devices in registered.items() if isinstance(devices, list)}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}


def _holders_of_locks(root: HostFiles) -> dict[int | None, int] | None:
    """The inode of every file with a flock -> the process that took it. Read, not tried: to try a lock is to
    take it for a moment."""
    listed = root.data("proc/locks", most=_MOST_LOCKS)
    if listed is None:
        return None
    return {int(inode): int(pid) for pid, inode in _LOCK.findall(listed.decode(errors="replace"))}


def _inode(root: HostFiles, path: str) -> int | None:
    status = root.status(root.resolved(path))
    return status.st_ino if status else None
