"""What an operator's file adds to a machine, what it may not change, and how it is marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordra.errors import InvalidManifest
from koordra.topology import Level, level_between
from koordra.topology.machine import Device, Machine, pcie_level
from koordra.topology.overlay import Overlay, Place, load
from koordra.topology.pictures.text import matrix
from koordra.topology.problems import Discovery
from tests.machines import catalogue

XML = """<?xml version="1.0"?>
<!-- as NCCL_TOPO_DUMP_FILE writes it -->
<system version="1">
  <cpu numaid="1" affinity="ffff" arch="x86_64">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:02:00.0" class="0x060400">
        <pci busid="0000:0F:00.0" class="0x030200"><gpu dev="0" sm="80"><nvlink target="0000:c4:00.0" count="2"/></gpu></pci>
      </pci>
      <pci busid="0000:0c:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0"/></nic></pci>
    </pci>
  </cpu>
  <cpu numaid="-1"><pci busid="0000:e1:00.0" class="0x020000"/></cpu>
</system>
"""
YAML = """
schema: koordra.io/overlay/v1
groups:
  - {numa: 0, switch: "ffff:ff:01.0", devices: ["0000:00:05.0", "0000:00:09.0"]}
  - {numa: 1, devices: ["0000:00:07.0"]}
"""


def write(tmp_path: Path, text: str, name: str = "overlay") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


def bare(name: str) -> Machine:
    return catalogue.load(name).machine(serial=catalogue.SERIAL)


def by_bus(machine: Machine) -> dict[str, Device]:
    return {device.location.bus_id: device for device in machine.devices()}


def test_an_nccl_dump(tmp_path: Path) -> None:
    assert load(write(tmp_path, XML)).places == {
        "0000:0f:00.0": Place(1, ("0000:01:00.0", "0000:02:00.0")),
        "0000:0c:00.0": Place(1, ("0000:01:00.0",)),
        "0000:e1:00.0": Place(None, ()),
    }


def test_the_same_in_yaml(tmp_path: Path) -> None:
    assert load(write(tmp_path, YAML)).places == {
        "0000:00:05.0": Place(0, ("ffff:ff:01.0",)),
        "0000:00:09.0": Place(0, ("ffff:ff:01.0",)),
        "0000:00:07.0": Place(1, ()),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<system><cpu numaid='0'><pci busid='nonsense'/></cpu></system>", "no PCI address"),
        ("<system>", "is not XML"),
        ('<!DOCTYPE x [<!ENTITY a "aaaa">]><system/>', "defines entities"),
        ("a: [", "is not YAML"),
        ("schema: koordra.io/overlay/v2", "koordra.io/overlay/v1"),
        ("schema: koordra.io/overlay/v1", "groups"),
        ("schema: koordra.io/overlay/v1\ngroups: [{numa: 0}]", "groups"),
        (
            "schema: koordra.io/overlay/v1\ngroups: [{numa: yes, devices: ['0000:00:05.0']}]",
            "groups[0].numa: True is not",
        ),
        ("x" * (1 << 20 | 1), "1 MiB"),
    ],
)
def test_a_wrong_file_is_named(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match=r"overlay topology\.xml") as caught:
        load(write(tmp_path, text, "topology.xml"))
    assert told in str(caught.value)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match="overlay absent"):
        load(tmp_path / "absent")


def test_a_flat_machine_gets_switches_numa_nodes_and_host_bridges() -> None:
    flat, laid_over = bare("vm-flat"), catalogue.machine("vm-flat")
    assert {pcie_level(a, b) for a in flat.gpus for b in flat.nics} == {Level.PHB}
    near = [[str(pcie_level(gpu, nic)) for nic in laid_over.nics] for gpu in laid_over.gpus]
    assert near == [["PIX", "SYS"]] * 2 + [["SYS", "PIX"]] * 2
    assert [gpu.location.numa for gpu in laid_over.gpus] == [0, 0, 1, 1]
    assert {gpu.location.root for gpu in laid_over.gpus} == {"pciffff:00", "pciffff:01"}
    assert inferred(laid_over.gpus[0]) == "numaNode,pcieRoot,pcieSwitch"
    text = matrix(laid_over)
    assert "PIX*" in text
    assert "0*" in text
    assert "PIX " not in text.partition("Legend")[0], "every level of this machine rests on the file"


def test_switches_are_added_below_the_host_bridges_that_sysfs_shows() -> None:
    flat, laid_over = bare("aws-p4d-24xlarge"), catalogue.machine("aws-p4d-24xlarge")
    assert [gpu.location.root for gpu in laid_over.gpus] == [gpu.location.root for gpu in flat.gpus]
    assert {inferred(device) for device in laid_over.devices()} == {"pcieSwitch"}
    assert pcie_level(flat.gpus[0], flat.nics[0]) is Level.PHB
    assert pcie_level(laid_over.gpus[0], laid_over.nics[0]) is Level.PIX


def test_devices_below_one_switch_share_one_host_bridge() -> None:
    laid_over = catalogue.machine("azure-ndv5")
    for gpu, nic in zip(laid_over.gpus, laid_over.nics, strict=True):
        assert gpu.location.root == nic.location.root
        assert inferred(gpu) == "pcieSwitch"
        assert inferred(nic) == "pcieRoot,pcieSwitch"
        assert level_between(published(gpu), published(nic)) is Level.PIX


def inferred(device: Device) -> object:
    return device.location.attributes()["koordra.io/inferred"]


def published(device: Device) -> dict[str, object]:
    location = device.location
    return {
        "resource.kubernetes.io/pcieRoot": location.root,
        "resource.kubernetes.io/pciBusID": location.bus_id,
        "koordra.io/pcieSwitch": location.switches[0],
        "koordra.io/numaNode": location.numa,
    }


def test_what_sysfs_shows_is_never_overruled(tmp_path: Path) -> None:
    machine = bare("dgx-a100")
    text = YAML.replace("0000:00:05.0", "0000:07:00.0").replace("0000:00:09.0", "0000:0c:00.0")
    text = text.replace("ffff:ff:01.0", "0000:41:00.0").replace("0000:00:07.0", "0000:61:00.0")
    file = write(tmp_path, text)
    found = load(file).apply(Discovery(machine))
    assert found.machine == machine
    told = {(one.object, one.field, one.problem) for one in found.problems}
    assert told >= {
        ("gpu-0000-07-00-0", "numaNode", "the machine says 3, the overlay 0"),
        ("gpu-0000-07-00-0", "pcieSwitch", "the machine says 0000:01:00.0, the overlay 0000:41:00.0"),
        ("nic-0000-61-00-0", "numaNode", "the machine says 0, the overlay 1"),
    }
    assert {one.remedy for one in found.problems} == {f"correct {file.name}; the machine is believed"}


def test_a_numa_node_that_does_not_exist_is_not_believed() -> None:
    machine = bare("vm-flat")
    found = Overlay("file", {"0000:00:05.0": Place(7, ())}).apply(Discovery(machine))
    assert by_bus(found.machine)["0000:00:05.0"].location.numa is None
    assert [one.problem for one in found.problems] == [
        "the machine says there is no such node, the overlay 7"
    ]


def test_devices_that_the_file_does_not_know_stay() -> None:
    machine = bare("vm-flat")
    places = {"0000:00:05.0": Place(0, ("ffff:ff:01.0",)), "0000:99:00.0": Place(1, ())}
    laid_over = Overlay("file", places).apply(Discovery(machine)).machine
    assert [a == b for a, b in zip(laid_over.devices(), machine.devices(), strict=True)] == [False] + [
        True
    ] * 5
    assert [bridge.bus_id for bridge in laid_over.bridges] == ["ffff:ff:01.0"]
