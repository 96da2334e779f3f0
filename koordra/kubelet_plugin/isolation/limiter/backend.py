"""Backend `limiter`: a memory limit that is enforced inside the container, by a library in front of the
driver's.

    <state>/limiter/library/<digest>/        libcuda.so.1 and libnvidia-ml.so.1 of native/
                                    .../<platform>/  the same files, by what the loader puts for $PLATFORM; on
                                             x86-64 something to load for 32-bit programs, too
    <state>/limiter/claims/<uid>/            a small file system of its own, where that can be
    <state>/limiter/claims/<uid>/policy      what the claim may use      (region.py)
    <state>/limiter/claims/<uid>/usage       what it uses
    <state>/limiter/claims/<uid>/alive.N     who lives of its processes, refused: who got no CUDA (usage.py)
    <state>/limiter/contexts.json            what a context takes on such cards (unaccounted_memory.py)
    <state>/limiter/claims/<uid>/broker.sock where its processes identify themselves (broker.py)

In the container:

    libcuda.so.1, libnvidia-ml.so.1          the limiter, at every path at which the driver's would be
                                             (`override_driver_mounts`)
    /usr/lib/koordra/limiter/                the limiter for /etc/ld.so.preload, which the CDI hook writes, so
                                             that every program loads it, whatever its image or environment
                                             says (native/cdi-hook/limiter.c)
    /usr/lib/koordra/driver/                 the driver's own, which the limiter loads
    /run/koordra/limiter/<uid>/              the region: read-only but for `usage`

So a container in which something of this is missing has no CUDA, rather than no limit. Preloading, the second
way in, needs the library `libkoordra-cuda.so` and LD_PRELOAD, and is for use without mounts; native/README.md
says what each way misses. A hostile program can get around both: the limit is for programs that are greedy,
not for attackers. The node compares with what the driver says, counts what went past the limiter, and says so
in the claim's status (reconcile.py).

The driver's files are mounted with the first GPU of each request, the limiter's with each GPU that it limits,
and a container may have both in any order. So wherever a device brings a driver's library that the limiter
stands in front of, under whatever of its names (libcuda.so.1, libcuda.so.<version>), the limiter's is mounted
in its place, and the driver's own moves to DRIVER_FOLDER, where the limiter looks for it. A GPU of the same
claim that is not limited is passed through by it.

**The region** of a claim is on a small file system of its own, where the node can mount one.

A claim's processes write to `usage`. On a disk they could extend it and fill the file system of the plugin's
state. So the folder is a tmpfs, no larger than the region needs; being in memory, it does not survive a boot,
nor does any process.

The container runtime must see what is mounted here. It does where mounts are shared with the host: in a pod
with `mountPropagation: Bidirectional`, and on a host whose mounts are shared, as systemd makes them.
Elsewhere (private mounts, no right to mount) the folder stays on the disk, which is logged once; the node
then truncates what grew (reconcile.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from platform import machine
from typing import Final

from koordra.api.opaque.parameters import CoresPolicy, GpuConfig
from koordra.errors import NodeError, PrepareError
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits, Mount
from koordra.kubelet_plugin.isolation import own_file_system
from koordra.kubelet_plugin.isolation.backend import (
    Capabilities,
    Card,
    Held,
    IsolationBackend,
    Keep,
    Realised,
    Share,
)
from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.broker import Broker
from koordra.kubelet_plugin.isolation.limiter.region import POLICY_BYTES, USAGE_BYTES
from koordra.kubelet_plugin.isolation.none import figures
from koordra.kubelet_plugin.nvidia_driver.driver_libraries import LIBRARY_FOLDERS
from koordra.kubelet_plugin.sampling.host_processes import REGIONS_FOLDER
from koordra.logs import get_logger
from koordra.node_state.selinux import give_to_containers

log = get_logger(__name__)

_PAGE: Final = 4096
SIZE: Final = sum(-(-size // _PAGE) * _PAGE for size in (POLICY_BYTES, USAGE_BYTES)) + 16 * _PAGE
INODES: Final = 64


def make_folder(folder: Path) -> None:
    """Make the claim's folder; one that is there stays as it is. Raises OSError."""
    why_not = own_file_system.make_folder(folder, f"size={SIZE},nr_inodes={INODES},mode=0755")
    if why_not is not None:
        _log_once(why_not)


