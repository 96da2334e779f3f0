"""The addresses of a NIC's interface in the pod: what the class says, or one of its pool. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from koordra.api.opaque.rdma_network import RdmaNetwork
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.network.address_pools import Pool, free_address, pooled
from koordra.kubelet_plugin.network.consumers import Consumers
from koordra.node_state.claim_network import NetworkKind, NetworkPlan


def with_addresses(
    record: ClaimRecord,
    device: DeviceRecord,
    plan: NetworkPlan,
    network: RdmaNetwork,
    *,
    rail: int | None,
    routed: bool,
    consumers: Consumers,
    holders: Sequence[ClaimRecord],
) -> NetworkPlan:
    """The plan with an address from the pool that the class names; `routed`: routers of its network give it
    one. Raises PrepareError, also for an address that this host or another claim on it has."""
    used = {
        address
        for holder in holders
        for other in holder.devices
        if holder.ref.uid != record.ref.uid or other.device != device.device
        for address in _addresses(other)
    }
    for address in plan.addresses:
        pool = pooled(address, consumers.pools)
        if pool is not None:
            raise PrepareError(
                f"{record.ref}: RdmaConfig.network.addresses of request {device.request}: {address} is of pool {pool}, which "
                "gives its addresses itself; name the pool in the class, or an address of another network"
            )
        bare = address.partition("/")[0]
        its_own = plan.host_interface if plan.kind is NetworkKind.MOVE else None
        if bare in used or consumers.of_host.get(bare, its_own) != its_own:
            raise PrepareError(
                f"{record.ref}: RdmaConfig.network.addresses of request {device.request}: {address} is this node's or "
                "another claim's; give each claim an address of its own, or name a pool in the class"
            )
    if network.pool is None:
        if plan.kind is NetworkKind.MACVLAN and not plan.addresses and not routed:
            raise PrepareError(
                f"{record.ref}: {device.device} gets a macvlan interface in the pod, which has no address by itself, and RDMA "
                "over Ethernet takes its own from there; name a pool of addresses in the class "
                "(RdmaConfig.network.pool), or addresses there; or say fabric.addressFamily: IPv6 in the class, where "
                "routers of the network give addresses (SLAAC)"
            )
        _refuse_gateways(record, device, plan)
        return plan
    given = consumers.given.get(network.pool)
    if given is None:
        raise PrepareError(
            f"{record.ref}: there is no pool {network.pool} of addresses on this node, only "
            f"{', '.join(consumers.pools) or 'none'}; add it to the file of --network-pools"
        )
    _refuse_hosts(record, given.pool, consumers.of_host)
    own = {
        address
        for holder in holders
        for other in holder.devices
        if holder.ref.uid == record.ref.uid and other.device == device.device
        for address in _addresses(other)
    }
    key = f"{record.ref.uid}/{device.device}"
    try:
        address, of = free_address(given, rail=rail, key=key, used=used, keep=min(own, default=None))
    except PrepareError as error:
        raise PrepareError(f"{record.ref}: {error}") from error
    found = replace(plan, addresses=(address,), routes=(*plan.routes, *of.routes))
    _refuse_gateways(record, device, found)
    return found


def _refuse_gateways(record: ClaimRecord, device: DeviceRecord, plan: NetworkPlan) -> None:
    """Refuse a way that the kernel would not take. It would say so only once the NIC is in the pod, and a
    link that goes in and out at every try is soon taken for a faulty one (discovery/link_flaps.py)."""
    networks = [ipaddress.ip_interface(address).network for address in plan.addresses]
    for destination, gateway in plan.routes:
        via = ipaddress.ip_address(gateway) if gateway else None
        if via and networks and not via.is_link_local and not any(via in network for network in networks):
            raise PrepareError(
                f"{record.ref}: RdmaConfig.network.routes of request {device.request}: {destination} via {via}, which is in "
                f"no network of the interface ({', '.join(plan.addresses)}); write a gateway that is"
            )


def _refuse_hosts(record: ClaimRecord, pool: Pool, of_host: Collection[str]) -> None:
    """Refuse a pool that would give a pod the address of a host."""
    for text in sorted(of_host):
        address = ipaddress.ip_address(text)
        for network in pool.networks:
            if address in network.cidr and not any(address in each for each in network.exclude):
                raise PrepareError(
                    f"{record.ref}: PoolUnsuitable: this node's own address {address} is in {network.cidr} of pool {pool.name}; "
                    "exclude the addresses of the nodes there"
                )


def addresses_in_use(records: Iterable[ClaimRecord]) -> frozenset[str]:
    """Of the claims' NICs in pods, without prefix length."""
    return frozenset(each for record in records for device in record.devices for each in _addresses(device))


def _addresses(device: DeviceRecord) -> list[str]:
    """Without prefix length."""
    return [address.partition("/")[0] for address in device.network.addresses] if device.network else []
