"""The machine changes under a claim: another card, no card, a reboot, other device numbers, another
allocation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import State
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from tests.fakes.node_claims import GPU_0, GPU_1, claim, gpu, uid
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
