"""What happens to each NIC of a claim in its pod's network, decided in Prepare. Pure.

    device                           pod on the host's network   any other pod
    virtual function                 nothing                     Move
    NIC, RdmaConfig mode Exclusive   nothing                     Move
    share of a RoCE NIC              nothing                     Macvlan on top of it
    share of an InfiniBand NIC       nothing                     nothing: its verbs need no network interface
    any, with `network.attachment`   refused                     Attach: by the CNI plugin
    any that the pod's Multus asks   nothing                     Others: Multus attaches it, with the address
    for by its resource name                                     that the node publishes (publish/)

On a node without `--pod-network` nothing is done, and a RoCE NIC for a pod off the host's network is useless
unless Multus gives the pod an interface of it. So it is Absent (or Others): the claim's condition and an
Event say what to do, or Prepare refuses, where the operator wants that (`--roce-without-network refuse`).

Nothing that the host needs moves: the NIC with its default route, one with a VLAN or another interface of the
host on top, and RoCE LAG (two ports in one bond). A
claim that has such a RoCE NIC alone gets a macvlan on top of it too, of an InfiniBand NIC the verbs. An
interface that is part of a bridge, or of a bond of which the RDMA device knows nothing, is refused.

Where RDMA devices belong to network namespaces (`rdma system`: exclusive), a device is in one: a share of a
NIC for a pod off the host's network is refused, since the pod would not see it.

RoCE takes its addresses (GIDs) from network interfaces of the process's own network namespace, so a share of
a RoCE NIC without an interface in the pod would carry no traffic. InfiniBand has its own addresses.

Addresses: those that the claim's class says; one of the pool that it names (address_pools.py); or, of a
NIC that moves and has neither, those that it has on the host.

Refused: `network` on the host's network, and where the pod's Multus would decide in its place; an address
that a pool gives; one fixed address for several devices; mode Exclusive for a part of a NIC;
a NIC that moves into a pod while the claim is reserved for several; and `network` on a node whose plugin runs
without `--pod-network`, which needs the NRI hook (`koordra nri --pod-network`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from koordra.api import names
from koordra.api.opaque.configuration import Configuration
from koordra.api.opaque.parameters import RdmaConfig, RdmaMode
from koordra.api.opaque.rdma_fabric import AddressFamily, RdmaFabric
from koordra.api.opaque.rdma_network import RdmaNetwork
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.network.consumers import NETWORKS_ANNOTATION, Consumers
from koordra.kubelet_plugin.network.interface_addresses import with_addresses
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.node_state.claim_network import NetworkKind, NetworkPlan
from koordra.quantity import parse
from koordra.topology.machine import Nic

_ETHERNET: Final = "Ethernet"
NO_NETWORK: Final = "NoNetworkInPod"
"""the claim's NIC is used in a pod that has no network interface of it"""
NO_NETWORK_MESSAGE: Final = (
    "RDMA over Ethernet takes its addresses from network interfaces of the pod's own network namespace, and in mode "
    "exclusive any RDMA device is seen in its own alone, and nobody puts this NIC there; start the kubelet plugin and the NRI hook with --pod-network, give the pod a Multus "
    "network on the NIC, or set hostNetwork: true"
)
"""What to do."""


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """The operator's word. `managed`: koordra puts NICs into pods (`--pod-network`); `refuses`: where it does
    not, a RoCE NIC for a pod off the host's network is refused rather than reported."""

    managed: bool = False
    refuses: bool = False


UNMANAGED: Final = NetworkPolicy()


def network_plans(
    record: ClaimRecord,
    config: Configuration,
    *,
    inventory: NodeInventory,
    consumers: Consumers | None,
    policy: NetworkPolicy,
    holders: Sequence[ClaimRecord] = (),
) -> tuple[NetworkPlan | None, ...]:
    """The plan of each device, None where there is nothing to do or to say. `consumers` None: unknown.
    `holders` are the claims prepared in this boot, this one's earlier record among them."""
    if consumers is not None and consumers.problem:
        raise PrepareError(f"{record.ref}: {consumers.problem}")
    plans: list[NetworkPlan | None] = []
    for device in record.devices:
        plan = None
        if _is_nic(device):
            if consumers is not None and consumers.group:
                raise PrepareError(
                    f"{record.ref}: {device.device} is a NIC, which one pod gets, and the claim is reserved for PodGroup "
                    f"{consumers.group}, whose pods share it; give each pod a claim of its own (a template)"
                )
            plan = _plan(
                record,
                device,
                config.rdma(device.request),
                inventory=inventory,
                consumers=consumers,
                policy=policy,
            )
        if plan is not None and plan.kind.ours and consumers is not None:
            plan = with_addresses(
                record,
                device,
                plan,
                config.rdma(device.request).network or RdmaNetwork(),
                rail=_rail(inventory, device),
                routed=_routed(config.rdma(device.request).fabric),
                consumers=consumers,
                holders=[*holders, replace(record, devices=_planned(record, plans))],
            )
        plans.append(plan)
    taken: dict[str, str] = {}
    for device, plan in zip(record.devices, plans, strict=True):
        if (
            plan is not None
            and plan.kind.ours
            and taken.setdefault(plan.interface, device.device) != device.device
        ):
            raise PrepareError(
                f"{record.ref}: {device.device} and {taken[plan.interface]} would both be {plan.interface!r} in the pod; "
                "give each request an interface name of its own in RdmaConfig.network"
            )
    return tuple(plans)


