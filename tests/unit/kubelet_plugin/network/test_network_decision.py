"""What Prepare decides about a pod's network, and what the API server and containers are told of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordra.api.opaque.rdma_network import Attachment
from koordra.errors import CheckpointError, Conflict, NotFound, PrepareError
from koordra.kubelet_plugin.discovery.reading import discover, with_moved
from koordra.kubelet_plugin.network import interface_gate
from koordra.kubelet_plugin.network.consumers import MOST_NETWORKS, ClaimSource, Consumers
from koordra.kubelet_plugin.network.network_decision import UNMANAGED, NetworkPolicy
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.cni_resources import cni_resources
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory, inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.status.claim_status import ClaimStatusWriter, device_statuses, merged
from koordra.node_state import claim_network
from koordra.node_state.claim_network import AttachedDevice, AttachedNetwork, NetworkKind
from koordra.node_state.disk import Disk
from koordra.node_state.layout import StateFolder
from koordra.topology.machine import Machine, Nic
from koordra.topology.presets.tree import MachineWriter
from koordra.topology.problems import Discovery
from tests.fakes.node_claims import (
    ANY_ISOLATION,
    GPU_0,
    NIC_0,
    NODE,
    claim,
    gpu,
    nic,
    parameters,
    result,
    uid,
)
from tests.machines import catalogue
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

PF = "nic-0000-5e-00-0"
VF_0, VF_3 = f"{PF}-vf-0", f"{PF}-vf-3"


@pytest.fixture(scope="module")
def vf_machine(tmp_path_factory: pytest.TempPathFactory) -> Discovery:
    folder = tmp_path_factory.mktemp("vf")
    MachineWriter(folder).write(catalogue.load("nic-2-ports-8-vfs").machine(serial=NODE))
    return discover(folder)


def linked(machine: Machine, layer: str) -> NodeInventory:
    """The machine with all NICs of this link layer, and a network interface on each."""

    def change(nics: tuple[Nic, ...], letter: str) -> tuple[Nic, ...]:
        return tuple(
            replace(
                each,
                netdev=f"eth{letter}{index}",
                ports=tuple(replace(port, link_layer=layer) for port in each.ports),
            )
            for index, each in enumerate(nics)
        )

    changed = replace(machine, nics=change(machine.nics, "p"), vfs=change(machine.vfs, "v"))
    return inventory_of(Discovery(changed, ()), offering=Offering(vfs=True, isolation=ANY_ISOLATION))


@pytest.fixture(scope="module")
def inventories(vf_machine: Discovery) -> dict[str, NodeInventory]:
    return {layer: linked(vf_machine.machine, layer) for layer in ("Ethernet", "InfiniBand")}


@pytest.fixture
def roce(tmp_path: Path, inventories: dict[str, NodeInventory]) -> PluginNode:
    return PluginNode(tmp_path / "roce", inventories["Ethernet"])


@pytest.fixture
def infiniband(tmp_path: Path, inventories: dict[str, NodeInventory]) -> PluginNode:
    return PluginNode(tmp_path / "ib", inventories["InfiniBand"])


ONE_POD = Consumers(pods=("pod-1",))


MANAGED = NetworkPolicy(managed=True)


def plugin(
    node: PluginNode, consumers: Consumers | None = ONE_POD, *, policy: NetworkPolicy = MANAGED
) -> DeviceState:
    return node.networked(consumers, policy=policy)


def planned(
    node: PluginNode,
    obj: dict[str, Any],
    consumers: Consumers | None = ONE_POD,
    *,
    policy: NetworkPolicy = MANAGED,
) -> list[Any]:
    """The plans of the claim's devices, after it was prepared."""
    node.claims.put(obj)
    state = plugin(node, consumers, policy=policy)
    state.prepare(ref_of(obj))
    (record,) = (record for record in state.records() if record.ref == ref_of(obj))
    return [device.network for device in record.devices]


def refused(
    node: PluginNode,
    obj: dict[str, Any],
    consumers: Consumers | None = ONE_POD,
    *,
    policy: NetworkPolicy = MANAGED,
) -> str:
    node.claims.put(obj)
    with pytest.raises(PrepareError) as caught:
        plugin(node, consumers, policy=policy).prepare(ref_of(obj))
    assert node.holders() == set()
    assert node.files() == set()
    return str(caught.value)


def vf(device: str, request: str = "nic") -> dict[str, Any]:
    return result(request, device, share=None)


FROM_CLASS = "FromClass"
NETWORK = {"addresses": ["192.168.10.5/24"], "mtu": 4200, "interface": "rail0"}


