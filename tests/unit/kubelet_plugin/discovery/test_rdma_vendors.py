"""RDMA devices of several vendors, virtual functions, sub-functions: as their drivers show them in sysfs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.prepare.device_guard import guard_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from koordra.topology.machine import Nic
from koordra.topology.problems import Discovery

NODE_TYPES = {"irdma": ("0x8086", "0x1592"), "bnxt_re": ("0x14e4", "0x1750"), "efa": ("0x1d0f", "0xefa1")}


class Tree:
    """Writes single sysfs entries; only what the test is about."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file("sys/devices/system/node/node0/cpulist", "0")
        self.file("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0")
        self.file("dev/infiniband/rdma_cm", "c 10:57")
        self.uverbs = 0

    def file(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def function(self, place: str, *, vendor: str, device: str) -> str:
        """A PCI function at ``pci0000:00/0000:00:05.0``; its directory."""
        directory = f"sys/devices/{place}"
        for name, text in {"class": "0x020000", "vendor": vendor, "device": device, "numa_node": "0"}.items():
            self.file(f"{directory}/{name}", text)
        self.link(f"sys/bus/pci/devices/{place.rpartition('/')[2]}", f"../../../devices/{place}")
        return directory

    def rdma(
        self,
        directory: str,
        name: str,
        *,
        guid: str,
        layer: str = "Ethernet",
        state: str = "4: ACTIVE",
        rate: str = "100 Gb/sec (4X EDR)",
    ) -> None:
        base = f"{directory}/infiniband/{name}"
        self.file(f"{base}/node_guid", guid)
        for entry, text in {
            "link_layer": layer,
            "state": state,
            "rate": rate,
            "gids/0": f"fe80:0000:0000:0000:{guid}",
        }.items():
            self.file(f"{base}/ports/1/{entry}", text)
        self.link(f"sys/class/infiniband/{name}", f"../../{base.removeprefix('sys/')}")
        number, self.uverbs = self.uverbs, self.uverbs + 1
        self.file(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name)
        self.file(f"sys/class/infiniband_verbs/uverbs{number}/dev", f"231:{192 + number}")
        self.file(f"dev/infiniband/uverbs{number}", f"c 231:{192 + number}")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def only(found: Discovery) -> Nic:
    (nic,) = found.machine.nics
    return nic


@pytest.mark.parametrize(
    ("driver", "name", "layer", "rate", "expected"),
    [
        ("irdma", "irdma0", "Ethernet", "100 Gb/sec (4X EDR)", ("E810-C", 100)),
        ("irdma", "rocep24s0f0", "Ethernet", "25 Gb/sec (1X EDR)", ("E810-C", 25)),
        ("bnxt_re", "bnxt_re0", "Ethernet", "200 Gb/sec (4X HDR)", ("BCM57508", 200)),
        ("efa", "rdmap16s27", "Unspecified", "100 Gb/sec (4X EDR)", ("EFA", 100)),
        ("efa", "efa_0", "Unspecified", "2.5 Gb/sec (1X SDR)", ("EFA", 2)),
    ],
)
def test_any_vendor(
    tree: Tree, driver: str, name: str, layer: str, rate: str, expected: tuple[str, int]
) -> None:
    vendor, device = NODE_TYPES[driver]
    directory = tree.function("pci0000:00/0000:00:05.0", vendor=vendor, device=device)
    tree.rdma(directory, name, guid="0200:00ff:fe00:0001", layer=layer, rate=rate)
    if driver != "efa":
        tree.file(f"{directory}/net/ens5/dev_port", "0")
    found = discover(tree.root)
    nic = only(found)
    assert found.problems == ()
    assert (nic.ib_device, nic.netdev) == (name, None if driver == "efa" else "ens5")
    (published,) = build_devices(found.machine, mode="native")
    attributes = {key: next(iter(value.values())) for key, value in published["attributes"].items()}
    assert attributes["koordra.io/model"] == expected[0]
    assert attributes["koordra.io/rateGbps"] == expected[1]
    assert attributes["koordra.io/linkLayer"] == layer


def test_a_nic_whose_driver_gives_no_node_guid_is_known_by_its_gid(tree: Tree) -> None:
    """EFA leaves node_guid at zero; the GID comes from the card's MAC address."""
    directory = tree.function("pci0000:00/0000:00:05.0", vendor="0x1d0f", device="0xefa1")
    tree.rdma(directory, "rdmap0s5", guid="0000:0000:0000:0000", layer="Unknown")
    gid = "sys/class/infiniband/rdmap0s5/ports/1/gids/0"
    assert not only(discover(tree.root)).publishable, "both are zero: nobody knows who it is"
    tree.file(gid, "fe80:0000:0000:0000:0c3a:8eff:fe4b:1b2d")
    found = discover(tree.root)
    assert found.problems == ()
    assert only(found).guid == "0c3a:8eff:fe4b:1b2d"
    assert only(found).publishable


def test_a_virtual_function_that_nobody_has_set_up_is_not_offered_for_its_gid(tree: Tree) -> None:
    directory = with_vfs(tree, count=1)
    vf = tree.root / directory.replace("05.0", "05.1") / "infiniband/mlx5_1"
    (vf / "node_guid").write_text("0000:0000:0000:0000\n")
    (found,) = discover(tree.root).machine.vfs
    assert (found.guid, found.publishable) == (None, False)


def test_an_rdma_device_that_leads_nowhere_is_reported(tree: Tree) -> None:
    for number in (5, 6):
        directory = tree.function(f"pci0000:00/0000:00:0{number}.0", vendor="0x15b3", device="0x101d")
        tree.rdma(directory, f"mlx5_{number}", guid=f"b83f:d203:0000:000{number}")
    (tree.root / "sys/class/infiniband/mlx5_5").unlink()
    (tree.root / "sys/class/infiniband/mlx5_6").unlink()
    tree.link("sys/class/infiniband/mlx5_6", "mlx5_6")
    tree.link("sys/class/infiniband/rxe0", "../../devices/virtual/infiniband/rxe0")
    found = discover(tree.root)
    assert not found.machine.nics
    assert [(problem.object, problem.field) for problem in found.problems] == [
        ("RDMA device mlx5_5", "path"),
        ("RDMA device mlx5_6", "path"),
    ]


def test_without_the_class_directories_the_devices_are_missed(tree: Tree) -> None:
    with_vfs(tree, count=1)
    shutil.rmtree(tree.root / "sys/class")
    found = discover(tree.root)
    assert not found.machine.nics
    assert {problem.object for problem in found.problems} == {"RDMA device mlx5_0", "RDMA device mlx5_1"}


def test_the_interface_of_a_nic_among_partitions_and_second_ports(tree: Tree) -> None:
    directory = tree.function("pci0000:00/0000:00:05.0", vendor="0x15b3", device="0x101b")
    tree.rdma(directory, "mlx5_0", guid="b83f:d203:0000:0001", layer="InfiniBand")
    tree.file(f"{directory}/net/ib0/dev_port", "0")
    tree.file(f"{directory}/net/ib0.8001/dev_port", "0")
    tree.file(f"{directory}/net/ib0.8001/parent", "ib0")
    assert only(discover(tree.root)).netdev == "ib0"
    tree.file(f"{directory}/net/ib1/dev_port", "1")
    assert only(discover(tree.root)).netdev == "ib0"
    tree.file(f"{directory}/net/ib1/dev_port", "0")
    assert only(discover(tree.root)).netdev is None, "two could be meant"


def test_a_nic_on_which_the_host_has_a_vlan_is_needed(tree: Tree) -> None:
    """Whoever has it alone gets a macvlan beside the VLAN (network/network_decision.py)."""
    directory = tree.function("pci0000:00/0000:00:05.0", vendor="0x14e4", device="0x1750")
    tree.rdma(directory, "bnxt_re0", guid="0200:00ff:fe00:0001")
    tree.file(f"{directory}/net/ens5/dev_port", "0")
    tree.link("sys/class/net/ens5", f"../../{directory.removeprefix('sys/')}/net/ens5")
    assert not only(discover(tree.root)).needed
    tree.link(f"{directory}/net/ens5/upper_ens5.100", "../../../../virtual/net/ens5.100")
    assert only(discover(tree.root)).needed


def test_one_card_two_drivers_of_one_function_are_not_told_apart(tree: Tree) -> None:
    directory = tree.function("pci0000:00/0000:00:05.0", vendor="0x8086", device="0x1592")
    tree.rdma(directory, "irdma0", guid="0200:00ff:fe00:0001")
    tree.rdma(directory, "irdma1", guid="0200:00ff:fe00:0002")
    found = discover(tree.root)
    assert not any(nic.publishable for nic in found.machine.nics)


def with_vfs(tree: Tree, count: int = 2) -> str:
    directory = tree.function("pci0000:00/0000:00:05.0", vendor="0x15b3", device="0x101d")
    tree.rdma(directory, "mlx5_0", guid="b83f:d203:0000:0000")
    tree.file(f"{directory}/sriov_totalvfs", "8")
    tree.file(f"{directory}/sriov_numvfs", str(count))
    for number in range(count):
        place = f"pci0000:00/0000:00:05.{number + 1}"
        vf = tree.function(place, vendor="0x15b3", device="0x101e")
        tree.link(f"{vf}/physfn", "../0000:00:05.0")
        tree.link(f"{directory}/virtfn{number}", f"../0000:00:05.{number + 1}")
        tree.rdma(vf, f"mlx5_{number + 1}", guid=f"b83f:d203:0000:000{number + 1}")
    return directory


def test_virtual_functions_have_the_number_their_pf_gives_them(tree: Tree) -> None:
    with_vfs(tree)
    found = discover(tree.root)
    assert found.problems == ()
    assert [(vf.name, vf.parent, vf.vf_index) for vf in found.machine.vfs] == [
        ("nic-0000-00-05-0-vf-0", "0000:00:05.0", 0),
        ("nic-0000-00-05-0-vf-1", "0000:00:05.0", 1),
    ]
    assert found.machine.device("nic-0000-00-05-0-vf-1") == found.machine.vfs[1]


def test_a_virtual_function_that_its_pf_does_not_list_is_not_offered(tree: Tree) -> None:
    directory = with_vfs(tree)
    (tree.root / directory / "virtfn0").unlink()
    found = discover(tree.root)
    assert [problem.object for problem in found.problems] == ["RDMA device mlx5_1"]
    names = [
        device["name"] for device in build_devices(found.machine, mode="native", offering=Offering(vfs=True))
    ]
    assert names == ["nic-0000-00-05-0", "nic-0000-00-05-0-vf-1"]


def test_a_virtual_function_that_is_listed_twice_is_not_offered(tree: Tree) -> None:
    directory = with_vfs(tree)
    tree.link(f"{directory}/virtfn7", "../0000:00:05.1")
    names = [
        device["name"]
        for device in build_devices(discover(tree.root).machine, mode="native", offering=Offering(vfs=True))
    ]
    assert names == ["nic-0000-00-05-0", "nic-0000-00-05-0-vf-1"]


def test_a_virtual_function_that_does_not_say_so_is_no_nic(tree: Tree) -> None:
    with_vfs(tree)
    (tree.root / "sys/devices/pci0000:00/0000:00:05.1/physfn").unlink()
    found = discover(tree.root)
    assert [problem.field for problem in found.problems] == ["parent"]
    names = [
        device["name"] for device in build_devices(found.machine, mode="native", offering=Offering(vfs=True))
    ]
    assert names == ["nic-0000-00-05-0", "nic-0000-00-05-0-vf-1"]


def test_a_virtual_function_without_a_guid_says_how_to_give_it_one(tree: Tree) -> None:
    with_vfs(tree)
    next(tree.root.rglob("infiniband/mlx5_1/node_guid")).write_text("0000:0000:0000:0000\n")
    (problem,) = discover(tree.root).problems
    assert "node_guid" in problem.remedy


def test_sub_functions_are_known_guarded_and_not_offered(tree: Tree) -> None:
    directory = with_vfs(tree, 0)
    part = f"{directory}/mlx5_core.sf.2"
    tree.file(f"{part}/sfnum", "88")
    tree.file(f"{part}/net/en5s88/dev_port", "0")
    tree.link("sys/bus/auxiliary/devices/mlx5_core.sf.2", f"../../../{part.removeprefix('sys/')}")
    tree.link("sys/bus/auxiliary/devices/mlx5_core.eth.0", f"../../../{part.removeprefix('sys/')}")
    tree.rdma(part, "mlx5_7", guid="b83f:d203:0000:0088")
    found = discover(tree.root)
    (sub,) = found.machine.sub_functions
    assert (sub.name, sub.number, sub.ib_device, sub.netdev) == ("mlx5_core.sf.2", 88, "mlx5_7", "en5s88")
    assert sub.location.bus_id == "0000:00:05.0"
    assert only(found).ib_device == "mlx5_0"
    entries = {entry.name: entry for entry in guard_of(found.machine, node_name="n").devices}
    nodes = entries["nic-0000-00-05-0-mlx5_core.sf.2"].nodes
    assert [node.path for node in nodes] == ["/dev/infiniband/uverbs1"]
    assert len(build_devices(found.machine, mode="native", offering=Offering(vfs=True))) == 1


def test_a_sub_function_whose_function_is_gone_is_left_out(tree: Tree) -> None:
    directory = with_vfs(tree, 0)
    tree.link(
        "sys/bus/auxiliary/devices/mlx5_core.sf.2", "../../../devices/pci0000:00/0000:00:09.0/mlx5_core.sf.2"
    )
    tree.link("sys/bus/auxiliary/devices/mlx5_core.sf.3", "mlx5_core.sf.3")
    assert discover(tree.root).machine.sub_functions == ()
    shutil.rmtree(tree.root / directory)
    assert discover(tree.root).machine.nics[0].publishable is False
