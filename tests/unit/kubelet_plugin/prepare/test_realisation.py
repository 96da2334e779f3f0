"""Shares that are made in steps, and cards that are set for them: killed or failed between any two steps,
nothing is left half made, nothing is lost, and a card is as it was once nobody has it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from koordra.errors import CheckpointError, KoordraError, PrepareError
from koordra.kubelet_plugin.claims.checkpoint import CardRecord
from koordra.kubelet_plugin.isolation.backend import Card, Share
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from tests.fakes.disks import DyingDisk, FailingDisk, Killed, StepDisk
from tests.fakes.isolation import JournalledBackend
from tests.fakes.node_claims import GPU_0, GPU_1, claim, gpu, parameters, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of, refusal

MPS = [parameters("GpuConfig", isolation="mps")]
FIRST = claim(1, gpu("gpu", GPU_0, "10Gi"), gpu("other", GPU_1, "10Gi"), config=MPS)
SECOND = claim(2, gpu("gpu", GPU_0, "10Gi", share="s2"), config=MPS)


@dataclass
class World:
    """A node, and what outlives the plugin on its cards."""

    node: PluginNode
    made: dict[str, str] = field(default_factory=dict)
    cards: dict[str, str] = field(default_factory=lambda: {GPU_0: "as the operator set it"})

    def backend(self, step: Callable[[str], None] = lambda step: None) -> JournalledBackend:
        return JournalledBackend(self.made, self.cards, step)

    def plugin(self, disk: StepDisk | None = None, *, repaired: bool = True) -> DeviceState:
        """Its disk and its backend take their steps as one."""
        disk = disk or StepDisk()
        backend = self.backend(lambda step: disk.at_step(step, Path("backend")))
        self.node.backends = {**backends(), "mps": backend}
        if not repaired:
            return self.node.unrepaired(disk)
        state = self.node.plugin(disk)
        with suppress(CheckpointError):
            state.look_at_cards()  # as the plugin does at once
        return state

    def check(self) -> None:
        """Exactly what the prepared claims have is made, and exactly their cards are set."""
        held = self.node.checkpoint().of_boot(self.node.inventory.boot_id)
        shares = {f"{each.ref.uid}/{device.device}" for each in held for device in each.devices}
        assert self.made == dict.fromkeys(shares, "whole")
        by_card: dict[str, int] = {}
        for share in shares:
            card = share.partition("/")[2]
            by_card[card] = by_card.get(card, 0) + 1
        untouched = {GPU_0: "as the operator set it", GPU_1: "default"}
        for card, how in self.cards.items():
            assert how == (f"mps for {by_card[card]}" if card in by_card else untouched[card])
        assert {each.device for each in self.node.checkpoint().cards} == by_card.keys()


def world(folder: Path, inventory: NodeInventory) -> World:
    found = World(PluginNode(folder, inventory))
    for obj in (FIRST, SECOND):
        found.node.claims.put(obj)
    return found


def prepare_first(plugin: DeviceState) -> None:
    plugin.prepare(ref_of(FIRST))


def prepare_second(plugin: DeviceState) -> None:
    plugin.prepare(ref_of(SECOND))


def unprepare_first(plugin: DeviceState) -> None:
    plugin.unprepare(ref_of(FIRST))


Operation = Callable[[DeviceState], None]
COURSES: tuple[tuple[tuple[Operation, ...], Operation], ...] = (
    ((), prepare_first),
    ((prepare_first,), prepare_first),
    ((prepare_first,), prepare_second),
    ((prepare_first,), unprepare_first),
    ((prepare_first, prepare_second), unprepare_first),
)


def named(course: tuple[tuple[Operation, ...], Operation]) -> str:
    return " ".join(each.__name__ for each in (*course[0], course[1]))


def begun(folder: Path, inventory: NodeInventory, before: tuple[Operation, ...]) -> World:
    found = world(folder, inventory)
    for each in before:
        each(found.plugin())
    found.check()
    return found


@pytest.mark.parametrize("course", COURSES, ids=named)
def test_killed_between_any_two_steps(
    course: tuple[tuple[Operation, ...], Operation], tmp_path: Path, inventory: NodeInventory
) -> None:
    before, operation = course
    counted = StepDisk()
    operation(begun(tmp_path / "counted", inventory, before).plugin(counted, repaired=False))
    assert {step for step, name in counted.steps if name == "backend"}
    for at in range(len(counted.steps)):
        found = begun(tmp_path / str(at), inventory, before)
        with pytest.raises(Killed):
            operation(found.plugin(DyingDisk(at), repaired=False))
        # What was prepared is still: an Unprepare that began is repeated.
        plugin = found.plugin()
        if operation is not unprepare_first:
            found.check()
        operation(plugin)
        found.check()
        for obj in (FIRST, SECOND):
            plugin.unprepare(ref_of(obj))
        found.check()
        assert not found.made


@pytest.mark.parametrize("course", COURSES, ids=named)
def test_any_one_step_fails(
    course: tuple[tuple[Operation, ...], Operation], tmp_path: Path, inventory: NodeInventory
) -> None:
    before, operation = course
    counted = StepDisk()
    operation(begun(tmp_path / "counted", inventory, before).plugin(counted, repaired=False))
    for at, (step, name) in enumerate(counted.steps):
        if step == "card: set" and operation is unprepare_first:
            continue  # who is left on the card is kept as before
        found = begun(tmp_path / str(at), inventory, before)
        disk = FailingDisk(at, error=errno.EIO)
        plugin = found.plugin(disk, repaired=False)
        if name == "backend":
            disk.at = None
            _refuse_at(found.node.backends["mps"], step)
        with pytest.raises(KoordraError):
            operation(plugin)
        if operation is prepare_first and not before:
            found.check()
        operation(plugin)
        found.check()


def _refuse_at(backend: object, wanted: str) -> None:
    """The backend's first such step is refused."""
    assert isinstance(backend, JournalledBackend)
    left = [wanted]

    def step(name: str) -> None:
        if name in left:
            left.remove(name)
            raise PrepareError(f"{name} does not work")

    backend._step = step


