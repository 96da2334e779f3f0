"""Network interfaces over netlink: moved, created, given addresses. The only importer of pyroute2; needs
CAP_NET_ADMIN.

A socket belongs to the network namespace of the thread that opened it, so work in a pod runs in a short-lived
thread that has entered the pod's namespace; the thread ends with its task, and no other thread ever leaves
the host's namespace. Namespaces are named by a path (`/proc/<pid>/ns/net`, `/var/run/netns/...`).

Errors are NodeErrors that name interface and errno.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from koordra.errors import NodeError
from koordra.kubelet_plugin.discovery.host_network import OWN_PORT, UPPER
from koordra.node_state.claim_network import NetworkPlan
from koordra.process.lifecycle import spawn

_CLONE_NEWNET: Final = 0x40000000
_UP: Final = 1
_LINK_LOCAL: Final = 253
_PERMANENT: Final = 0x80
_NO_DETECTION: Final = 0x02
"""Flags of an address: it has no end; nobody is asked whether it is a duplicate."""
_MAIN: Final = 254
_SET_LINK: Final = 19
_METRIC: Final = 4096
"""Above that of the routes of the pod's own network, which of IPv6 is 1024."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LinkState:
    """The state of an interface: restored when it comes back, and reported in the claim's status. Link-local
    addresses are not among `addresses`."""

    name: str
    mtu: int
    up: bool
    mac: str
    addresses: tuple[str, ...]


def inside(netns: str, task: Callable[[], _T]) -> _T:
    """Run the task in a thread that has entered the namespace. Raises what the task raises, or NodeError."""
    result: Future[_T] = Future()

    def run() -> None:
        try:
            with opened_namespace(netns) as descriptor:
                if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), netns)
            result.set_result(task())
        except BaseException as error:  # noqa: BLE001  carried over to the thread that waits
            result.set_exception(error)

    spawn(run, name="in-network-namespace")
    try:
        return result.result()
    except OSError as error:
        why = error.strerror or error
        raise NodeError(f"network namespace {netns}: {why}; is the pod still there?") from error


def _own_port(interface: Path) -> bool:
    """Whether it is the function's own, and no representor of one of its virtual functions (switchdev)."""
    label = ""
    with contextlib.suppress(OSError):  # most drivers have none
        label = (interface / "phys_port_name").read_text(encoding="ascii").strip()
    return OWN_PORT.fullmatch(label) is not None


