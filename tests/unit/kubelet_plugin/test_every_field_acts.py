"""No field of koordra's parameters is a word without effect: two values of each, of which something else
comes, by the allocator or by Prepare. A field that is added is told here what it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from koordra.api.allocation import Allocation
from koordra.api.opaque.configuration import configuration
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.api.opaque.parameters import KINDS, GpuConfig
from koordra.api.opaque.rdma_fabric import RdmaFabric
from koordra.api.opaque.rdma_network import Attachment
from koordra.api.opaque.resize import Bounds, Wish
from koordra.api.reader import snake_case
from koordra.controller.allocation.reserved.resize_decision import OwnShare, decide
from koordra.errors import PrepareError
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.isolation.backend import Card, Share
from koordra.kubelet_plugin.isolation.limiter.backend import time_share
from koordra.kubelet_plugin.isolation.timeslicing import TimeSlicing
from koordra.kubelet_plugin.network.address_pools import NodePool, read_pools
from koordra.kubelet_plugin.network.consumers import Consumers
from koordra.kubelet_plugin.network.network_decision import NetworkPolicy
from koordra.kubelet_plugin.publish.node_inventory import inventory_of
from koordra.kubelet_plugin.publish.resource_slices import Offering, build_slices
from koordra.placement import plan
from koordra.topology.location import DeviceNode
from koordra.topology.presets.tree import MachineWriter
from tests.fakes.node_claims import ANY_ISOLATION, GPU_0, NIC_0, NODE, parameters
from tests.fakes.node_claims import claim as prepared
from tests.fakes.node_claims import gpu as gpu_result
from tests.fakes.node_claims import nic as nic_result
from tests.machines import catalogue
from tests.unit.allocator.machines import allocated, claim, config, device_classes, node, pod, request
from tests.unit.api.test_authority import NETWORK, VALUES
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

Said = Mapping[str, Any]
Outcome = Callable[[Said], object]
FABRIC, RESIZE = "RdmaConfig.fabric", "GpuConfig.resize"


def published(machine: str, name: str, isolation: IsolationPolicy) -> list[Any]:
    slices = build_slices(
        catalogue.machine(machine),
        node_name=name,
        node_uid=None,
        mode="joint",
        generation=1,
        offering=Offering(isolation=isolation),
    )
    return [node(name), *slices]


def placed(
    kind: str, *requests: Any, machine: str = "hgx-h100", allowed: tuple[str, ...] = ("limiter",)
) -> Outcome:
    """What a claim gets that says so, or why nothing; one card of the second node is half taken."""
    held = allocated(
        claim("held", request("gpu", capacity={"memory": "10Gi"})),
        {
            "devices": {"results": [{**gpu_result("gpu", GPU_0, "10Gi"), "pool": "node-2"}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["node-2"]}]}]},
        },
    )  # fmt: skip
    isolation = IsolationPolicy(allowed)
    nodes = [*published(machine, "node-1", isolation)]
    nodes += [*published(machine, "node-2", isolation), held] if machine == "hgx-h100" else []

    def outcome(said: Said) -> object:
        classes = device_classes()
        entries = []
        if said.keys() & {"allowedIsolation", "defaultIsolation"}:
            classes[0]["spec"]["config"] = [config(kind, **said)]
        elif said:
            entries = [config(kind, **said)]
        found = plan(
            [*classes, *nodes, claim("c", *requests, configs=entries), pod("p", "c")], report_errors=True
        )
        return [
            {claim: [each["device"] + str(each.get("consumedCapacity")) for each in one["devices"]["results"]]
             for claim, one in found.allocations.items()},
            found.nodes, {claim: [(one.reason, one.detail) for one in why] for claim, why in found.unsatisfiable.items()},
        ]  # fmt: skip

    return outcome


SHARE = request("gpu", capacity={"memory": "10Gi"})
PAIRS = (request("gpu", count=4), request("nic", "nic", count=2))
NICS_FEW = "pcie-a100x8-2nic"
NODE_SCOPE = {"scope": "Node"}
PLACED: Mapping[tuple[str, str], tuple[Outcome, Said, Said]] = {
    ("JointAllocation", "scope"): (placed("JointAllocation", request("gpu", count=8)), NODE_SCOPE | {"pairing": "Together"}, {"scope": "PCIeSwitch", "pairing": "Together"}),
    ("JointAllocation", "enforcement"): (placed("JointAllocation", *PAIRS, machine=NICS_FEW), {"scope": "PCIeSwitch"}, {"scope": "PCIeSwitch", "enforcement": "Preferred"}),
    ("JointAllocation", "pairing"): (placed("JointAllocation", *PAIRS, machine=NICS_FEW), NODE_SCOPE, NODE_SCOPE | {"pairing": "Together"}),
    ("PlacementPolicy", "node"): (placed("PlacementPolicy", request("gpu", count=2)), {"node": "Binpack", "device": "Spread"}, {"node": "Spread", "device": "Spread"}),
    ("PlacementPolicy", "device"): (placed("PlacementPolicy", SHARE), {"node": "Binpack", "device": "Binpack"}, {"node": "Binpack", "device": "Spread"}),
    ("GpuConfig", "isolation"): (placed("GpuConfig", SHARE), {}, {"isolation": "mps"}),
    ("GpuConfig", "memoryPercent"): (placed("GpuConfig", request("gpu")), {"memoryPercent": 25}, {"memoryPercent": 50}),
    ("GpuConfig", "tflops"): (placed("GpuConfig", SHARE), {"tflops": 10}, {"tflops": 30}),
    ("GpuConfig", "tflopsPrecision"): (placed("GpuConfig", SHARE), {"tflops": 10}, {"tflops": 10, "tflopsPrecision": "FP8"}),
    ("GpuConfig", "exclusive"): (placed("GpuConfig", SHARE), {}, {"exclusive": True}),
    ("GpuConfig", "partition"): (placed("GpuConfig", request("gpu", count=3)), {}, {"partition": "Honor"}),
    ("GpuConfig", "allowedIsolation"): (placed("GpuConfig", SHARE), {}, {"allowedIsolation": ["mps"]}),
    ("GpuConfig", "defaultIsolation"): (placed("GpuConfig", SHARE), {}, {"defaultIsolation": "mps"}),
    ("RdmaConfig", "mode"): (placed("RdmaConfig", request("nic", "nic", capacity={"share": "25"})), {}, {"mode": "Exclusive"}),
}  # fmt: skip


@pytest.mark.parametrize(("of", "field"), PLACED)
def test_a_field_changes_what_is_given_out(of: str, field: str) -> None:
    outcome, one, other = PLACED[of, field]
    assert (one.get(field), other.get(field)) != (None, None)
    assert {**one, field: None} == {**other, field: None}, "nothing else differs"
    assert outcome(one) == outcome(one)
    assert outcome(one) != outcome(other)


POOLS = read_pools(
    "schema: koordra.io/network-pools/v1\npools: [{name: rails, perNode: 26, networks: [{cidr: 10.10.0.0/16}]}]\n",
    source="pools.yaml",
)
IN_POD = Consumers(
    pods=("pod-1",),
    pools=POOLS,
    given={"rails": NodePool(POOLS["rails"], (ip_network("10.10.0.0/26"),))},
    attachments={Attachment("rail"): '{"type": "host-device"}'},
)
ROCE, INFINIBAND = "nic-0000-31-00-0", "nic-0000-71-00-0"
ADDRESSED = {"addresses": ["192.168.10.5/24"]}


def in_pod(*, device: str = ROCE, **network: Any) -> dict[str, Any]:
    return {"mode": "Exclusive", "network": network, "device": device}


def with_fabric(fabric: Mapping[str, Any], *, device: str = INFINIBAND) -> dict[str, Any]:
    network = {"network": ADDRESSED} if device == ROCE else {}
    return {"mode": "Exclusive", **network, "fabric": fabric, "device": device}


GPU: dict[str, Any] = {"device": GPU_0}
PREPARED: Mapping[tuple[str, str], tuple[Said, Said]] = {
    ("GpuConfig", "numaAffinity"): (GPU, GPU | {"numaAffinity": True}),
    ("GpuConfig", "driverCapabilities"): (GPU, GPU | {"driverCapabilities": ["compute", "gdrcopy"]}),
    ("RdmaConfig", "memlock"): ({"device": NIC_0}, {"device": NIC_0, "memlock": False}),
    ("RdmaConfig", "network"): (in_pod(**ADDRESSED), in_pod(addresses=["10.1.0.5/24"])),
    ("RdmaConfig", "fabric"): (with_fabric({"serviceLevel": 1}), with_fabric({"serviceLevel": 2})),
    (NETWORK, "interface"): (in_pod(**ADDRESSED), in_pod(**ADDRESSED, interface="rail0")),
    (NETWORK, "addresses"): (in_pod(**ADDRESSED), in_pod(addresses=["10.1.0.5/24"])),
    (NETWORK, "pool"): (in_pod(**ADDRESSED), in_pod(pool="rails")),
    (NETWORK, "routes"): (in_pod(**ADDRESSED), in_pod(**ADDRESSED, routes=[{"destination": "10.0.0.0/8", "gateway": "192.168.10.1"}])),
    (NETWORK, "mtu"): (in_pod(**ADDRESSED), in_pod(**ADDRESSED, mtu=1400)),
    (NETWORK, "vlan"): (in_pod(**ADDRESSED), in_pod(**ADDRESSED, vlan=7)),
    (NETWORK, "guid"): (in_pod(device=INFINIBAND), in_pod(device=INFINIBAND, guid="0011:2233:4455:6677")),
    (NETWORK, "pkey"): (in_pod(device=INFINIBAND), in_pod(device=INFINIBAND, pkey="0x8005")),
    (NETWORK, "attachment"): (in_pod(**ADDRESSED), in_pod(attachment={"name": "rail"})),
    (FABRIC, "trafficClass"): (with_fabric({"trafficClass": 106}), with_fabric({"trafficClass": 96})),
    (FABRIC, "serviceLevel"): (with_fabric({"serviceLevel": 1}), with_fabric({"serviceLevel": 2})),
    (FABRIC, "addressFamily"): (with_fabric({"trafficClass": 96}, device=ROCE), with_fabric({"trafficClass": 96, "addressFamily": "IPv6"}, device=ROCE)),
    (FABRIC, "addressRange"): (with_fabric({"trafficClass": 96}, device=ROCE), with_fabric({"trafficClass": 96, "addressRange": "192.168.0.0/16"}, device=ROCE)),
    (FABRIC, "pkey"): (with_fabric({"serviceLevel": 1}), with_fabric({"serviceLevel": 1, "pkey": "0x8005"})),
}  # fmt: skip


@pytest.fixture(scope="module")
def rdma(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("drivers")
    MachineWriter(root).write(catalogue.load("rdma-drivers").machine(serial=NODE))
    return inventory_of(discover(root), offering=Offering(isolation=ANY_ISOLATION))


@pytest.mark.parametrize(("of", "field"), PREPARED)
def test_a_field_changes_what_is_prepared(
    of: str, field: str, node: PluginNode, rdma: Any, tmp_path: Path
) -> None:
    equipped = replace(node.inventory.machine, gpu_optional=(DeviceNode("/dev/gdrdrv", 239, 0),))

    def outcome(said: Said, number: int) -> object:
        device, fields = said["device"], {name: value for name, value in said.items() if name != "device"}
        own = device in (ROCE, INFINIBAND)
        on = PluginNode(tmp_path / str(number), rdma if own else replace(node.inventory, machine=equipped))
        result = gpu_result("gpu", device, "10Gi") if device == GPU_0 else nic_result("nic", device)
        obj = prepared(
            1,
            result,
            config=[parameters(of.partition(".")[0], source="FromClass", **fields)] if fields else [],
        )
        on.claims.put(obj)
        state = (
            on.networked(IN_POD, policy=NetworkPolicy(managed=True), hook="/opt/hook") if own else on.plugin()
        )
        try:
            record = state.prepare(ref_of(obj))
        except PrepareError as error:
            return str(error)
        folder = str(tmp_path / str(number))
        uid = record.ref.uid
        return str((record.devices, on.spec(uid), on.record(uid))).replace(folder, "")

    one, other = PREPARED[of, field]
    assert one != other
    assert outcome(one, 1) == outcome(one, 2)
    assert outcome(one, 3) != outcome(other, 4)


def settings_of_cards(said: GpuConfig) -> object:
    """What the driver is told, of a card that has a share by `timeslicing`."""
    told: list[object] = []

    class Cards:
        available = True

        def compute_mode(self, uuid: str) -> str:
            return "DEFAULT"

        def set_compute_mode(self, uuid: str, mode: str) -> None:
            told.append(mode)

        def set_time_slice(self, uuid: str, number: int) -> None:
            told.append(number)

    backend: Any = TimeSlicing(Cards())  # type: ignore[arg-type]
    share = Share("uid", 0, GPU_0, uuid="GPU-1", memory_bytes=1 << 30, cores=30)
    backend.card_start(Card(GPU_0, "GPU-1", (share,)), said, told.append)
    return told


def region_of(said: GpuConfig) -> object:
    return time_share(Share("uid", 0, GPU_0, uuid="GPU-1", memory_bytes=1 << 30, cores=30), said)


@pytest.mark.parametrize(
    ("field", "outcome", "one", "other"),
    [
        ("coresPolicy", region_of, {"coresPolicy": "Hard"}, {"coresPolicy": "Elastic"}),
        (
            "priority",
            region_of,
            {"coresPolicy": "Elastic", "priority": 1},
            {"coresPolicy": "Elastic", "priority": 2},
        ),
        ("timeSlice", settings_of_cards, {"timeSlice": "Short"}, {"timeSlice": "Long"}),
    ],
)
def test_a_field_changes_what_a_backend_does(field: str, outcome: Any, one: Said, other: Said) -> None:
    first, second = (
        configuration([parameters("GpuConfig", **said)], claim="x").gpu("gpu") for said in (one, other)
    )
    assert outcome(first) != outcome(second)


SPAN = {"min": "1Gi", "max": "40Gi"}
BOUNDS: Mapping[str, tuple[Said, Wish]] = {
    "memory": ({"memory": SPAN}, Wish(memory=Decimal(20 << 30))),
    "cores": ({"cores": {"min": 1, "max": 60}}, Wish(cores=Decimal(50))),
    "priority": ({"priority": {"min": 1, "max": 60}}, Wish(priority=50)),
    "coresPolicy": ({"coresPolicy": ["Hard", "Elastic"]}, Wish(policy="Elastic")),
}


@pytest.mark.parametrize("field", BOUNDS)
def test_a_bound_changes_what_a_running_claim_may_wish(field: str) -> None:
    bounds, wish = BOUNDS[field]

    def refused(resize: Said) -> str:
        entry = parameters(
            "GpuConfig",
            source="FromClass",
            isolation="limiter",
            coresPolicy="Hard",
            **({"resize": resize} if resize else {}),
        )
        result = {**gpu_result("gpu", GPU_0, "10Gi", cores="30")}
        obj = prepared(1, result, config=[entry])
        (share,) = Allocation.of_claim(obj).results
        own = OwnShare(share, {}, {"memory": Decimal(10 << 30), "cores": Decimal(30)}, "Hard", None)
        free = lambda device: {"memory": Decimal(60 << 30), "cores": Decimal(70)}  # noqa: E731
        config = configuration([entry], claim="x")
        return decide([own], {"gpu": wish}, config, before=None, free=free, quota=lambda amounts: "").refused

    assert not refused(bounds)
    assert "Infeasible" in refused({})


ELSEWHERE = {("ImexConfig", "channels"): "prepare/test_imex.py::test_the_class_gives_all_channels"}
"""Needs the daemon's double of another test."""


def test_every_field_is_tried() -> None:
    tried = {*PLACED, *PREPARED, *ELSEWHERE, *((RESIZE, name) for name in BOUNDS)}
    tried |= {("GpuConfig", name) for name in ("coresPolicy", "priority", "timeSlice", "resize")}
    every = {(kind, name) for kind, (_, known) in KINDS.items() for name in known}
    every |= {(NETWORK, name) for name in VALUES[NETWORK]}
    for of, build in ((FABRIC, RdmaFabric), (RESIZE, Bounds)):
        fields = {each.name for each in dataclasses.fields(build)}
        known = {name for where, name in tried if where == of}
        assert {snake_case(name) for name in known} - {"cores_policy"} == fields - {"policies"}
    assert every <= tried
    for place in ELSEWHERE.values():
        name, _, function = place.partition("::")
        assert f"def {function}(" in (Path(__file__).parent / name).read_text()
