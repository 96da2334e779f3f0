"""Parts of a device: MIG instances of a GPU, sub-functions of a NIC, and the NVLink fabric that a GPU belongs
to.

A GPU in MIG mode is cut along two rulers. Its memory has slices (eight on A100 and H100), of which an
instance takes a run: its *placement* ``(start, size)``. Its compute has slices of its own (seven), which an
instance takes from wherever they are. A profile says how much of everything an instance has, and where it may
be placed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from koordra.topology.location import DeviceNode, Location

MIG_UUID = re.compile(r"MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
MIG_PROFILE = re.compile(r"[0-9]{1,2}g\.[0-9]{1,4}gb(?:[+-][a-z]+(?:\.[a-z]+)*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One kind of instance. ``id`` is what NVML makes and lists instances by, not the number that profiles
    are asked for with; ``most`` is how many of it a card holds at once.

    ``placements`` are the legal ``(start, size)`` in memory slices; the engines are counts per instance, and
    so are the ``multiprocessors`` of one with a compute instance that covers it (0: not known).
    """

    id: int
    name: str
    memory_bytes: int
    compute_slices: int
    most: int
    placements: tuple[tuple[int, int], ...]
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance that exists, with the one compute instance that covers it.

    ``nodes`` are the capability nodes of the GPU instance and of the compute instance; a container needs
    both, and the card's own node. Without a UUID and both nodes an instance is never offered.
    """

    gpu_instance: int
    compute_instance: int
    profile_id: int
    start: int
    size: int
    uuid: str | None = None
    nodes: tuple[DeviceNode, ...] = ()

    @property
    def publishable(self) -> bool:
        return bool(self.uuid) and len(self.nodes) == 2


def mig_name(card: str, profile: str, start: int) -> str:
    """The DNS label of an instance: ``gpu-0000-1f-00-0``, ``1g.10gb+me``, 4 ->
    ``gpu-0000-1f-00-0-mig-1g10gb-me-4``.

    "+me" is a profile with media engines, "-me" one without: the latter is spelt "no-me".
    """
    words = profile.replace("-", "-no-").replace("+", "-").replace("gb.", "gb-")
    head, dash, rest = words.partition("-")
    return f"{card}-mig-{head.replace('.', '')}{dash}{rest.replace('.', '-')}-{start}"


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """Which NVLink fabric over several nodes a GPU has joined: GPUs of one cluster (a UUID) and clique reach
    each other."""

    cluster: str
    clique: int

    def __str__(self) -> str:
        return f"{self.cluster}.{self.clique}"

    @classmethod
    def named(cls, text: str) -> FabricInfo | None:
        """The one that is written so."""
        cluster, _, clique = text.rpartition(".")
        return cls(cluster, int(clique)) if cluster and clique.isascii() and clique.isdecimal() else None


@dataclass(frozen=True, slots=True)
class ImexNodes:
    """The IMEX channels of a driver, by which processes of several nodes share memory: the major number of
    their device nodes, and how many there are. They need not exist in /dev."""

    major: int
    count: int

    def node(self, channel: int) -> DeviceNode:
        path = f"/dev/nvidia-caps-imex-channels/channel{channel}"
        return DeviceNode(path=path, major=self.major, minor=channel)

    @property
    def all(self) -> tuple[DeviceNode, ...]:
        return tuple(map(self.node, range(self.count)))


@dataclass(frozen=True, slots=True)
class PublishedFabrics:
    """Domains and rails as a node published them, since they can be inferred only from the whole machine: bus
    id and NVLink domain, bus id and rail."""

    nvlink_domains: tuple[tuple[str, str], ...] = ()
    rails: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SubFunction:
    """A part of a NIC without a PCI function of its own (``mlx5_core.sf.2``). Guarded, never given out.

    ``location`` is that of the function that it is part of.
    """

    name: str
    location: Location
    number: int | None = None
    ib_device: str | None = None
    netdev: str | None = None
    nodes: tuple[DeviceNode, ...] = ()
