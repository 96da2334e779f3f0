"""A kind of machine, described in one YAML file, and the machines made from it.

Format (schema ``koordra.io/machine/v1``)::

    schema: koordra.io/machine/v1
    title: what it is, in words
    sources: [where the facts come from]
    inferred: what was inferred rather than published, in words
    driver: {version: 550.54.15, cuda: 12040}
    numa:                                     # distances: the SLIT row
      - {id: 0, socket: 0, cpus: "0-55,112-167", distances: [10, 21]}
    gpu: {...}                                # defaults of every entry under gpus
    nic: {...}                                # defaults of every entry under nics
    gpus:                                     # in NVML's order: the n-th has minor n
      - {path: pci0000:07/07:01.0/08:00.0/.../0f:00.0, numa: 0}
    nics:
      - {path: ..., numa: 0, ib: mlx5_0, netdev: rdma0, rate: 200}
    nvswitches: {paths: [...], links: [4, 4, 5, 5]}    # links from every GPU to each switch; peers: [...]
                                                       # names switches by bus id that are in no PCI tree of
                                                       # the machine
    nvlinks: [[0, 1, 2], ...]                          # or: GPU, GPU, number of direct links

Every entry of ``numa``, ``gpus`` and ``nics`` may say how sure its facts are: ``confidence`` is ``published``
(the default), ``published-elsewhere`` (documented, not read again in one of the sources), ``inferred`` or
``synthetic``. A GPU with ``lost: true`` has fallen off the bus: the driver still lists it and NVML no longer
answers. A GPU of a fabric over several nodes has ``fabric: {cluster: <uuid>, clique: 1}``. A NIC may have
``upper`` (the bond or bridge of its interface; with RoCE LAG its ``netdev`` is the bond), ``default_route``
and ``pkeys`` (["0xffff"]), a machine ``rdma_mode: exclusive``. ``ports: 2`` gives one function several ports.
``overlay`` names a file beside this one with what such a machine's operator adds to it, see ``overlay``;
``expected_problems`` lists ``[object, field]`` of what discovery reports on such a machine. A GPU that can be
partitioned has ``mig`` (whether it is), ``mig_profiles`` and ``mig_instances``, see ``mig``. A path runs from
the host bridge to the device; a part without a domain has the host bridge's. What is above a device in its
path is a root port, then alternating upstream and downstream ports of switches.

Names that differ between two machines of one kind (UUIDs, GUIDs) come from a serial: the same serial always
makes the same machine, two serials never share an identity.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from koordra.api.reader import Reader
from koordra.errors import InvalidManifest
from koordra.topology.location import ROOT_ID, DeviceNode, Location, bus_order
from koordra.topology.machine import (
    Bridge,
    BridgeKind,
    Gpu,
    Machine,
    Nic,
    NumaNode,
    NvLink,
    RdmaPort,
    in_bus_order,
)
from koordra.topology.partitions import FabricInfo, ImexNodes
from koordra.topology.presets.mig import mig_instances, mig_profiles, multiprocessors

SCHEMA = "koordra.io/machine/v1"
_MIB = 1 << 20
_CHANNELS = 2048
CONFIDENCE = ("published", "published-elsewhere", "inferred", "synthetic")
_IDENTITIES = uuid.UUID("6e1b6d0c-3f5d-5c5e-9a55-6b6f6f726472")


@dataclass(frozen=True, slots=True)
class Majors:
    """Major numbers of the character devices. By default those a real node usually has."""

    nvidia: int = 195
    uvm: int = 510
    infiniband: int = 231
    infiniband_more: int = 506
    misc: int = 10
    capabilities: int = 511
    imex: int = 234

    @classmethod
    def driverless(cls, first: int) -> Majors:
        """Five numbers from ``first``, for nodes that may be made and opened where no such driver must be
        hit."""
        # Capability nodes share the fourth: their minors begin at 3, and no machine has MIG and 36 NICs.
        nvidia, uvm, infiniband, more, misc = range(first, first + 5)
        return cls(nvidia, uvm, infiniband, more, misc, capabilities=more, imex=misc)

    @property
    def gpu_control(self) -> tuple[DeviceNode, ...]:
        return (
            DeviceNode("/dev/nvidiactl", self.nvidia, 255),
            DeviceNode("/dev/nvidia-uvm", self.uvm, 0),
            DeviceNode("/dev/nvidia-uvm-tools", self.uvm, 1),
            DeviceNode("/dev/nvidia-modeset", self.nvidia, 254),
        )


@dataclass(frozen=True, slots=True)
class Preset:
    """One kind of machine. ``document`` is the checked YAML document, ``overlay`` the file it names."""

    name: str
    title: str
    document: Mapping[str, Any]
    overlay: Path | None = None

    @property
    def other_functions(self) -> tuple[tuple[str, ...], ...]:
        """Paths of PCI functions that are neither GPU nor NIC (NVSwitches)."""
        return tuple(_path(text, self.name) for text in self.document.get("nvswitches", {}).get("paths", ()))

    def machine(self, *, serial: str, majors: Majors | None = None) -> Machine:
        """The machine of this kind that bears this serial (a node name, for example)."""
        numbers = majors or Majors()
        document = self.document
        numa_nodes = tuple(
            NumaNode(
                id=entry["id"],
                cpus=entry["cpus"],
                distances=tuple(entry.get("distances", ())),
                socket=entry["socket"] if entry["cpus"] else None,
            )
            for entry in document["numa"]
        )
        gpus = _gpus(self, numa_nodes, serial=serial, majors=numbers)
        nics = _nics(self, numa_nodes, serial=serial, majors=numbers)
        driver = document.get("driver", {}) if gpus else {}
        return Machine(
            numa_nodes=numa_nodes,
            bridges=_bridges([device.location.path for devices in (gpus, nics) for device in devices]),
            gpus=tuple(sorted(gpus, key=in_bus_order)),
            nics=tuple(nic for nic in nics if nic.parent is None),
            vfs=tuple(nic for nic in nics if nic.parent is not None),
            driver_version=driver.get("version"),
            cuda_version=driver.get("cuda"),
            gpu_control=numbers.gpu_control if gpus else (),
            rdma_control=(DeviceNode("/dev/infiniband/rdma_cm", numbers.misc, 57),) if nics else (),
            boot_id=str(uuid.uuid5(_IDENTITIES, f"{serial}/boot")),
            rdma_exclusive=document.get("rdma_mode") == "exclusive",
            imex=ImexNodes(numbers.imex, _CHANNELS) if any(gpu.fabric for gpu in gpus) else None,
        )


def load(path: Path, *, name: str | None = None) -> Preset:
    """Read a machine's description; ``name`` is the file's by default.

    InvalidManifest names the machine and the field that is wrong.
    """
    subject = f"machine {name or path.stem}"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidManifest(f"cannot be read: {error}", object=subject) from error
    described = preset(document, name=name or path.stem)
    overlay = document.get("overlay")
    return replace(described, overlay=path.parent / overlay) if overlay else described


def preset(document: Any, *, name: str) -> Preset:
    """The kind of machine that a document describes. InvalidManifest names the field that is wrong."""
    read = Reader(document, object=f"machine {name}")
    if read.text("schema") != SCHEMA:
        raise read.wrong("is no machine", f"write schema: {SCHEMA}", at="schema")
    numa, devices = [*read.each("numa")], [*read.each("gpus"), *read.each("nics")]
    if not numa or not all(entry.data.keys() >= {"id", "socket", "cpus"} for entry in numa):
        raise read.wrong("needs a list of {id, socket, cpus}", at="numa")
    for entry in devices:
        _path(entry.required("path"), name)
    for entry in (*numa, *devices, read.inner("gpu"), read.inner("nic")):
        entry.choice("confidence", CONFIDENCE, problem="is no degree of confidence")
    given = {field: value for field, value in read.data.items() if value is not None}
    return Preset(name, read.text("title") or name, {"gpus": [], "nics": [], **given})


def _path(text: str, name: str) -> tuple[str, ...]:
    root, *parts = text.split("/")
    if not ROOT_ID.fullmatch(root) or not parts:
        raise InvalidManifest(
            f"{text!r} does not run from a host bridge to a device", object=f"machine {name}", field="path"
        )
    domain = root.removeprefix("pci").partition(":")[0]
    return (root, *(part if part.count(":") == 2 else f"{domain}:{part}" for part in parts))


def _gpus(preset: Preset, numa_nodes: tuple[NumaNode, ...], *, serial: str, majors: Majors) -> list[Gpu]:
    document = preset.document
    entries = [{**document.get("gpu", {}), **entry} for entry in document["gpus"]]
    paths = [_path(entry["path"], preset.name) for entry in entries]
    switches = document.get("nvswitches", {})
    switch_ids = switches.get("peers") or [path[-1] for path in preset.other_functions]
    gpus = []
    for minor, (entry, path) in enumerate(zip(entries, paths, strict=True)):
        links = [
            NvLink(peer, count, to_switch=True)
            for peer, count in zip(switch_ids, switches.get("links", ()), strict=True)
        ]
        links += [
            NvLink(paths[right if minor == left else left][-1], count, to_switch=False)
            for left, right, count in document.get("nvlinks", ())
            if minor in (left, right)
        ]
        seen = Gpu(
            location=_location(entry, path, numa_nodes),
            device_id=entry.get("device"),
            minor=minor,
            product_name=entry["product"],
            node=DeviceNode(f"/dev/nvidia{minor}", majors.nvidia, minor),
        )
        if entry.get("lost"):
            # Of a card that has fallen off the bus only its place is left, and the driver's idea of it.
            gpus.append(replace(seen, faults=("GpuLost",)))
            continue
        identity = f"{serial}/{path[-1]}"
        gpus.append(
            replace(
                seen,
                uuid=f"GPU-{uuid.uuid5(_IDENTITIES, identity)}",
                memory_bytes=entry["memory_mib"] * _MIB,
                architecture=entry.get("architecture"),
                compute_capability=entry.get("compute"),
                multiprocessors=multiprocessors(entry),
                mig_enabled=entry.get("mig"),
                fabric=_fabric(entry),
                nvlinks=tuple(sorted(links, key=lambda link: (link.peer, link.to_switch))),
                mig_profiles=mig_profiles(entry),
                mig_instances=mig_instances(entry, minor=minor, major=majors.capabilities, identity=identity),
            )
        )
    return gpus


def _fabric(entry: Mapping[str, Any]) -> FabricInfo | None:
    found = entry.get("fabric")
    return FabricInfo(found["cluster"], found["clique"]) if found else None


def _nics(preset: Preset, numa_nodes: tuple[NumaNode, ...], *, serial: str, majors: Majors) -> list[Nic]:
    nics, listed = [], preset.document["nics"]
    parents = [entry.get("parent") for entry in listed]
    for number, own in enumerate(listed):
        entry = {**preset.document.get("nic", {}), **own}
        path = _path(entry["path"], preset.name)
        digest = hashlib.sha256(f"{serial}/{path[-1]}".encode()).hexdigest()
        guid = f"b83f:d203:{digest[:4]}:{digest[4:8]}"
        active = entry.get("active", True)
        ports = tuple(
            RdmaPort(
                port,
                entry["link_layer"],
                active=active,
                rate_gbps=entry["rate"] if active else None,
                gid=f"fe80:0000:0000:{port - 1:04x}:{guid}",
                pkeys=tuple(int(key, 16) for key in entry.get("pkeys", ())),
            )
            for port in range(1, entry.get("ports", 1) + 1)
        )
        # The first 32 uverbs share InfiniBand's major with the other nodes; the kernel gives the rest one of
        # their own.
        verbs = (majors.infiniband, 192 + number) if number < 32 else (majors.infiniband_more, number - 32)
        management = {"issm": 64 + number, "umad": number} if number < 64 and entry.get("mad", True) else {}
        parent = parents[number]
        nics.append(
            Nic(
                location=_location(entry, path, numa_nodes),
                ib_device=entry["ib"],
                vendor=entry.get("vendor"),
                device_id=entry.get("device"),
                guid=guid,
                netdev=entry.get("netdev"),
                ports=ports,
                verbs=DeviceNode(f"/dev/infiniband/uverbs{number}", *verbs),
                management_nodes=tuple(
                    DeviceNode(f"/dev/infiniband/{name}{number}", majors.infiniband, minor)
                    for name, minor in management.items()
                ),
                sriov_total=entry.get("vfs", 0),
                sriov_active=parents.count(own["path"]),
                parent=_path(parent, preset.name)[-1] if parent else None,
                vf_index=parents[:number].count(parent) if parent else None,
                upper=entry.get("upper"),
                needed=entry.get("default_route", False),
            )
        )
    return sorted(nics, key=in_bus_order)


def _location(entry: Mapping[str, Any], path: tuple[str, ...], numa_nodes: tuple[NumaNode, ...]) -> Location:
    numa, inferred = entry.get("numa"), frozenset[str]()
    if numa is None and len(numa_nodes) == 1:
        numa, inferred = numa_nodes[0].id, frozenset({"numaNode"})
    return Location(
        bus_id=path[-1],
        path=path,
        switches=path[2:-1:2],
        numa=numa,
        socket=next((node.socket for node in numa_nodes if node.id == numa), None),
        inferred=inferred,
    )


def _bridges(paths: list[tuple[str, ...]]) -> tuple[Bridge, ...]:
    found = {}
    for path in paths:
        for depth, bus_id in enumerate(path[1:-1]):
            below = BridgeKind.UPSTREAM if depth % 2 else BridgeKind.DOWNSTREAM
            found[bus_id] = Bridge(bus_id, path[: depth + 2], below if depth else BridgeKind.ROOT_PORT)
    return tuple(found[bus_id] for bus_id in sorted(found, key=bus_order))