class NetlinkLinks:
    """The host's interfaces and those of pods. `sys` is where sysfs is mounted, as the host's namespace sees
    it."""

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._sys = sys

    def host_name(self, *, interface: str, bus_id: str) -> str | None:
        """The present name of the NIC's interface on the host, None when it is not there. The kernel may have
        renamed it when a pod's namespace ended."""
        if bus_id:
            with contextlib.suppress(OSError):
                folder = self._sys / f"bus/pci/devices/{bus_id}/net"
                names = sorted(entry.name for entry in folder.iterdir() if _own_port(entry))
                if names:
                    return interface if interface in names else names[0]
        with _route() as route:
            return interface if route.link_lookup(ifname=interface) else None

    def state(self, name: str) -> LinkState:
        """Of an interface of the host, as it can be restored: without what routers gave it (SLAAC)."""
        with _route() as route:
            return _state(route, name, lasting=True)

    def needed(self, name: str) -> str | None:
        """What of the host would end if the interface left it, in words; None if nothing. Links to what
        stands on it are those of discovery/host_network.py."""
        above = sorted(
            path.name.removeprefix(UPPER) for path in (self._sys / "class/net" / name).glob(f"{UPPER}*")
        )
        if above:
            return f"{above[0]} stands on it"
        with _route() as route:
            index = _index(route, name)
            ways = {
                way.get("oif")
                for found in route.get_routes()
                if found["dst_len"] == 0 and found.get("table") == _MAIN
                for way in (found, *(found.get("multipath") or ()))
            }
        return "it carries the host's default route" if index in ways else None

    def state_in(self, netns: str, name: str) -> LinkState | None:
        """An interface of a pod, None where it has none of that name."""
        return _inside(netns, lambda route: _state(route, name) if route.link_lookup(ifname=name) else None)

    def name_in(self, netns: str, *, interface: str, bus_id: str) -> str | None:
        """The present name of a NIC's interface in a pod, whose root may have renamed it; None when it is not
        there."""

        def task(route: Any) -> str | None:
            names = {
                str(link.get("ifname")): link.get("parent_dev_name") if bus_id else None
                for link in route.get_links()
            }
            own = [name for name, function in names.items() if function == bus_id]
            return next(iter(own), interface if interface in names else None)

        return _inside(netns, task)

    def addresses(self) -> dict[str, str]:
        """Every address of the host, without its length, and the interface that has it."""
        with _route() as route:
            return _addresses(route)

    def addresses_in(self, netns: str) -> dict[str, str]:
        """The same of a pod."""
        return _inside(netns, _addresses)

    def move_into(self, name: str, *, netns: str, as_name: str) -> None:
        """Take the interface from the host into the pod, under another name. It is down afterwards."""
        with _route() as route, opened_namespace(netns) as descriptor:
            _move(route, name, descriptor, as_name)

    def move_back(self, name: str, *, netns: str, as_name: str) -> None:
        """Bring it back to the namespace of this process."""
        with opened_namespace("/proc/self/ns/net") as home:
            _inside(netns, lambda route: _move(route, name, home, as_name))

    def restore(self, name: str, *, as_name: str, mtu: int, up: bool, addresses: tuple[str, ...]) -> None:
        """Make an interface of the host what it was before it went away."""
        with _route() as route:
            index = _index(route, name)
            if name != as_name:
                route.link("set", index=index, state="down")
                route.link("set", index=index, ifname=as_name)
            route.link("set", index=index, mtu=mtu)
            if up:
                route.link("set", index=index, state="up")
            for address in addresses:
                _add_address(route, index, address)

    def add_macvlan(self, parent: str, *, netns: str, as_name: str) -> None:
        """A macvlan interface on top of a host's one, in the pod. It starts under a name of its own, since
        `as_name` may be taken on the host."""
        temporary = f"kd{os.getpid() % 100000}x{threading.get_ident() % 1000000}"[:15]
        with _route() as route, opened_namespace(netns) as descriptor:
            route.link(
                "add", ifname=temporary, kind="macvlan", link=_index(route, parent), macvlan_mode="bridge"
            )
            index = _index(route, temporary)
            try:
                route.link("set", index=index, net_ns_fd=descriptor, ifname=as_name)
            except BaseException:
                route.link("del", index=index)
                raise

    def add_child(self, parent: str, plan: NetworkPlan, *, netns: str) -> None:
        """In the pod: the planned VLAN on top of an interface, or the InfiniBand partition of it."""

        def task(route: Any) -> None:
            link = _index(route, parent)
            route.link("set", index=link, state="up")
            vlan = {"kind": "vlan", "vlan_id": plan.vlan}
            kind = vlan if plan.vlan is not None else {"kind": "ipoib", "pkey": plan.pkey}
            route.link("add", ifname=plan.interface, link=link, **kind)

        _inside(netns, task)

    def delete_in(self, netns: str, name: str) -> None:
        """Remove an interface that was made in the pod; success where there is none."""

        def task(route: Any) -> None:
            for index in route.link_lookup(ifname=name):
                route.link("del", index=index)

        _inside(netns, task)

    def configure(self, plan: NetworkPlan, *, netns: str) -> LinkState:
        """Bring the planned interface of the pod up, with addresses and routes; repeating changes nothing.
        Its number is in its routes' metric, so that each interface has its own, which RDMA asks for, and the
        pod's other routes come before them."""

        def task(route: Any) -> LinkState:
            index = _index(route, plan.interface)
            if plan.mtu is not None:
                with _said(
                    f"MTU {plan.mtu} of {plan.interface}", "is it more than that of the NIC on the host?"
                ):
                    route.link("set", index=index, mtu=plan.mtu)
            _answer_for_itself(index)
            route.link("set", index=index, state="up")
            for address in plan.addresses:
                with _said(f"address {address} of {plan.interface}"):
                    _add_address(route, index, address)
            for destination, gateway in plan.routes:
                via: dict[str, Any] = {"gateway": gateway} if gateway else {"scope": _LINK_LOCAL}
                with _said(
                    f"route to {destination} via {gateway}", "has the interface an address in its network?"
                ):
                    route.route("replace", dst=destination, oif=index, priority=_METRIC + index, **via)
            return _state(route, plan.interface)

        return _inside(netns, task)


