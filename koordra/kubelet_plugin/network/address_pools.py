"""Addresses for the interfaces of NICs in pods, from pools that the operator names. Pure.

The pools are a file of the operator's (`--network-pools`, a ConfigMap mounted into the plugin):

    schema: koordra.io/network-pools/v1
    pools:
      - name: rails                              what a class names: RdmaConfig.network.pool
        perNode: 26                              prefix length of the part that a node has of each network
        networks:
          - {cidr: 10.10.0.0/16, rail: 0, gateway: 10.10.255.254, routes: [10.0.0.0/8]}
          - {cidr: 10.11.0.0/16, rail: 1, exclude: [10.11.0.0/28]}

A NIC gets an address of the network of its rail, or of one that names no rail. Each node has a part of every
network (node_parts.py): one of the pool above has 10.10.0.192/26 and 10.11.0.192/26. So nodes need not ask
each other for an address, and the prefix length of an interface is the network's, since its neighbours are on
the other nodes. What `exclude` covers is nobody's; the hosts' own addresses belong there.

**No address is two pods'.** The plans of the claims in the checkpoint are the only list of what is in use:
a plan with its address is saved before any file says it, and is given up with the claim's record, after the
interface was taken out of the pod. So there is nothing else to keep in step, and nothing to repair after a
crash. The search begins at a place that the claim's uid chooses: an address that was just given up is not the
next one to be used, while switches and neighbours still know it by its old hardware address.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from koordra.api.reader import Reader
from koordra.errors import PrepareError
from koordra.node_state.strict_json import Pairs
from koordra.yaml_text import read_document

SCHEMA: Final = "koordra.io/network-pools/v1"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class PoolNetwork:
    """`rail` None: of any rail. `routes` are pairs of destination and gateway."""

    cidr: Network
    rail: int | None = None
    gateway: Address | None = None
    routes: Pairs = ()
    exclude: tuple[Network, ...] = ()

    def nobodys(self, address: Address) -> Network | None:
        """What the address is a part of that nobody gets: an exclusion, or itself as the gateway or an end
        of the network. A network of two has no ends (RFC 3021)."""
        ends = (
            {self.cidr.network_address, self.cidr.broadcast_address} if self.cidr.num_addresses > 2 else set()
        )
        own = ipaddress.ip_network(address)
        return (
            own
            if address in {*ends, self.gateway}
            else next((each for each in self.exclude if address in each), None)
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """`per_node` is a prefix length, that of a node's part in each network."""

    name: str
    per_node: int
    networks: tuple[PoolNetwork, ...]

    def network(self, rail: int | None) -> PoolNetwork | None:
        own = (each for each in self.networks if each.rail is not None and each.rail == rail)
        return next(own, next((each for each in self.networks if each.rail is None), None))


@dataclass(frozen=True, slots=True)
class NodePool:
    """A pool, and this node's part of each of its networks."""

    pool: Pool
    parts: tuple[Network, ...]


def read_pools(text: str, *, source: str) -> Mapping[str, Pool]:
    """The pools of a file, by name. Raises InvalidManifest naming the field."""
    read = Reader(read_document(text, source=source), object=source)
    read.only("schema", "pools")
    if read.text("schema") != SCHEMA:
        raise read.wrong("is no list of pools", f"write schema: {SCHEMA}", at="schema")
    pools = {pool.name: pool for pool in map(_pool, read.each("pools"))}
    networks = [(pool, each.cidr) for pool in pools.values() for each in pool.networks]
    if len(pools) < len(read.sequence("pools")):
        raise read.wrong("two pools have one name", at="pools")
    for index, (pool, cidr) in enumerate(networks):
        for other, second in networks[:index]:
            if cidr.version == second.version and cidr.overlaps(second):
                raise read.wrong(f"{second} of {other.name} and {cidr} of {pool.name} overlap", at="pools")
    return pools


def _pool(read: Reader) -> Pool:
    read.only("name", "perNode", "networks")
    networks = tuple(map(_network, read.each("networks")))
    length = read.between("perNode")
    if length is None or not networks:
        raise read.wrong("it is missing", at="networks" if length else "perNode")
    for network in networks:
        if not network.cidr.prefixlen <= length <= network.cidr.max_prefixlen - 1:
            raise read.wrong(
                f"a part of /{length} is none of {network.cidr}",
                "write a prefix length between the network's and that of two addresses",
                at="perNode",
            )
    rails = [network.rail for network in networks]
    if len({*rails}) < len(rails):
        raise read.wrong("two networks are of one rail", "name another rail", at="networks")
    return Pool(read.required("name"), length, networks)


