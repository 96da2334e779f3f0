"""`RdmaConfig.fabric`: what communication libraries must know of the network that a NIC is on.

It is the operator's, since it is the network's. It becomes defaults in the libraries' configuration files
(kubelet_plugin/network/fabric_files.py). There is no field for a GID index: an index is one number for all
NICs of a program, and the same address has another index on each of them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from koordra.api.reader import Reader

PKEY: Final = re.compile(r"0[xX](?!0+$|8000$)[0-9a-fA-F]{1,4}")
"""The highest bit says that a member is a full one; without it none is 0 (InfiniBand, 10.9.1)."""
_FIELDS: Final = ("trafficClass", "serviceLevel", "addressFamily", "addressRange", "pkey")


class AddressFamily(StrEnum):
    IPV4 = "IPv4"
    IPV6 = "IPv6"

    @property
    def version(self) -> int:
        return 4 if self is AddressFamily.IPV4 else 6


@dataclass(frozen=True, slots=True)
class RdmaFabric:
    traffic_class: int | None = None
    """The byte whose upper six bits are the DSCP, by which switches choose queues."""
    service_level: int | None = None
    """InfiniBand's lanes; of RoCE the Ethernet priority."""
    address_family: AddressFamily | None = None
    """Of a RoCE NIC's addresses; where absent, that of the addresses given."""
    address_range: str | None = None
    """Of a RoCE NIC's addresses those of this network, with its prefix length, only."""
    pkey: int | None = None
    """InfiniBand: the partition of the verbs; where absent, that of `network`."""

    @property
    def family(self) -> AddressFamily | None:
        """That of the range, or what is said."""
        return _family(self.address_range) if self.address_range else self.address_family


def decode_fabric(read: Reader) -> RdmaFabric:
    """Raises InvalidParameters naming the field and what it may be."""
    read.only(*_FIELDS)
    family = read.choice("addressFamily", tuple(AddressFamily))
    fabric = RdmaFabric(
        traffic_class=read.between("trafficClass", 0, 255),
        service_level=read.between("serviceLevel", 0, 15),
        address_family=AddressFamily(family) if family else None,
        address_range=_network(read),
        pkey=read_pkey(read),
    )
    if fabric.address_range and fabric.address_family not in {None, _family(fabric.address_range)}:
        raise read.wrong(f"{fabric.address_range} is not {fabric.address_family}", at="addressRange")
    return fabric


def read_pkey(read: Reader) -> int | None:
    text = read.matching("pkey", PKEY, 'a partition key; write "0x8001"')
    return None if text is None else int(text, 16)


def _network(read: Reader) -> str | None:
    text = read.text("addressRange")
    try:
        return str(ipaddress.ip_network(text)) if text else None
    except ValueError as error:
        raise read.wrong(str(error), "write 10.10.0.0/16", at="addressRange") from error


def _family(network: str) -> AddressFamily:
    return AddressFamily.IPV6 if ":" in network else AddressFamily.IPV4
