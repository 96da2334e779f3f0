"""What a prepared claim's containers get of the driver: by share and card, by MIG profile, by what was asked
for, and what a node that lacks it says."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.api.opaque.driver_capabilities import ALL, COUNTED
from koordra.kubelet_plugin.cdi.driver_edits import by_path_nodes, drawing_nodes
from koordra.kubelet_plugin.claims.claim_record import ContainerEdits
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.isolation.none import NoIsolation
from koordra.kubelet_plugin.nvidia_driver.driver_files import driver_files
from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot, named_home
from koordra.kubelet_plugin.publish.devices import mig_devices
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.topology.location import DeviceNode
from tests.fakes.cdi_rules import check
from tests.fakes.driver_homes import VERSION
from tests.fakes.driver_tree import Layout, add_device_nodes, build
from tests.fakes.node_claims import GPU_0, GPU_1, claim, gpu, parameters, uid
from tests.machines import catalogue
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, refusal

DRM = (
    DeviceNode("/dev/dri/card1", 226, 1, mode=0o660, gid=44),
    DeviceNode("/dev/dri/renderD128", 226, 128, mode=0o660, gid=109),
)
OPTIONAL = (
    DeviceNode("/dev/gdrdrv", 239, 0),
    DeviceNode("/dev/nvidia-fs0", 235, 0),
    DeviceNode("/dev/nvidia-caps-imex-channels/channel0", 234, 0),
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("driver")
    build(root, Layout.RHEL)
    return root


@pytest.fixture
def equipped(node: PluginNode, driver: Path) -> PluginNode:
    """A node with a driver and the modules beside it, whose first card has DRM nodes, and with a backend that
    limits."""
    machine = node.inventory.machine
    first, *others = machine.gpus
    gpus = (replace(first, graphics_nodes=DRM), *others)
    node.inventory = replace(
        node.inventory,
        machine=replace(machine, gpus=gpus, gpu_optional=OPTIONAL),
        driver_files=driver_files(named_home(driver, HostRoot(driver, driver)), VERSION),
    )
    node.backends = {**node.backends, Limiting.name: Limiting()}
    return node


class Limiting(NoIsolation):
    name = "mps"


def edits(node: PluginNode, number: int, *results: dict[str, object], **config: object) -> ContainerEdits:
    asked = [parameters("GpuConfig", **config)] if config else []
    record = prepare(node, claim(number, *results, config=asked))
    total = ContainerEdits()
    for device in record.devices:
        total += device.edits
    return total


def stems(found: ContainerEdits) -> set[str]:
    return {mount.container_path.rpartition("/")[2].partition(".so")[0] for mount in found.mounts}


def paths(found: ContainerEdits) -> set[str]:
    return {node.path for node in found.device_nodes}


def whole(number: int = 1, device: str = GPU_0) -> dict[str, object]:
    return gpu("gpu", device, cores="100")


def test_a_whole_card_comes_with_every_part_of_the_driver(equipped: PluginNode) -> None:
    found = edits(equipped, 1, whole(), isolation="none")
    assert {"libcuda", "libnvidia-ml", "libGLX_nvidia", "libnvcuvid", "libnvidia-ngx"} <= stems(found)
    assert {node.path for node in DRM} <= paths(found)
    assert {(node.path, node.number) for node in found.device_nodes} >= {
        ("/dev/dri/by-path/pci-0000:0f:00.0-card", DRM[0].number),
        ("/dev/dri/by-path/pci-0000:0f:00.0-render", DRM[1].number),
    }
    assert "/usr/lib64/vdpau" in found.library_folders
    assert not paths(found) & {node.path for node in OPTIONAL}


def test_the_hook_knows_the_drm_nodes_as_the_cards_own(equipped: PluginNode) -> None:
    record = prepare(equipped, claim(1, whole(), config=[parameters("GpuConfig", isolation="none")]))
    assert record.devices[0].nodes[0].path == "/dev/nvidia0"
    assert record.devices[0].nodes[1:] == DRM


def test_a_limited_share_gets_what_is_counted_unless_its_class_gives_more(equipped: PluginNode) -> None:
    found = edits(equipped, 1, gpu("gpu", GPU_0, "20Gi"), isolation="mps")
    assert {"libcuda", "libnvidia-ml", "libnvcuvid"} <= stems(found)
    assert "libGLX_nvidia" not in stems(found)
    assert not paths(found) & {node.path for node in DRM}
    drawing = {"isolation": "mps", "driverCapabilities": ["compute", "graphics"]}
    asked = edits(equipped, 2, gpu("gpu", GPU_0, "20Gi"), source="FromClass", **drawing)
    assert {"libcuda", "libGLX_nvidia"} <= stems(asked)
    assert {node.path for node in DRM} <= paths(asked)
    for words in (["compute", "graphics"], ["all"], ["display"], ["ngx"]):
        config = [parameters("GpuConfig", isolation="mps", driverCapabilities=words)]
        told = refusal(equipped, claim(3, gpu("gpu", GPU_0, "20Gi"), config=config))
        assert "would take memory past the limit (mps) of a share, so that only a class gives it" in told
    given = parameters("GpuConfig", source="FromClass", driverCapabilities=["graphics"])
    own = parameters("GpuConfig", isolation="mps", driverCapabilities=["graphics", "gdrcopy"])
    record = prepare(equipped, claim(4, gpu("gpu", GPU_1, "20Gi"), config=[given, own]))
    assert "libGLX_nvidia" in stems(record.devices[0].edits)


@pytest.mark.parametrize(
    ("runtime", "version", "groups"),
    [
        ("containerd://2.1.4", "0.7.0", [44, 109]),
        ("cri-o://1.30.0", "0.7.0", [44, 109]),
        ("containerd://1.7.34", "0.5.0", None),
        ("cri-o://1.29.14", "0.5.0", None),
        ("docker://27.1", "0.5.0", None),
        ("", "0.5.0", None),
    ],
)
def test_groups_of_the_hosts_nodes_where_the_runtime_knows_of_them(
    equipped: PluginNode, runtime: str, version: str, groups: list[int] | None
) -> None:
    """A card's DRM nodes are 0660 of the groups video and render on every host."""
    equipped.inventory = replace(equipped.inventory, runtime=runtime)
    prepare(equipped, claim(1, whole()))
    spec = equipped.spec(uid(1))
    check(spec)
    found = spec["devices"][0]["containerEdits"]
    assert (spec["cdiVersion"], found.get("additionalGids")) == (version, groups)
    # Non-root programs open them all the same, whatever the runtime knows.
    assert {node["fileMode"] for node in found["deviceNodes"]} == {0o666}
    assert not {"uid", "gid"} & {field for node in found["deviceNodes"] for field in node}


