"""Discovery reads back what was written, and says what it is not sure of."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.api import names
from koordra.kubelet_plugin.discovery.nvml_query import NvmlFacts
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from koordra.topology.fabrics import clique
from koordra.topology.location import Location
from koordra.topology.machine import Gpu, Nic
from koordra.topology.pictures.text import matrix
from koordra.topology.presets.facts import preset
from koordra.topology.presets.tree import MachineWriter
from koordra.topology.problems import Discovery
from tests.fakes.effort import calls
from tests.machines import catalogue

GPU0, NIC0 = "0000:0f:00.0", "0000:0c:00.0"


def write(name: str, root: Path) -> None:
    kind = catalogue.load(name)
    MachineWriter(root).write(kind.machine(serial=catalogue.SERIAL), other_functions=kind.other_functions)


@pytest.fixture
def h100(tmp_path: Path) -> Path:
    write("hgx-h100", tmp_path)
    return tmp_path


def gpu(found: Discovery, bus_id: str = GPU0) -> Gpu:
    return next(gpu for gpu in found.machine.gpus if gpu.location.bus_id == bus_id)


def nic(found: Discovery, bus_id: str = NIC0) -> Nic:
    return next(nic for nic in found.machine.nics if nic.location.bus_id == bus_id)


def problems(found: Discovery) -> list[tuple[str, str]]:
    return [(problem.object, problem.field) for problem in found.problems]


def nvml_document(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = root / "nvml.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_what_was_written_is_found(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    found = discover(tmp_path)
    assert found.machine == catalogue.load(name).machine(serial=catalogue.SERIAL)
    expected = catalogue.load(name).document.get("expected_problems", [])
    assert [[problem.object, problem.field] for problem in found.problems] == expected


def test_stand_ins_and_real_nodes_read_the_same(h100: Path) -> None:
    real = discover(h100).machine
    for node in [*(h100 / "dev").glob("nvidia*"), *(h100 / "dev/infiniband").iterdir()]:
        numbers = os.lstat(node).st_rdev
        if numbers:
            node.unlink()
            node.write_text(f"c {os.major(numbers)}:{os.minor(numbers)}\n")
    assert discover(h100).machine == real


def test_discovery_writes_nothing(h100: Path) -> None:
    before = sorted(str(path) for path in h100.rglob("*"))
    discover(h100)
    assert sorted(str(path) for path in h100.rglob("*")) == before


def test_an_empty_root_is_a_problem_not_an_error(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        found = discover(root)
        assert not found.machine.gpus
        assert not found.machine.nics
        assert problems(found) == [("machine", "sys/bus/pci/devices")]


def test_bridges_are_told_by_place_when_the_capability_cannot_be_read(h100: Path) -> None:
    """As anybody but root finds them. What follows from a place is marked."""
    expected = list(discover(h100).machine.devices())
    for config in (h100 / "sys/devices").rglob("config"):
        config.write_bytes(config.read_bytes()[:64])
    found = discover(h100).machine
    read = [replace(device.location, inferred=frozenset()) for device in found.devices()]
    assert read == [device.location for device in expected]
    assert not any("pcieSwitch" in device.location.inferred for device in expected)
    assert {device.location.inferred for device in found.devices() if device.location.switches} == {
        frozenset({"pcieSwitch"})
    }
    near = matrix(found).partition("Legend")[0].splitlines()[1]
    assert "PXB*" in near
    assert "NODE " in near, "a level that no switch decides is read"


def test_bridges_of_an_emulator_are_no_switches(h100: Path) -> None:
    """QEMU's pci-bridge: capabilities can be read, and PCI Express is none of them."""
    for config in (h100 / "sys/devices").rglob("config"):
        written = bytearray(config.read_bytes())
        written[0x06] = 0
        config.write_bytes(written)
    found = discover(h100).machine
    assert not any(device.location.switches or device.location.inferred for device in found.devices())


def test_without_nvml_the_driver_tells_who_but_not_how_large(h100: Path) -> None:
    expected = gpu(discover(h100))
    (h100 / "nvml.json").unlink()
    found = discover(h100)
    assert gpu(found).uuid == expected.uuid
    assert (gpu(found).minor, gpu(found).product_name) == (0, "NVIDIA H100 80GB HBM3")
    assert found.machine.driver_version == "550.54.15"
    assert not any(card.publishable for card in found.machine.gpus)
    assert (f"GPU {GPU0}", "memory") in problems(found)


