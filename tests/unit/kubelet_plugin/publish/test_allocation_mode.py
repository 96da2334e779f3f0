"""A node's devices change hands between the allocators, and are never in both of them."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.api import names
from koordra.api.objects import Object
from koordra.kubelet_plugin.publish import allocation_mode
from koordra.kubelet_plugin.publish.allocation_mode import WINDOW, AllocationModeChange
from koordra.kubelet_plugin.publish.devices import Mode
from koordra.kubelet_plugin.publish.publisher import Publisher
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.node_state.disk import Disk
from koordra.topology.problems import Discovery
from tests.fakes.disks import UnreadableDisk
from tests.fakes.node_claims import NODE
from tests.fakes.slice_api import FakeSliceApi
from tests.unit.kubelet_plugin.running_plugin import RunningPlugin, wait_for

NOBODY, CONTROLLER, SCHEDULER = {"none"}, {"controller"}, {"scheduler"}


class Node:
    """A publisher with its switch over a fake API; `mode` is what the node's label says, `now` what the clock
    does."""

    def __init__(self, discovery: Discovery, state: Path) -> None:
        self.api = FakeSliceApi(NODE)
        self.machine, self.state = discovery.machine, state
        self.mode: Mode = "joint"
        self.now = 1000.0
        self.restart()

    def restart(self, disk: Disk | None = None) -> None:
        switch = AllocationModeChange(self.state, disk=disk or Disk(), clock=lambda: self.now)
        self.publisher = Publisher(self.api, node=NODE, build=self._slices, mode_change=switch)

    def _slices(self, node: Object, generation: int) -> list[Object]:
        return build_slices(
            self.machine, node_name=NODE, node_uid="node-uid-1", mode=self.mode, generation=generation
        )

    def sync(self) -> set[str]:
        """Who gives the devices out after one look."""
        self.publisher.sync()
        return self.allocators()

    def allocators(self) -> set[str]:
        return {
            device["attributes"][names.ATTR_ALLOCATOR]["string"]
            for one in self.api.slices.values()
            for device in one["spec"]["devices"]
        }

    def taints(self) -> set[str]:
        devices = [device for one in self.api.slices.values() for device in one["spec"]["devices"]]
        return {taint["key"] for device in devices for taint in device.get("taints", ())}

    def generation(self) -> int:
        (found,) = self.api.generations()
        return found

    def confirm(self, generation: int) -> None:
        self.api.node["metadata"]["annotations"] = {names.QUARANTINE_SEEN: str(generation)}


@pytest.fixture
def node(discovery: Discovery, tmp_path: Path) -> Node:
    return Node(discovery, tmp_path)


@pytest.mark.parametrize(
    ("first", "second", "before", "after"),
    [("joint", "native", CONTROLLER, SCHEDULER), ("native", "joint", SCHEDULER, CONTROLLER)],
)
def test_the_devices_are_nobodys_until_both_allocators_let_go(
    node: Node, first: Mode, second: Mode, before: set[str], after: set[str]
) -> None:
    node.mode = first
    assert node.sync() == before
    node.mode = second
    assert node.sync() == NOBODY
    assert node.taints() == {names.QUARANTINE_TAINT}
    node.confirm(node.generation())
    assert node.sync() == NOBODY, "kube-scheduler may still write a decision"
    node.now += WINDOW - 1
    assert node.sync() == NOBODY
    node.now += 2
    assert node.sync() == after


def test_a_controller_that_does_not_answer_keeps_the_node_in_quarantine(node: Node) -> None:
    node.sync()
    node.mode = "native"
    node.sync()
    node.sync()
    node.now += 100 * WINDOW
    assert node.sync() == NOBODY
    node.confirm(node.generation() - 1)
    assert node.sync() == NOBODY, "it has seen an older generation only"
    node.confirm(node.generation())
    assert node.sync() == SCHEDULER


def test_the_confirmation_of_an_earlier_change_does_not_count(node: Node) -> None:
    """The pool's generation began anew, since the kubelet had deleted the slices; the annotation is still
    there."""
    node.sync()
    node.confirm(57)
    node.mode = "native"
    node.sync()
    assert node.generation() == 58
    node.sync()
    node.now += 2 * WINDOW
    assert node.sync() == NOBODY


def test_a_plugin_that_was_killed_goes_on_with_the_change(node: Node) -> None:
    node.sync()
    node.mode = "native"
    node.sync()
    node.confirm(node.generation())
    node.now += 2 * WINDOW
    node.restart()
    assert node.sync() == NOBODY, "it has seen nothing of the quarantine yet"
    node.now += WINDOW + 1
    assert node.sync() == SCHEDULER


def test_the_mode_changes_while_the_kubelet_has_deleted_the_slices(node: Node) -> None:
    node.sync()
    node.api.kubelet_deletes_all()
    node.mode = "native"
    node.restart()
    assert node.sync() == NOBODY


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"allocator": '])
def test_while_the_last_mode_cannot_be_read_the_devices_are_nobodys_first(
    node: Node, content: bytes | None
) -> None:
    """None: the disk gives an error. Whoever gave them out before may still be about to."""
    node.sync()
    node.api.kubelet_deletes_all()
    node.mode = "native"
    if content is not None:
        (node.state / allocation_mode.FILE).write_bytes(content)
    node.restart(UnreadableDisk(0) if content is None else None)
    assert node.sync() == NOBODY
    node.sync()
    node.now += WINDOW
    assert node.sync() == NOBODY
    node.confirm(node.generation())
    assert node.sync() == SCHEDULER
    node.api.kubelet_deletes_all()
    node.restart()
    assert node.sync() == SCHEDULER, "it is remembered"


def test_a_fault_during_the_change_is_published_and_does_not_delay_it(node: Node) -> None:
    node.sync()
    node.mode = "native"
    node.sync()
    node.sync()
    node.confirm(node.generation())
    node.machine = replace(node.machine, gpus=node.machine.gpus[1:])
    before = node.generation()
    assert node.sync() == NOBODY
    assert node.generation() == before + 1
    node.now += WINDOW + 1
    assert node.sync() == SCHEDULER


def test_a_label_that_changes_back_ends_in_the_mode_of_then(node: Node) -> None:
    node.sync()
    node.mode = "native"
    node.sync()
    node.mode = "joint"
    assert node.sync() == NOBODY
    node.confirm(node.generation())
    node.now += WINDOW + 1
    assert node.sync() == CONTROLLER


def test_what_another_instance_has_ended_is_not_begun_again(node: Node) -> None:
    node.sync()
    node.mode = "native"
    node.sync()
    node.sync()
    other = Publisher(
        node.api,
        node=NODE,
        build=node._slices,
        mode_change=AllocationModeChange(node.state, disk=Disk(), clock=lambda: node.now),
    )
    node.confirm(node.generation())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocation_mode, "WINDOW", 0.0)
        other.sync()
    assert node.allocators() == SCHEDULER
    assert node.sync() == SCHEDULER


def test_a_live_node_whose_label_changes_goes_into_quarantine(machine_root: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="k") as folder,  # short: unix sockets live in it
        RunningPlugin(Path(folder), machine_root).serving() as plugin,
    ):
        assert wait_for(lambda: plugin.api.slices)
        plugin.api.node["metadata"]["labels"] = {names.MODE_LABEL: names.MODE_NATIVE}
        plugin.api.annotate_node()
        assert wait_for(
            lambda: all(
                names.QUARANTINE_TAINT in {taint["key"] for taint in device.get("taints", ())}
                for device in plugin.api.devices().values()
            )
        )
        assert plugin.prepare().error == "", "what is allocated stays valid in every mode"
