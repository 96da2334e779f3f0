"""MIG instances and virtual functions: what their holders get, and that a card and its parts exclude each
other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.api.names import UNHEALTHY_TAINT
from koordra.kubelet_plugin.claims.claim_record import State
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.prepare.lost_devices import absent_devices, lost_devices
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory, inventory_of
from koordra.kubelet_plugin.publish.node_slices import node_slices
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.node_state import prepared_claim
from koordra.topology.location import DeviceNode
from koordra.topology.machine import Gpu
from koordra.topology.presets.tree import MachineWriter
from koordra.topology.problems import Discovery, Problem
from tests.fakes.node_claims import ANY_ISOLATION, NODE, claim, gpu, nic, parameters, result, uid
from tests.machines import catalogue
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of, refusal
from tests.unit.kubelet_plugin.test_machine_changes import rebooted

EVERYTHING = Offering(mig=True, vfs=True, isolation=ANY_ISOLATION)
CARD = "gpu-0000-1a-00-0"
LARGE, MEDIUM, SMALL = f"{CARD}-mig-3g20gb-0", f"{CARD}-mig-2g10gb-4", f"{CARD}-mig-1g5gb-6"
OTHER_CARD = "gpu-0000-19-00-0"
PF = "nic-0000-5e-00-0"
VF_0, VF_3 = f"{PF}-vf-0", f"{PF}-vf-3"


def read(name: str, folder: Path) -> Discovery:
    MachineWriter(folder).write(catalogue.load(name).machine(serial=NODE))
    return discover(folder)


@pytest.fixture(scope="module")
def mig_machine(tmp_path_factory: pytest.TempPathFactory) -> Discovery:
    """Two of its four cards are in MIG mode."""
    return read("mig-a100", tmp_path_factory.mktemp("mig"))


@pytest.fixture(scope="module")
def vf_machine(tmp_path_factory: pytest.TempPathFactory) -> Discovery:
    return read("nic-2-ports-8-vfs", tmp_path_factory.mktemp("vf"))


@pytest.fixture
def mig_node(tmp_path: Path, mig_machine: Discovery) -> PluginNode:
    return PluginNode(tmp_path / "mig", inventory_of(mig_machine, offering=EVERYTHING))


@pytest.fixture
def vf_node(tmp_path: Path, vf_machine: Discovery) -> PluginNode:
    return PluginNode(tmp_path / "vf", inventory_of(vf_machine, offering=EVERYTHING))


def part(request: str, device: str, **more: Any) -> dict[str, Any]:
    """A MIG instance or a virtual function: taken whole, so without a share."""
    return result(request, device, share=None, **more)


def changed(found: Discovery, card: str, change: Callable[[Gpu], Gpu], *problems: Problem) -> NodeInventory:
    gpus = tuple(change(each) if each.name == card else each for each in found.machine.gpus)
    after = Discovery(machine=replace(found.machine, gpus=gpus), problems=problems)
    return inventory_of(after, offering=EVERYTHING)


def not_partitioned(card: Gpu) -> Gpu:
    return replace(card, mig_enabled=False, mig_instances=())


def paths(nodes: Iterable[dict[str, Any]]) -> list[str]:
    return [node["path"] for node in nodes]


def environment(device: dict[str, Any]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in device["containerEdits"]["env"])


def test_what_the_holder_of_mig_instances_gets(
    mig_node: PluginNode, golden: Callable[[str, str], None]
) -> None:
    prepare(mig_node, claim(1, part("large", LARGE), part("small", SMALL)))
    golden("kubelet_plugin/mig.cdi.json", mig_node.shown(mig_node.paths.cdi_file(uid(1))))
    golden("kubelet_plugin/mig.prepared.json", mig_node.paths.prepared_file(uid(1)).read_text())
    large, small = mig_node.spec(uid(1))["devices"]
    assert "CUDA_VISIBLE_DEVICES" not in {**environment(large), **environment(small)}
    nodes = [paths(device["containerEdits"]["deviceNodes"]) for device in (large, small)]
    assert nodes[0][0] == nodes[1][0] == "/dev/nvidia1"
    assert [len([path for path in each if "nvidia-caps" in path]) for each in nodes] == [2, 2]
    assert len({path for each in nodes for path in each if "nvidia-caps" in path}) == 4
    assert "/dev/nvidiactl" in nodes[0]
    assert "/dev/nvidia-uvm" in nodes[0]


def test_the_hook_reads_mig_instances_and_virtual_functions(
    mig_node: PluginNode, vf_node: PluginNode
) -> None:
    prepare(mig_node, claim(1, part("gpu", LARGE)))
    (device,) = prepared_claim.decode(mig_node.paths.prepared_file(uid(1)).read_bytes()).devices
    assert (device.type, len(device.nodes)) == ("mig", 3)
    prepare(vf_node, claim(1, part("nic", VF_3)))
    (device,) = prepared_claim.decode(vf_node.paths.prepared_file(uid(1)).read_bytes()).devices
    assert (device.type, len(device.nodes)) == ("vf", 1)


def test_what_the_holder_of_virtual_functions_gets(
    vf_node: PluginNode, golden: Callable[[str, str], None]
) -> None:
    prepare(vf_node, claim(1, part("nic", VF_0), part("nic", VF_3)))
    golden("kubelet_plugin/vf.cdi.json", vf_node.shown(vf_node.paths.cdi_file(uid(1))))
    golden("kubelet_plugin/vf.prepared.json", vf_node.paths.prepared_file(uid(1)).read_text())
    first, second = vf_node.spec(uid(1))["devices"]
    read = prepared_claim.decode(vf_node.paths.prepared_file(uid(1)).read_bytes())
    assert dict(read.devices[0].env)["NCCL_IB_HCA"] == "=mlx5_1:1,mlx5_4:1"
    assert paths(first["containerEdits"]["deviceNodes"]) == [
        "/dev/infiniband/uverbs1",
        "/dev/infiniband/rdma_cm",
    ]
    assert paths(second["containerEdits"]["deviceNodes"]) == ["/dev/infiniband/uverbs4"]
    assert vf_node.record(uid(1))["memlock"] is True


def test_parts_beside_a_whole_card_and_beside_each_other(mig_node: PluginNode, vf_node: PluginNode) -> None:
    for number, name in enumerate((LARGE, MEDIUM, SMALL), start=1):
        prepare(mig_node, claim(number, part("gpu", name)))
    prepare(mig_node, claim(4, gpu("gpu", "gpu-0000-99-00-0", "40960Mi")))
    assert len(mig_node.holders()) == 4
    for number in range(8):
        prepare(vf_node, claim(number + 1, part("nic", f"{PF}-vf-{number}")))
    assert len(vf_node.holders()) == 8


def test_an_instance_is_held_by_one_claim(mig_node: PluginNode) -> None:
    prepare(mig_node, claim(1, part("gpu", LARGE)))
    assert "AlreadyAllocated" in refusal(mig_node, claim(2, part("gpu", LARGE)))


def test_a_required_scope_counts_instances_as_gpus(mig_node: PluginNode) -> None:
    def pair(number: int, near: str) -> dict[str, Any]:
        joint = parameters("JointAllocation", scope="PCIeSwitch", enforcement="Required", pairing="PerGroup")
        return claim(number, part("gpu", LARGE), nic("nic", near, "10"), config=[joint])

    assert "TopologyScopeUnmet" in refusal(mig_node, pair(1, "nic-0000-9b-00-0"))
    assert len(prepare(mig_node, pair(2, "nic-0000-1b-00-0")).devices) == 2


def test_a_card_is_not_had_while_an_instance_of_it_is_in_use(
    mig_node: PluginNode, mig_machine: Discovery
) -> None:
    """MIG mode was switched off under the claim; the old container may still be there."""
    prepare(mig_node, claim(1, part("gpu", LARGE)))
    mig_node.inventory = changed(mig_machine, CARD, not_partitioned)
    whole = gpu("gpu", CARD, "40960Mi")
    text = refusal(mig_node, claim(2, whole))
    assert (
        f"CountersExhausted: {CARD} cannot be had, since {LARGE}, which is part of it, is in use by" in text
    )
    assert "team-a/claim-1; it is free once that claim is unprepared here" in text
    mig_node.plugin().unprepare(ref_of(claim(1)))
    prepare(mig_node, claim(2, whole))


def test_an_instance_is_not_had_while_its_card_is_in_use(
    mig_node: PluginNode, mig_machine: Discovery
) -> None:
    partitioned = mig_node.inventory
    mig_node.inventory = changed(mig_machine, CARD, not_partitioned)
    prepare(mig_node, claim(1, gpu("gpu", CARD, "1Gi")))
    mig_node.inventory = partitioned
    text = refusal(mig_node, claim(2, part("gpu", SMALL)))
    assert f"CountersExhausted: {SMALL} cannot be had, since {CARD}, which contains it, is in use" in text


@pytest.mark.parametrize("offered", [True, False])
def test_a_nic_and_its_functions_exclude_each_other(
    vf_node: PluginNode, vf_machine: Discovery, offered: bool
) -> None:
    """Also when functions are no longer offered, while one is still in use."""
    prepare(vf_node, claim(1, part("nic", VF_3)))
    vf_node.inventory = inventory_of(vf_machine, offering=Offering(vfs=offered))
    assert f"since {VF_3}, which is part of it" in refusal(vf_node, claim(2, nic("nic", PF, "10")))
    vf_node.plugin().unprepare(ref_of(claim(1)))
    prepare(vf_node, claim(2, nic("nic", PF, "10")))
    prepare(vf_node, claim(3, nic("nic", PF, "10")))
    vf_node.inventory = inventory_of(vf_machine, offering=EVERYTHING)
    assert f"since {PF}, which contains it" in refusal(vf_node, claim(4, part("nic", VF_0)))


def test_a_claim_cannot_have_a_nic_and_a_function_of_it(vf_node: PluginNode) -> None:
    text = refusal(vf_node, claim(1, nic("nic", PF, "10"), part("vf", VF_0)))
    assert f"{PF} and {VF_0} are in the allocation, and one is part of the other" in text


def test_an_administrator_looks_on_at_a_nic_whose_functions_are_in_use(vf_node: PluginNode) -> None:
    prepare(vf_node, claim(1, part("nic", VF_3)))
    prepare(vf_node, claim(2, result("look", PF, share=None, admin=True)))
    prepare(vf_node, claim(3, part("nic", VF_0)))
    assert len(vf_node.holders()) == 3


def test_a_device_number_that_an_old_holder_can_still_open_is_not_given_again(
    mig_node: PluginNode, mig_machine: Discovery
) -> None:
    """The instance was destroyed under its claim, and a new one at another place got its numbers."""
    prepare(mig_node, claim(1, part("gpu", f"{OTHER_CARD}-mig-1g5gb-0")))

    def made_anew(card: Gpu) -> Gpu:
        old = card.mig_instances[0]
        uuid = "MIG-00000000-0000-0000-0000-000000000000"
        return replace(card, mig_instances=(replace(old, start=3, uuid=uuid), card.mig_instances[5]))

    mig_node.inventory = changed(mig_machine, OTHER_CARD, made_anew)
    text = refusal(mig_node, claim(2, part("gpu", f"{OTHER_CARD}-mig-1g5gb-3")))
    assert "AlreadyAllocated" in text
    assert f"which was that of {OTHER_CARD}-mig-1g5gb-0 and is in use by team-a/claim-1" in text
    prepare(mig_node, claim(3, part("gpu", f"{OTHER_CARD}-mig-1g5gb-5")))
    mig_node.plugin().unprepare(ref_of(claim(1)))
    prepare(mig_node, claim(2, part("gpu", f"{OTHER_CARD}-mig-1g5gb-3")))


@pytest.mark.parametrize("instance_first", [True, False])
def test_a_card_that_took_over_the_minor_of_another_one_in_use_is_not_given(
    mig_node: PluginNode, mig_machine: Discovery, instance_first: bool
) -> None:
    """Neither whole nor in instances: who holds an instance can open its card's node too."""
    whole = "gpu-0000-99-00-0"
    held, wanted = gpu("gpu", whole, "1Gi"), part("gpu", LARGE)
    renumbered, minor = CARD, 2
    if instance_first:
        held, wanted, renumbered, minor = wanted, held, whole, 1
    prepare(mig_node, claim(1, held))
    node = DeviceNode(f"/dev/nvidia{minor}", 195, minor)
    mig_node.inventory = changed(mig_machine, renumbered, lambda card: replace(card, node=node))
    text = refusal(mig_node, claim(2, wanted))
    assert f"has the device number 195:{minor}, which was that of {held['device']}" in text


