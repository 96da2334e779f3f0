"""`RdmaConfig.network`: what a NIC's network interface looks like in the pod.

    network:
      interface: rail0
      addresses: [192.168.10.5/24]           or pool: rails
      routes: [{destination: 10.0.0.0/8, gateway: 192.168.10.1}]

Strict, as all of koordra's parameters: what is misspelt is an InvalidParameters that names it.

What decides whom a pod can reach is the operator's: a claim says of it what authority.py lists, and takes
nothing of it away (`over`).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Final

from koordra.api.opaque.authority import NETWORK, refuse_operators
from koordra.api.opaque.rdma_fabric import read_pkey
from koordra.api.reader import Reader

_INTERFACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_GUID: Final = re.compile(
    r"(?![0:]+$)(?:[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}|[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){7})"
)
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
MOST_ENTRIES: Final = 16
"""Of addresses, and of routes."""
_FIELDS: Final = ("interface", "addresses", "pool", "routes", "mtu", "vlan", "guid", "pkey", "attachment")


@dataclass(frozen=True, slots=True)
class Attachment:
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class RdmaNetwork:
    """What a NIC's network interface looks like in the pod."""

    interface: str | None = None
    """Its name there, none that the host has; where absent, the NIC's own, with `pod` or `p` behind it where
    that stays."""
    addresses: tuple[str, ...] = ()
    """With prefix length."""
    pool: str | None = None
    """In place of addresses: from a pool of the operator (docs/rdma.md)."""
    routes: tuple[tuple[str, str], ...] = ()
    """Each with a destination, and a gateway but for what is on the link."""
    mtu: int | None = None
    """Of the interface in the pod."""
    vlan: int | None = None
    """The pod's interface is a VLAN on top of the NIC's."""
    guid: str | None = None
    """InfiniBand: the virtual function's GUID."""
    pkey: int | None = None
    """InfiniBand: the partition of the interface."""
    attachment: Attachment | None = None
    """A NetworkAttachmentDefinition, in place of all else but `interface`; without a namespace it is looked
    for in the claim's."""

    def over(self, of_class: RdmaNetwork) -> RdmaNetwork:
        """A claim's network where its class has one: the class's, but for what a claim may say and does."""
        return replace(of_class, interface=self.interface or of_class.interface, mtu=self.mtu or of_class.mtu)


def decode_network(read: Reader, *, in_claim: bool = False) -> RdmaNetwork:
    """Raises InvalidParameters naming the field and what it may be."""
    read.only(*_FIELDS)
    if in_claim:
        refuse_operators(read, read.data.keys(), of=NETWORK)
    for name in ("addresses", "routes"):
        if len(read.sequence(name)) > MOST_ENTRIES:
            raise read.wrong(f"it is not a list of at most {MOST_ENTRIES} entries", at=name)
    network = RdmaNetwork(
        interface=read.matching("interface", _INTERFACE, "an interface name of at most 15 characters"),
        addresses=tuple(
            _address(item, read, f"addresses[{n}]") for n, item in enumerate(read.sequence("addresses"))
        ),
        pool=read.matching("pool", _LABEL, "the name of a pool"),
        routes=tuple(_route(each) for each in read.each("routes")),
        mtu=read.between("mtu", 68, 65535),
        vlan=read.between("vlan", 1, 4094),
        guid=read.matching("guid", _GUID, "a GUID such as 0011:2233:4455:6677"),
        pkey=read_pkey(read),
        attachment=_attachment(attachment) if (attachment := read.optional("attachment")) else None,
    )
    others = sorted(read.data.keys() - {"attachment", "interface"})
    if network.attachment is not None and others:
        raise read.wrong(
            f"stands beside {', '.join(others)}",
            "the attachment says all of that; leave one out",
            at="attachment",
        )
    if network.pool and network.addresses:
        raise read.wrong("stands beside addresses", "the pool gives them; leave one out", at="pool")
    if network.interface in {"lo", "eth0", "all", "default"}:
        raise read.wrong(f"{network.interface!r} is taken in every pod", "use another name", at="interface")
    return network


def _address(value: object, read: Reader, name: str) -> str:
    try:
        if isinstance(value, str) and "/" in value:
            return str(ipaddress.ip_interface(value))
    except ValueError:
        pass
    raise read.wrong(f"{value!r} is not an address with prefix length", "write 192.168.10.5/24", at=name)


def _route(read: Reader) -> tuple[str, str]:
    read.only("destination", "gateway")
    try:
        destination = ipaddress.ip_network(str(read.data.get("destination", "")), strict=True)
    except ValueError as error:
        raise read.wrong(str(error), "write 10.0.0.0/8", at="destination") from error
    gateway = read.data.get("gateway")
    if gateway is None:
        return str(destination), ""
    try:
        via = ipaddress.ip_address(str(gateway))
    except ValueError as error:
        raise read.wrong(str(error), at="gateway") from error
    if via.version != destination.version:
        raise read.wrong(f"{via} and {destination} are of two kinds", at="gateway")
    return str(destination), str(via)


def _attachment(read: Reader) -> Attachment:
    read.only("name", "namespace")
    name = read.matching("name", _LABEL, "the name of a NetworkAttachmentDefinition")
    if name is None:
        raise read.wrong("it is missing", at="name")
    return Attachment(name, read.matching("namespace", _LABEL, "a namespace"))
