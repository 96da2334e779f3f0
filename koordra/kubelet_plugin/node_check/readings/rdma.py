"""The RDMA devices of a node: NICs that could have one, modules, ports with their GIDs, device nodes, and the
mode of network namespaces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.node_check.readings.live_node import LiveNode
from koordra.topology.location import BUS_ID

_CLASS: Final = "sys/class/infiniband"
_PCI: Final = "sys/bus/pci/devices"
_NETWORK: Final = 0x02
_MELLANOX: Final = 0x15B3
MODULES: Final = ("ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "nvidia_peermem", "mlx5_ib")
_GID: Final = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}", re.ASCII)
_NO_GID: Final = "0000:0000:0000:0000:0000:0000:0000:0000"
_LINK_LOCAL: Final = "fe80"
_MOST_GIDS: Final = 256


@dataclass(frozen=True, slots=True)
class Port:
    """`routable_v2`: it has a RoCE v2 GID of an address that is not only of the link. `rate` as the kernel
    writes it."""

    device: str
    number: str
    state: str
    link_layer: str
    rate: str
    netdev: str | None
    mtu: int | None
    gids: int
    v2: bool
    routable_v2: bool


@dataclass(frozen=True, slots=True)
class Rdma:
    """`capable`: Mellanox NICs without an RDMA device; `exclusive`: RDMA devices belong to network
    namespaces, None where that is not known; `functions`: which of `devices` are PCI functions."""

    devices: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    capable: tuple[str, ...] = ()
    modules: frozenset[str] = frozenset()
    ports: tuple[Port, ...] = ()
    exclusive: bool | None = None
    has_connection_manager: bool = False
    without_verbs: tuple[str, ...] = ()


def read_rdma(root: HostFiles, live: LiveNode) -> Rdma:
    devices = tuple(root.names(_CLASS))
    functions = tuple(name for name in devices if "virtual" not in root.link(f"{_CLASS}/{name}"))
    verbs = {
        root.line(f"sys/class/infiniband_verbs/{entry}/ibdev")
        for entry in root.names("sys/class/infiniband_verbs")
        if root.device_node(f"/dev/infiniband/{entry}")
    }
    return Rdma(
        devices=devices,
        functions=functions,
        capable=tuple(
            name
            for name in filter(BUS_ID.fullmatch, root.names(_PCI))
            if root.integer(f"{_PCI}/{name}/vendor") == _MELLANOX
            and (root.integer(f"{_PCI}/{name}/class") or 0) >> 16 == _NETWORK
            and not root.names(f"{_PCI}/{name}/infiniband")
        ),
        modules=frozenset(name for name in MODULES if root.is_folder(f"sys/module/{name}")),
        ports=tuple(_port(root, name, number) for name in functions for number in _port_numbers(root, name)),
        exclusive=_exclusive(root, live) if devices else None,
        has_connection_manager=root.device_node("/dev/infiniband/rdma_cm") is not None,
        without_verbs=tuple(name for name in functions if name not in verbs),
    )


def _exclusive(root: HostFiles, live: LiveNode) -> bool | None:
    """The module's parameter is the mode at its start; the kernel knows the present one."""
    now = live.rdma_exclusive()
    if now is not None:
        return now
    shared = root.line("sys/module/ib_core/parameters/netns_mode")
    return {"Y": False, "1": False, "N": True, "0": True}.get(shared)


def _port_numbers(root: HostFiles, device: str) -> list[str]:
    return [name for name in root.names(f"{_CLASS}/{device}/ports") if name.isdecimal() and len(name) < 4]


def _port(root: HostFiles, device: str, number: str) -> Port:
    base = f"{_CLASS}/{device}/ports/{number}"
    gids = {
        entry: gid
        for entry in root.names(f"{base}/gids")[:_MOST_GIDS]
        if _GID.fullmatch(gid := root.line(f"{base}/gids/{entry}").lower()) and gid != _NO_GID
    }
    v2 = [gid for entry, gid in gids.items() if "v2" in root.line(f"{base}/gid_attrs/types/{entry}")]
    netdev = root.line(f"{base}/gid_attrs/ndevs/0") or next(
        iter(root.names(f"{_CLASS}/{device}/../../net")), ""
    )
    return Port(
        device=device,
        number=number,
        state=root.line(f"{base}/state").partition(": ")[2],
        link_layer=root.line(f"{base}/link_layer"),
        rate=root.line(f"{base}/rate"),
        netdev=netdev or None,
        mtu=root.integer(f"sys/class/net/{netdev}/mtu") if netdev else None,
        gids=len(gids),
        v2=bool(v2),
        routable_v2=any(not gid.startswith(_LINK_LOCAL) for gid in v2),
    )