def test_a_virtual_function_moves_and_its_container_waits_for_it(roce: PluginNode) -> None:
    (plan,) = planned(
        roce, claim(1, vf(VF_3), config=[parameters("RdmaConfig", source=FROM_CLASS, network=NETWORK)])
    )
    assert plan.kind is NetworkKind.MOVE
    assert (plan.host_interface, plan.interface, plan.ib_device) == ("ethv3", "rail0", plan.ib_device)
    assert plan.ib_device
    assert (plan.addresses, plan.mtu) == (("192.168.10.5/24",), 4200)
    (network,) = claim_network.read_networks(roce.paths, Disk())
    assert network.pods == ("pod-1",)
    assert network.plans == ((VF_3, plan),)
    (device,) = roce.spec(uid(1))["devices"]
    gates = [mount for mount in device["containerEdits"]["mounts"] if "network" in mount["containerPath"]]
    assert [(mount["hostPath"], mount["options"][0]) for mount in gates] == [
        (str(roce.paths.state / "claims" / uid(1) / "network.json"), "ro"),
        ("/proc/sys/net/ipv4/conf/rail0", "ro"),
    ]
    assert gates[1]["containerPath"] == f"/run/koordra.io/network/{uid(1)}.in-one-pod-at-a-time/rail0"
    plugin(roce).unprepare(ref_of(claim(1)))
    assert claim_network.read_networks(roce.paths, Disk()) == ()


def interface_gates(node: PluginNode) -> list[str]:
    mounts = (
        mount["hostPath"]
        for device in node.spec(uid(1))["devices"]
        for mount in device["containerEdits"].get("mounts", ())
    )
    return [path for path in mounts if path.startswith(interface_gate.INTERFACES)]


def test_every_interface_of_a_pod_holds_its_containers_back(roce: PluginNode) -> None:
    """One in each of two requests, under the name it has in the pod; a VLAN's is the VLAN's."""
    network = [parameters("RdmaConfig", source=FROM_CLASS, network={"vlan": 7})]
    planned(roce, claim(1, vf(VF_0, "a"), vf(VF_3, "b"), config=network))
    assert interface_gates(roce) == [f"{interface_gate.INTERFACES}/{name}" for name in ("ethv0", "ethv3")]


def test_what_has_no_interface_or_is_looked_up_from_outside_is_not_held_back(
    roce: PluginNode, infiniband: PluginNode
) -> None:
    """Verbs alone need none; with a user namespace the runtime looks from outside, where nobody's pod has
    it."""
    planned(infiniband, claim(1, nic("nic", PF, "50")))
    assert interface_gates(infiniband) == []
    planned(roce, claim(1, vf(VF_0)), Consumers(pods=("pod-1",), own_users=True))
    assert interface_gates(roce) == []


ADDRESSED = [parameters("RdmaConfig", source=FROM_CLASS, network={"addresses": ["192.168.10.5/24"]})]


@pytest.mark.parametrize(
    ("link", "obj", "kind"),
    [
        ("roce", claim(1, vf(VF_0)), NetworkKind.MOVE),
        ("infiniband", claim(1, vf(VF_0)), NetworkKind.MOVE),
        ("roce", claim(1, nic("nic", PF, "50"), config=ADDRESSED), NetworkKind.MACVLAN),
        ("infiniband", claim(1, nic("nic", PF, "50")), None),
        (
            "roce",
            claim(1, nic("nic", PF), config=[parameters("RdmaConfig", mode="Exclusive")]),
            NetworkKind.MOVE,
        ),
        ("roce", claim(1, nic("nic", PF, admin=True)), None),
    ],
)
def test_what_becomes_of_each_kind(
    request: pytest.FixtureRequest, link: str, obj: dict[str, Any], kind: NetworkKind | None
) -> None:
    (plan,) = planned(request.getfixturevalue(link), obj)
    assert (plan.kind if plan else None) is kind


def test_on_the_hosts_network_everything_stays(roce: PluginNode) -> None:
    on_host = Consumers(pods=("pod-1",), host_network=True)
    assert planned(roce, claim(1, vf(VF_0)), on_host) == [None]
    config = [parameters("RdmaConfig", source=FROM_CLASS, network=NETWORK)]
    roce.plugin().unprepare(ref_of(claim(1)))
    assert "on the host's network" in refused(roce, claim(2, vf(VF_0), config=config), on_host)


def test_without_the_option_nothing_moves_and_nothing_is_promised(infiniband: PluginNode) -> None:
    assert planned(infiniband, claim(1, vf(VF_0)), policy=UNMANAGED) == [None]
    infiniband.plugin().unprepare(ref_of(claim(1)))
    config = [parameters("RdmaConfig", source=FROM_CLASS, network=NETWORK)]
    text = refused(infiniband, claim(2, vf(VF_0), config=config), policy=UNMANAGED)
    assert "FeatureDisabled" in text
    assert "--pod-network" in text


@pytest.mark.parametrize("device", [vf(VF_0), nic("nic", PF, "50")])
def test_roce_without_an_interface_in_the_pod_is_said_to_carry_nothing(
    roce: PluginNode, device: dict[str, Any]
) -> None:
    (plan,) = planned(roce, claim(1, device), policy=UNMANAGED)
    assert plan.kind is NetworkKind.ABSENT
    (record,) = plugin(roce).records()
    (entry,) = device_statuses(record, inventory=roce.inventory, attached={})
    ready = entry["conditions"][0]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", "NoNetworkInPod")
    for remedy in ("--pod-network", "Multus", "hostNetwork: true"):
        assert remedy in ready["message"]
    # Nothing that only the hook would make holds the container back.
    assert not any("network" in mount for mount in mounted(roce))


def mounted(node: PluginNode) -> list[str]:
    devices = node.spec(uid(1))["devices"]
    return [
        mount["containerPath"] for device in devices for mount in device["containerEdits"].get("mounts", ())
    ]


def test_an_operator_may_have_such_a_claim_refused(roce: PluginNode) -> None:
    refusing = NetworkPolicy(refuses=True)
    text = refused(roce, claim(1, vf(VF_0)), policy=refusing)
    assert "NoNetworkInPod" in text
    assert "--pod-network" in text
    # Multus may bring the interface; the host's network has it.
    for consumers, kinds in (
        (Consumers(pods=("pod-1",), multus=True), [NetworkKind.OTHERS]),
        (Consumers(pods=("pod-1",), host_network=True), []),
        (Consumers(), []),
        (None, []),
    ):
        plans = planned(roce, claim(1, vf(VF_0)), consumers, policy=refusing)
        assert [plan.kind for plan in plans if plan] == kinds
        roce.plugin().unprepare(ref_of(claim(1)))


def test_infiniband_needs_no_interface(infiniband: PluginNode) -> None:
    assert planned(infiniband, claim(1, vf(VF_0)), policy=NetworkPolicy(refuses=True)) == [None]


def test_where_routers_give_addresses_a_share_needs_none(roce: PluginNode) -> None:
    """The class says that its network is of IPv6; whether one comes is looked at in the pod."""
    share = nic("pf", PF, "10")
    for fabric in ({"addressFamily": "IPv6"}, {"addressRange": "2001:db8::/32"}):
        of_class = parameters("RdmaConfig", source=FROM_CLASS, fabric=fabric)
        node_plugin = roce.networked(ONE_POD, hook="/opt/koordra-cdi-hook")
        roce.claims.put(claim(1, share, config=[of_class]))
        (device,) = node_plugin.prepare(ref_of(claim(1))).devices
        assert device.network is not None
        assert (device.network.kind, device.network.addresses) == (NetworkKind.MACVLAN, ())
        assert dict(device.fabric)["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
        node_plugin.unprepare(ref_of(claim(1)))
    of_class = parameters("RdmaConfig", source=FROM_CLASS, fabric={"addressFamily": "IPv4"})
    assert "in the class, where routers" in refused(roce, claim(1, share, config=[of_class]))


def test_a_way_that_the_kernel_would_not_take_is_refused_before_anything_moves(roce: PluginNode) -> None:
    def going(gateway: str, destination: str = "10.0.0.0/8") -> Any:
        routes = [{"destination": destination, "gateway": gateway}]
        network = {"addresses": ["192.168.1.7/24", "fd00::7/64"], "routes": routes}
        return claim(1, vf(VF_0), config=[parameters("RdmaConfig", source=FROM_CLASS, network=network)])

    assert "10.0.0.0/8 via 172.16.0.1, which is in no network" in refused(roce, going("172.16.0.1"))
    assert "via fd01::1" in refused(roce, going("fd01::1", "fd02::/48"))
    for known in (going("192.168.1.1"), going("fd00::1", "fd02::/48"), going("fe80::1", "fd02::/48")):
        assert planned(roce, known)
        plugin(roce).unprepare(ref_of(known))


def test_a_nic_that_moves_may_be_given_the_address_that_it_has_on_the_host(roce: PluginNode) -> None:
    of_host = {"192.168.1.7": "ethv0", "192.168.1.8": "eth0"}
    config = [parameters("RdmaConfig", source=FROM_CLASS, network={"addresses": ["192.168.1.7/24"]})]
    (plan,) = planned(roce, claim(1, vf(VF_0), config=config), replace(ONE_POD, of_host=of_host))
    assert (plan.kind, plan.addresses) == (NetworkKind.MOVE, ("192.168.1.7/24",))
    plugin(roce).unprepare(ref_of(claim(1)))
    config = [parameters("RdmaConfig", source=FROM_CLASS, network={"addresses": ["192.168.1.8/24"]})]
    text = refused(roce, claim(2, vf(VF_3), config=config), replace(ONE_POD, of_host=of_host))
    assert "192.168.1.8/24 is this node's or another claim's" in text


def test_pods_are_asked_for_where_a_nic_is_at_stake(node: PluginNode) -> None:
    asked: list[Any] = []

    def consumers(obj: Any) -> Consumers:
        asked.append(obj)
        return Consumers()

    node.consumers = consumers
    state = node.plugin()
    for obj, times in ((claim(1, gpu("gpu", GPU_0)), 0), (claim(2, nic("nic", NIC_0)), 1)):
        node.claims.put(obj)
        state.prepare(ref_of(obj))
        assert len(asked) == times


def test_what_cannot_be_meant_is_refused(roce: PluginNode, infiniband: PluginNode) -> None:
    two = Consumers(pods=("pod-1", "pod-2"))
    assert "reserved for 2 pods" in refused(roce, claim(1, vf(VF_0)), two)
    assert "reserved for 2 pods" in refused(roce, claim(1, nic("nic", PF, "50")), two)
    for request in (vf(VF_0), nic("nic", PF, "50")):
        assert "reserved for PodGroup train" in refused(roce, claim(1, request), Consumers(group="train"))
    config = [parameters("RdmaConfig", source=FROM_CLASS, network=NETWORK)]
    assert "one set of addresses" in refused(roce, claim(1, vf(VF_0), vf(VF_3), config=config))
    both = [parameters("RdmaConfig", network={"interface": "rail0"})]
    text = refused(roce, claim(1, vf(VF_0, "a"), vf(VF_3, "b"), config=both))
    assert "would both be 'rail0'" in text
    assert "a macvlan interface in the pod, which has no address" in refused(
        roce, claim(1, nic("nic", PF, "50"))
    )
    text = refused(infiniband, claim(1, nic("nic", PF, "50"), config=config))
    assert "a share of an InfiniBand NIC has no network interface" in text
    bare = inventory_of(
        Discovery(
            replace(
                roce.inventory.machine,
                vfs=tuple(replace(each, netdev=None) for each in roce.inventory.machine.vfs),
            ),
            (),
        ),
        offering=Offering(vfs=True, isolation=ANY_ISOLATION),
    )
    roce.inventory = bare
    assert "has no network interface on this node" in refused(roce, claim(1, vf(VF_0)))


def test_several_devices_of_a_request_are_numbered(roce: PluginNode) -> None:
    config = [parameters("RdmaConfig", network={"interface": "rail"})]
    plans = planned(roce, claim(1, vf(VF_0), vf(VF_3), config=config))
    assert [plan.interface for plan in plans] == ["rail0", "rail1"]


@pytest.mark.parametrize(
    ("hosts", "pods"),
    [
        (("ens1", "ens2"), ("ens1pod", "ens2pod")),
        (("enp193s0f0np0", "enp193s0f0np1"), ("enp193s0f0np0p", "enp193s0f0np1p")),
        (("enP2p129s0f0np0", "enP2p129s0f0np1"), ("nP2p129s0f0np0p", "nP2p129s0f0np1p")),
    ],
)
def test_both_ports_of_a_card_have_names_of_their_own(
    roce: PluginNode, hosts: tuple[str, str], pods: tuple[str, str]
) -> None:
    """Their own interfaces stay on the host, whose names differ only at the end."""
    machine = roce.inventory.machine
    of = dict(zip((VF_0, VF_3), hosts, strict=True))
    vfs = tuple(replace(each, netdev=of.get(each.name, each.netdev)) for each in machine.vfs)
    roce.inventory = inventory_of(
        Discovery(replace(machine, vfs=vfs), ()), offering=Offering(vfs=True, isolation=ANY_ISOLATION)
    )
    config = [parameters("RdmaConfig", source=FROM_CLASS, network={"attachment": {"name": "rail"}})]
    consumers = Consumers(pods=("pod-1",), attachments={Attachment("rail"): '{"type": "macvlan"}'})
    plans = planned(roce, claim(1, vf(VF_0, "a"), vf(VF_3, "b"), config=config), consumers)
    assert tuple(plan.host_interface for plan in plans) == hosts
    assert tuple(plan.interface for plan in plans) == pods


def test_a_nic_that_is_eth0_on_its_host_is_not_in_the_pod(roce: PluginNode) -> None:
    machine = roce.inventory.machine
    vfs = tuple(replace(each, netdev="eth0") if each.name == VF_0 else each for each in machine.vfs)
    roce.inventory = inventory_of(
        Discovery(replace(machine, vfs=vfs), ()), offering=Offering(vfs=True, isolation=ANY_ISOLATION)
    )
    (plan,) = planned(roce, claim(1, vf(VF_0)))
    assert (plan.kind, plan.host_interface, plan.interface) == (NetworkKind.MOVE, "eth0", "eth0pod")


def test_folders_that_cannot_be_read_are_the_nodes_trouble(tmp_path: Path) -> None:
    (tmp_path / "network").write_text("not a folder")
    for read in (claim_network.read_networks, claim_network.read_attached):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read(StateFolder(tmp_path), Disk())


def test_an_attachment_is_read_in_prepare(roce: PluginNode) -> None:
    config = [
        parameters(
            "RdmaConfig", source=FROM_CLASS, network={"attachment": {"name": "rail"}, "interface": "r0"}
        )
    ]
    consumers = Consumers(pods=("pod-1",), attachments={Attachment("rail"): '{"type": "host-device"}'})
    (plan,) = planned(roce, claim(1, vf(VF_0), config=config), consumers)
    assert (plan.kind, plan.interface, plan.cni) == (NetworkKind.ATTACH, "r0", '{"type": "host-device"}')


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        ({"adresses": []}, "network.adresses: there is no such field"),
        ({"addresses": ["10.0.0.1"]}, "is not an address with prefix length"),
        ({"addresses": "10.0.0.1/8"}, "is not a list"),
        ({"routes": [{"destination": "10.0.0.1/8"}]}, "has host bits set"),
        ({"routes": [{"destination": "10.0.0.0/8", "gateway": "fe80::1"}]}, "of two kinds"),
        ({"mtu": 1}, "is not a whole number from 68"),
        ({"vlan": True}, "is not a whole number"),
        ({"interface": "eth0"}, "is taken in every pod"),
        ({"interface": "a/b"}, "is not an interface name"),
        ({"pkey": 32769}, "is not a partition key"),
        ({"guid": "zz"}, "is not a GUID"),
        ({"guid": "0000:0000:0000:0000"}, "is not a GUID"),
        ({"pkey": "0x8000"}, "is not a partition key"),
        ({"attachment": {"name": "rail"}, "mtu": 1500}, "stands beside mtu"),
        ({"pool": "rails", "addresses": ["10.0.0.1/8"]}, "network.pool: stands beside addresses"),
        ({"attachment": {}}, "network.attachment.name: it is missing"),
        ([], "is not an object"),
    ],
)
def test_misspelt_networks_are_refused_by_name(roce: PluginNode, network: Any, complaint: str) -> None:
    config = [parameters("RdmaConfig", source=FROM_CLASS, network=network)]
    text = refused(roce, claim(1, vf(VF_0), config=config))
    assert re.search(re.escape(complaint), text), text


@pytest.mark.parametrize(
    "network",
    [
        {"pool": "rails"},
        {"vlan": 7},
        {"pkey": "0x8001"},
        {"guid": "0011:2233:4455:6677"},
        {"attachment": {"name": "rail"}},
        {"addresses": ["192.168.10.5/24"]},
        {"routes": [{"destination": "10.0.0.0/8", "gateway": "192.168.10.1"}]},
    ],
)
def test_whom_a_pod_can_reach_is_for_the_operator_to_say(roce: PluginNode, network: dict[str, Any]) -> None:
    text = refused(roce, claim(1, vf(VF_0), config=[parameters("RdmaConfig", network=network)]))
    assert f"network.{next(iter(network))}: is for the operator to say" in text
    text = refused(roce, claim(1, vf(VF_0), config=[parameters("RdmaConfig", fabric={"trafficClass": 106})]))
    assert "fabric: is for the operator to say" in text


def test_a_claim_that_has_its_devices_keeps_them_though_its_words_count_no_more(roce: PluginNode) -> None:
    """Prepared by a plugin that took addresses from claims; the kubelet asks again after a restart. In the
    next boot, where nothing runs, it is refused."""
    config = [parameters("RdmaConfig", source=FROM_CLASS, network=NETWORK)]
    (plan,) = planned(roce, claim(1, vf(VF_0), config=config))
    asks = claim(1, vf(VF_0), config=[parameters("RdmaConfig", network=NETWORK)])
    assert planned(roce, asks) == [plan]
    roce.inventory = replace(roce.inventory, machine=replace(roce.inventory.machine, boot_id="another"))
    with pytest.raises(PrepareError, match="is for the operator to say"):
        plugin(roce).prepare(ref_of(asks))