def remove_folder(folder: Path, names: tuple[str, ...]) -> None:
    """Take the folder away, with files of these names; also one that is gone. Raises OSError, NodeError."""
    while True:
        for name in names:
            (folder / name).unlink(missing_ok=True)
        if not own_file_system.mounted(folder):
            break
        own_file_system.unmount(folder)
    if folder.exists():
        folder.rmdir()


@cache
def _log_once(reason: str) -> None:
    log.info("regions_on_disk", reason=reason, effect="a tenant can fill it for a second at a time")


INSTALLED: Final = (Path("/opt/koordra/lib"), Path(__file__).resolve().parents[4] / "build" / "native")
"""Where the image, or a checkout after `make -C native`, has the libraries."""

_BUILT: Final = {"libcuda.so.1": "cuda/libcuda.so.1", "libnvidia-ml.so.1": "nvml-share/libnvidia-ml.so.1"}
_READ_WRITE: Final = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")


class LimiterIsolation(IsolationBackend):
    """`state` is the plugin's directory; `installed` are folders with the built libraries, the first that has
    them counts. `context_bytes` is what to reserve for a context on a GPU (by UUID; 0: measured in the
    process, which the first cannot be); `strict`: entry points of the driver that the limiter does not know
    are not handed out; `cores`: device time of shares that say how (coresPolicy) is limited, too."""

    name: Final = "limiter"

    def __init__(
        self,
        state: Path,
        *,
        installed: Iterable[Path] = INSTALLED,
        context_bytes: Callable[[str], int] = lambda _uuid: 0,
        strict: bool = False,
        cores: bool = False,
    ) -> None:
        self._cores = cores
        self._folder = state / "limiter"
        self.claims = self._folder / "claims"
        self._installed = tuple(installed)
        self._context_bytes = context_bytes
        self._flags = region.STRICT if strict else 0
        self.broker = Broker(self.claims)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(memory=True, cores=self._cores, hook=True)

    def fits(self, share: Share, config: GpuConfig, card: Card) -> str | None:
        del config, card
        try:
            region.uuid_bytes(share.uuid)
        except PrepareError as error:
            return str(error)
        return self.unavailable

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        del keep
        try:
            self._install()
            make_folder(self.claims / share.claim_uid)
            region.allow(
                self.claims / share.claim_uid,
                claim=share.claim_uid,
                uuid=share.uuid,
                limit=share.kept.memory_bytes,
                cores=share.kept.cores or 0,
                time=time_share(share.kept, config) if self._cores else None,
                context_bytes=self._context_bytes(share.uuid),
                flags=self._flags,
            )
            self.broker.listen(share.claim_uid)
            give_to_containers(self._folder)
        except (OSError, NodeError) as error:
            raise PrepareError(
                f"isolation limiter: the region of claim {share.claim_uid}: {error}"
            ) from error
        return Realised(self._edits(share))

    def _edits(self, share: Share) -> ContainerEdits:
        library = self._library()
        folder = self.claims / share.claim_uid
        inside = f"{REGIONS_FOLDER}/{share.claim_uid}"
        fronts = tuple(
            Mount(str(library / name), f"{target}/{name}") for target in LIBRARY_FOLDERS for name in LIBRARIES
        )
        usage = Mount(str(folder / "usage"), f"{inside}/usage", _READ_WRITE)
        mounts = (*fronts, Mount(str(library), LIMITER_FOLDER), Mount(str(folder), inside), usage)
        return figures(share) + ContainerEdits(mounts=mounts)

    def unprepare(self, share: Share) -> None:
        """The devices of a claim go together, so the first takes the region away."""
        self.broker.forget(share.claim_uid)
        try:
            remove_folder(self.claims / share.claim_uid, (*region.FILES, "broker.sock"))
        except (OSError, NodeError) as error:
            raise PrepareError(
                f"isolation limiter: the region of claim {share.claim_uid} stays: {error}"
            ) from error

    def resume(self, held: Held | None) -> None:
        del held
        self.broker.resume()

    # The libraries.

    @property
    def unavailable(self) -> str | None:
        try:
            self._library()
        except PrepareError as error:
            return str(error)
        return None

    @cached_property
    def _built(self) -> dict[str, bytes]:
        """By path in the folder of this version. Read once: what a claim's edits name and what is installed
        for it is the same, whatever is built meanwhile."""
        for folder in self._installed:
            for paths in (_BUILT, {name: name for name in LIBRARIES}):
                found = {name: folder / path for name, path in paths.items()}
                if all(path.is_file() for path in found.values()):
                    small = {f"i386/{name}": folder / "limiter-i386" / name for name in LIBRARIES}
                    found |= {name: path for name, path in small.items() if path.is_file()}
                    return {name: path.read_bytes() for name, path in found.items()}
        raise PrepareError(
            f"isolation limiter: this node has no {' and '.join(LIBRARIES)} of koordra in any of "
            f"{', '.join(str(folder) for folder in self._installed)}"
        )

    def _library(self) -> Path:
        """The folder of this plugin's libraries; a running container keeps the version it started with."""
        content = b"".join(content for _, content in sorted(self._built.items()))
        return self._folder / "library" / hashlib.sha256(content).hexdigest()[:16]

    def _install(self) -> None:
        folder = self._library()
        for name, content in self._built.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            if not target.exists():
                temporary = target.with_name(f"{target.name}.tmp")
                temporary.write_bytes(content)
                temporary.chmod(0o755)
                temporary.rename(target)
        for name in self._built:
            kind, _, library = name.rpartition("/")
            for platform in _PLATFORMS_32 if kind else _PLATFORMS:
                link = folder / platform / library
                link.parent.mkdir(exist_ok=True, mode=0o755)
                if not link.exists():
                    link.hardlink_to(folder / name)


