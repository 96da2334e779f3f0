"""The machine changes under a claim: another card, no card, a reboot, other device numbers, another
allocation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import ApiError, PrepareError
from koordra.kubelet_plugin.claims.claim_record import State
from koordra.kubelet_plugin.prepare.lost_devices import lost_devices
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory, inventory_of
from koordra.kubelet_plugin.status.claim_status import ClaimStatusWriter
from koordra.topology.machine import Nic
from koordra.topology.problems import Discovery
from tests.fakes.node_claims import GPU_0, GPU_1, NIC_0, claim, gpu, nic, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of, refusal


def with_other_card(inventory: NodeInventory, name: str) -> NodeInventory:
    """The same machine with another card in the slot of `name`."""
    gpus = tuple(
        replace(card, uuid="GPU-00000000-0000-0000-0000-000000000000") if card.name == name else card
        for card in inventory.machine.gpus
    )
    return replace(inventory, machine=replace(inventory.machine, gpus=gpus))


def without_card(inventory: NodeInventory, name: str) -> NodeInventory:
    gpus = tuple(card for card in inventory.machine.gpus if card.name != name)
    published = {key: device for key, device in inventory.published.items() if key != name}
    return replace(inventory, machine=replace(inventory.machine, gpus=gpus), published=published)


def rebooted(inventory: NodeInventory) -> NodeInventory:
    return replace(inventory, machine=replace(inventory.machine, boot_id="another-boot"))


def test_another_card_under_the_old_name_is_refused(node: PluginNode) -> None:
    obj = claim(1, gpu("gpu", GPU_0))
    prepare(node, obj)
    node.inventory = with_other_card(node.inventory, GPU_0)
    with pytest.raises(PrepareError, match="another device than the one prepared"):
        node.plugin().prepare(ref_of(obj))
    # It stays held: the old container may still run.
    assert node.holders() == {uid(1)}


def test_another_card_is_noticed_after_a_reboot_too(node: PluginNode) -> None:
    obj = claim(1, gpu("gpu", GPU_0))
    prepare(node, obj)
    node.inventory = rebooted(with_other_card(node.inventory, GPU_0))
    assert "another device than" in refusal(node, obj)
    node.plugin().unprepare(ref_of(obj))
    assert len(prepare(node, obj).devices) == 1


def test_a_card_that_is_gone_or_uncertain_is_refused(node: PluginNode) -> None:
    node.inventory = without_card(node.inventory, GPU_0)
    assert "is gone from this node" in refusal(node, claim(1, gpu("gpu", GPU_0)))
    published = {key: device for key, device in node.inventory.published.items() if key != GPU_1}
    node.inventory = replace(node.inventory, published=published)
    assert "cannot be given out" in refusal(node, claim(1, gpu("gpu", GPU_1)))


def test_after_a_reboot_nothing_is_prepared_and_everything_can_be(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    prepare(node, claim(2, gpu("gpu", GPU_1)))
    first = node.record(uid(1))["nonce"]
    # /run is a tmpfs; the state directory survives.
    node.paths.cdi_file(uid(1)).unlink()
    node.paths.cdi_file(uid(2)).unlink()
    node.inventory = rebooted(node.inventory)
    plugin = node.plugin()
    assert node.files() == set()
    assert plugin.records() == ()
    # Claim 3 may have what claim 1 had before the reboot.
    prepare(node, claim(3, gpu("gpu", GPU_0)))
    assert "InsufficientCapacity" in refusal(node, claim(1, gpu("gpu", GPU_0)))
    assert len(plugin.prepare(ref_of(claim(2))).devices) == 1
    assert node.record(uid(2))["nonce"] != first
    assert node.holders() == {uid(2), uid(3)}


def test_a_claim_that_was_allocated_anew_while_prepared_waits_for_its_old_pod(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    node.claims.put(claim(1, gpu("gpu", GPU_1)))
    with pytest.raises(
        PrepareError, match=f"still prepared here with {GPU_0}, and its allocation now names {GPU_1}"
    ):
        node.plugin().prepare(ref_of(claim(1)))
    assert node.record(uid(1))["devices"][0]["device"] == GPU_0
    node.plugin().unprepare(ref_of(claim(1)))
    assert node.plugin().prepare(ref_of(claim(1))).devices[0].device == GPU_1


def with_less_memory(node: PluginNode) -> NodeInventory:
    """A new driver keeps a GiB more of each card for itself."""
    found = Discovery(
        replace(
            node.inventory.machine,
            gpus=tuple(
                replace(card, memory_bytes=(card.memory_bytes or 0) - (1 << 30))
                for card in node.inventory.machine.gpus
            ),
        )
    )
    return inventory_of(found, offering=node.inventory.offering)


@pytest.mark.parametrize("reboots", [False, True])
def test_a_card_that_shrinks_is_kept_by_who_has_all_of_it(node: PluginNode, reboots: bool) -> None:
    whole = claim(1, gpu("gpu", GPU_0))
    prepare(node, whole)
    node.inventory = with_less_memory(node)
    if reboots:
        node.inventory = rebooted(node.inventory)
    assert prepare(node, whole).devices
    assert "InsufficientCapacity" in refusal(node, claim(2, gpu("gpu", GPU_0, "1Mi")))


def test_a_card_that_shrinks_is_kept_by_those_who_share_it(node: PluginNode) -> None:
    """Until the boot ends; then the last of them does not fit any more."""
    shares = [claim(number, gpu("gpu", GPU_0, "40000Mi")) for number in (1, 2)]
    for each in shares:
        prepare(node, each)
    node.inventory = with_less_memory(node)
    for each in shares:
        assert prepare(node, each).devices
    assert "InsufficientCapacity" in refusal(node, claim(3, gpu("gpu", GPU_0, "1Gi")))
    node.inventory = rebooted(with_less_memory(node))
    prepare(node, shares[0])
    assert "InsufficientCapacity" in refusal(node, shares[1])


def test_what_changed_on_the_node_reaches_the_files_of_a_prepared_claim(node: PluginNode) -> None:
    """A reloaded module gives nvidia-uvm another major; the claim keeps its nonce and its devices."""
    obj = claim(1, gpu("gpu", GPU_0))
    prepare(node, obj)
    nonce = node.record(uid(1))["nonce"]
    control = tuple(replace(entry, major=499) for entry in node.inventory.machine.gpu_control)
    node.inventory = replace(node.inventory, machine=replace(node.inventory.machine, gpu_control=control))
    node.plugin().prepare(ref_of(obj))
    assert node.spec(uid(1))["devices"][0]["containerEdits"]["deviceNodes"][1]["major"] == 499
    assert node.record(uid(1))["nonce"] == nonce
    assert node.checkpoint().get(uid(1)).state is State.COMPLETED  # type: ignore[union-attr]


ELSEWHERE = "GPU-00000000-0000-0000-0000-000000000000"


def lost(node: PluginNode) -> list[tuple[str, str]]:
    (record,) = node.plugin().remembered()
    return [(each.device, each.reason) for each in lost_devices(record, node.inventory)]


def renumbered(inventory: NodeInventory) -> NodeInventory:
    """The addresses of the first two cards are exchanged, as after a board was swapped."""
    first, second, *rest = inventory.machine.gpus
    swapped = (replace(first, uuid=second.uuid), replace(second, uuid=first.uuid), *rest)
    return replace(inventory, machine=replace(inventory.machine, gpus=swapped))


@pytest.mark.parametrize("reboots", [False, True])
def test_a_claim_whose_card_moved_or_vanished_is_told(node: PluginNode, reboots: bool) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    assert lost(node) == []
    whole = node.inventory

    def then(inventory: NodeInventory) -> NodeInventory:
        return rebooted(inventory) if reboots else inventory

    node.inventory = then(renumbered(whole))
    assert lost(node) == [(GPU_0, "DeviceMoved")]
    node.inventory = then(with_other_card(whole, GPU_0))
    assert lost(node) == [(GPU_0, "OtherDevice")]
    node.inventory = then(without_card(whole, GPU_0))
    assert lost(node) == [(GPU_0, "DeviceGone")]
    node.inventory = then(whole)
    assert lost(node) == []


def test_nothing_is_said_of_a_card_that_does_not_say_what_it_is(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    gpus = tuple(
        replace(card, uuid=None) if card.name == GPU_0 else card for card in node.inventory.machine.gpus
    )
    node.inventory = replace(node.inventory, machine=replace(node.inventory.machine, gpus=gpus))
    assert lost(node) == []


def test_a_nic_is_known_by_its_guid(node: PluginNode) -> None:
    prepare(node, claim(1, nic("nic", NIC_0)))
    machine = node.inventory.machine

    def then(*nics: Nic) -> list[tuple[str, str]]:
        node.inventory = replace(node.inventory, machine=replace(machine, nics=nics))
        return lost(node)

    (first,) = (each for each in machine.nics if each.name == NIC_0)
    others = tuple(each for each in machine.nics if each.name != NIC_0)
    assert then(first, *others) == []
    assert then(replace(first, guid="0000:0000:0000:0001"), *others) == [(NIC_0, "OtherDevice")]
    assert then(replace(first, guid=None), *others) == []
    assert then(*others) == [(NIC_0, "DeviceGone")]
    assert then(replace(others[0], guid=first.guid), *others[1:]) == [(NIC_0, "DeviceMoved")]


def test_nothing_is_said_while_the_driver_is_released(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    node.inventory = replace(without_card(node.inventory, GPU_0), withheld="the driver is being released")
    assert lost(node) == []


def status_writer(node: PluginNode, api: ClaimApi) -> ClaimStatusWriter:
    return ClaimStatusWriter(
        api,  # type: ignore[arg-type]
        records=node.plugin().remembered,
        attached=list,
        inventory=lambda: node.inventory,
    )


def test_the_claim_of_a_lost_card_has_a_condition_and_its_pod_an_event(node: PluginNode) -> None:
    obj = claim(1, gpu("gpu", GPU_0))
    obj["status"]["reservedFor"] = [{"resource": "pods", "name": "train-0", "uid": "pod-uid"}]
    prepare(node, obj)
    node.inventory = rebooted(with_other_card(node.inventory, GPU_0))
    api = ClaimApi(obj)

    assert status_writer(node, api).sync()
    (entry,) = api.patched["status"]["devices"]
    (condition,) = entry["conditions"]
    assert (entry["device"], condition["type"], condition["status"]) == (GPU_0, "Present", "False")
    assert ELSEWHERE in condition["message"]
    (event,) = api.events
    assert (event["reason"], event["involvedObject"]["name"]) == ("OtherDevice", "train-0")


@pytest.mark.parametrize("restarts", [False, True])
def test_the_condition_goes_when_the_card_is_back(node: PluginNode, restarts: bool) -> None:
    """Also when the plugin was not there to see it, and when the first write fails."""
    obj, whole = claim(1, gpu("gpu", GPU_0)), node.inventory
    prepare(node, obj)
    node.inventory = with_other_card(whole, GPU_0)
    api = ClaimApi(obj)
    writer = status_writer(node, api)
    writer.sync()
    obj["status"]["devices"] = api.patched["status"]["devices"]

    node.inventory = whole
    if restarts:
        writer = status_writer(node, api)
    api.fails = True
    assert not writer.sync()
    api.fails = False
    assert writer.sync()
    assert api.patched["status"]["devices"] == []
    api.patched = {}
    assert writer.sync()
    assert not api.patched


@pytest.mark.parametrize("boot_id", ["another-boot", None])
def test_a_disk_that_comes_to_another_machine_loses_no_claim_in_silence(
    node: PluginNode, boot_id: str | None
) -> None:
    """Every boot has an id of its own, whatever the machine; one that tells none is known by its cards."""
    node.inventory = replace(
        node.inventory, machine=replace(node.inventory.machine, boot_id=boot_id and "one")
    )
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    other = with_other_card(node.inventory, GPU_0)
    node.inventory = replace(other, machine=replace(other.machine, boot_id=boot_id))
    node.plugin().repair()

    assert lost(node) == [(GPU_0, "OtherDevice")]
    with pytest.raises(PrepareError, match="another device than the one prepared"):
        node.plugin().prepare(ref_of(claim(1)))
    if boot_id:
        assert node.plugin().records() == ()
        assert not node.files()
        prepare(node, claim(2, gpu("gpu", GPU_0)))
    else:
        assert "InsufficientCapacity" in refusal(node, claim(2, gpu("gpu", GPU_0)))


class ClaimApi:
    """Serves one claim, and keeps what is written."""

    def __init__(self, obj: Object) -> None:
        self._claim = obj
        self.patched: Object = {}
        self.events: list[Object] = []
        self.fails = False

    def get(self, _kind: Kind, _name: str, *, namespace: str) -> Object:
        assert namespace
        return self._claim

    def patch(self, _kind: Kind, _name: str, body: Object, *, namespace: str, subresource: str) -> Object:
        assert (namespace, subresource) == ("team-a", "status")
        if self.fails:
            raise ApiError("the API server is away")
        self.patched = body
        return self._claim

    def create(self, kind: Kind, body: Object, *, namespace: str) -> Object:
        assert (kind, namespace) == (kinds.EVENTS, "team-a")
        self.events.append(body)
        return body