MADE_ANEW = "MIG-00000000-0000-0000-0000-000000000000"
ELSEWHERE = "MIG-00000000-0000-0000-0000-000000000001"


def made_anew(inventory: Discovery, **card: str) -> NodeInventory:
    """After a reset or a reboot: the first instance was made again, with another UUID and another id."""

    def change(gpu: Gpu) -> Gpu:
        first, *rest = gpu.mig_instances
        again = replace(first, uuid=MADE_ANEW, gpu_instance=11)
        return replace(gpu, mig_instances=(again, *rest), **card)

    return changed(inventory, CARD, change)


@pytest.mark.parametrize("reboots", [True, False])
def test_an_instance_that_was_made_again_is_the_same_device(
    mig_node: PluginNode, mig_machine: Discovery, reboots: bool
) -> None:
    obj = claim(1, part("gpu", LARGE))
    before = prepare(mig_node, obj).devices[0]
    anew = made_anew(mig_machine)
    mig_node.inventory = rebooted(anew) if reboots else anew

    assert not lost_devices(mig_node.plugin().remembered()[0], mig_node.inventory)
    after = prepare(mig_node, obj).devices[0]

    assert after.identity == before.identity
    assert after.uuid == MADE_ANEW != before.uuid
    assert MADE_ANEW in mig_node.paths.prepared_file(uid(1)).read_text()


