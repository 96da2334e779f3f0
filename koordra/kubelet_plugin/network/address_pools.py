"""Addresses for the interfaces of NICs in pods, from pools that the operator names. Pure.

The pools are a file of the operator's (`--network-pools`, a ConfigMap mounted into the plugin):

    schema: koordra.io/network-pools/v1
    pools:
      - name: rails                              what a class names: RdmaConfig.network.pool
        perNode: 26                              prefix length of the part that a node has of each network
        networks:
          - {cidr: 10.10.0.0/16, rail: 0, gateway: 10.10.255.254, routes: [10.0.0.0/8]}
          - {cidr: 10.11.0.0/16, rail: 1, exclude: [10.11.0.0/28]}

A NIC gets an address of the network of its rail, or of one that names no rail. Each node has a number in the
pool (node_numbers.py), and with it the part of that number of every network: node 3 of the pool above has
10.10.0.192/26 and 10.11.0.192/26. So nodes need not ask each other, and the prefix length of an interface is
the network's, since its neighbours are on the other nodes.

**No address is two pods'.** The plans of the claims in the checkpoint are the only list of what is in use:
a plan with its address is saved before any file says it, and is given up with the claim's record, after the
interface was taken out of the pod. So there is nothing else to keep in step, and nothing to repair after a
crash. The search begins at a place that the claim's uid chooses: an address that was just given up is not the
next one to be used, while switches and neighbours still know it by its old hardware address.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from koordra.api.reader import Reader
from koordra.errors import InvalidManifest, PrepareError
from koordra.node_state.strict_json import Pairs

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

    def part(self, number: int, length: int) -> Network:
        """The part of the node with this number, which is below `parts`."""
        first = int(self.cidr.network_address) + (number << (self.cidr.max_prefixlen - length))
        return ipaddress.ip_network(f"{type(self.cidr.network_address)(first)}/{length}")

    def usable(self, address: Address) -> bool:
        ends = {self.cidr.network_address, self.cidr.broadcast_address, self.gateway}
        return address not in ends and not any(address in network for network in self.exclude)


@dataclass(frozen=True, slots=True)
class Pool:
    """`per_node` is a prefix length, that of a node's part in each network."""

    name: str
    per_node: int
    networks: tuple[PoolNetwork, ...]

    @property
    def parts(self) -> int:
        """How many nodes have a part."""
        return min(1 << (self.per_node - network.cidr.prefixlen) for network in self.networks)

    def network(self, rail: int | None) -> PoolNetwork | None:
        own = (each for each in self.networks if each.rail is not None and each.rail == rail)
        return next(own, next((each for each in self.networks if each.rail is None), None))


@dataclass(frozen=True, slots=True)
class NodePool:
    """A pool, and this node's number in it."""

    pool: Pool
    number: int


def read_pools(text: str, *, source: str) -> Mapping[str, Pool]:
    """The pools of a file, by name. Raises InvalidManifest naming the field."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidManifest(f"no YAML: {error}", object=source) from error
    read = Reader(document, object=source)
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
    length = read.between("perNode", 1, 128)
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
    return PoolNetwork(
        cidr,
        read.between("rail", 0, 999),
        via,
        tuple((str(each), str(via or "")) for each in routes),
        tuple(_cidr(read, each, "exclude") for each in read.texts("exclude")),
    )


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
    part = network.part(given.number, pool.per_node)
    if keep is not None and keep not in used and ipaddress.ip_address(keep) in part:
        return f"{keep}/{network.cidr.prefixlen}", network
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
    for address in _from(part, start):
        if str(address) not in used and network.usable(address):
            return f"{address}/{network.cidr.prefixlen}", network
    there = sum(1 for each in used if ipaddress.ip_address(each) in part)
    raise PrepareError(
        f"PoolExhausted: pool {pool.name}: this node's part {part} of {network.cidr} has {part.num_addresses} addresses, "
        f"{there} of them in use and {part.num_addresses - there} kept free (network, broadcast, gateway, exclude); "
        "end a pod with such a NIC, or make perNode smaller on an empty cluster"
    )


def _from(part: Network, start: int) -> Iterator[Address]:
    """Every address of the part once, from one on; of a large one as many as are asked for."""
    size = part.num_addresses
    return (part[(start + step) % size] for step in range(size))


def pooled(address: str, pools: Mapping[str, Pool]) -> str | None:
    """The name of the pool that gives this address, None if none does."""
    wanted = ipaddress.ip_interface(address).ip
    return next(
        (pool.name for pool in pools.values() for network in pool.networks if wanted in network.cidr), None
    )
