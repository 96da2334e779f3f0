"""What becomes of a NIC of each RDMA driver in a pod of its own network, on the machine `rdma-drivers`."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from koordra.errors import PrepareError
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.network.address_pools import NodePool, read_pools
from koordra.kubelet_plugin.network.consumers import Consumers
from koordra.kubelet_plugin.network.network_decision import NetworkPolicy
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory, inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.node_state.claim_network import NetworkKind
from koordra.topology.machine import Nic
from koordra.topology.presets.tree import MachineWriter
from tests.fakes.node_claims import ANY_ISOLATION, NODE, claim, nic, parameters, uid
from tests.machines import catalogue
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

POOLS = read_pools(
    "schema: koordra.io/network-pools/v1\n"
    "pools: [{name: rails, perNode: 26, networks: [{cidr: 10.10.0.0/16}]}]\n",
    source="pools.yaml",
)
IN_POD = Consumers(
    pods=("pod-1",),
    pools=POOLS,
    given={"rails": NodePool(POOLS["rails"], (ip_network("10.10.0.0/26"),))},
)
LAG, BNXT, IRDMA, HNS, EFA, IB = (f"nic-0000-{bus}1-00-0" for bus in range(2, 8))


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> NodeInventory:
    root = tmp_path_factory.mktemp("drivers")
    MachineWriter(root).write(catalogue.load("rdma-drivers").machine(serial=NODE))
    found = discover(root)
    assert found.problems == ()
    return inventory_of(found, offering=Offering(isolation=ANY_ISOLATION))


@pytest.fixture
def node(tmp_path: Path, inventory: NodeInventory) -> PluginNode:
    return PluginNode(tmp_path, inventory)


def given(node: PluginNode, device: str, *, managed: bool = True, **config: Any) -> Any:
    """The claim's device, which it has alone."""
    of_class = parameters("RdmaConfig", source="FromClass", **{"mode": "Exclusive", **config})
    obj = claim(1, nic("nic", device), config=[of_class])
    node.claims.put(obj)
    state = node.networked(IN_POD, policy=NetworkPolicy(managed=managed), hook="/opt/koordra-cdi-hook")
    (found,) = state.prepare(ref_of(obj)).devices
    return found


@pytest.mark.parametrize(
    ("device", "kind", "interface"),
    [
        (LAG, NetworkKind.MACVLAN, "bond0pod"),
        (BNXT, NetworkKind.MOVE, "ens3np0"),
        (IRDMA, NetworkKind.MOVE, "ens4f0"),
        (HNS, NetworkKind.MOVE, "eno5"),
    ],
)
def test_roce_of_every_driver_gets_an_interface_with_an_address(
    node: PluginNode, device: str, kind: NetworkKind, interface: str
) -> None:
    plan = given(node, device, network={"pool": "rails"}).network
    assert (plan.kind, plan.interface, plan.roce_port) == (kind, interface, 1)
    assert plan.addresses[0].startswith("10.10.0.")


def test_roce_of_every_driver_needs_one(node: PluginNode) -> None:
    for device in (LAG, BNXT, IRDMA, HNS):
        assert given(node, device, managed=False).network.kind is NetworkKind.ABSENT
        node.plugin().unprepare(ref_of(claim(1)))


@pytest.mark.parametrize(
    ("device", "ib_device", "pool", "gates"),
    [
        (LAG, "mlx5_bond_0", "rails", 2),
        (BNXT, "bnxt_re0", "rails", 2),
        (IRDMA, "irdma0", "rails", 2),
        (HNS, "hns_0", "rails", 2),
        (EFA, "rdmap97s0", None, 1),
        (IB, "mlx5_2", None, 2),
    ],
)
def test_containers_get_the_nodes_of_that_nic_and_libraries_its_name(
    node: PluginNode, device: str, ib_device: str, pool: str | None, gates: int
) -> None:
    found = given(node, device, **({"network": {"pool": pool}} if pool else {}))
    assert dict(found.fabric) == ({} if device == EFA else {"NCCL_SOCKET_IFNAME": "=eth0"})
    (edits,) = (each["containerEdits"] for each in node.spec(uid(1))["devices"])
    nic = node.inventory.device(device)
    assert isinstance(nic, Nic)
    assert nic.verbs is not None
    assert [each["path"] for each in edits["deviceNodes"]] == [nic.verbs.path, "/dev/infiniband/rdma_cm"]
    mounted = [mount["containerPath"] for mount in edits["mounts"]]
    assert sum(path.startswith("/run/koordra.io/network/") for path in mounted) == gates
    (recorded,) = node.record(uid(1))["devices"]
    assert recorded["env"]["NCCL_IB_HCA"] == f"={ib_device}:1"
    assert recorded["env"]["UCX_NET_DEVICES"] == f"{ib_device}:1"


@pytest.mark.parametrize("device", [EFA, IB])
def test_efa_and_infiniband_have_addresses_of_their_own(node: PluginNode, device: str) -> None:
    assert given(node, device, managed=False).network is None


def test_efa_moves_by_its_rdma_device_alone(node: PluginNode) -> None:
    """In mode shared there is nothing to move, and nothing to wait for but the gate of the claim."""
    plan = given(node, EFA).network
    assert (plan.kind, plan.host_interface, plan.roce_port, plan.ib_device) == (
        NetworkKind.MOVE,
        "",
        None,
        "rdmap97s0",
    )


def test_infiniband_says_its_partition_to_the_libraries(node: PluginNode) -> None:
    device = given(node, IB, fabric={"pkey": "0x8005", "serviceLevel": 1})
    assert dict(device.fabric) == {
        "NCCL_IB_SL": "1",
        "UCX_IB_SL": "1",
        "NCCL_IB_PKEY": "1",
        "UCX_IB_PKEY": "0x5",
        "NCCL_SOCKET_IFNAME": "=eth0",
    }


def test_infiniband_that_is_in_no_such_partition_is_refused(node: PluginNode) -> None:
    with pytest.raises(PrepareError, match="is not in partition 0x8006, but in 0xffff, 0x8005"):
        given(node, IB, fabric={"pkey": "0x8006"})