def test_a_host_that_opens_its_cards_to_a_group(tmp_path: Path) -> None:
    """Module option NVreg_DeviceFileMode=0660 with a group."""
    add_device_nodes(tmp_path, bus_ids=["0000:07:00.0"], mode=0o660, gid=27)
    root = MachineRoot(tmp_path)
    card, control = root.device_node("/dev/nvidia0"), root.device_node("/dev/nvidiactl")
    assert card is not None
    assert control is not None
    owner = 27 if os.geteuid() == 0 else os.getgid()
    assert (card.group, control.group) == (owner, owner)
    open_to_all = replace(card, mode=0o666)
    assert open_to_all.group is None
    assert open_to_all == card  # who may open a node is no part of what it is


def test_opt_in_parts_come_by_name_alone(equipped: PluginNode) -> None:
    found = edits(equipped, 1, whole(), driverCapabilities=["compute", "gds", "gdrcopy"])
    assert {"/dev/gdrdrv", "/dev/nvidia-fs0"} <= paths(found)
    assert "/dev/nvidia-caps-imex-channels/channel0" not in paths(found)
    targets = {mount.container_path for mount in found.mounts}
    assert {"/run/udev", "/etc/cufile.json"} <= targets


def test_the_class_gives_an_imex_channel(equipped: PluginNode) -> None:
    config = [
        parameters("GpuConfig", source="FromClass", driverCapabilities=["all", "imex"]),
        parameters("GpuConfig", numaAffinity=True),
    ]
    record = prepare(equipped, claim(1, whole(), config=config))
    assert "/dev/nvidia-caps-imex-channels/channel0" in paths(record.devices[0].edits)


def test_a_claim_may_do_with_less_than_its_class_gives(equipped: PluginNode) -> None:
    config = [
        parameters("GpuConfig", source="FromClass", driverCapabilities=["compute", "video", "graphics"]),
        parameters("GpuConfig", driverCapabilities=["compute"]),
    ]
    found = stems(prepare(equipped, claim(1, whole(), config=config)).devices[0].edits)
    assert "libcuda" in found
    assert not {"libnvcuvid", "libGLX_nvidia"} & found


def test_a_claim_cannot_take_an_imex_channel(equipped: PluginNode) -> None:
    asked = [parameters("GpuConfig", driverCapabilities=["imex"])]
    assert "imex is for the operator to say" in refusal(equipped, claim(1, whole(), config=asked))


def test_a_node_without_the_module_says_so(node: PluginNode) -> None:
    asked = [parameters("GpuConfig", driverCapabilities=["gdrcopy"])]
    text = refusal(node, claim(1, whole(), config=asked))
    assert "has no /dev/gdrdrv for gdrcopy; load the module gdrdrv, or leave gdrcopy out" in text


def test_sockets_of_daemons_only_with_admin_access(equipped: PluginNode) -> None:
    def sockets(found: ContainerEdits) -> set[str]:
        return {mount.container_path for mount in found.mounts if "/run/nvidia-" in mount.container_path}

    assert sockets(edits(equipped, 1, whole())) == set()
    admin = edits(equipped, 2, gpu("gpu", GPU_1, admin=True))
    assert sockets(admin) == {"/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket"}
    assert {m.options for m in admin.mounts if m.container_path.endswith("/socket")} == {
        ("nosuid", "nodev", "rbind", "rprivate", "noexec")
    }


def test_an_instance_draws_only_where_its_profile_does(inventory: NodeInventory) -> None:
    card = catalogue.machine("mig-a100").gpus
    instance = next(each for one in card for each in mig_devices(one))
    plain = replace(instance, gpu=replace(instance.gpu, graphics_nodes=DRM))
    drawing = replace(plain, profile=replace(plain.profile, name=f"{plain.profile.name}+gfx"))
    assert drawing_nodes(plain, ALL) == ()
    assert drawing_nodes(drawing, ALL) == DRM
    assert drawing_nodes(drawing, COUNTED) == ()


def test_names_of_udev() -> None:
    odd = (*DRM, DeviceNode("/dev/dri/controlD64", 226, 64))
    assert [node.path for node in by_path_nodes("0000:07:00.0", odd)] == [
        "/dev/dri/by-path/pci-0000:07:00.0-card",
        "/dev/dri/by-path/pci-0000:07:00.0-render",
    ]