def test_what_a_backend_wrote_down_comes_back_after_a_start(tmp_path: Path, inventory: NodeInventory) -> None:
    found = begun(tmp_path, inventory, (prepare_first,))
    found.plugin()
    backend = found.node.backends["mps"]
    assert isinstance(backend, JournalledBackend)
    (held,) = backend.resumed
    assert held is not None
    assert [dict(share.journal)["name"] for share in held.shares] == [
        f"{uid(1)}/{GPU_0}",
        f"{uid(1)}/{GPU_1}",
    ]
    assert [(card.device, card.journal, len(card.shares)) for card in held.cards] == [
        (GPU_0, (("before", "as the operator set it"),), 1),
        (GPU_1, (("before", "default"),), 1),
    ]
    assert held.shares[0].namespace == "team-a"


def test_a_checkpoint_that_cannot_be_read_is_no_word_that_nobody_holds_anything(
    tmp_path: Path, inventory: NodeInventory
) -> None:
    found = begun(tmp_path, inventory, (prepare_first,))
    found.node.paths.checkpoint.unlink()
    found.node.paths.prepared_file(uid(1)).write_text("{")
    found.plugin()
    backend = found.node.backends["mps"]
    assert isinstance(backend, JournalledBackend)
    assert backend.resumed == [None]
    assert len(found.made) == 2


def test_a_device_that_came_into_being_has_its_uuid_in_the_record_for_the_hook(
    tmp_path: Path, inventory: NodeInventory
) -> None:
    found = begun(tmp_path, inventory, (prepare_first,))
    devices = found.node.record(uid(1))["devices"]
    assert [device["uuid"] for device in devices] == ["MADE-0", "MADE-1"]
    assert devices[0]["env"]["MADE"] == f"{uid(1)}/{GPU_0}"


class Choosy(JournalledBackend):
    def fits(self, share: Share, config: object, card: Card) -> str | None:
        del config
        return f"{share.namespace} is not alone" if len(card.shares) > 1 else None


def test_a_share_that_does_not_fit_is_refused_before_anything_is_touched(
    tmp_path: Path, inventory: NodeInventory
) -> None:
    found = world(tmp_path, inventory)
    steps: list[str] = []
    found.node.backends = {**backends(), "mps": Choosy(found.made, found.cards, steps.append)}
    found.node.plugin().prepare(ref_of(FIRST))
    done = len(steps)
    assert f"BackendUnavailable: {GPU_0}: team-a is not alone" in refusal(found.node, SECOND)
    assert len(steps) == done
    found.node.plugin().prepare(ref_of(FIRST))  # who is there already is not asked again


def test_a_card_of_a_backend_that_is_gone_is_not_given_to_another(
    tmp_path: Path, inventory: NodeInventory
) -> None:
    """Its last share could not be undone, and nobody knows how to any more."""
    found = world(tmp_path, inventory)
    plugin = found.plugin()
    checkpoint = found.node.checkpoint().with_card(CardRecord(GPU_0, "GPU-old", "sliced"))
    plugin._stored.save(checkpoint)
    assert "kept by isolation 'sliced', which this node does not have any more" in refusal(found.node, SECOND)
    found.node.backends["sliced"] = found.backend()
    found.node.unrepaired().prepare(ref_of(SECOND))
    assert [each.isolation for each in found.node.checkpoint().cards] == ["mps"]


def test_a_card_that_nobody_has_is_left_as_it_was_at_the_next_start(
    tmp_path: Path, inventory: NodeInventory
) -> None:
    """After a reboot: the claims of before hold nothing."""
    found = begun(tmp_path, inventory, (prepare_first,))
    found.node.inventory = replace(inventory, machine=replace(inventory.machine, boot_id="another"))
    found.plugin()
    assert found.cards[GPU_0] == "as the operator set it"
    assert not found.node.checkpoint().cards
