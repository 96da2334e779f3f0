"""A machine gets another node name, with its disk, its boot and its containers as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordra.errors import CheckpointError, PrepareError, RemoteError
from koordra.kubelet_plugin.prepare.claim_audit import ClaimAudit
from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.kubelet_plugin.publish.node_slices import node_slices
from koordra.kubelet_plugin.publish.publisher import own_slices_selector
from koordra.node_state.claim_ref import marker_of
from koordra.node_state.disk import Disk
from koordra.node_state.reader import StateReader
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.plugin import HookPlugin
from tests.fakes.node_claims import GPU_0, GPU_1, NODE, claim, gpu, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of
from tests.unit.kubelet_plugin.network.test_address_pools import FakeConfigMap, parts_of, pool_of
from tests.unit.nri.hook.test_plugin import CALL, request

NEW = "node-renamed"
BEFORE = claim(1, gpu("gpu", GPU_0))
RIVAL = claim(2, gpu("gpu", GPU_0, pool=NEW))
OTHER = claim(3, gpu("gpu", GPU_1, pool=NEW))


@pytest.fixture
def renamed(tmp_path: Path, inventory: NodeInventory) -> PluginNode:
    """A claim was prepared under the old name, and its containers run."""
    node = PluginNode(tmp_path, inventory)
    for each in (BEFORE, RIVAL, OTHER):
        node.claims.put(each)
    node.plugin().prepare(ref_of(BEFORE))
    node.name = NEW
    return node


def audited(node: PluginNode) -> ClaimAudit:
    kubelet = node.paths.state.parent / "dra_manager_state"
    kubelet.write_text(uid(1))
    audit = ClaimAudit(node.plugin(), node.claims, kubelet_claims=kubelet, on_change=lambda: None)
    audit.audit()
    return audit


def slices(node: PluginNode, audit: ClaimAudit) -> list[Any]:
    api = {"metadata": {"name": NEW, "uid": "new-uid"}}
    return list(
        node_slices(api, generation=1, node_name=NEW, mode=None, inventory=node.inventory, held=audit.held)
    )


def test_what_runs_keeps_its_card_until_the_kubelet_gives_it_back(renamed: PluginNode) -> None:
    plugin = renamed.plugin()
    assert renamed.holders() == {uid(1)}
    assert renamed.paths.prepared_file(uid(1)).exists()
    with pytest.raises(PrepareError, match="InsufficientCapacity"):
        plugin.prepare(ref_of(RIVAL))
    assert plugin.prepare(ref_of(OTHER))
    # The kubelet of the new name does not start the pod, and where it asks all the same nothing is lost.
    with pytest.raises(PrepareError, match=f"is of pool {NODE}, and this node's is {NEW}"):
        plugin.prepare(ref_of(BEFORE))
    assert renamed.holders() == {uid(1), uid(3)}
    plugin.unprepare(ref_of(BEFORE))
    assert plugin.prepare(ref_of(RIVAL))


def test_the_new_pool_offers_the_card_as_held_while_the_claim_is_allocated_under_the_old_name(
    renamed: PluginNode,
) -> None:
    """The allocator knows nobody who has it there, and would give it out again and again."""
    audit = audited(renamed)
    assert [record.ref.uid for record in audit.held] == [uid(1)]
    tainted = {
        device["name"]
        for each in slices(renamed, audit)
        for device in each["spec"].get("devices", ())
        for taint in device.get("taints", ())
        if taint["key"] == "koordra.io/held"
    }
    assert tainted == {GPU_0}
    assert renamed.holders() == {uid(1)}, "the kubelet knows the claim: it is no orphan"
    renamed.plugin().unprepare(ref_of(BEFORE))
    audit.audit()
    assert audit.held == ()


def test_slices_are_of_the_new_name_alone_and_those_of_the_old_are_the_old_nodes(renamed: PluginNode) -> None:
    for each in slices(renamed, audited(renamed)):
        assert each["spec"]["pool"]["name"] == each["spec"]["nodeName"] == NEW
        assert [owner["name"] for owner in each["metadata"]["ownerReferences"]] == [NEW]
    assert NODE not in own_slices_selector(NEW), "it is the old Node's deletion that takes them away"


def test_the_hook_refuses_until_the_plugin_has_said_whose_devices_they_are(renamed: PluginNode) -> None:
    path, machine = renamed.paths.guarded, renamed.inventory.machine
    DeviceGuardFile(path, node=NODE, disk=Disk()).update(machine)
    state = StateReader(renamed.paths.state, node_name=NEW)
    with pytest.raises(CheckpointError, match=f"guarded.json is about node {NODE}, not {NEW}"):
        state.guard()
    hook = HookPlugin(state, ledger=Ledger(renamed.paths.state))
    marker = marker_of(uid(1))
    record = state.claim(marker)
    assert record is not None
    nodes = record.devices[0].nodes
    env = ((marker, record.nonce), (f"{marker}_0", record.nonce))
    again = request(
        *nodes, env=env, namespace="team-a"
    )  # a container of the claim that ended, and starts anew
    with pytest.raises(RemoteError, match=f"about node {NODE}, not {NEW}"):
        hook.create_container(again, CALL)
    DeviceGuardFile(path, node=NEW, disk=Disk()).update(machine)
    assert hook.create_container(again, CALL).adjust.env


def test_the_new_name_takes_parts_of_its_own_and_the_old_ones_stay() -> None:
    """Pods from before have addresses of them. Who removes the old entries is who knows that they have
    ended."""
    api, pool = FakeConfigMap(), pool_of("10.10.0.0/16", per_node=26)
    assert parts_of(api, NODE, pool) == ["10.10.0.0/26"]
    assert parts_of(api, NEW, pool) == ["10.10.0.64/26"]
    assert parts_of(api, NODE, pool) == ["10.10.0.0/26"]
