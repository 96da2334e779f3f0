"""A claim of a GPU needs the driver's libcuda, and follows the driver when that is upgraded or moves."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.errors import ApiError, PrepareError
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource, HostRoot
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.prepare.driver_of_claims import DriverOfClaims
from koordra.kubelet_plugin.publish.node_inventory import InventorySource, NodeInventory
from koordra.topology.problems import Discovery
from tests.fakes import driver_homes
from tests.fakes.node_claims import GPU_0, NIC_0, claim, gpu, nic, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of, refusal

OLD, NEW = "550.54.15", "580.105.08"


class Host:
    """A host below a folder, on which drivers come and go; the claims' machine is that of the node."""

    def __init__(self, folder: Path, node: PluginNode) -> None:
        self.folder = folder
        self.node = node
        driver_homes.module(folder, OLD)

    def read(self, version: str = OLD) -> NodeInventory:
        """The machine is read with this driver, and its inventory is the node's."""
        driver_homes.module(self.folder, version)
        before = self.node.inventory
        source = InventorySource(
            self.folder, homes=HomeSource(HostRoot(self.folder, Path("/")), root=self.folder)
        )
        machine = replace(before.machine, driver_version=version)
        source.set(Discovery(machine, before.problems))
        self.node.inventory = replace(source.current(), offering=before.offering, published=before.published)
        return self.node.inventory

    def remove(self) -> None:
        shutil.rmtree(self.folder / "usr", ignore_errors=True)
        shutil.rmtree(self.folder / "run", ignore_errors=True)


@pytest.fixture
def host(tmp_path: Path, node: PluginNode) -> Host:
    folder = tmp_path / "host"
    folder.mkdir()
    return Host(folder, node)


def libraries(node: PluginNode, number: int) -> set[str]:
    """Host paths of libcuda in the claim's CDI file."""
    devices = node.spec(uid(number))["devices"]
    paths = {mount["hostPath"] for one in devices for mount in one["containerEdits"].get("mounts", ())}
    return {path for path in paths if "libcuda.so" in path}


def follow(state: DeviceState, node: PluginNode) -> None:
    DriverOfClaims(state, lambda: node.inventory).step()


def test_a_gpu_without_libcuda_is_refused_with_home_folders_and_remedy(host: Host, node: PluginNode) -> None:
    driver_homes.cos(host.folder)
    host.read(OLD)
    why = refusal(node, claim(1, gpu("gpu", GPU_0)))
    assert "NodeUnsuitable" in why
    for word in (f"libcuda.so.{OLD}", "/home/kubernetes/bin/nvidia", "/lib64", "--driver-root"):
        assert word in why


def test_a_nic_needs_no_driver_of_gpus(host: Host, node: PluginNode) -> None:
    host.read()
    assert prepare(node, claim(1, nic("nic", NIC_0))).devices


def test_a_refused_claim_is_prepared_once_the_libraries_came(host: Host, node: PluginNode) -> None:
    host.read()
    wanted = claim(1, gpu("gpu", GPU_0))
    refusal(node, wanted)
    driver_homes.libraries(host.folder / "usr/lib64", OLD)
    host.read()
    prepare(node, wanted)
    assert libraries(node, 1) == {f"/usr/lib64/libcuda.so.{OLD}"}


def test_a_prepared_claim_follows_an_upgrade_and_a_move(host: Host, node: PluginNode) -> None:
    driver_homes.libraries(host.folder / "usr/lib64", OLD)
    host.read()
    wanted = claim(1, gpu("gpu", GPU_0))
    before = prepare(node, wanted)
    state = node.plugin()
    for place in ("usr/lib64", "run/nvidia/driver/usr/lib64"):
        host.remove()
        host.read(NEW)
        follow(state, node)
        kept = libraries(node, 1)
        assert kept, "without a driver the files stay as they are"
        driver_homes.libraries(host.folder / place, NEW)
        host.read(NEW)
        follow(state, node)
        assert libraries(node, 1) == {f"/{place}/libcuda.so.{NEW}"} != kept
    (record,) = state.records()
    assert record.has_devices_of(before)
    assert record.nonce == before.nonce


def test_what_already_follows_is_left_alone(host: Host, node: PluginNode) -> None:
    driver_homes.libraries(host.folder / "usr/lib64", OLD)
    host.read()
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    node.claims.away = ApiError("the API is away")
    follow(node.plugin(), node)
    host.remove()
    driver_homes.libraries(host.folder / "usr/lib64", NEW)
    host.read(NEW)
    state = node.plugin()
    with pytest.raises(PrepareError, match="API"):
        follow(state, node)
    assert libraries(node, 1) == {f"/usr/lib64/libcuda.so.{OLD}"}
    assert [record.ref for record in state.records()] == [ref_of(claim(1))]
