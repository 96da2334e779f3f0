"""Backend `hami-core`: HAMi's library in front of the driver's, for clusters that trust it already. It is the
node's own, in a folder that HAMi's DaemonSet or the operator has filled; koordra ships nothing of it, and
reads neither what it counts nor how. Containers get what HAMi's device plugin gives them (Project-HAMi/HAMi
pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go; names as HAMi-core src/multiprocess and
src/utils.c read them):

    /usr/local/vgpu/libvgpu.so         the library, read-only; it opens itself under this name
    /etc/ld.so.preload                 the folder's own, which names it
    /tmp/vgpulock                      in memory, of each container alone: its lock, and what it counts
    CUDA_DEVICE_MEMORY_LIMIT[_<n>]     2048m
    CUDA_DEVICE_SM_LIMIT               percent
    CUDA_DEVICE_MEMORY_SHARED_CACHE    the file that a container's processes count in
    GPU_CORE_UTILIZATION_POLICY        of coresPolicy: force (Hard), disable (Elastic)

It tells processes by their numbers in their own namespace, so that two containers that counted in one file
would take each other for themselves. HAMi's monitor is not there, so `priority` has nobody to act by it.

It counts cards in CUDA's order, by container, which nobody knows outside. So all shares of a container are of
one size: the hook refuses variables of two values (environment.py), and one beside a card that is not kept
so. The limit without a number holds for what has none of its own.

Its limits are soft: a program that is linked statically, or makes the driver's calls itself, never meets it.
The loader of musl knows no ld.so.preload: koordra-cdi-hook refuses an image of musl, as beside the limiter.
Pure but for looking at the folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from platform import machine
from typing import Final

from koordra.api.opaque.parameters import CoresPolicy, GpuConfig
from koordra.kubelet_plugin.claims.claim_record import OWN_TMPFS, ContainerEdits, Mount
from koordra.kubelet_plugin.isolation.backend import (
    Capabilities,
    Card,
    IsolationBackend,
    Keep,
    Realised,
    Share,
)
from koordra.kubelet_plugin.isolation.none import figures
from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot
from koordra.kubelet_plugin.nvidia_driver.paths_below import at, content, resolved

FOLDER: Final = "/usr/local/vgpu"
"""Where HAMi's DaemonSet puts its library on a node, and where the library looks for itself."""
LIBRARY: Final = f"{FOLDER}/libvgpu.so"
LOCKS: Final = "/tmp/vgpulock"
CACHE: Final = f"{LOCKS}/cudevshr.cache"
_MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT"
_CORES: Final = "CUDA_DEVICE_SM_LIMIT"
_SHARED: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
_POLICIES: Final = {CoresPolicy.HARD: "force", CoresPolicy.ELASTIC: "disable"}
_OWN: Final = Mount(OWN_TMPFS, LOCKS, ("rw", "nosuid", "nodev", "noexec", "size=8m", "mode=1777"))
"""Its file is 2 MiB (shared_region_t)."""

_ELF: Final = b"\x7fELF\x02"
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""e_machine of elf(5)."""
_MOST: Final = 64 << 20
_MIB: Final = 1 << 20
_INSTALL: Final = "have HAMi's DaemonSet put it there, or copy libvgpu.so and ld.so.preload of the HAMi release that you trust"


def faults(root: Path, folder: str) -> Iterator[tuple[str, str]]:
    """What keeps the folder, below the host's root, from being used, each with the remedy."""
    library, preload = f"{folder}/libvgpu.so", f"{folder}/ld.so.preload"
    found = content(root, library, most=_MOST)
    if not found:
        yield f"{library} is not on this node, or empty", _INSTALL
        return
    for path in (folder, library, preload):
        mode = _mode(root, path)
        if mode & stat.S_IWOTH:
            yield f"everybody may write {path}, which every program of a share runs", f"chmod o-w {path}"
        elif mode and not mode & (stat.S_IXOTH if path == folder else stat.S_IROTH):
            yield f"not everybody may read {path}, and containers run as any user", f"chmod a+rX {path}"
    if not found.startswith(_ELF) or int.from_bytes(found[18:20], "little") != _MACHINES.get(machine()):
        yield f"{library} is no library for {machine()}", _INSTALL
        return
    lacking = [name for name in (_MEMORY, _CORES, _SHARED, _POLICY) if f"{name}\0".encode() not in found]
    if lacking:
        yield (
            f"{library} does not know {', '.join(lacking)}: it is not HAMi-core, or another release",
            _INSTALL,
        )
    if content(root, preload, most=_MIB).split() != [LIBRARY.encode()]:
        yield f"{preload} does not name {LIBRARY} alone", f"echo {LIBRARY} > {preload}"


def _mode(root: Path, path: str) -> int:
    real = resolved(root, path)
    try:
        return os.stat(at(root, real)).st_mode if real is not None else 0  # noqa: PTH116
    except OSError:
        return 0


class HamiCore(IsolationBackend):
    """`folder`: where the node has libvgpu.so and ld.so.preload."""

    name: Final = "hami-core"
    capabilities = Capabilities(memory=True, cores=True, hook=True)

    def __init__(self, host: HostRoot, folder: str = FOLDER) -> None:
        self._host, self._folder = host, folder

    @property
    def unavailable(self) -> str | None:
        return next((f"{what}; {remedy}" for what, remedy in faults(self._host.here, self._folder)), None)

    def fits(self, share: Share, config: GpuConfig, card: Card) -> str | None:
        del config, card
        if not share.uuid.startswith("GPU-"):
            return (
                "isolation hami-core: HAMi's library limits shares of whole cards, and no instances of them"
            )
        why = self.unavailable
        return why and f"isolation hami-core: {why}"

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        del keep
        kept = share.kept
        env = [(_SHARED, CACHE)]
        if kept.memory_bytes is not None:
            limit = f"{max(1, kept.memory_bytes // _MIB)}m"
            env += [(_MEMORY, limit), *((f"{_MEMORY}_{number}", limit) for number in range(len(share.cards)))]
        if kept.cores is not None:
            env.append((_CORES, str(kept.cores)))
            if config.cores_policy is not None:
                env.append((_POLICY, _POLICIES[config.cores_policy]))
        mounts = (
            Mount(self._on_host("libvgpu.so"), LIBRARY),
            Mount(self._on_host("ld.so.preload"), "/etc/ld.so.preload"),
            _OWN,
        )
        return Realised(figures(share) + ContainerEdits(env=tuple(env), mounts=mounts))

    def _on_host(self, name: str) -> str:
        return str(at(self._host.on_host, resolved(self._host.here, f"{self._folder}/{name}") or name))

    def unprepare(self, share: Share) -> None:
        """Nothing of it is on the node."""