def test_a_gpu_without_a_driver_is_shown_and_not_offered(h100: Path) -> None:
    shutil.rmtree(h100 / "proc/driver")
    nvml_document(h100, lambda document: document["gpus"].pop(0))
    found = discover(h100)
    assert not gpu(found).publishable
    assert {field for subject, field in problems(found) if subject == f"GPU {GPU0}"} == {
        "uuid",
        "memory",
        "minor",
    }
    assert sum(card.publishable for card in found.machine.gpus) == 7


def test_a_lost_gpu_is_not_offered_and_its_node_stays_guarded(h100: Path) -> None:
    nvml_document(h100, lambda document: document["gpus"][0].update(errors={"memory": "GPU is lost"}))
    found = discover(h100)
    assert not gpu(found).publishable
    assert gpu(found).node
    texts = [str(problem) for problem in found.problems if problem.object == f"GPU {GPU0}"]
    assert any("GPU is lost" in text for text in texts)


def test_two_sources_that_disagree_on_identity(h100: Path) -> None:
    nvml_document(
        h100, lambda document: document["gpus"][0].update(uuid="GPU-00000000-0000-0000-0000-000000000000")
    )
    found = discover(h100)
    assert gpu(found).disputed == ("uuid",)
    assert not gpu(found).publishable


def test_two_cards_with_one_identity_are_both_left_out(h100: Path) -> None:
    def same(document: dict[str, Any]) -> None:
        document["gpus"][1]["uuid"] = document["gpus"][0]["uuid"]

    nvml_document(h100, same)
    shutil.rmtree(h100 / "proc/driver/nvidia/gpus")
    found = discover(h100)
    assert [card.publishable for card in found.machine.gpus] == [False, False] + [True] * 6


def test_a_gpu_that_only_nvml_knows_is_not_made_up(h100: Path) -> None:
    nvml_document(h100, lambda document: document["gpus"][0].update(busId="00000000:FE:00.0"))
    found = discover(h100)
    assert ("GPU 0000:fe:00.0", "path") in problems(found)
    assert "0000:fe:00.0" not in {card.location.bus_id for card in found.machine.gpus}


def test_cards_in_several_cliques_are_told_and_none_of_them_is_published(tmp_path: Path) -> None:
    write("gb200-nvl72", tmp_path)
    assert clique(discover(tmp_path).machine) == "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.32766"

    nvml_document(tmp_path, lambda document: document["gpus"][3]["fabric"].update(clique=1))
    found = discover(tmp_path)
    assert ("machine", "NVLink clique") in problems(found)
    assert clique(found.machine) is None
    published = build_devices(found.machine, mode="joint")
    assert not any(names.ATTR_CLIQUE in device["attributes"] for device in published)

    nvml_document(tmp_path, lambda document: document["gpus"][3].update(fabric=None))
    found = discover(tmp_path)
    assert ("machine", "NVLink clique") not in problems(found)
    published = build_devices(found.machine, mode="joint")
    assert sum(names.ATTR_CLIQUE in device["attributes"] for device in published) == 3, "not the lone card"


def test_a_card_in_mig_mode_is_not_offered_whole(h100: Path) -> None:
    nvml_document(h100, lambda document: document["gpus"][0].update(migEnabled=True))
    found = discover(h100)
    assert not gpu(found).publishable
    assert problems(found) == [(f"GPU {GPU0}", "migMode")]


@pytest.mark.parametrize(
    ("node", "subject", "field"),
    [
        ("nvidia0", f"GPU {GPU0}", "device node"),
        ("infiniband/uverbs0", "RDMA device mlx5_0", "uverbs"),
        ("infiniband/rdma_cm", "machine", "/dev/infiniband/rdma_cm"),
        ("nvidiactl", "machine", "/dev/nvidiactl"),
    ],
)
def test_a_missing_node_is_reported(h100: Path, node: str, subject: str, field: str) -> None:
    (h100 / "dev" / node).unlink()
    (h100 / "proc/devices").unlink()
    assert problems(discover(h100)) == [(subject, field)]


@pytest.mark.parametrize("content", ["c 195:1\n", "b 195:0\n", "c 195\n", "", "c 195:0 extra\n"])
def test_a_stale_or_garbled_gpu_node_is_not_given_out(h100: Path, content: str) -> None:
    (h100 / "dev/nvidia0").unlink()
    (h100 / "dev/nvidia0").write_text(content)
    found = discover(h100)
    assert gpu(found).node is None
    assert not gpu(found).publishable


