"""IP addresses and CIDRs in CEL, as Kubernetes has them; values are their canonical text.

    ip("10.0.0.7")          family, isUnspecified, isLoopback, isLinkLocalMulticast, isLinkLocalUnicast, isGlobalUnicast
    cidr("10.0.0.0/8")      containsIP, containsCIDR, ip, prefixLength, masked (bits behind the prefix are kept until then)

Addresses have neither zones nor the form of an IPv4 address in IPv6; a prefix is digits without a leading zero. Every function
raises ValueError for what is a run-time error in Kubernetes.

Source: k8s.io/apiserver/pkg/cel/library (ip, cidr), Go's net/netip; what Python's ipaddress calls loopback, link-local and so on
is what Go does.
"""

from __future__ import annotations

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Interface | ipaddress.IPv6Interface
"""An address with a prefix, whose bits behind the prefix are kept."""


def read_ip(text: str) -> Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError(f"IP Address {text!r} parse error during conversion from string") from error
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise ValueError(f"IP address {text!r} with zone value is not allowed")
        if address.ipv4_mapped is not None:
            raise ValueError(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return address


def read_cidr(text: str) -> Network:
    where, slash, bits = text.rpartition("/")
    if not slash or not re.fullmatch(r"0|[1-9][0-9]{0,2}", bits, re.ASCII):
        raise ValueError(f"network address parse error during conversion from string: {text!r}")
    address = read_ip(where)
    if int(bits) > address.max_prefixlen:
        raise ValueError(
            f"network address parse error during conversion from string: {text!r}: too many bits"
        )
    return ipaddress.ip_interface((str(address), int(bits)))


def is_canonical(text: str) -> bool:
    return str(read_ip(text)) == text


def is_link_local_multicast(address: Address) -> bool:
    if address.version == 6:
        return int(address) >> 112 & 0xFF0F == 0xFF02
    return address in ipaddress.IPv4Network("224.0.0.0/24")


def is_global_unicast(address: Address) -> bool:
    """Private addresses count; broadcast, multicast and what does not leave the link do not."""
    return not (
        (address.version == 4 and int(address) == 2**32 - 1)
        or address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
    )
