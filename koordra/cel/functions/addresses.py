"""IP addresses and CIDRs in CEL, as Kubernetes has them; values are their canonical text.

    ip("10.0.0.7")          family, isUnspecified, isLoopback, isLinkLocalMulticast, isLinkLocalUnicast, isGlobalUnicast
    cidr("10.0.0.0/8")      containsIP, containsCIDR, ip, prefixLength, masked (bits behind the prefix are kept until then)

Addresses have neither zones nor the form of an IPv4 address in IPv6; a prefix is digits without a leading zero. Every function
raises ValueError for what is a run-time error in Kubernetes.

Source: k8s.io/apiserver/pkg/cel/library (ip, cidr), Go's net/netip.
"""

from __future__ import annotations

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = tuple[Address, int]


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
    return address, int(bits)


def cidr_text(network: Network) -> str:
    return f"{network[0]}/{network[1]}"


def is_canonical(text: str) -> bool:
    return str(read_ip(text)) == text


def _is(address: Address, v4: str, v6: str) -> bool:
    networks = {4: ipaddress.ip_network(v4), 6: ipaddress.ip_network(v6)}
    return address in networks[address.version]


def is_unspecified(address: Address) -> bool:
    return int(address) == 0


def is_loopback(address: Address) -> bool:
    return _is(address, "127.0.0.0/8", "::1/128")


def is_link_local_unicast(address: Address) -> bool:
    return _is(address, "169.254.0.0/16", "fe80::/10")


def is_link_local_multicast(address: Address) -> bool:
    if address.version == 6:
        return int(address) >> 112 & 0xFF0F == 0xFF02
    return _is(address, "224.0.0.0/24", "::/128")


def is_global_unicast(address: Address) -> bool:
    """Private addresses count; broadcast, multicast and what does not leave the link do not."""
    return not (
        is_unspecified(address)
        or (address.version == 4 and int(address) == 2**32 - 1)
        or is_loopback(address)
        or _is(address, "224.0.0.0/4", "ff00::/8")
        or is_link_local_unicast(address)
    )


def masked(network: Network) -> Network:
    address, bits = network
    found = ipaddress.ip_network(
        (int(address).to_bytes(address.max_prefixlen // 8, "big"), bits), strict=False
    )
    return found.network_address, bits


def contains_ip(network: Network, address: Address) -> bool:
    if network[0].version != address.version:
        return False
    return masked(network)[0] == masked((address, network[1]))[0]


def contains_cidr(network: Network, other: Network) -> bool:
    return network[1] <= other[1] and contains_ip(network, other[0])
