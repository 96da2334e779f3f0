"""docs/container-contract.md says what a container really gets, and why it does not get the rest."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.kubelet_plugin.claims.claim_record import ContainerEdits
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.nvidia_driver.driver_files import driver_files
from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot, named_home
from koordra.topology.location import DeviceNode
from tests.fakes.driver_homes import VERSION
from tests.fakes.driver_tree import Layout, add_device_nodes, build
from tests.fakes.node_claims import GPU_0, claim, gpu, parameters
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare
from tests.unit.kubelet_plugin.nvidia_driver.contract_table import BEGIN, END, given, table

PAGE = Path(__file__).parents[4] / "docs" / "container-contract.md"
BUS_ID = "0000:07:00.0"


@pytest.fixture
def equipped(node: PluginNode, tmp_path: Path) -> PluginNode:
    root = tmp_path / "driver"
    build(root, Layout.DEBIAN)
    add_device_nodes(root, bus_ids=[BUS_ID])
    found = MachineRoot(root)
    nodes = found.device_nodes
    machine = node.inventory.machine
    card = machine.gpus[0]
    drm = (
        DeviceNode("/dev/dri/card1", 226, 1, mode=0o660, gid=44),
        DeviceNode("/dev/dri/renderD128", 226, 128, mode=0o660, gid=109),
    )
    gpus = (
        replace(
            card,
            location=replace(card.location, bus_id=BUS_ID),
            node=found.device_node("/dev/nvidia0"),
            graphics_nodes=drm,
        ),
    )
    node.inventory = replace(
        node.inventory,
        machine=replace(
            machine,
            gpus=gpus,
            gpu_control=nodes(f"/dev/{name}" for name in _CONTROL),
            gpu_optional=nodes(f"/dev/{name}" for name in _OPTIONAL),
        ),
        published={NAME: node.inventory.published[GPU_0]},
        driver_files=driver_files(named_home(root, HostRoot(root, root)), VERSION),
        runtime="containerd://2.1.4",
    )
    return node


NAME = "gpu-0000-07-00-0"
_CONTROL = "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"
_OPTIONAL = "gdrdrv", "nvidia-fs0", "nvidia-fs1", "nvidia-caps-imex-channels/channel0"


def got(node: PluginNode, number: int, *words: str, admin: bool = False) -> set[str]:
    config = [parameters("GpuConfig", source="FromClass", driverCapabilities=["all", *words])]
    card = gpu("gpu", NAME, cores="100", admin=admin or None)
    record = prepare(node, claim(number, card, config=config))
    node.plugin().unprepare(record.ref)
    total = ContainerEdits(env=(("NVIDIA_VISIBLE_DEVICES", "void"),))
    for device in record.devices:
        total += device.edits
    return given(total)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the tree is that of an x86-64 host")
def test_the_page_is_what_containers_get(equipped: PluginNode, request: pytest.FixtureRequest) -> None:
    kinds = {
        "yes": got(equipped, 1),
        "`driverCapabilities: [gdrcopy]`": got(equipped, 2, "gdrcopy"),
        "`driverCapabilities: [gds]`": got(equipped, 3, "gds"),
        "`driverCapabilities: [imex]` of a DeviceClass": got(equipped, 4, "imex"),
        "with `adminAccess`: it commands every card of the node": got(equipped, 5, admin=True),
    }
    before, _, rest = PAGE.read_text().partition(BEGIN)
    written, _, after = rest.partition(END)
    made = f"\n\n{table(kinds)}\n"
    if request.config.getoption("--regen"):
        PAGE.write_text(f"{before}{BEGIN}{made}{END}{after}")
    else:
        assert written == made, "pytest --regen makes it anew; review the diff"