def _inside(netns: str, task: Callable[[Any], _T]) -> _T:

    def run() -> _T:
        with _route() as route:
            return task(route)

    return inside(netns, run)


@contextmanager
def _said(what: str, why: str = "") -> Iterator[None]:
    """Say what could not be done."""
    try:
        yield
    except NetlinkError as error:
        raise NodeError(f"{what}: {os.strerror(error.code)}; {why}".rstrip("; ")) from error


@contextmanager
def _route() -> Iterator[Any]:
    try:
        with IPRoute() as route:
            yield route
    except NetlinkError as error:
        raise NodeError(f"netlink: {error.args[1] if len(error.args) > 1 else error}") from error
    except OSError as error:
        raise NodeError(f"netlink: {error.strerror or error}; CAP_NET_ADMIN is needed") from error


@contextmanager
def opened_namespace(netns: str) -> Iterator[int]:
    try:
        descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NodeError(f"network namespace {netns}: {error.strerror}; is the pod still there?") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _addresses(route: Any) -> dict[str, str]:
    names = {link["index"]: str(link.get("ifname")) for link in route.get_links()}
    entries = route.get_addr()
    return {str(each.get("local") or each.get("address")): names.get(each["index"], "") for each in entries}


def _index(route: Any, name: str) -> int:
    found = route.link_lookup(ifname=name)
    if not found:
        raise NodeError(f"there is no network interface {name} here")
    return int(found[0])


def _move(route: Any, name: str, descriptor: int, as_name: str) -> None:
    index = _index(route, name)
    route.link("set", index=index, state="down")
    route.link("set", index=index, net_ns_fd=descriptor, ifname=as_name)


def _state(route: Any, name: str, *, lasting: bool = False) -> LinkState:
    index = _index(route, name)
    link = route.get_links(index)[0]
    # The kernel restores IPv6 link-local addresses itself, and asks routers anew.
    return LinkState(
        name=name,
        mtu=int(link.get("mtu") or 0),
        up=bool(link["flags"] & _UP),
        mac=str(link.get("address") or ""),
        addresses=tuple(
            f"{entry.get('local') or entry.get('address')}/{entry['prefixlen']}"
            for entry in route.get_addr(index=index)
            if entry["scope"] != _LINK_LOCAL
            and not (lasting and entry["family"] == socket.AF_INET6 and not entry["flags"] & _PERMANENT)
        ),
    )


def _answer_for_itself(index: int) -> None:
    """The interface answers requests for its own addresses alone, and asks by them (arp_ignore 1,
    arp_announce 2): of two in one network the kernel lets each answer for both, and what RDMA sends to the
    one comes to the other. By netlink, as /proc/sys is read-only in a container; pyroute2 cannot write these
    (IFLA_AF_SPEC 26, AF_INET 2, IFLA_INET_CONF 1; settings 18 and 19)."""
    settings = struct.pack("=HHHHHHHHIHHI", 28, 26, 24, 2, 20, 1, 8, 18, 2, 8, 19, 1)
    message = (
        struct.pack("=IHHIIBxHiII", 32 + len(settings), _SET_LINK, 5, 1, 0, 0, 0, index, 0, 0) + settings
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.send(message)
        (code,) = struct.unpack_from("=i", link.recv(4096), 16)
    if code:
        raise NodeError(f"arp_ignore and arp_announce cannot be set: {os.strerror(-code)}")


def _add_address(route: Any, index: int, address: str) -> None:
    """Usable at once: that nobody else has it is its pool's to know, or its user's."""
    host, _, length = address.partition("/")
    flags = _NO_DETECTION if ":" in host else 0
    try:
        route.addr("add", index=index, address=host, prefixlen=int(length), flags=flags)
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise
