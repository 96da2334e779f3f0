"""What NCCL and UCX are told of a NIC's network: the lines, the precedence of their own readers, and what
is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.errors import PrepareError
from koordra.kubelet_plugin.network.consumers import Consumers
from koordra.kubelet_plugin.network.fabric_files import IN_CONTAINER
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.node_inventory import inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.topology.machine import Nic
from koordra.topology.problems import Discovery
from tests.fakes.node_claims import ANY_ISOLATION, NIC_0, NIC_1, claim, nic, parameters, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

ON_HOST = Consumers(pods=("pod-1",), host_network=True)
IN_POD = Consumers(pods=("pod-1",))


def changed(
    node: PluginNode, layer: str, pkeys: dict[str, tuple[int, ...]] | None = None, **of_nic: Any
) -> PluginNode:
    """The node with NICs of this kind."""

    def each(one: Nic) -> Nic:
        keys = (pkeys or {}).get(one.name, ())
        return replace(
            one,
            ports=tuple(replace(port, link_layer=layer, pkeys=keys) for port in one.ports),
            **of_nic,
        )

    machine = replace(node.inventory.machine, nics=tuple(map(each, node.inventory.machine.nics)))
    node.inventory = inventory_of(Discovery(machine, ()), offering=Offering(isolation=ANY_ISOLATION))
    return node


HOOK = "/var/lib/koordra/hook/koordra-cdi-hook-0123456789abcdef"


def plugin(node: PluginNode, consumers: Consumers, hook: str | None = HOOK) -> DeviceState:
    return node.networked(consumers, hook=hook)


def told(node: PluginNode, *devices: Any, consumers: Consumers = ON_HOST, **config: Any) -> dict[str, str]:
    """What the containers of a claim read, by variable, with these RdmaConfig fields in the class."""
    obj = claim(1, *devices, config=[parameters("RdmaConfig", source="FromClass", **config)])
    node.claims.put(obj)
    plugin(node, consumers).prepare(ref_of(obj))
    edits = [device["containerEdits"] for device in node.spec(uid(1))["devices"]]
    env = brought(node)
    mounts = {mount["containerPath"]: mount["hostPath"] for each in edits for mount in each.get("mounts", ())}
    found: dict[str, str] = {}
    joined = [path for path in mounts if path == f"{IN_CONTAINER}/{uid(1)}/nccl.conf"]
    for path in (*joined, env.get("UCX_CONFIG_DIR") and f"{env['UCX_CONFIG_DIR']}/ucx.conf"):
        found |= read_conf(Path(mounts[path]).read_text()) if path else {}
    return found


def brought(node: PluginNode) -> dict[str, str]:
    """The variables that the hook is told of."""
    return {name: value for device in node.record(uid(1))["devices"] for name, value in device["env"].items()}


def read_conf(text: str) -> dict[str, str]:
    """As NCCL reads a file: setenv without overwriting, so that the first line counts; `#` is a comment."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            found.setdefault(name, value)
    return found


FABRIC = {"trafficClass": 106, "serviceLevel": 3, "addressRange": "10.10.0.0/16"}


def test_the_class_says_what_the_libraries_read(node: PluginNode) -> None:
    assert told(node, nic("nic", NIC_0), fabric=FABRIC) == {
        "NCCL_IB_TC": "106",
        "NCCL_IB_SL": "3",
        "NCCL_IB_ADDR_RANGE": "10.10.0.0/16",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "UCX_IB_TRAFFIC_CLASS": "106",
        "UCX_IB_SL": "3",
        "UCX_IB_ROCE_SUBNETS": "10.10.0.0/16",
    }
    env = brought(node).keys()
    # Defaults are not forced on anybody, and an index would hold for one NIC only.
    assert not env & {"NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"}
    assert env >= {"NCCL_IB_HCA", "UCX_NET_DEVICES", "NVSHMEM_HCA_LIST"}
    # The folder is for the NRI hook to set, as CDI would overwrite the image's; a file of its user's own NCCL
    # still finds by itself.
    assert "UCX_CONFIG_DIR" in env
    assert "CONF" not in str(env - {"UCX_CONFIG_DIR"})
    spec = node.spec(uid(1))
    assert "CONF" not in str(spec)
    (hook,) = spec["containerEdits"]["hooks"]
    assert (hook["hookName"], hook["path"], hook["args"][-2:]) == (
        "createContainer",
        HOOK,
        ["--fabric", IN_CONTAINER],
    )


def test_without_the_hook_that_joins_files_a_fabric_is_refused(node: PluginNode) -> None:
    obj = claim(1, nic("nic", NIC_0), config=[parameters("RdmaConfig", source="FromClass", fabric=FABRIC)])
    node.claims.put(obj)
    with pytest.raises(
        PrepareError, match=r"without koordra-cdi-hook \(make -C native\); RdmaConfig.fabric needs"
    ):
        plugin(node, ON_HOST, hook=None).prepare(ref_of(obj))
    assert node.holders() == set()


def test_nothing_is_said_where_nothing_is_known(node: PluginNode) -> None:
    assert told(node, nic("nic", NIC_0)) == {}
    assert "CONF" not in str(node.spec(uid(1)))


def test_addresses_of_ipv6_are_asked_for(node: PluginNode) -> None:
    found = told(
        changed(node, "Ethernet", netdev="ens1"),
        nic("nic", NIC_0),
        consumers=IN_POD,
        network={"addresses": ["fd00::5/64"]},
    )
    assert found == {"NCCL_IB_ADDR_FAMILY": "AF_INET6", "NCCL_SOCKET_IFNAME": "=eth0"}


