"""What two drivers call the same things, for `between_drivers`: classes, attributes, capacities, and the
parameters of a claim. What a table lacks has no form in the other driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.api import names, objects
from koordra.api.classic.notes import Notes
from koordra.api.classic.nvidia_parameters import KOORDRA, of_sharing
from koordra.api.objects import Object
from koordra.api.opaque.parameters import API_VERSION
from koordra.api.reader import Reader

_COMMON: Final = (
    "type",
    "uuid",
    "productName",
    "architecture",
    "cudaComputeCapability",
    "driverVersion",
    "cudaDriverVersion",
    "profile",
)
_SHARINGS: Final = {"mps": "MPS", "timeslicing": "TimeSlicing"}


@dataclass(frozen=True, slots=True)
class Words:
    """From one driver to another: names here and there. `here`: CEL of every device that the source has.
    `alone` are classes that have none beside them there, `matched` attributes that constraints may name;
    `config` makes a parameters document of theirs, None for nothing to say."""

    source: str
    driver: str
    here: str
    classes: Mapping[str, str]
    alone: frozenset[str]
    attributes: Mapping[str, str]
    matched: Mapping[str, str]
    capacities: tuple[str, ...]
    config: Callable[[Reader, Notes], Object | None]
    expressions: Mapping[str, str] = field(default_factory=dict)
    """Attribute -> what is true of every device there instead, or where else it stands, as CEL."""
    fewer: str = ""
    """CEL of the source by which a class has only devices that are there too; else `narrower` is told."""
    narrower: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    """Class of the source -> what it gives, where that decides which parameters are for it."""


def _of_nvidia(read: Reader, notes: Notes) -> Object | None:
    if read.text("kind") not in ("GpuConfig", "MigDeviceConfig"):
        raise read.wrong(
            f"{read.text('kind')} has no form in koordra", "leave these claims to NVIDIA's driver"
        )
    read.only("apiVersion", "kind", "sharing", problem="is no field of these parameters")
    return of_sharing(read, notes)


def _of_koordra(read: Reader, _notes: Notes) -> Object | None:
    if read.text("kind") != "GpuConfig":
        raise read.wrong(f"{read.text('kind')} has no form in NVIDIA's driver", "take it out")
    for name in sorted(read.data.keys() - {"apiVersion", "kind", "isolation"}):
        raise read.wrong("has no form in NVIDIA's driver", "take it out", at=name)
    isolation = read.text("isolation")
    if not isolation or isolation == "none":
        return None
    if isolation not in _SHARINGS:
        raise read.wrong(f"{isolation}: NVIDIA's driver has MPS and TimeSlicing", "use mps", at="isolation")
    sharing = {"strategy": _SHARINGS[isolation]}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}


def _nic_of_koordra(read: Reader, _notes: Notes) -> Object | None:
    if read.text("kind") != "RdmaConfig":
        raise read.wrong(f"{read.text('kind')} has no form in dranet", "take it out")
    network = read.inner("network")
    for place, known in (
        (read, {"apiVersion", "kind", "network", "memlock"}),
        (network, {"interface", "mtu"}),
    ):
        for name in sorted(map(str, place.data.keys() - known)):
            raise place.wrong("has no form in dranet", "take it out", at=name)
    if read.data.get("memlock") is False:
        raise read.wrong("has no form in dranet", "take it out", at="memlock")
    said = objects.without_none(
        {"name": network.text("interface") or None, "mtu": network.between("mtu", 68, 65535)}
    )
    return {"interface": said} if said else None


def _of_dranet(read: Reader, _notes: Notes) -> Object | None:
    """Addresses and routes are the operator's in koordra: a pool of a class gives them."""
    interface = read.inner("interface")
    for place, known in ((read, ("apiVersion", "kind", "interface")), (interface, ("name", "mtu"))):
        for name in sorted(map(str, place.data.keys() - set(known))):
            raise place.wrong(
                "cannot be said in a claim of koordra's", "let a class say it (RdmaConfig.network)", at=name
            )
    network = {"interface": interface.text("name") or None, "mtu": interface.between("mtu", 68, 65535)}
    said = objects.without_none(network)
    return {"apiVersion": API_VERSION, "kind": "RdmaConfig", "network": said} if said else None


