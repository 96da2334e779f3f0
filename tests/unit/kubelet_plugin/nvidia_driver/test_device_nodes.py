"""Device nodes that are elsewhere than in the host's /dev, or nowhere: known by the kernel's numbers, made
where somebody needs a real one."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.kubelet_plugin.discovery.gpus import library_nodes
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.network.consumers import Consumers
from koordra.kubelet_plugin.nvidia_driver.device_nodes import make_missing
from koordra.kubelet_plugin.publish.node_inventory import InventorySource
from koordra.topology.location import DeviceNode
from koordra.topology.presets import write_machine
from tests.fakes.node_claims import GPU_0, NODE, claim, gpu, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of

MAJORS = "195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n507 nvidia-uvm\n508 nvidia-caps\n"


@pytest.fixture
def may_make_nodes(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "probe", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except OSError as error:
        pytest.skip(f"nodes cannot be made here: {error}")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    root = tmp_path / "machine"
    root.mkdir()
    write_machine("hgx-h100", root, serial=NODE)
    return root


def without_nodes(root: Path, *, majors: str = MAJORS) -> None:
    for path in (root / "dev").glob("nvidia*"):
        path.unlink()
    (root / "proc/devices").write_text(f"Character devices:\n{majors}\nBlock devices:\n259 blkext\n")


def test_cards_without_nodes_are_known_by_the_kernels_numbers(machine: Path) -> None:
    before = discover(machine).machine
    without_nodes(machine)
    found = discover(machine)
    assert [gpu.node for gpu in found.machine.gpus] == [
        DeviceNode(f"/dev/nvidia{gpu.minor}", 195, gpu.minor or 0) for gpu in before.gpus
    ]
    assert all(gpu.publishable for gpu in found.machine.gpus)
    numbers = {node.path: (node.major, node.minor) for node in found.machine.gpu_control}
    assert numbers == {
        "/dev/nvidiactl": (195, 255),
        "/dev/nvidia-modeset": (195, 254),
        "/dev/nvidia-uvm": (507, 0),
        "/dev/nvidia-uvm-tools": (507, 1),
    }


def test_what_the_kernel_does_not_know_stays_missing(machine: Path) -> None:
    """nvidia-uvm is not loaded."""
    without_nodes(machine, majors="195 nvidia\n")
    found = discover(machine)
    assert [node.path for node in found.machine.gpu_control] == ["/dev/nvidiactl"]
    assert "/dev/nvidia-uvm" in {problem.field for problem in found.problems}


def test_nodes_of_a_driver_container_are_read_beside_the_hosts(machine: Path, tmp_path: Path) -> None:
    """The host's /dev has the RDMA devices, the container's the cards."""
    own = tmp_path / "driver/dev"
    own.mkdir(parents=True)
    before = discover(machine).machine
    (machine / "proc/devices").unlink()
    for path in (machine / "dev").glob("nvidia*"):
        if not path.is_dir():
            path.rename(own / path.name)
    assert not any(gpu.node for gpu in discover(machine).machine.gpus)
    after = discover(machine, dev=(machine / "dev", own)).machine
    assert [gpu.node for gpu in after.gpus] == [gpu.node for gpu in before.gpus]
    assert after.gpu_control == before.gpu_control
    assert after.rdma_control == before.rdma_control


def test_what_nvml_opens(machine: Path) -> None:
    without_nodes(machine)
    listed = "config 1\nmonitor 2\ngpu0/gi1/access 12\n"
    (machine / "proc/driver/nvidia-caps").mkdir(parents=True, exist_ok=True)
    (machine / "proc/driver/nvidia-caps/mig-minors").write_text(listed)
    found = [str(node) for node in library_nodes(MachineRoot(machine))]
    assert found == [
        "/dev/nvidiactl (c 195:255)",
        *(f"/dev/nvidia{minor} (c 195:{minor})" for minor in range(8)),
        "/dev/nvidia-caps/nvidia-cap1 (c 508:1)",
        "/dev/nvidia-caps/nvidia-cap2 (c 508:2)",
    ]


@pytest.mark.usefixtures("may_make_nodes")
def test_missing_nodes_are_made_for_everybody_and_others_left_alone(tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "nvidiactl").write_text("somebody's")
    nodes = [DeviceNode("/dev/nvidiactl", 195, 255), DeviceNode("/dev/nvidia-caps/nvidia-cap1", 508, 1)]
    mask = os.umask(0o077)
    try:
        for _ in range(2):
            make_missing(dev, nodes)
    finally:
        os.umask(mask)
    made = (dev / "nvidia-caps/nvidia-cap1").stat()
    assert (stat.S_ISCHR(made.st_mode), stat.S_IMODE(made.st_mode)) == (True, 0o666)
    assert made.st_rdev == os.makedev(508, 1)
    assert (dev / "nvidiactl").read_text() == "somebody's"


def test_the_inventory_names_the_nodes_that_the_host_lacks(machine: Path) -> None:
    source = InventorySource(machine)
    source.set(discover(machine))
    assert source.current().absent_nodes == frozenset()
    without_nodes(machine)
    source.set(discover(machine))
    assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= source.current().absent_nodes


@pytest.mark.usefixtures("may_make_nodes")
def test_a_claim_gets_real_nodes_of_its_own_where_the_host_has_none(node: PluginNode) -> None:
    """In a user namespace the runtime binds the host's node of the container's path."""
    inventory = node.inventory
    node.inventory = replace(inventory, absent_nodes=frozenset({"/dev/nvidia0"}))
    wanted = claim(1, gpu("gpu", GPU_0))
    prepare(node, wanted)
    made = node.paths.claim_folder(uid(1)) / "nvidia0.node"
    (device,) = node.spec(uid(1))["devices"]
    nodes = {each["path"]: (each["major"], each["minor"]) for each in device["containerEdits"]["deviceNodes"]}
    assert "/dev/nvidia0" not in nodes
    assert "/dev/nvidiactl" in nodes
    assert made.stat().st_rdev == os.makedev(*nodes[str(made)])
    (mount,) = (
        each for each in device["containerEdits"]["mounts"] if each["containerPath"] == "/dev/nvidia0"
    )
    assert mount["hostPath"] == str(made)
    assert "nodev" not in mount["options"]
    plugin = node.plugin()
    plugin.restore_files()
    made.unlink()  # and nothing else
    plugin.restore_files()
    assert made.is_char_device()
    node.plugin().unprepare(ref_of(wanted))
    assert not made.exists()


@pytest.mark.usefixtures("may_make_nodes")
@pytest.mark.parametrize("own_users", [False, True])
def test_a_node_that_is_a_groups_is_no_use_to_a_pod_with_users_of_its_own(
    node: PluginNode, own_users: bool
) -> None:
    """NVreg_DeviceFileMode=0660: the group of the host's is none of the container's. Its pods are asked for,
    as without closed nodes they are not."""
    asked: list[object] = []

    def consumers(claim: object) -> Consumers:
        asked.append(claim)
        return Consumers(own_users=own_users)

    node.consumers = consumers
    node.plugin().unprepare(prepare(node, claim(1, gpu("gpu", GPU_0))).ref)
    assert not asked
    machine = node.inventory.machine
    card = machine.gpus[0]
    assert card.node is not None
    closed = replace(card, node=replace(card.node, mode=0o660, gid=44))
    node.inventory = replace(node.inventory, machine=replace(machine, gpus=(closed, *machine.gpus[1:])))
    prepare(node, claim(2, gpu("gpu", GPU_0)))
    assert len(asked) == 1
    made = node.paths.claim_folder(uid(2)) / "nvidia0.node"
    assert made.exists() == own_users
    (device,) = node.spec(uid(2))["devices"]
    nodes = {each["path"] for each in device["containerEdits"]["deviceNodes"]}
    assert (str(made) in nodes, "/dev/nvidia0" in nodes) == (own_users, not own_users)