def test_the_same_instance_on_another_card_is_refused_and_told(
    mig_node: PluginNode, mig_machine: Discovery
) -> None:
    obj = claim(1, part("gpu", LARGE))
    prepare(mig_node, obj)
    mig_node.inventory = rebooted(made_anew(mig_machine, uuid="GPU-00000000-0000-0000-0000-000000000000"))

    assert "another device than the one prepared" in refusal(mig_node, obj)
    (lost,) = lost_devices(mig_node.plugin().remembered()[0], mig_node.inventory)
    assert (lost.device, lost.reason) == (LARGE, "OtherDevice")


def test_an_instance_of_a_recovered_claim_is_known_by_its_uuid(mig_node: PluginNode) -> None:
    """The hook's record has nothing else of it."""
    prepare(mig_node, claim(1, part("gpu", LARGE)))
    mig_node.paths.checkpoint.unlink()
    (record,) = mig_node.plugin().remembered()
    assert record.state is State.RECOVERED
    assert lost_devices(record, mig_node.inventory) == ()
    assert absent_devices(lambda: [record], mig_node.inventory) == {}


def test_an_instance_that_is_not_made_again_is_told(mig_node: PluginNode, mig_machine: Discovery) -> None:
    obj = claim(1, part("gpu", LARGE))
    prepare(mig_node, obj)
    empty = changed(mig_machine, CARD, lambda card: replace(card, mig_instances=()))
    mig_node.inventory = rebooted(empty)

    assert "is gone from this node" in refusal(mig_node, obj)
    (lost,) = lost_devices(mig_node.plugin().remembered()[0], mig_node.inventory)
    assert (lost.device, lost.reason) == (LARGE, "DeviceGone")
    absent = absent_devices(mig_node.plugin().remembered, mig_node.inventory)
    shown = node_slices(
        {"metadata": {"name": NODE, "uid": "u"}},
        generation=1,
        node_name=NODE,
        mode="joint",
        inventory=mig_node.inventory,
        held=(),
        absent=absent,
    )
    (entry,) = [
        device for one in shown for device in one["spec"].get("devices", ()) if device["name"] == LARGE
    ]
    assert {"key": UNHEALTHY_TAINT, "value": "InstanceGone", "effect": "NoSchedule"} in entry["taints"]
    mig_node.plugin().unprepare(ref_of(obj))
    assert absent_devices(mig_node.plugin().remembered, mig_node.inventory) == {}


