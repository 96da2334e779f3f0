"""What the host itself needs of its network interfaces: which carry its default route, which are part of a
bond or a bridge, and on which others stand (a VLAN, a macvlan, a tunnel). A NIC on which the host depends
stays on the host (network/network_decision.py).

The routes are those of process 1: the host's, where the plugin sees its processes or is on its network. Of a
route over several interfaces the kernel shows the first here; whoever moves one looks again, over netlink.

What stands on an interface are its links `upper_<name>` in sysfs, of the host's own namespace only: the
macvlans of pods are not among them. An interface that moves takes the ground from under them.

RoCE LAG is two ports of a card in one bond: the driver shows one RDMA device, `mlx5_bond_0` on the first
function, whose port names the bond as its interface. The function's own interface is the bond's then, and so
is what is taken from it.

`rdma system`: whether RDMA devices belong to network namespaces (exclusive), by the parameter of ib_core that
the kernel keeps up to date.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from koordra.kubelet_plugin.discovery.machine_root import MachineRoot

ROUTES = "proc/1/net/route"
ROUTES_6 = "proc/1/net/ipv6_route"
NETNS_MODE = "sys/module/ib_core/parameters/netns_mode"
INTERFACES = "sys/class/net"
UPPER = "upper_"
OWN_PORT = re.compile(r"(?:p\d+)?", re.ASCII)
"""What `phys_port_name` says of a function's own interface; representors of virtual functions are pf0vf3."""
_UP = 0x1
_REJECT = 0x200


def default_route_interfaces(root: MachineRoot) -> tuple[str, ...]:
    """The interfaces with a default route of either family, sorted."""
    found = set()
    for line in root.text(ROUTES).splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000" and _usable(fields[3]):
            found.add(fields[0])
    for line in root.text(ROUTES_6).splitlines():
        fields = line.split()
        if len(fields) > 9 and set(fields[0]) == {"0"} and fields[1] == "00" and _usable(fields[8]):
            found.add(fields[9])
    return tuple(sorted(found - {"lo"}))


def _usable(flags: str) -> bool:
    try:
        return int(flags, 16) & (_UP | _REJECT) == _UP
    except ValueError:
        return False


def upper_interface(root: MachineRoot, directory: str, interface: str) -> str | None:
    """The bond or bridge that the interface of a function is a part of."""
    return next(iter(root.link(f"{directory}/net/{interface}/master")[-1:]), None)


def host_needs(root: MachineRoot, interface: str, default_routes: Collection[str]) -> bool:
    """Whether the host's default route goes by the interface, or an interface of its own stands on it. Of a
    LAG that is the bond."""
    above = any(name.startswith(UPPER) for name in root.names(f"{INTERFACES}/{interface}"))
    return above or interface in default_routes


def rdma_exclusive(root: MachineRoot) -> bool:
    return root.line(NETNS_MODE) == "N"