def test_a_uverbs_node_with_another_devices_numbers_is_not_given_out(h100: Path) -> None:
    (h100 / "dev/infiniband/uverbs0").unlink()
    (h100 / "dev/infiniband/uverbs0").write_text("c 231:193\n")
    found = discover(h100)
    assert nic(found).verbs is None
    assert "231:193, the kernel says 231:192" in str(found.problems[0])


def test_a_link_instead_of_a_node_is_not_followed(h100: Path) -> None:
    (h100 / "dev/nvidia0").unlink()
    (h100 / "dev/nvidia0").symlink_to("/dev/null")
    assert gpu(discover(h100)).node is None


def test_a_port_that_is_down_has_no_rate(h100: Path) -> None:
    port = next((h100 / "sys/devices").rglob("infiniband/mlx5_0/ports/1"))
    (port / "state").write_text("1: DOWN\n")
    found = nic(discover(h100))
    assert found.port
    assert (found.port.active, found.port.rate_gbps) == (False, None)
    assert found.publishable


def test_a_second_port_speaks_when_the_first_is_down(h100: Path) -> None:
    ports = next((h100 / "sys/devices").rglob("infiniband/mlx5_0/ports"))
    shutil.copytree(ports / "1", ports / "2")
    (ports / "1/state").write_text("1: DOWN\n")
    found = nic(discover(h100))
    assert [port.active for port in found.ports] == [False, True]
    assert found.port == found.ports[1]


def test_representors_are_not_taken_for_the_nics_interface(h100: Path) -> None:
    function = next((h100 / "sys/devices").rglob(NIC0))
    (function / "infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0").unlink()
    for name, label in (("rdma0", "p0"), ("eth4", "pf0vf0"), ("eth5", "pf0vf1")):
        (function / "net" / name).mkdir(exist_ok=True)
        (function / "net" / name / "phys_port_name").write_text(f"{label}\n")
    assert nic(discover(h100)).netdev == "rdma0"
    (function / "net/eth4/phys_port_name").write_text("p1\n")
    assert nic(discover(h100)).netdev is None


def test_software_and_subfunction_devices_are_left_to_others(h100: Path) -> None:
    expected = discover(h100)
    infiniband = h100 / "sys/class/infiniband"
    (infiniband / "rxe0").symlink_to("../../devices/virtual/infiniband/rxe0")
    link = str((infiniband / "mlx5_0").readlink())
    (infiniband / "mlx5_99").symlink_to(
        link.replace("infiniband/mlx5_0", "mlx5_core.sf.2/infiniband/mlx5_99")
    )
    assert discover(h100) == expected


def test_several_rdma_devices_on_one_function_are_not_told_apart(h100: Path) -> None:
    infiniband = h100 / "sys/class/infiniband"
    function = next((h100 / "sys/devices").rglob(NIC0))
    shutil.copytree(function / "infiniband/mlx5_0", function / "infiniband/twin")
    (infiniband / "twin").symlink_to(str((infiniband / "mlx5_0").readlink()).replace("mlx5_0", "twin"))
    found = discover(h100)
    assert [twin.publishable for twin in found.machine.nics if twin.location.bus_id == NIC0] == [False, False]


def test_unknown_numa_node_on_a_machine_with_several(h100: Path) -> None:
    next((h100 / "sys/devices").rglob(GPU0)).joinpath("numa_node").write_text("-1\n")
    found = discover(h100)
    assert gpu(found).location.numa is None
    assert gpu(found).location.socket is None
    assert gpu(found).publishable
    assert problems(found) == [(f"PCI device {GPU0}", "numaNode")]


def test_unknown_numa_node_on_a_machine_with_one_is_inferred(tmp_path: Path) -> None:
    kind = preset(
        {
            "schema": "koordra.io/machine/v1",
            "numa": [{"id": 0, "socket": 0, "cpus": "0-7", "distances": [10]}],
            "gpus": [{"path": "pci0000:00/00:05.0", "product": "Tesla T4", "memory_mib": 15360}],
        },
        name="vm",
    )
    MachineWriter(tmp_path).write(kind.machine(serial="vm"))
    found = gpu(discover(tmp_path), "0000:00:05.0")
    assert (found.location.numa, found.location.inferred) == (0, frozenset({"numaNode"}))