def test_instances_that_were_lost_and_made_again_in_part_and_elsewhere(
    mig_node: PluginNode, mig_machine: Discovery
) -> None:
    """Of three, the small one is back, the large one is at another place, the medium one is not there."""
    prepare(mig_node, claim(1, part("large", LARGE), part("small", SMALL)))
    prepare(mig_node, claim(2, part("gpu", MEDIUM)))

    def reset(card: Gpu) -> Gpu:
        large, _, small = card.mig_instances
        again = (replace(large, uuid=ELSEWHERE, start=4), replace(small, uuid=MADE_ANEW))
        return replace(card, mig_instances=again)

    mig_node.inventory = rebooted(changed(mig_machine, CARD, reset))
    records = mig_node.plugin().remembered()
    lost = [(each.device, each.reason) for one in records for each in lost_devices(one, mig_node.inventory)]

    assert lost == [(LARGE, "DeviceGone"), (MEDIUM, "DeviceGone")]
    assert list(absent_devices(mig_node.plugin().remembered, mig_node.inventory)) == [MEDIUM, LARGE]
    assert f"{LARGE} is gone from this node" in refusal(mig_node, claim(1, part("large", LARGE)))
    assert prepare(mig_node, claim(3, part("gpu", SMALL))).devices[0].uuid == MADE_ANEW