@pytest.mark.parametrize("share", ["1", "50", "99", "99500m"])
def test_a_part_of_a_nic_is_nobodys_alone(roce: PluginNode, share: str) -> None:
    """Others may hold the rest. kube-scheduler knows nothing of modes, and gives what the request says."""
    alone = [parameters("RdmaConfig", mode="Exclusive")]
    told = refused(roce, claim(1, nic("nic", PF, share), config=alone))
    assert f"RdmaConfig.mode Exclusive of request nic, and share {share} of 100 of {PF} was allocated" in told
    (plan,) = planned(roce, claim(2, nic("nic", PF), config=alone))
    assert plan.kind is NetworkKind.MOVE


@pytest.mark.parametrize("own", [None, {}, {"network": {"mtu": 4200}}])
def test_no_claim_leaves_its_classes_vlan(roce: PluginNode, own: dict[str, Any] | None) -> None:
    config = [parameters("RdmaConfig", source=FROM_CLASS, network={"vlan": 7, "mtu": 1400})]
    config += [] if own is None else [parameters("RdmaConfig", **own)]
    (plan,) = planned(roce, claim(1, vf(VF_0), config=config))
    assert (plan.vlan, plan.mtu) == (7, 4200 if own else 1400)


def test_a_nic_in_its_pod_is_still_prepared_though_the_host_does_not_see_it(roce: PluginNode) -> None:
    """RDMA in exclusive mode: after a restart of the kubelet Prepare is asked again while the device is in
    the pod."""
    (plan,) = planned(roce, claim(1, vf(VF_0)))
    machine = roce.inventory.machine
    without = tuple(each for each in machine.vfs if each.name != VF_0)
    gone = replace(machine, vfs=without)
    roce.inventory = inventory_of(Discovery(gone, ()), offering=Offering(vfs=True, isolation=ANY_ISOLATION))
    assert planned(roce, claim(1, vf(VF_0))) == [plan]
    assert len(roce.spec(uid(1))["devices"][0]["containerEdits"]["deviceNodes"]) == 2
    # And it stays published, as it was.
    kept = with_moved(gone, machine, [VF_0])
    assert kept == machine
    assert with_moved(gone, machine, []) == gone
    moved = replace(machine, vfs=tuple(replace(each, netdev=None) for each in machine.vfs))
    assert with_moved(moved, machine, [VF_0]).vfs[0].netdev == "ethv0"
    assert with_moved(moved, machine, [VF_0]).vfs[1].netdev is None


class FakePods:
    """Pods and attachments by name."""

    def __init__(self, more: dict[str, Any] | None = None, networks: str = "", **pods: bool) -> None:
        self.more = more or {}
        self.annotations = {"k8s.v1.cni.cncf.io/networks": networks} if networks else {}
        self.pods = pods

    def get(self, kind: Any, name: str, *, namespace: str) -> Any:
        assert namespace == "team-a"
        if kind.plural == "pods" and name not in self.pods:
            raise NotFound(name)
        if kind.plural == "pods":
            return {
                "metadata": {"uid": f"uid-{name}", "annotations": self.annotations},
                "spec": {"hostNetwork": self.pods[name], **self.more},
            }
        assert kind.plural == "network-attachment-definitions"
        if name == "absent":
            raise NotFound(name)
        annotations = {"k8s.v1.cni.cncf.io/resourceName": f"example.com/{name}"} if "sriov" in name else {}
        return {"metadata": {"annotations": annotations}, "spec": {"config": '{"type": "x"}'}}