def test_hyper_v_and_wide_domains(h100: Path) -> None:
    """A host bridge deep below a virtual bus, and a domain that needs five digits."""
    below = h100 / "sys/devices/LNXSYSTM:00/VMBUS:00/pci10001:00/10001:00:00.0"
    shutil.copytree(next((h100 / "sys/devices").rglob(GPU0)), below)
    (h100 / "sys/bus/pci/devices/10001:00:00.0").symlink_to(
        "../../../devices/LNXSYSTM:00/VMBUS:00/pci10001:00/10001:00:00.0"
    )
    found = gpu(discover(h100), "10001:00:00.0")
    assert found.location.path == ("pci10001:00", "10001:00:00.0")
    assert found.name == "gpu-10001-00-00-0"


def test_a_source_of_facts_can_be_given(h100: Path) -> None:
    facts = NvmlFacts(driver_version="1.2.3", gpus=(Gpu(Location(GPU0, ()), memory_bytes=1 << 30),))
    found = discover(h100, nvml=lambda: facts)
    assert found.machine.driver_version == "1.2.3"
    assert gpu(found).memory_bytes == 1 << 30
    assert [card.publishable for card in found.machine.gpus] == [True] + [False] * 7


def test_other_vendors_display_controllers_are_no_gpus(h100: Path) -> None:
    for function in (h100 / "sys/devices").rglob("0000:2d:00.0"):
        (function / "vendor").write_text("0x1a03\n")
    shutil.rmtree(h100 / "proc/driver/nvidia/gpus/0000:2d:00.0")
    nvml_document(h100, lambda document: document["gpus"].pop(1))
    found = discover(h100)
    assert len(found.machine.gpus) == 7
    assert not found.problems


def test_sixteen_gpus_sixteen_nics_and_128_vfs_cost_a_thousand_calls_a_device_and_a_half(
    tmp_path: Path,
) -> None:
    gpus = [{"path": f"pci00{n:02x}:00/00:01.0/01:00.0/02:00.0/03:00.0", "numa": n // 8} for n in range(16)]
    nics: list[dict[str, Any]] = []
    for n in range(16):
        above = f"pci00{n:02x}:00/00:01.0/01:00.0/02:01.0"
        nics.append({"path": f"{above}/04:00.0", "numa": n // 8, "ib": f"mlx5_{n}", "vfs": 8})
        nics += [
            {"path": f"{above}/04:00.{vf + 1}" if vf < 7 else f"{above}/04:01.0", "numa": n // 8}
            | {"ib": f"mlx5_{16 + 8 * n + vf}", "parent": f"{above}/04:00.0", "mad": False}
            for vf in range(8)
        ]
    kind = preset(
        {
            "schema": "koordra.io/machine/v1",
            "numa": [{"id": n, "socket": n, "cpus": f"{96 * n}-{96 * n + 95}"} for n in range(2)],
            "gpu": {"product": "NVIDIA H200", "memory_mib": 143771},
            "nic": {"link_layer": "InfiniBand", "rate": 400},
            "gpus": gpus,
            "nics": nics,
        },
        name="large",
    )
    machine = kind.machine(serial="large")
    MachineWriter(tmp_path).write(machine)
    found: list[Discovery] = []
    effort = calls(lambda: found.append(discover(tmp_path)))
    assert found[0].machine == machine
    assert (len(machine.gpus), len(machine.nics), len(machine.vfs)) == (16, 16, 128)
    assert effort < 1500 * 160


def test_a_numa_node_that_is_not_listed_is_not_guessed(h100: Path) -> None:
    """The list of nodes is what is torn here: one node is left of two, and it is not everybody's."""
    before = {device.name: device.location.numa for device in discover(h100).machine.devices()}
    shutil.rmtree(h100 / "sys/devices/system/node/node1")
    found = discover(h100)
    for device in found.machine.devices():
        assert device.location.numa == (0 if before[device.name] == 0 else None)
        assert "numaNode" not in device.location.inferred
    assert {field for _, field in problems(found)} == {"numaNode"}


def test_on_a_machine_with_one_numa_node_there_is_one_answer(h100: Path) -> None:
    shutil.rmtree(h100 / "sys/devices/system/node/node1")
    for told in (h100 / "sys/devices").rglob("numa_node"):
        told.write_text("-1\n")
    found = discover(h100)
    assert {(device.location.numa, device.location.inferred) for device in found.machine.devices()} == {
        (0, frozenset({"numaNode"}))
    }
    assert not found.problems
