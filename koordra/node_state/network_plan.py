"""What is done to a NIC once the network namespace of its pod exists. Values and their form in files; pure.

    Move      the network interface, and with it the RDMA link where RDMA devices belong to network namespaces,
              moves into the pod and back: a virtual function, or a NIC that the claim has exclusively
    Macvlan   the pod gets a macvlan interface on top of the NIC: a share of a RoCE NIC, whose own interface is
              shared
    Attach    a CNI plugin does it, as a NetworkAttachmentDefinition says

The kubelet plugin decides in Prepare (kubelet_plugin/network/network_decision.py); pod_network.py carries it out
when the sandbox is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class NetworkKind(StrEnum):
    MOVE = "Move"
    MACVLAN = "Macvlan"
    ATTACH = "Attach"


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """`host_interface` is the NIC's on the host, `interface` its name in the pod. `cni` is the configuration
    of the CNI plugin as JSON text. `routes` are pairs of destination and gateway, which is empty for a route
    on the link."""

    kind: NetworkKind
    bus_id: str
    host_interface: str
    interface: str
    ib_device: str | None = None
    addresses: tuple[str, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    mtu: int | None = None
    vlan: int | None = None
    pkey: int | None = None
    guid: str | None = None
    cni: str | None = None


def plan_to_dict(plan: NetworkPlan) -> dict[str, Any]:
    return {
        "kind": plan.kind.value,
        "busID": plan.bus_id,
        "hostInterface": plan.host_interface,
        "interface": plan.interface,
        "ibDevice": plan.ib_device,
        "addresses": list(plan.addresses),
        "routes": [list(route) for route in plan.routes],
        "mtu": plan.mtu,
        "vlan": plan.vlan,
        "pkey": plan.pkey,
        "guid": plan.guid,
        "cni": plan.cni,
    }


def plan_from_dict(data: Mapping[str, Any]) -> NetworkPlan:
    """Raises KeyError, TypeError or ValueError for what `plan_to_dict` does not write."""
    plan = NetworkPlan(
        kind=NetworkKind(data["kind"]),
        bus_id=str(data["busID"]),
        host_interface=str(data["hostInterface"]),
        interface=str(data["interface"]),
        ib_device=data["ibDevice"],
        addresses=tuple(str(address) for address in data["addresses"]),
        routes=tuple((str(destination), str(gateway)) for destination, gateway in data["routes"]),
        mtu=data["mtu"],
        vlan=data["vlan"],
        pkey=data["pkey"],
        guid=data["guid"],
        cni=data["cni"],
    )
    if plan_to_dict(plan) != data:
        raise ValueError("fields of another version")
    return plan