def test_what_is_not_there_or_not_offered_is_refused_with_the_reason(
    mig_node: PluginNode, vf_node: PluginNode, mig_machine: Discovery, vf_machine: Discovery
) -> None:
    gone = f"{CARD}-mig-1g5gb-3"
    assert f"DeviceUnhealthy: {gone} is gone from this node" in refusal(mig_node, claim(1, part("gpu", gone)))
    text = refusal(mig_node, claim(1, gpu("gpu", CARD, "1Gi")))
    assert f"PartitionMismatch: {CARD} cannot be given out: the card is in MIG mode" in text
    mig_node.inventory = inventory_of(mig_machine)
    assert "start the kubelet plugin with --mig" in refusal(mig_node, claim(1, part("gpu", LARGE)))
    vf_node.inventory = inventory_of(vf_machine)
    assert "start the kubelet plugin with --vfs" in refusal(vf_node, claim(1, part("nic", VF_0)))
    lost = Problem("GPU 0000:1a:00.0", "memory", "NVML answers GPU is lost", "check dmesg")
    mig_node.inventory = changed(mig_machine, CARD, lambda card: replace(card, memory_bytes=None), lost)
    text = refusal(mig_node, claim(1, part("gpu", LARGE)))
    assert f"{LARGE} cannot be given out: GPU 0000:1a:00.0: memory: NVML answers GPU is lost" in text


def test_slices_and_prepare_go_by_the_same_offering(mig_machine: Discovery, vf_machine: Discovery) -> None:
    for found in (mig_machine, vf_machine):
        for offering in (Offering(), Offering(mig=True), Offering(vfs=True), EVERYTHING):
            slices = build_slices(
                found.machine,
                node_name=NODE,
                node_uid=None,
                mode="native",
                generation=1,
                offering=offering,
            )
            in_slices = [device["name"] for one in slices for device in one["spec"].get("devices", ())]
            assert in_slices == list(inventory_of(found, offering=offering).published)