def _planned(record: ClaimRecord, plans: Sequence[NetworkPlan | None]) -> tuple[DeviceRecord, ...]:
    """The devices that have their plans already."""
    return tuple(replace(device, network=plan) for device, plan in zip(record.devices, plans, strict=False))


def _routed(fabric: RdmaFabric | None) -> bool:
    return fabric is not None and fabric.family is AddressFamily.IPV6


def _rail(inventory: NodeInventory, device: DeviceRecord) -> int | None:
    rail = inventory.attributes(device.device).get(names.ATTR_RAIL)
    return rail if isinstance(rail, int) else None


def _plan(
    record: ClaimRecord,
    device: DeviceRecord,
    config: RdmaConfig,
    *,
    inventory: NodeInventory,
    consumers: Consumers | None,
    policy: NetworkPolicy,
) -> NetworkPlan | None:
    if not policy.managed:
        if config.network is not None:
            raise PrepareError(
                f"{record.ref}: FeatureDisabled: RdmaConfig.network of request {device.request} cannot be had on this node; "
                "start the kubelet plugin and the NRI hook with --pod-network"
            )
        return _unmanaged(record, device, inventory=inventory, consumers=consumers, policy=policy)
    if consumers is None:
        return None
    if consumers.host_network:
        if config.network is not None:
            raise PrepareError(
                f"{record.ref}: RdmaConfig.network of request {device.request} cannot be applied, since the pod is on the "
                "host's network; leave one of the two out"
            )
        return None
    resource = inventory.attributes(device.device).get(names.CNI_RESOURCE_NAME)
    if resource in consumers.resources:
        if config.network is not None:
            raise PrepareError(
                f"{record.ref}: RdmaConfig.network of request {device.request} decides the network of {device.device}, and a "
                f"network of its pod's annotation {NETWORKS_ANNOTATION} asks Multus for it too ({resource}); leave one of "
                "the two out"
            )
        # What the hook looks at is in one pod; a claim of several pods is each pod's Multus's affair.
        return _left_alone(NetworkKind.OTHERS, device, inventory) if len(consumers.pods) == 1 else None
    network = config.network or RdmaNetwork()
    kind = _kind(record, device, config, inventory=inventory)
    if inventory.machine.rdma_exclusive and kind in {None, NetworkKind.MACVLAN}:
        raise PrepareError(
            f"{record.ref}: {device.device} stays in the host's network namespace, and this node's RDMA devices are seen "
            "in their own alone; ask for a virtual function, set hostNetwork: true, or have the node's RDMA "
            "subsystem shared (rdma system set netns shared)"
        )
    if kind is None:
        return None
    if len(consumers.pods) > 1:
        raise PrepareError(
            f"{record.ref}: {device.device} gets an interface in its pod's network, and the claim is reserved for "
            f"{len(consumers.pods)} pods; give each a claim of its own (a template)"
        )
    siblings = [other for other in record.devices if other.request == device.request and _is_nic(other)]
    if len(siblings) > 1 and (network.addresses or network.guid):
        raise PrepareError(
            f"{record.ref}: request {device.request} has {len(siblings)} devices and RdmaConfig.network one set of addresses; "
            "make one request of each, or name an attachment whose IPAM gives addresses"
        )
    name = network.interface or _interface_name(device, kind)
    if network.interface and len(siblings) > 1:
        name = f"{network.interface[:13]}{[other.device for other in siblings].index(device.device)}"
    nic = inventory.device(device.device)
    return NetworkPlan(
        kind=kind,
        bus_id=nic.location.bus_id if isinstance(nic, Nic) else "",
        host_interface=device.netdev or "",
        interface=name,
        ib_device=device.ib_device,
        addresses=network.addresses,
        routes=network.routes,
        mtu=network.mtu,
        vlan=network.vlan,
        pkey=network.pkey,
        guid=network.guid,
        cni=None if network.attachment is None else consumers.attachments.get(network.attachment),
        roce_port=_roce_port(device, inventory),
    )