@pytest.mark.parametrize(
    "fabric", [{"addressFamily": "IPv6"}, {"addressRange": "10.8.0.0/16"}, {"addressRange": "fd00::/8"}]
)
def test_addresses_that_the_libraries_are_told_not_to_take_are_refused(
    node: PluginNode, fabric: dict[str, str]
) -> None:
    network = {"addresses": ["10.10.0.5/16"]}
    roce = changed(node, "Ethernet", netdev="ens1")
    with pytest.raises(
        PrepareError, match=r"FabricMismatch: .* has 10\.10\.0\.5 in the pod, and its class's fabric"
    ):
        told(roce, nic("nic", NIC_0), consumers=IN_POD, network=network, fabric=fabric)
    assert told(
        roce, nic("nic", NIC_0), consumers=IN_POD, network=network, fabric={"addressRange": "10.8.0.0/13"}
    )


def test_a_partition_is_a_place_for_nccl_and_a_key_for_ucx(node: PluginNode) -> None:
    keys = {NIC_0: (0xFFFF, 0x0005), NIC_1: (0xFFFF, 0x8005)}
    found = told(
        changed(node, "InfiniBand", keys), nic("a", NIC_0), nic("b", NIC_1), fabric={"pkey": "0x8005"}
    )
    assert found == {"NCCL_IB_PKEY": "1", "UCX_IB_PKEY": "0x5"}


def test_a_partition_that_the_nic_is_not_in_is_refused(node: PluginNode) -> None:
    with pytest.raises(
        PrepareError, match=r"is not in partition 0x8006, but in 0xffff, 0x8005; have the subnet"
    ):
        told(
            changed(node, "InfiniBand", {NIC_0: (0xFFFF, 0x8005)}), nic("a", NIC_0), fabric={"pkey": "0x8006"}
        )
    assert node.holders() == set()


def test_places_that_differ_are_refused_since_a_program_has_one(node: PluginNode) -> None:
    keys = {NIC_0: (0xFFFF, 0x8005), NIC_1: (0xFFFF, 0x8007, 0x8005)}
    with pytest.raises(PrepareError, match=r"NCCL_IB_PKEY would be 1 for .* and 2 for"):
        told(changed(node, "InfiniBand", keys), nic("a", NIC_0), nic("b", NIC_1), fabric={"pkey": "0x8005"})
    assert node.holders() == set()


@pytest.mark.parametrize("layer", ["InfiniBand", "Ethernet"])
def test_nccl_is_kept_from_rails_for_its_own_connections(node: PluginNode, layer: str) -> None:
    """It takes interfaces named ib*, or the first of the kernel's list. On the host's network it is the
    host's affair; and a koordra without the hook, which puts the line where NCCL reads it, is no reason to
    refuse."""
    with_nics = changed(node, layer, {NIC_0: (0xFFFF,)}, netdev="ens1")
    network = {"addresses": ["10.10.0.5/16"]}
    assert told(with_nics, nic("a", NIC_0, share=None), consumers=IN_POD, network=network) == {
        "NCCL_SOCKET_IFNAME": "=eth0"
    }
    plugin(node, IN_POD).unprepare(ref_of(claim(1)))
    assert told(with_nics, nic("a", NIC_0, share=None)) == {}
    obj = claim(
        2, nic("a", NIC_0, share=None), config=[parameters("RdmaConfig", source="FromClass", network=network)]
    )
    plugin(node, ON_HOST).unprepare(ref_of(claim(1)))
    node.claims.put(obj)
    (device,) = plugin(with_nics, IN_POD, hook=None).prepare(ref_of(obj)).devices
    assert device.fabric == (("NCCL_SOCKET_IFNAME", "=eth0"),)


def test_a_prepared_claim_keeps_its_lines(node: PluginNode) -> None:
    """The subnet manager changed the table; the containers run, and a restarted kubelet asks again."""
    keys = {NIC_0: (0xFFFF, 0x8005)}
    before = told(changed(node, "InfiniBand", keys), nic("a", NIC_0), fabric={"pkey": "0x8005"})
    again = told(changed(node, "InfiniBand", {NIC_0: ()}), nic("a", NIC_0), fabric={"pkey": "0x8005"})
    assert again == before


@pytest.mark.parametrize(
    ("fabric", "complaint"),
    [
        ({"trafficClass": 256}, "fabric.trafficClass: 256 is not a whole number from 0 to 255"),
        ({"serviceLevel": 16}, "from 0 to 15"),
        ({"addressFamily": "AF_INET"}, "use one of IPv4, IPv6"),
        ({"addressRange": "10.10.0.1/16"}, "has host bits set"),
        ({"addressRange": "10.10.0.0/16", "addressFamily": "IPv6"}, "10.10.0.0/16 is not IPv6"),
        ({"pkey": 7}, "is not a partition key"),
        ({"pkey": "0x8000"}, "is not a partition key"),
        ({"pkey": "0x10000"}, "is not a partition key"),
        ({"trafficClass": -1}, "is not a whole number from 0 to 255"),
        ({"trafficClass": True}, "is not a whole number"),
        ({"serviceLevel": "3"}, "is not a whole number"),
        ({"addressRange": "10.10.0.0/33"}, "addressRange"),
        ({"gidIndex": 3}, "fabric.gidIndex: there is no such field"),
        (7, "fabric: is not an object"),
    ],
)
def test_misspelt_fabrics_are_refused_by_name(node: PluginNode, fabric: Any, complaint: str) -> None:
    with pytest.raises(PrepareError, match=complaint):
        told(node, nic("nic", NIC_0), fabric=fabric)