def reserved(obj: dict[str, Any], *pods: str) -> dict[str, Any]:
    obj["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    return obj


@pytest.mark.parametrize(("said", "place"), [({}, "team-a"), ({"namespace": "networks"}, "networks")])
def test_an_attachment_without_a_namespace_is_the_claims(said: dict[str, str], place: str) -> None:
    """A class that names the namespace leaves nothing to who writes networks in the claim's."""
    asked: list[str] = []

    class Networks:
        def get(self, kind: Any, name: str, *, namespace: str) -> Any:
            assert kind.plural == "network-attachment-definitions"
            asked.append(f"{namespace}/{name}")
            return {"metadata": {}, "spec": {"config": '{"type": "x"}'}}

    network = {"attachment": {"name": "rail", **said}}
    obj = claim(1, vf(VF_0), config=[parameters("RdmaConfig", source=FROM_CLASS, network=network)])
    found = ClaimSource(Networks()).consumers(obj)  # type: ignore[arg-type]
    assert asked == [f"{place}/rail"]
    assert [*found.attachments] == [Attachment("rail", said.get("namespace"))]


def test_who_the_claim_is_for() -> None:
    source = ClaimSource(FakePods(a=True, b=False))  # type: ignore[arg-type]
    assert source.consumers(claim(1, vf(VF_0))) == Consumers()
    assert source.consumers(reserved(claim(1, vf(VF_0)), "a")) == Consumers(("uid-a",), host_network=True)
    both = source.consumers(reserved(claim(1, vf(VF_0)), "a", "b"))
    assert both == Consumers(("uid-a", "uid-b"), host_network=False)
    own = ClaimSource(FakePods({"hostUsers": False}, a=False))  # type: ignore[arg-type]
    assert own.consumers(reserved(claim(1, vf(VF_0)), "a")) == Consumers(("uid-a",), own_users=True)
    config = [parameters("RdmaConfig", source=FROM_CLASS, network={"attachment": {"name": "rail"}})]
    found = source.consumers(reserved(claim(1, vf(VF_0), config=config), "b"))
    assert found.attachments == {Attachment("rail"): '{"type": "x"}'}
    config = [parameters("RdmaConfig", source=FROM_CLASS, network={"attachment": {"name": "absent"}})]
    found = source.consumers(reserved(claim(1, vf(VF_0), config=config), "b"))
    assert "NetworkAttachmentDefinition team-a/absent does not exist" in found.problem
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "train", "uid": "g"}
    shared = claim(1, vf(VF_0))
    shared["status"]["reservedFor"] = [group]
    assert source.consumers(shared) == Consumers(group="train")
    # A pod that is gone, or another one of its name, says nothing.
    away = source.consumers(reserved(claim(1, vf(VF_0)), "gone"))
    assert (away.pods, away.host_network) == (("uid-gone",), False)
    other = reserved(claim(1, vf(VF_0)), "a")
    other["status"]["reservedFor"][0]["uid"] = "uid-of-before"
    assert source.consumers(other) == Consumers(("uid-of-before",))
    only_memlock = claim(1, vf(VF_0), config=[parameters("RdmaConfig", memlock=False)])
    assert source.consumers(reserved(only_memlock, "a")) == Consumers(("uid-a",), host_network=True)
    # What is misspelt is the decision's to refuse.
    assert source.consumers(claim(1, vf(VF_0), config=[parameters("RdmaConfig", nonsense=1)])) == Consumers()


@pytest.mark.parametrize(
    ("networks", "multus", "resources"),
    [
        ("", False, set()),
        ("plain", True, set()),
        ("sriov-0, team-a/sriov-1@rail1 ,absent", True, {"example.com/sriov-0", "example.com/sriov-1"}),
        ('[{"name": "sriov-0", "namespace": "team-a"}, {"name": "plain"}, 7]', True, {"example.com/sriov-0"}),
        ("[broken", False, set()),
    ],
)
def test_what_multus_is_to_attach(networks: str, multus: bool, resources: set[str]) -> None:
    obj = reserved(claim(1, vf(VF_0)), "a")
    pods: Any = FakePods(None, networks, a=False)
    found = ClaimSource(pods).consumers(obj)
    assert (found.multus, found.resources) == (multus, resources)
    unread = ClaimSource(pods, reads_networks=False).consumers(obj)
    assert (unread.multus, unread.resources) == (multus, set())


def test_a_tenant_has_no_thousand_networks_read() -> None:
    asked: list[str] = []

    class Pods(FakePods):
        def get(self, kind: Any, name: str, *, namespace: str) -> Any:
            asked.append(name)
            return super().get(kind, name, namespace=namespace)

    pods: Any = Pods(None, ",".join(f"sriov-{number}" for number in range(20_000)), a=False)
    ClaimSource(pods).consumers(reserved(claim(1, vf(VF_0)), "a"))
    assert len(asked) == 1 + MOST_NETWORKS


