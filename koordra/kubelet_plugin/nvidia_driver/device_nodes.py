"""Device nodes that the plugin makes, where the host's /dev has none.

**For NVML in the plugin itself**, which opens /dev/nvidiactl and the cards: in its own /dev. In a pod that is
the container's own file system; on a host it is the host's, where nvidia-modprobe would make the same nodes.

**For containers.** A runtime makes a container's node by its numbers, so nothing has to be on the host. But a
container with a user namespace of its own (`hostUsers: false`) may not make nodes, and there runc and crun
bind the host's node of the *container's* path (runc libcontainer/rootfs_linux.go, bindMountDeviceNode; CDI's
hostPath does not reach them: it only fills in numbers), with the host's mode: a group of the host is none of
the container's. So a node that the host lacks, and for such a pod one that not everybody may open, is made in
the claim's folder, and the container gets it twice, which works with and without a user namespace:

    deviceNodes  path <state>/claims/<uid>/nvidia0.node    opens the number to the container
    mounts       that file at /dev/nvidia0                 where programs look for it
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.claims.claim_record import ContainerEdits, Mount
from koordra.topology.location import DeviceNode

MODE: Final = 0o666
SUFFIX: Final = ".node"
_OPTIONS: Final = ("ro", "nosuid", "noexec", "rbind", "rprivate")
"""A device can be opened for writing on a read-only mount; only with nodev it could not be opened at all."""


def make_missing(dev: Path, nodes: Iterable[DeviceNode]) -> None:
    """Make those of the nodes below /dev that are missing in this folder. Raises OSError."""
    for node in nodes:
        path = dev / node.path.removeprefix("/dev/")
        if not os.path.lexists(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            make_node(path, node)


def make_node(path: Path, node: DeviceNode) -> None:
    """Raises OSError; a node that is there, made by somebody else just now, stays."""
    with contextlib.suppress(FileExistsError):
        os.mknod(path, MODE | stat.S_IFCHR, os.makedev(node.major, node.minor))
        path.chmod(MODE)  # the umask does not count


def is_node(path: Path, node: DeviceNode) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(node.major, node.minor)


def through_own_nodes(edits: ContainerEdits, *, absent: Collection[str], folder: Path) -> ContainerEdits:
    """The edits with the nodes of the paths that are as good as absent taken from the claim's folder."""
    own = {
        node: folder / f"{Path(node.path).name}{SUFFIX}" for node in edits.device_nodes if node.path in absent
    }
    if not own:
        return edits
    nodes = (replace(node, path=str(own[node])) if node in own else node for node in edits.device_nodes)
    mounts = tuple(Mount(str(path), node.path, _OPTIONS) for node, path in own.items())
    return replace(edits, device_nodes=tuple(nodes), mounts=(*edits.mounts, *mounts))


def own_nodes(edits: Iterable[ContainerEdits], folder: Path) -> dict[Path, DeviceNode]:
    """The nodes of a claim's folder that its edits name."""
    nodes = (node for each in edits for node in each.device_nodes)
    return {Path(node.path): node for node in nodes if Path(node.path).parent == folder}