TO_KOORDRA: Final = (
    Words(
        "gpu.nvidia.com",
        names.DRIVER,
        f'device.driver == "{names.DRIVER}" && device.attributes["{names.DRIVER}"].type in ["gpu", "mig"]',
        {"gpu.nvidia.com": names.CLASS_GPU, "mig.nvidia.com": names.CLASS_MIG},
        frozenset(
            (
                "vfio.gpu.nvidia.com",
                "compute-domain-daemon.nvidia.com",
                "compute-domain-default-channel.nvidia.com",
            )
        ),
        {name: name for name in _COMMON},
        {**{name: name for name in _COMMON}, "parentUUID": "parent"},
        ("memory",),
        _of_nvidia,
        types={"gpu.nvidia.com": names.TYPE_GPU, "mig.nvidia.com": names.TYPE_MIG},
    ),
    Words(
        "dra.net",
        names.DRIVER,
        f'device.driver == "{names.DRIVER}" && device.attributes["{names.DRIVER}"].type in ["nic", "vf"]',
        {},
        frozenset(),
        {"ifName": "netdev", "rdmaDevice": "ibDevice", "numaNode": "numaNode"},
        {"ifName": "netdev", "rdmaDevice": "ibDevice", "numaNode": "numaNode"},
        (),
        _of_dranet,
        {
            "rdma": "true",
            "virtual": "false",
            "isSriovVf": f'(device.attributes["{names.DRIVER}"].type == "{names.TYPE_VF}")',
            "pciAddress": 'device.attributes["resource.kubernetes.io"].pciBusID',
        },
        fewer=".rdma",
        narrower="takes RDMA NICs alone: koordra has no other interfaces, which dranet's class takes too",
    ),
)
TO_NVIDIA: Final = (
    Words(
        names.DRIVER,
        "gpu.nvidia.com",
        'device.driver == "gpu.nvidia.com"',
        {names.CLASS_GPU: "gpu.nvidia.com", names.CLASS_MIG: "mig.nvidia.com"},
        frozenset((names.CLASS_NIC, names.CLASS_VF, *names.IMEX_CLASSES)),
        {name: name for name in _COMMON},
        {**{name: name for name in _COMMON}, "parent": "parentUUID"},
        ("memory",),
        _of_koordra,
        types={names.CLASS_GPU: names.TYPE_GPU, names.CLASS_MIG: names.TYPE_MIG},
    ),
)
TO_DRANET: Final = (
    Words(
        names.DRIVER,
        "dra.net",
        'device.driver == "dra.net"',
        {names.CLASS_NIC: "dranet-rdma", names.CLASS_VF: "dranet-vf"},
        frozenset((names.CLASS_GPU, names.CLASS_MIG, *names.IMEX_CLASSES)),
        {"netdev": "ifName", "ibDevice": "rdmaDevice", "numaNode": "numaNode"},
        {"netdev": "ifName", "ibDevice": "rdmaDevice", "numaNode": "numaNode"},
        (),
        _nic_of_koordra,
    ),
)
DRANET: Final = "dranet"
WORDS: Final = {KOORDRA: TO_KOORDRA, DRANET: TO_DRANET}
_OF_DRANET: Final = 'device.driver == "dra.net" && device.attributes["dra.net"].rdma == true'
BROUGHT: Final = {
    "dranet-rdma": f'{_OF_DRANET} && device.attributes["dra.net"].isSriovVf == false',
    "dranet-vf": f'{_OF_DRANET} && device.attributes["dra.net"].isSriovVf == true',
}
"""Classes that no chart brings -> what they select. They come with the claims that name them."""