def time_share(share: Share, config: GpuConfig) -> region.TimeShare | None:
    """None: its cores are counted, and not enforced."""
    if config.cores_policy is None or share.cores is None:
        return None
    return region.TimeShare(
        rate=share.cores * 100,
        elastic=config.cores_policy is CoresPolicy.ELASTIC,
        priority=region.LAST if config.priority is None else config.priority,
    )


_PLATFORMS: Final = ("x86_64", "haswell", "xeon_phi") if machine() == "x86_64" else (machine(),)
"""What the loaders of different glibc put for $PLATFORM on such a machine. The files are links to one: a
loader that meets the same file under another name does not load it twice."""
_PLATFORMS_32: Final = ("i386", "i486", "i586", "i686")

LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
LIMITER_FOLDER: Final = "/usr/lib/koordra/limiter"
DRIVER_FOLDER: Final = "/usr/lib/koordra/driver"


def override_driver_mounts(
    edits: Sequence[ContainerEdits], *, isolation: Sequence[ContainerEdits]
) -> list[ContainerEdits]:
    """The edits of a claim's devices, with the mounts of the backends in place of the driver's of the same
    path."""
    fronts = {
        mount.container_path: mount
        for each in isolation
        for mount in each.mounts
        if mount.container_path.rpartition("/")[2] in LIBRARIES
    }
    return [_rearranged(each, fronts) for each in edits] if fronts else list(edits)


def _rearranged(edits: ContainerEdits, fronts: dict[str, Mount]) -> ContainerEdits:
    driver = {
        mount.host_path: fronts[mount.container_path]
        for mount in edits.mounts
        if mount.container_path in fronts and mount not in fronts.values()
    }
    mounts = []
    for mount in edits.mounts:
        front = driver.get(mount.host_path)
        if front is None:
            mounts.append(mount)
            continue
        name = front.container_path.rpartition("/")[2]
        mounts.append(replace(front, container_path=mount.container_path))
        mounts.append(replace(mount, container_path=f"{DRIVER_FOLDER}/{name}"))
    return replace(edits, mounts=tuple(dict.fromkeys(mounts)))
