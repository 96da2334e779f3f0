"""What belongs to an RDMA device: its network interfaces, its own one among several, and its character devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from koordra.kubelet_plugin.discovery.sysfs.machine_root import MachineRoot

_VERBS = "sys/class/infiniband_verbs"
_MAD = "sys/class/infiniband_mad"
_VERBS_NODE = re.compile(r"uverbs[0-9]{1,6}", re.ASCII)
_MAD_NODE = re.compile(r"(?:umad|issm)[0-9]{1,6}", re.ASCII)
_NETDEV = re.compile(r"[^/\s:]{1,15}", re.ASCII)


def interfaces(root: MachineRoot, directory: str) -> list[str]:
    return [name for name in root.names(f"{directory}/net") if _NETDEV.fullmatch(name)]


def netdev(root: MachineRoot, base: str, directory: str) -> str | None:
    """The network interface of the first port; None if it is ambiguous.

    RoCE names it beside the port's first GID. Otherwise it is the function's only interface, not counting
    those that are not its own or not of its first port: a NIC in switchdev mode shows representors of its
    VFs, which carry a physical port name like pf0vf3; IPoIB the interfaces of further partitions, which name
    a parent; a function with two ports has a second one, numbered in dev_port.
    """
    named = root.line(f"{base}/ports/1/gid_attrs/ndevs/0")
    if named and _NETDEV.fullmatch(named):
        return named
    candidates = interfaces(root, directory)
    if len(candidates) > 1:
        labels = {name: root.line(f"{directory}/net/{name}/phys_port_name") or "" for name in candidates}
        candidates = [
            name
            for name, label in labels.items()
            if re.fullmatch(r"(?:p\d+)?", label) and root.line(f"{directory}/net/{name}/parent") is None
        ]
    if len(candidates) > 1:
        ports = {name: root.integer(f"{directory}/net/{name}/dev_port") for name in candidates}
        candidates = [name for name, port in ports.items() if port == 0 and None not in ports.values()]
    return candidates[0] if len(candidates) == 1 else None


@dataclass(frozen=True, slots=True)
class CharacterDevices:
    """Which class devices belong to which InfiniBand device: name -> sysfs directories."""

    verbs: Mapping[str, tuple[str, ...]]
    management: Mapping[str, tuple[str, ...]]


def verbs_and_mad(root: MachineRoot) -> CharacterDevices:
    """Which verbs and MAD devices there are, by InfiniBand device."""
    return CharacterDevices(
        verbs=_by_ib_device(root, _VERBS, _VERBS_NODE), management=_by_ib_device(root, _MAD, _MAD_NODE)
    )


def _by_ib_device(root: MachineRoot, directory: str, names: re.Pattern[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in root.names(directory):
        owner = root.line(f"{directory}/{entry}/ibdev") if names.fullmatch(entry) else None
        if owner:
            found[owner] = (*found.get(owner, ()), f"{directory}/{entry}")
    return found
