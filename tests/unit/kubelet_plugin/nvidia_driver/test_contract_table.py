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
from koordra.kubelet_plugin.publish.node_inventory import inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.topology.location import DeviceNode
from koordra.topology.partitions import MigInstance, MigProfile
from koordra.topology.problems import Discovery
from tests.fakes.driver_homes import VERSION
from tests.fakes.driver_tree import Layout, add_device_nodes, build
from tests.fakes.node_claims import GPU_0, claim, gpu, parameters, result
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare
from tests.unit.kubelet_plugin.nvidia_driver.contract_table import BEGIN, END, FACTS, given, plain, table

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


@pytest.fixture
def divided(equipped: PluginNode) -> PluginNode:
    """The card with the two instances that nvidia-ctk/mig.txt tells of."""
    machine = equipped.inventory.machine
    plain = MigProfile(19, "1g.10gb", 9984 << 20, 1, 7, placements=((4, 1),))
    profiles = plain, replace(plain, id=46, name="1g.10gb+gfx", placements=((1, 1),))
    instances = tuple(
        MigInstance(number, 0, profile.id, *profile.placements[0], uuid=uuid, nodes=_capabilities(*minors))
        for number, profile, uuid, minors in (
            (7, profiles[0], "MIG-11111111-0506-5708-990a-0b0c0d0e0f10", (66, 67)),
            (9, profiles[1], "MIG-22222222-0506-5708-990a-0b0c0d0e0f10", (75, 76)),
        )
    )
    card = replace(machine.gpus[0], mig_enabled=True, mig_profiles=profiles, mig_instances=instances)
    found = Discovery(machine=replace(machine, gpus=(card,)))
    equipped.inventory = replace(
        inventory_of(found, offering=Offering(mig=True)),
        driver_files=equipped.inventory.driver_files,
        runtime=equipped.inventory.runtime,
    )
    return equipped


def _capabilities(*minors: int) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", 508, minor) for minor in minors)


@pytest.mark.parametrize(("scope", "instance"), [("mig", "mig-1g10gb-4"), ("mig+gfx", "mig-1g10gb-gfx-1")])
def test_an_instance_gets_what_nvidia_ctk_gives_and_no_other_node_of_the_card(
    divided: PluginNode, scope: str, instance: str
) -> None:
    record = prepare(divided, claim(1, result("gpu", f"{NAME}-{instance}", share=None)))
    (device,) = record.devices
    theirs = [
        fact for fact in (FACTS.parent / "mig.txt").read_text().splitlines() if fact.startswith(f"{scope} ")
    ]
    wanted = {plain(fact).replace("link /dev/dri", "node /dev/dri").partition(" to ")[0] for fact in theirs}
    mine = {each for each in given(device.edits) if each.startswith(("node", "gid"))}
    assert mine - {f"node /dev/{name}" for name in _CONTROL} == wanted
    assert not mine & {f"node /dev/nvidia-caps/nvidia-cap{number}" for number in (1, 2)}


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
