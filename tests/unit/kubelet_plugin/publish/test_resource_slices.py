"""ResourceSlices of every machine: golden, within the API's limits, and the same bytes for the same
machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from koordra.api import names
from koordra.kubelet_plugin.prepare.device_guard import guard_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_devices, build_slices
from koordra.node_state import prepared_claim
from koordra.quantity import parse
from koordra.topology.location import DeviceNode
from koordra.topology.machine import Machine, Nic, RdmaPort
from koordra.topology.presets.facts import preset
from tests.machines import catalogue
from tests.unit.topology.test_product_names import SEMVER

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)
SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def machine(name: str) -> Machine:
    return catalogue.machine(name)


def slices(found: Machine, **changes: Any) -> list[dict[str, Any]]:
    arguments: dict[str, Any] = {"node_name": "node-a", "node_uid": "uid-1", "mode": "joint", "generation": 3}
    return build_slices(found, **{**arguments, **changes})


def devices(found: Machine, **changes: Any) -> Iterator[dict[str, Any]]:
    for one in slices(found, **changes):
        yield from one["spec"]["devices"]


def plain(device: dict[str, Any]) -> dict[str, Any]:
    return {name: next(iter(value.values())) for name, value in device["attributes"].items()}


def many(count: int) -> Machine:
    """A machine of ``count`` one-port NICs on a flat bus each."""
    nics = [
        {
            "path": f"pci{n:04x}:00/00:00.0",
            "ib": f"mlx5_{n}",
            "link_layer": "Ethernet",
            "rate": 100,
            "mad": False,
        }
        for n in range(count)
    ]
    numa = [{"id": 0, "socket": 0, "cpus": "0-3"}]
    document = {"schema": "koordra.io/machine/v1", "numa": numa, "nics": nics}
    return preset(document, name="many").machine(serial="many")


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"../machines/{name}/slices.yaml", yaml.safe_dump_all(slices(machine(name)), sort_keys=False))


@pytest.mark.parametrize("mode", ["joint", "native"])
@pytest.mark.parametrize("found", [*map(machine, catalogue.NAMES), many(64), many(65), many(200), Machine()])
def test_limits_of_the_api(found: Machine, mode: str) -> None:
    made = slices(found, mode=mode)
    seen: set[str] = set()
    for one in made:
        assert SUBDOMAIN.fullmatch(one["metadata"]["name"])
        assert one["spec"]["pool"] == {"name": "node-a", "generation": 3, "resourceSliceCount": len(made)}
        assert len(one["spec"]["devices"]) <= 64
        assert len(json.dumps(one)) < 512 * 1024
        for device in one["spec"]["devices"]:
            assert device["name"] not in seen
            seen.add(device["name"])
            assert_device(device)
    assert len(seen) == sum(device.publishable for device in (*found.gpus, *found.nics))
    assert len({one["metadata"]["name"] for one in made}) == len(made) == max(1, -(-len(seen) // 64))


def assert_device(device: dict[str, Any]) -> None:
    assert LABEL.fullmatch(device["name"])
    assert len(device["attributes"]) + len(device["capacity"]) <= 32
    assert len(device.get("taints", ())) <= 16
    for name, attribute in device["attributes"].items():
        domain, _, identifier = name.rpartition("/")
        assert len(domain) <= 63
        assert IDENTIFIER.fullmatch(identifier)
        ((kind, value),) = attribute.items()
        assert {"string": str, "version": str, "int": int, "bool": bool}[kind] is type(value)
        if kind in {"string", "version"}:
            assert 0 < len(value.encode()) <= 64
        if kind == "version":
            assert SEMVER.fullmatch(value)
    for capacity in device["capacity"].values():
        assert_policy(capacity)


def assert_policy(capacity: dict[str, Any]) -> None:
    """resource.k8s.io/v1: min <= default <= value, min + step <= value, default on a step."""
    value, default = parse(capacity["value"]), parse(capacity["requestPolicy"]["default"])
    least = parse(capacity["requestPolicy"]["validRange"]["min"])
    step = parse(capacity["requestPolicy"]["validRange"]["step"])
    assert least <= default <= value
    assert least + step <= value
    assert (default - least) % step == 0


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_the_same_machine_gives_the_same_bytes(name: str) -> None:
    assert json.dumps(slices(machine(name))) == json.dumps(slices(machine(name)))
    for device in devices(machine(name)):
        assert list(device["attributes"]) == sorted(device["attributes"])


def test_joint_mode_keeps_the_schedulers_allocator_away_and_native_mode_does_not() -> None:
    found = machine("hgx-h100")
    for device in devices(found, mode="joint"):
        assert device["taints"] == [{"key": "koordra.io/joint", "effect": "NoSchedule"}]
        assert plain(device)["koordra.io/allocator"] == "controller"
    for device in devices(found, mode="native"):
        assert "taints" not in device
        assert plain(device)["koordra.io/allocator"] == "scheduler"


def test_gpus_come_first_and_everything_is_in_bus_order() -> None:
    published = [device["name"] for device in devices(machine("dgx-a100"))]
    gpus, nics = published[:8], published[8:]
    assert all(name.startswith("gpu-") for name in gpus)
    assert all(name.startswith("nic-") for name in nics)
    assert gpus == sorted(gpus)
    assert nics == sorted(nics)
    assert len(nics) == 12, "storage NICs are published like compute NICs"


def test_a_gpu() -> None:
    device = next(devices(machine("dgx-a100"), offering=Offering(slots_per_gpu=8)))
    values = plain(device)
    assert device["name"] == "gpu-0000-07-00-0"
    assert device["allowMultipleAllocations"] is True
    assert values["koordra.io/model"] == "A100"
    assert device["attributes"]["koordra.io/driverVersion"] == {"version": "535.104.5"}
    assert values["koordra.io/driverVersionText"] == "535.104.05"
    assert device["attributes"]["koordra.io/cudaDriverVersion"] == {"version": "12.2.0"}
    assert values["koordra.io/pcieSwitch"] == "0000:01:00.0"
    assert values["koordra.io/pciePath"] == "0000:01:00.0/0000:05:00.0"
    assert (values["koordra.io/numaNode"], values["koordra.io/socket"]) == (3, 0)
    assert values["resource.kubernetes.io/pcieRoot"] == "pci0000:00"
    assert values["resource.kubernetes.io/pciBusID"] == "0000:07:00.0"
    assert (
        device["capacity"]["memory"]["value"]
        == device["capacity"]["memory"]["requestPolicy"]["default"]
        == "40Gi"
    )
    assert device["capacity"]["cores"]["requestPolicy"]["default"] == "0"
    assert device["capacity"]["slots"]["value"] == "8"


def test_memory_that_is_no_whole_number_of_mebibytes_is_rounded_down() -> None:
    found = machine("dgx-a100")
    odd = replace(found, gpus=(replace(found.gpus[0], memory_bytes=(40 << 30) + 4711),))
    assert next(devices(odd))["capacity"]["memory"]["value"] == "40Gi"


def test_what_is_unknown_is_not_published() -> None:
    found = machine("dgx-a100")
    bare = replace(found.gpus[0], architecture=None, compute_capability=None, product_name="x" * 65)
    values = plain(next(devices(replace(found, gpus=(bare,), driver_version="garbage", cuda_version=None))))
    assert not {name.removeprefix("koordra.io/") for name in values} & {
        "architecture",
        "cudaComputeCapability",
        "productName",
        "driverVersion",
        "cudaDriverVersion",
    }


def with_port(port: RdmaPort) -> dict[str, Any]:
    found = machine("hgx-h100")
    nic = replace(found.nics[0], ports=(port,))
    return list(devices(replace(found, nics=(nic,))))[-1]


@pytest.mark.parametrize(("active", "reason"), [(False, "LinkDown"), (None, "LinkStateUnknown")])
def test_a_nic_whose_link_is_not_up_is_tainted(active: bool | None, reason: str) -> None:
    device = with_port(RdmaPort(number=1, link_layer="Ethernet", active=active))
    assert {"key": names.UNHEALTHY_TAINT, "value": reason, "effect": "NoSchedule"} in device["taints"]
    assert "bandwidth" not in device["capacity"]
    assert "koordra.io/rateGbps" not in device["attributes"]


def test_a_nic_whose_link_is_up_is_not_tainted() -> None:
    device = with_port(RdmaPort(number=1, link_layer="Ethernet", active=True, rate_gbps=400))
    assert [taint["key"] for taint in device["taints"]] == [names.JOINT_TAINT]
    assert device["capacity"]["bandwidth"]["value"] == "400G"


def test_uncertain_devices_are_left_out_and_stay_guarded() -> None:
    found = machine("hgx-h100")
    doubtful = replace(found, gpus=(replace(found.gpus[0], disputed=("uuid",)), *found.gpus[1:]))
    assert found.gpus[0].name not in {device["name"] for device in devices(doubtful)}
    assert guard_of(doubtful, node_name="n") == guard_of(found, node_name="n")


def test_a_chain_of_many_switches_keeps_its_lower_end() -> None:
    found = machine("hgx-h100")
    chain = tuple(f"0000:{bus:02x}:00.0" for bus in range(9))
    deep = replace(found.gpus[0], location=replace(found.gpus[0].location, switches=chain))
    values = plain(next(devices(replace(found, gpus=(deep,)))))
    assert values["koordra.io/pcieSwitch"] == chain[0]
    assert values["koordra.io/pciePath"] == "/".join(chain[-5:])


def test_a_node_without_devices_publishes_one_empty_slice() -> None:
    (one,) = slices(Machine())
    assert one["spec"]["devices"] == []
    assert one["spec"]["pool"]["resourceSliceCount"] == 1


def test_the_node_owns_its_slices_when_its_uid_is_known() -> None:
    (owner,) = slices(Machine())[0]["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-1", "controller": True}
    assert "ownerReferences" not in slices(Machine(), node_uid=None)[0]["metadata"]


def test_names_of_slices_fit_for_the_longest_node_name() -> None:
    first, second = ("a" * 250 + suffix for suffix in ("b", "c"))
    made = [slices(Machine(), node_name=node)[0]["metadata"]["name"] for node in (first, second)]
    assert all(SUBDOMAIN.fullmatch(name) for name in made)
    assert made[0] != made[1]


def test_guarded_lists_every_node_once_and_control_apart() -> None:
    found = machine("hgx-h100")
    document = json.loads(prepared_claim.encode_guard(guard_of(found, node_name="node-a")))
    assert (document["schema"], document["node"]) == ("koordra.io/guarded/v1", "node-a")
    assert document["devices"][0] == {
        "name": "gpu-0000-0f-00-0",
        "type": "gpu",
        "nodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
    }
    nic = next(device for device in document["devices"] if device["name"] == "nic-0000-0c-00-0")
    assert [node["path"] for node in nic["nodes"]] == [
        "/dev/infiniband/uverbs0",
        "/dev/infiniband/issm0",
        "/dev/infiniband/umad0",
    ]
    control = [node["path"] for node in document["control"]]
    assert control == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
        "/dev/infiniband/rdma_cm",
    ]
    paths = control + [node["path"] for device in document["devices"] for node in device["nodes"]]
    assert len(paths) == len(set(paths)) == 5 + 8 + 3 * 16


def test_virtual_functions_and_graphics_nodes_are_guarded_and_not_published() -> None:
    found = machine("hgx-h100")
    card = DeviceNode("/dev/dri/card1", 226, 1)
    parent = found.nics[0].location.bus_id
    vf: Nic = replace(
        found.nics[1], parent=parent, location=replace(found.nics[1].location, bus_id="0000:0c:00.7")
    )
    gpu = replace(found.gpus[0], graphics_nodes=(card,))
    changed = replace(found, gpus=(gpu,), nics=found.nics[:1], vfs=(vf,))
    assert [device["name"] for device in build_devices(changed, mode="joint")] == [
        gpu.name,
        found.nics[0].name,
    ]
    guards = {device.name: device.nodes for device in guard_of(changed, node_name="n").devices}
    assert card in guards[gpu.name]
    assert guards["nic-0000-0c-00-7"]