# status.devices


def test_the_status_says_what_is_in_the_pod(roce: PluginNode) -> None:
    planned(roce, claim(2, nic("pf", PF, "10"), config=ADDRESSED))
    (shared,) = device_statuses(plugin(roce).records()[0], inventory=roce.inventory, attached={})
    assert shared["shareID"]
    plugin(roce).unprepare(ref_of(claim(2)))
    planned(roce, claim(1, vf(VF_0)))
    (record,) = plugin(roce).records()
    (pending,) = device_statuses(record, inventory=roce.inventory, attached={})
    reasons = [(each["type"], each["status"], each["reason"]) for each in pending["conditions"]]
    assert reasons == [("Ready", "False", "NetworkPending"), ("GIDReady", "False", "NoGID")]
    assert "shareID" not in pending
    attached = {VF_0: AttachedDevice(VF_0, "rail0", ("10.0.0.5/24",), "02:00", gid_ready=False)}
    entry = device_statuses(record, inventory=roce.inventory, attached=attached)[0]
    assert entry["networkData"] == {
        "interfaceName": "rail0",
        "ips": ["10.0.0.5/24"],
        "hardwareAddress": "02:00",
    }
    assert [(each["type"], each["status"]) for each in entry["conditions"]] == [
        ("Ready", "True"),
        ("GIDReady", "False"),
    ]


def test_a_nic_without_a_network_is_an_event_of_its_pods(roce: PluginNode) -> None:
    obj = reserved(claim(1, vf(VF_0)), "a", "b")
    planned(roce, obj, policy=UNMANAGED)
    events: list[Any] = []

    class Client:
        def get(self, kind: Any, name: str, *, namespace: str | None = None) -> Any:
            return json.loads(json.dumps(obj))

        def patch(self, kind: Any, name: str, body: Any, **_: Any) -> Any:
            return {}

        def create(self, kind: Any, body: Any, *, namespace: str | None = None) -> Any:
            assert (kind.plural, namespace) == ("events", "team-a")
            if body["metadata"]["name"] in [event["metadata"]["name"] for event in events]:
                raise Conflict("it is there")
            events.append(body)

    for _ in range(2):  # twice, as after a restart of the plugin
        client: Any = Client()
        writer = ClaimStatusWriter(
            client, records=plugin(roce).records, attached=lambda: (), inventory=lambda: roce.inventory
        )
        assert writer.sync()
    assert [event["involvedObject"]["name"] for event in events] == ["a", "b"]
    assert {event["reason"] for event in events} == {"NoNetworkInPod"}
    assert "claim-1" in events[0]["message"]


def test_entries_of_others_and_times_that_still_hold_stay() -> None:
    condition = {"type": "Ready", "status": "True", "reason": "Attached", "message": "m"}
    ours = {"driver": "koordra.io", "pool": "node-a", "device": "x", "conditions": [condition]}
    foreign = {"driver": "gpu.example.com", "pool": "node-a", "device": "x"}
    first = merged([foreign], [ours], pools={"node-a"}, now="T1")
    assert first[0] == foreign
    assert first[1]["conditions"] == [{**condition, "lastTransitionTime": "T1"}]
    users = {"type": "Checked", "status": "True", "lastTransitionTime": "T0"}
    first[1]["conditions"].append(users)
    again = merged(first, [ours], pools={"node-a"}, now="T2")
    assert again == first
    changed = {**ours, "conditions": [{**condition, "status": "False"}]}
    assert (
        merged(again, [changed], pools={"node-a"}, now="T3")[1]["conditions"][0]["lastTransitionTime"] == "T3"
    )