def _unmanaged(
    record: ClaimRecord,
    device: DeviceRecord,
    *,
    inventory: NodeInventory,
    consumers: Consumers | None,
    policy: NetworkPolicy,
) -> NetworkPlan | None:
    roce = inventory.attributes(device.device).get(names.ATTR_LINK_LAYER) == _ETHERNET
    unseen = inventory.machine.rdma_exclusive
    if not (roce or unseen) or consumers is None or consumers.host_network or not consumers.pods:
        return None
    if consumers.multus:
        return _left_alone(NetworkKind.OTHERS, device, inventory)
    if policy.refuses:
        raise PrepareError(f"{record.ref}: {NO_NETWORK}: {device.device}: {NO_NETWORK_MESSAGE}")
    return _left_alone(NetworkKind.ABSENT, device, inventory)


def _left_alone(kind: NetworkKind, device: DeviceRecord, inventory: NodeInventory) -> NetworkPlan:
    nic = inventory.device(device.device)
    return NetworkPlan(
        kind=kind,
        bus_id=nic.location.bus_id if isinstance(nic, Nic) else "",
        host_interface="",
        interface="",
        ib_device=device.ib_device,
        roce_port=_roce_port(device, inventory),
    )


def _roce_port(device: DeviceRecord, inventory: NodeInventory) -> int | None:
    nic = inventory.device(device.device)
    port = nic.port if isinstance(nic, Nic) else None
    return port.number if port and port.link_layer == _ETHERNET else None


def _interface_name(device: DeviceRecord, kind: NetworkKind) -> str:
    """The interface's name in the pod where the claim gives none. It differs from the name of an interface
    that stays on the host, since the gate (interface_gate.py) finds the interface by name and some
    runtimes also search the host. Every pod has an eth0 of its own."""
    if device.netdev and (kind is not NetworkKind.MOVE or device.netdev == "eth0"):
        # The ports of a card differ at the end of the name, which is kept (enp193s0f0np0, enp193s0f0np1).
        return f"{device.netdev}{'pod' if len(device.netdev) <= 12 else 'p'}"[-15:]
    return (device.netdev or device.ib_device or device.device)[:15]


def _kind(
    record: ClaimRecord, device: DeviceRecord, config: RdmaConfig, *, inventory: NodeInventory
) -> NetworkKind | None:
    if config.network is not None and config.network.attachment is not None:
        return NetworkKind.ATTACH
    ethernet = inventory.attributes(device.device).get(names.ATTR_LINK_LAYER, _ETHERNET) == _ETHERNET
    if ethernet and not device.netdev:
        raise PrepareError(
            f"{record.ref}: DeviceUnhealthy: {device.device} has no network interface on this node, which RoCE needs"
        )
    alone = device.type == names.TYPE_VF or device.share_id is None or config.mode is RdmaMode.EXCLUSIVE
    part = _part(device, inventory)
    if config.mode is RdmaMode.EXCLUSIVE and part:
        # Whoever allocated it does not know koordra's modes, and others may hold the rest.
        raise PrepareError(
            f"{record.ref}: RdmaConfig.mode Exclusive of request {device.request}, and {part} of {device.device} was allocated; "
            "ask for all of it: leave its share out"
        )
    nic = inventory.device(device.device)
    upper, needed = (nic.upper, nic.needed) if isinstance(nic, Nic) else (None, False)
    if upper is not None and upper != device.netdev:
        raise PrepareError(
            f"{record.ref}: HostNeedsNIC: {device.netdev or device.device} is part of {upper} on this node, and can neither "
            "move into a pod nor carry a macvlan; take it out of there, or ask for a virtual function"
        )
    if alone and upper is None and not needed:
        return NetworkKind.MOVE
    if ethernet:
        return NetworkKind.MACVLAN
    if config.network is not None:
        raise PrepareError(
            f"{record.ref}: RdmaConfig.network of request {device.request}: a share of an InfiniBand NIC has no network "
            "interface of its own; ask for a virtual function, or use an attachment"
        )
    return None


def _part(device: DeviceRecord, inventory: NodeInventory) -> str:
    """What a share has of the NIC, empty for all of it."""
    consumed = dict(device.consumed).get(names.CAPACITY_SHARE) if device.share_id else None
    whole = inventory.published[device.device].capacity.get(names.CAPACITY_SHARE)
    if consumed is None or whole is None or parse(consumed) >= whole.value:
        return ""
    return f"share {consumed} of {whole.spelled}"


def _is_nic(device: DeviceRecord) -> bool:
    return device.type in names.NIC_TYPES and not device.admin_access