def _network(read: Reader) -> PoolNetwork:
    read.only("cidr", "rail", "gateway", "routes", "exclude")
    cidr = _cidr(read, read.required("cidr"), "cidr")
    gateway = read.text("gateway")
    try:
        via = ipaddress.ip_address(gateway) if gateway else None
    except ValueError as error:
        raise read.wrong(str(error), at="gateway") from error
    if via is not None and via not in cidr:
        raise read.wrong(f"{via} is not in {cidr}", at="gateway")
    routes = tuple(_cidr(read, each, "routes") for each in read.texts("routes"))
    exclude = tuple(_cidr(read, each, "exclude") for each in read.texts("exclude"))
    for each in routes:
        if each.version != cidr.version:
            raise read.wrong(f"{each} is not of the kind of {cidr}", at="routes")
    for each in exclude:
        if not within(each, cidr):
            raise read.wrong(f"{each} is not in {cidr}", at="exclude")
    pairs = tuple((str(each), str(via or "")) for each in routes)
    return PoolNetwork(cidr, read.between("rail", 0, 999), via, pairs, exclude)


def _cidr(read: Reader, text: str, name: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise read.wrong(str(error), "write 10.10.0.0/16", at=name) from error


def free_address(
    given: NodePool, *, rail: int | None, key: str, used: Collection[str], keep: str | None = None
) -> tuple[str, PoolNetwork]:
    """An address with the network's prefix length, and the network. `used` are addresses without a length;
    `keep` is one that the claim has already. Raises PrepareError with the pool and the figures."""
    pool = given.pool
    network = pool.network(rail)
    if network is None:
        rails = ", ".join(str(each.rail) for each in pool.networks)
        where = "no known rail" if rail is None else f"rail {rail}"
        raise PrepareError(
            f"PoolUnsuitable: pool {pool.name} has networks of rails {rails}, and the NIC is on {where}; "
            "add a network, or one without a rail"
        )
    part = given.parts[pool.networks.index(network)]
    if keep is not None and keep not in used and ipaddress.ip_address(keep) in part:
        return f"{keep}/{network.cidr.prefixlen}", network
    address = _free_address(network, part, key=key, used=used)
    if address is not None:
        return f"{address}/{network.cidr.prefixlen}", network
    there = sum(1 for each in used if ipaddress.ip_address(each) in part)
    raise PrepareError(
        f"PoolExhausted: pool {pool.name}: this node's part {part} of {network.cidr} has {part.num_addresses} addresses, "
        f"{there} of them in use and the others kept free (network, broadcast, gateway, exclude); end a pod with such a NIC, "
        "or add a network to the pool"
    )


def _free_address(network: PoolNetwork, part: Network, *, key: str, used: Collection[str]) -> Address | None:
    """The first that is free from a place on that the key chooses, around the part's end. An exclusion is
    passed at once: one may have more addresses than can be counted."""
    size = part.num_addresses
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16])
    step = 0
    while step < size:
        address = part[(start + step) % size]
        nobodys = network.nobodys(address)
        if nobodys is None and str(address) not in used:
            return address
        last = (
            int(address)
            if nobodys is None
            else min(int(nobodys.broadcast_address), int(part.broadcast_address))
        )
        step += last - int(address) + 1
    return None


def free_part(network: PoolNetwork, length: int, *, taken: Iterable[Network]) -> Network | None:
    """The first part of this prefix length that overlaps none of the taken, and of which not all is
    excluded; None if there is none."""
    size = 1 << (network.cidr.max_prefixlen - length)
    apart = [each for each in taken if each.version == network.cidr.version]
    apart += [each for each in network.exclude if each.prefixlen <= length]
    at = int_of(network.cidr)
    for each in sorted(apart, key=int_of):
        if int_of(each) >= at + size:
            break
        at = max(at, -(-(int(each.broadcast_address) + 1) // size) * size)
    if at + size - 1 > int(network.cidr.broadcast_address):
        return None
    return type(network.cidr)((at, length))


def within(part: Network, network: Network) -> bool:
    """Whether all of the part is in the network."""
    return part.version == network.version and (
        int_of(network) <= int_of(part) and int(part.broadcast_address) <= int(network.broadcast_address)
    )


def int_of(network: Network) -> int:
    return int(network.network_address)


def pooled(address: str, pools: Mapping[str, Pool]) -> str | None:
    """The name of the pool that gives this address, None if none does."""
    wanted = ipaddress.ip_interface(address).ip
    return next(
        (pool.name for pool in pools.values() for network in pool.networks if wanted in network.cidr), None
    )
