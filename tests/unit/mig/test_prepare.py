"""A claim that has a place for a MIG instance, from Prepare to Unprepare, with nvidia-ml-py on the fake NVML:
its containers get the instance that was made for it, and nothing of it is left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.api import names
from koordra.errors import PrepareError
from koordra.kubelet_plugin.discovery.machine_root import MachineRoot
from koordra.kubelet_plugin.isolation.mig.backend import PATIENCE, MigIsolation
from koordra.kubelet_plugin.isolation.mig.journal import Journal
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.kubelet_plugin.prepare.lost_devices import absent_devices, made_on_demand
from koordra.kubelet_plugin.publish.node_inventory import inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.node_state.disk import Disk
from koordra.topology.partitions import MigInstance
from koordra.topology.problems import Discovery
from tests.fakes.mig_card import MigCard
from tests.fakes.node_claims import ANY_ISOLATION, NODE, claim, parameters, result, uid
from tests.fakes.nvml_library import build
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

CAPS = 237


class CutNode(PluginNode):
    """One H100 in MIG mode, on which nothing is made yet."""

    def __init__(self, folder: Path, card: MigCard) -> None:
        root = folder / "root"
        (root / "proc/driver/nvidia-caps").mkdir(parents=True)
        minors = "".join(
            f"gpu0/gi{gi}/access {3 + gi * 9}\n"
            + "".join(f"gpu0/gi{gi}/ci{ci}/access {4 + gi * 9 + ci}\n" for ci in range(8))
            for gi in range(15)
        )
        (root / "proc/driver/nvidia-caps/mig-minors").write_text(f"config 1\nmonitor 2\n{minors}")
        (root / "proc/devices").write_text(f"Character devices:\n{CAPS} nvidia-caps\n")
        offering = Offering(mig=True, mig_on_demand=True, isolation=ANY_ISOLATION)
        machine = replace(card.machine, gpus=(card.gpu,))
        super().__init__(folder, inventory_of(Discovery(machine, ()), offering=offering))
        self.now = 0.0
        self.guard = DeviceGuardFile(folder / "guarded.json", node=NODE, disk=Disk())
        self.guard.update(machine)
        self.library = NvmlLibrary(lambda: card.fake.library / "libnvidia-ml.so.1")
        self.mig = MigIsolation(
            self.library,
            machine=lambda: self.inventory.machine,
            root=lambda: MachineRoot(root),
            guard=self.guard.add,
            clock=lambda: self.now,
        )
        self.backends = backends(self.mig)


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigCard:
    made = MigCard(tmp_path, build())
    for name, value in made.fake.environment.items():
        if name.startswith("KOORDRA_FAKE"):
            monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def node(tmp_path: Path, card: MigCard) -> CutNode:
    return CutNode(tmp_path, card)


def wanted(node: CutNode, number: int, profile: str = "1g20gb-6") -> Any:
    (gpu,) = node.inventory.machine.gpus
    found = claim(number, result("slice", f"{gpu.name}-mig-{profile}"))
    node.claims.put(found)
    return found


def device_nodes(node: CutNode, number: int) -> list[tuple[str, int]]:
    spec = node.spec(uid(number))
    nodes = [each for device in spec["devices"] for each in device["containerEdits"].get("deviceNodes", ())]
    return sorted((each["path"], each["minor"]) for each in nodes if "caps" in each["path"])


def test_a_claim_gets_the_two_nodes_of_its_instance_and_nothing_else(node: CutNode, card: MigCard) -> None:
    record = node.plugin().prepare(ref_of(wanted(node, 1)))
    assert card.instances() == [(card.place("1g.20gb", 6), 1)]
    (device,) = record.devices
    assert (device.isolation, device.type) == ("mig", names.TYPE_MIG)
    assert device.uuid
    assert device.uuid.startswith("MIG-")
    # The first of the ids for a quarter of the card.
    first = 3 + 3 * 9
    assert device_nodes(node, 1) == [
        (f"/dev/nvidia-caps/nvidia-cap{first}", first),
        (f"/dev/nvidia-caps/nvidia-cap{first + 1}", first + 1),
    ]
    guarded = json.loads((node.paths.state.parent / "guarded.json").read_text())
    assert [
        each["path"] for device in guarded["devices"] if "mig" in device["name"] for each in device["nodes"]
    ] == [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (first, first + 1)]
    assert made_on_demand(lambda: node.checkpoint().claims) == {device.identity}
    again = node.plugin().prepare(ref_of(wanted(node, 1)))
    assert again.devices == record.devices, "the kubelet asks again"
    node.plugin().unprepare(ref_of(wanted(node, 1)))
    assert card.instances() == []
    assert node.holders() == set()


@pytest.mark.parametrize("word", ["mps", "timeslicing"])
def test_an_instance_is_not_made_for_a_share_that_is_done_to_whole_cards(
    node: CutNode, card: MigCard, word: str
) -> None:
    (gpu,) = node.inventory.machine.gpus
    config = [parameters("GpuConfig", isolation=word)]
    asks = claim(1, result("slice", f"{gpu.name}-mig-1g20gb-6"), config=config)
    node.claims.put(asks)
    with pytest.raises(PrepareError, match=f"requested {word}, which is done to a whole card"):
        node.plugin().prepare(ref_of(asks))
    assert card.instances() == []


def test_two_claims_of_one_card(node: CutNode, card: MigCard) -> None:
    for number, profile in ((1, "3g40gb-0"), (2, "1g10gb-4")):
        node.plugin().prepare(ref_of(wanted(node, number, profile)))
    assert set(device_nodes(node, 1)).isdisjoint(device_nodes(node, 2))
    with pytest.raises(PrepareError, match="in its way"):
        node.plugin().prepare(ref_of(wanted(node, 3, "4g40gb-0")))
    assert sorted(place.start for place, _ in card.instances()) == [0, 4]


def test_half_a_prepare_is_undone_at_the_next_start(node: CutNode, card: MigCard) -> None:
    """The disk is full once the instance is there; and what was written down is enough to find it again."""
    card.fake.order("error nvmlGpuInstanceCreateComputeInstance 10", "error nvmlGpuInstanceDestroy 10")
    with pytest.raises(PrepareError):
        node.plugin().prepare(ref_of(wanted(node, 1)))
    assert [parts for _, parts in card.instances()] == [0]
    card.fake.order()
    node.plugin()
    assert card.instances() == []


def test_an_instance_in_use_holds_its_place_until_it_is_free(node: CutNode, card: MigCard) -> None:
    record = node.plugin().prepare(ref_of(wanted(node, 1)))
    card.fake.processes((str(record.devices[0].uuid), "compute", 4711, 1))
    with pytest.raises(PrepareError, match="still used"):
        node.plugin().unprepare(ref_of(wanted(node, 1)))
    assert node.holders() == {uid(1)}
    assert node.mig.stuck() == {}
    node.now += PATIENCE
    (device,) = record.devices
    assert node.mig.stuck() == {device.device: "InstanceInUse"}
    absent = absent_devices(list, node.inventory, stuck=node.mig.stuck())
    published = {
        each["name"]: each.get("taints")
        for one in build_slices(
            node.inventory.machine,
            node_name=NODE,
            node_uid=None,
            mode="native",
            generation=1,
            offering=node.inventory.offering,
            absent=absent,
        )
        for each in one["spec"].get("devices", ())
    }
    assert sum("-mig-" in name for name in published) == 25
    assert {name: taints for name, taints in published.items() if taints} == {
        device.device: [{"key": "koordra.io/unhealthy", "value": "InstanceInUse", "effect": "NoSchedule"}]
    }
    card.fake.order()
    node.plugin().unprepare(ref_of(wanted(node, 1)))
    assert (node.holders(), card.instances(), node.mig.stuck()) == (set(), [], {})


def test_an_instance_that_was_there_is_handed_out_and_left(node: CutNode, card: MigCard) -> None:
    uuid = card.make(card.place("1g.20gb", 6), "somebody")
    record = node.plugin().prepare(ref_of(wanted(node, 1)))
    assert record.devices[0].uuid == uuid
    assert made_on_demand(lambda: node.checkpoint().claims) == frozenset()
    node.plugin().unprepare(ref_of(wanted(node, 1)))
    assert card.instances() == [(card.place("1g.20gb", 6), 1)]


def test_a_claim_of_an_earlier_boot_takes_nothing_from_who_has_its_place_now(
    node: CutNode, card: MigCard
) -> None:
    """No instance outlives a boot, and what was written down of one that was never finished names a place
    alone."""
    card.fake.order("error nvmlGpuInstanceCreateComputeInstance 10", "error nvmlGpuInstanceDestroy 10")
    with pytest.raises(PrepareError):
        node.plugin().prepare(ref_of(wanted(node, 1)))
    card.fake.order()
    (card.fake.folder / "instances").unlink()
    node.inventory = replace(node.inventory, machine=replace(node.inventory.machine, boot_id="another"))
    node.plugin().prepare(ref_of(wanted(node, 2)))
    node.plugin().unprepare(ref_of(wanted(node, 1)))
    assert card.instances() == [(card.place("1g.20gb", 6), 1)]


def test_a_claim_ends_while_the_driver_is_to_be_free(node: CutNode, card: MigCard) -> None:
    """Its end is what the release waits for. If the driver stays, the instance is removed at the next
    call."""
    node.plugin().prepare(ref_of(wanted(node, 1)))
    assert node.library.let_go(within=0.0)
    node.plugin().unprepare(ref_of(wanted(node, 1)))
    assert node.holders() == set()
    with pytest.raises(PrepareError, match="the driver is to be free"):
        node.plugin().prepare(ref_of(wanted(node, 2)))
    node.library.take_up()
    node.plugin().prepare(ref_of(wanted(node, 2, "1g10gb-0")))
    assert card.instances() == [(card.place("1g.10gb", 0), 1)]


def test_an_instance_that_is_left_is_removed_by_the_next_plugin(node: CutNode, card: MigCard) -> None:
    """Its claim ended while the driver was to be free; the plugin was restarted, and the driver stayed."""
    record = node.plugin().prepare(ref_of(wanted(node, 1)))
    uuid = str(record.devices[0].uuid)
    assert node.library.let_go(within=0.0)
    node.plugin().unprepare(ref_of(wanted(node, 1)))
    assert [each.device for each in node.checkpoint().cards] == [record.devices[0].device]
    node.library.take_up()
    card.fake.processes((uuid, "compute", 4711, 1))
    (look,) = node.plugin().look_at_cards().values()
    assert "still used" in str(look.problem)
    with pytest.raises(PrepareError, match="still used"):
        node.plugin().prepare(ref_of(wanted(node, 2, "1g10gb-0")))
    card.fake.order()
    assert node.plugin().look_at_cards() == {}
    assert (card.instances(), node.checkpoint().cards) == ([], ())


def test_what_was_left_of_an_earlier_boot_is_nobodys(node: CutNode, card: MigCard) -> None:
    node.plugin().prepare(ref_of(wanted(node, 1)))
    assert node.library.let_go(within=0.0)
    node.plugin().unprepare(ref_of(wanted(node, 1)))
    node.library.take_up()
    node.inventory = replace(node.inventory, machine=replace(node.inventory.machine, boot_id="another"))
    assert node.plugin().look_at_cards() == {}
    assert card.instances() == [(card.place("1g.20gb", 6), 1)], "made by somebody else since"


def test_claims_keep_and_end_their_instances_when_none_are_made_any_more(
    node: CutNode, card: MigCard
) -> None:
    """The flag was taken away while the claim lived."""
    record = node.plugin().prepare(ref_of(wanted(node, 1)))
    offering = replace(node.inventory.offering, mig_on_demand=False)
    (device,) = record.devices
    journal = Journal.read(device.journal)
    assert journal is not None
    of, ids = journal.place, (journal.gpu_instance or 0, journal.compute_instance or 0)
    made = MigInstance(*ids, of.profile, of.start, of.size, device.uuid, device.nodes[1:])
    gpu = replace(node.inventory.machine.gpus[0], mig_instances=(made,))
    machine = replace(node.inventory.machine, gpus=(gpu,))
    node.inventory = inventory_of(Discovery(machine, ()), offering=offering)
    assert node.plugin().prepare(ref_of(wanted(node, 1))).devices == record.devices
    node.plugin().unprepare(ref_of(wanted(node, 1)))
    assert card.instances() == []


def test_without_nvml_nothing_is_begun(node: CutNode, card: MigCard) -> None:
    card.fake.order("error nvmlInitWithFlags 9")
    with pytest.raises(PrepareError, match="NVML cannot be used"):
        node.plugin().prepare(ref_of(wanted(node, 1)))
    assert node.holders() == set()