def test_the_status_is_written_once_and_again_when_it_changes(roce: PluginNode) -> None:
    obj = claim(1, vf(VF_0))
    planned(roce, obj)
    stored = {"claim-1": obj}
    writes: list[Any] = []

    class Client:
        def get(self, kind: Any, name: str, *, namespace: str | None = None) -> Any:
            return json.loads(json.dumps(stored[name]))

        def patch(
            self,
            kind: Any,
            name: str,
            body: Any,
            *,
            namespace: str | None = None,
            subresource: str | None = None,
        ) -> Any:
            assert (namespace, subresource) == ("team-a", "status")
            assert set(body["status"]) == {"devices"}
            writes.append(body)
            stored[name]["status"].update(body["status"])
            return stored[name]

    in_pods: list[AttachedNetwork] = []
    writer = ClaimStatusWriter(
        Client(),
        records=plugin(roce).records,
        attached=lambda: in_pods,
        inventory=lambda: roce.inventory,
        clock=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    assert writer.sync()
    assert writer.sync()
    assert len(writes) == 1
    assert writes[0]["status"]["devices"][0]["conditions"][0]["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    in_pods.append(AttachedNetwork(uid(1), "pod-1", "s", "/n", (AttachedDevice(VF_0, "rail0"),)))
    assert writer.sync()
    assert writes[1]["status"]["devices"][0]["networkData"] == {"interfaceName": "rail0"}
    # Somebody else has the name now: nothing is written there.
    stored["claim-1"] = claim(2, name="claim-1")
    in_pods.clear()
    assert writer.sync()
    assert len(writes) == 2


def test_bytes_that_are_no_network_file_are_said_to_be(tmp_path: Path) -> None:
    path = StateFolder(tmp_path).network_file(uid(1))
    path.parent.mkdir(parents=True)
    for text in ("{", "[]", '{"schema": "koordra.io/network/v1"}', '{"schema": "other"}'):
        path.write_text(text)
        with pytest.raises(CheckpointError):
            claim_network.read_networks(StateFolder(tmp_path), Disk())


def test_what_multus_attaches_is_left_to_it(roce: PluginNode) -> None:
    """The pod's network asks for the resource whose name the node publishes for its virtual functions."""
    roce.inventory = inventory_of(
        Discovery(roce.inventory.machine, ()),
        offering=Offering(vfs=True, isolation=ANY_ISOLATION, cni=cni_resources(["vf=example.com/rails"])),
    )
    by_multus = Consumers(pods=("pod-1",), multus=True, resources=frozenset({"example.com/rails"}))
    (plan,) = planned(roce, claim(1, vf(VF_0)), by_multus)
    assert (plan.kind, plan.interface) == (NetworkKind.OTHERS, "")
    assert not any("network" in mount for mount in mounted(roce))
    plugin(roce).unprepare(ref_of(claim(1)))
    assert planned(roce, claim(1, vf(VF_0)), replace(by_multus, pods=("pod-1", "pod-2"))) == [None]
    plugin(roce).unprepare(ref_of(claim(1)))
    others = Consumers(pods=("pod-1",), multus=True, resources=frozenset({"example.com/storage"}))
    (plan,) = planned(roce, claim(1, vf(VF_0)), others)
    assert plan.kind is NetworkKind.MOVE


@pytest.mark.parametrize("pods", [("pod-1",), ("pod-1", "pod-2")])
@pytest.mark.parametrize("network", [{"vlan": 7}, {"pool": "rails"}, {"attachment": {"name": "rail"}}])
def test_a_pods_multus_network_takes_nothing_from_its_class(
    roce: PluginNode, network: dict[str, Any], pods: tuple[str, ...]
) -> None:
    roce.inventory = inventory_of(
        Discovery(roce.inventory.machine, ()),
        offering=Offering(vfs=True, isolation=ANY_ISOLATION, cni=cni_resources(["vf=example.com/rails"])),
    )
    by_multus = Consumers(pods=pods, multus=True, resources=frozenset({"example.com/rails"}))
    config = [parameters("RdmaConfig", source=FROM_CLASS, network=network)]
    told = refused(roce, claim(1, vf(VF_0), config=config), by_multus)
    assert f"RdmaConfig.network of request nic decides the network of {VF_0}" in told
    assert "k8s.v1.cni.cncf.io/networks asks Multus for it too (example.com/rails); leave one" in told


# What the host needs.


def standing(node: PluginNode, *, exclusive: bool = False, **of_nic: Any) -> PluginNode:
    """The node whose NICs stand like this on the host."""
    machine = node.inventory.machine
    changed = replace(
        machine,
        nics=tuple(replace(each, **of_nic) for each in machine.nics),
        vfs=tuple(replace(each, **of_nic) for each in machine.vfs),
        rdma_exclusive=exclusive,
    )
    node.inventory = inventory_of(
        Discovery(changed, ()), offering=Offering(vfs=True, isolation=ANY_ISOLATION)
    )
    return node


ALONE = claim(
    1, nic("nic", PF), config=[parameters("RdmaConfig", source=FROM_CLASS, mode="Exclusive", network=NETWORK)]
)


@pytest.mark.parametrize("facts", [{"needed": True}, {"netdev": "bond0", "upper": "bond0"}])
def test_what_the_host_needs_stays_and_carries_a_macvlan(roce: PluginNode, facts: dict[str, Any]) -> None:
    (plan,) = planned(standing(roce, **facts), ALONE)
    assert plan.kind is NetworkKind.MACVLAN
    assert plan.host_interface == facts.get("netdev", "ethp0")


def test_infiniband_that_the_host_needs_is_used_by_its_verbs(infiniband: PluginNode) -> None:
    obj = claim(1, nic("nic", PF), config=[parameters("RdmaConfig", mode="Exclusive")])
    assert planned(standing(infiniband, needed=True), obj) == [None]


def test_a_part_of_a_bridge_is_refused(roce: PluginNode) -> None:
    text = refused(standing(roce, upper="br-ex"), ALONE)
    assert "HostNeedsNIC: ethp0 is part of br-ex" in text


def test_shares_are_not_seen_in_a_pod_where_rdma_devices_have_one_namespace(
    roce: PluginNode, infiniband: PluginNode
) -> None:
    for node in (roce, infiniband):
        text = refused(standing(node, exclusive=True), claim(1, nic("nic", PF, "50")))
        assert "rdma system set netns shared" in text
    (plan,) = planned(roce, claim(1, vf(VF_0)))
    assert plan.kind is NetworkKind.MOVE
    # Without pod networking nothing of an exclusive node reaches a pod, InfiniBand neither.
    (plan,) = planned(infiniband, claim(1, vf(VF_0)), policy=UNMANAGED)
    assert plan.kind is NetworkKind.ABSENT
