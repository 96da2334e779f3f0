"""A card is switched between whole and MIG for a claim that waits: controller and plugin together, on the
fake NVML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.kubelet_plugin.isolation.mig.switching import (
    AT_REST,
    HOLDERS_FOR,
    LOOK_EVERY,
    REFUSED_FOR,
    SETTLES,
)
from koordra.kubelet_plugin.nvidia_driver.device_holders import Holder
from koordra.process.wakeable import Pause
from tests.fakes.disks import Killed, StepDisk
from tests.fakes.joint_cluster import pod
from tests.fakes.mig_card import MigCard
from tests.fakes.switched_node import NODE, SwitchedNode, claim_of
from tests.unit.mig.test_mode import made


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigCard:
    return made(tmp_path, monkeypatch, enabled=False)


def until(node: SwitchedNode, *, mode: list[int], turns: int = 12) -> None:
    for _ in range(turns):
        if node.mode() == mode and node.request() is None:
            return
        node.turn()
    raise AssertionError((node.mode(), node.request(), node.told[-3:]))


@pytest.mark.parametrize("words", [["any"], ["mig"]])
def test_a_waiting_claim_has_a_card_cut(tmp_path: Path, card: MigCard, words: list[str]) -> None:
    node = SwitchedNode(tmp_path, card, *words)
    node.wants_slice("a")
    node.settle(passes=1)
    assert node.allocation("a") is None
    assert node.last_reason("a").startswith("ModeSwitching: "), node.last_reason("a")
    assert f"{node.name} into MIG mode" in node.last_reason("a")
    assert node.asked() == "asked"
    assert node.mode() == [0, 0], "it is asked first"
    until(node, mode=[1, 1])
    node.settle()
    assert [one.split("-mig-")[0] for one in node.devices("a")] == [f"{NODE}/{node.name}"]
    assert names.MIG_MODE_ANNOTATION not in objects.annotations_of(node.node())


def test_and_back_when_a_whole_card_is_wanted(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    node.wants_slice("a")
    node.turn(8)
    node.scheduler_binds("a", "a")
    node.wants_card("b")
    node.turn(4)
    assert node.mode() == [1, 1], "somebody has a part of it"
    assert node.request() is None
    assert "ModeSwitching" not in node.last_reason("b")
    node.pod_ends("a", "a")
    node.api.delete(RESOURCE_CLAIMS, "a")
    node.turn(3)
    assert node.mode() == [1, 1], "it was switched a moment ago"
    node.wall += SETTLES
    for seconds in (70, 310):
        node.pass_time(seconds)
        node.turn(2)
    until(node, mode=[0, 0])
    node.settle()
    assert node.devices("b") == [f"{NODE}/{node.name}"]


def test_nobody_is_given_the_card_meanwhile(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    node.wants_slice("a")
    node.settle(passes=1)
    node.plugin()  # it withholds the card
    node.wants_card("b")
    node.settle()
    assert node.allocation("b") is None
    assert node.inventory.current().refusal(node.name)
    assert node.asked() == "clear"
    until(node, mode=[1, 1])
    node.settle()
    assert node.devices("a")
    assert node.allocation("b") is None


def test_who_has_the_card_keeps_it(tmp_path: Path, card: MigCard) -> None:
    """A claim that comes between the question and the node's answer."""
    node = SwitchedNode(tmp_path, card, "any")
    node.wants_slice("a")
    node.settle(passes=1)
    node.wants_card("b")
    node.settle(passes=1)
    assert node.devices("b")
    node.turn(6)
    assert node.mode() == [0, 0]
    assert node.request() is None
    assert "ModeSwitching" not in node.last_reason("a").partition(":")[0]


def test_a_claim_that_is_gone_wants_nothing(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    node.wants_slice("a")
    node.settle(passes=1)
    assert node.request() is not None
    node.pod_ends("a")
    node.api.delete(RESOURCE_CLAIMS, "a")
    node.pass_time(40)
    node.settle()
    assert node.request() is None
    node.turn(4)
    assert node.mode() == [0, 0]


def test_a_node_that_does_not_answer_is_left_alone_for_a_while(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    node.wants_slice("a")
    node.settle(passes=1)
    assert node.request() is not None
    node.pass_time(61)
    node.settle()
    assert node.request() is None
    node.pass_time(20)
    node.settle()
    assert node.request() is None, "not asked again at once"
    for seconds in (320, 11):
        node.pass_time(seconds)
        node.settle()
    assert node.request() is not None


def test_what_the_driver_refuses_is_told_and_not_tried_again(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    card.fake.processes((card.uuid, "compute", 4711, 1))
    node.wants_slice("a")
    node.turn(6)
    assert node.mode() == [0, 0], "taken back"
    assert node.request() is None
    assert "MigModeRefused" in node.last_reason("a")
    assert "in use" in node.journal().of(card.uuid).refused
    node.wants_card("b")
    node.turn()
    assert node.devices("b"), "the card itself is as good as before"
    node.scheduler_binds("b", "b")
    card.fake.order()
    node.pod_ends("b", "b")
    node.api.delete(RESOURCE_CLAIMS, "b")
    node.turn(3)
    assert node.request() is None
    node.wall += REFUSED_FOR
    node.pass_time(700)
    until(node, mode=[1, 1])


def test_a_process_on_the_card_is_waited_for_and_then_refused(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    node.holders = (Holder(9, "dcgm", (f"/dev/nvidia{card.gpu.minor}", "/dev/nvidiactl")),)
    node.wants_slice("a")
    node.turn(4)
    assert node.mode() == [0, 0]
    assert node.journal().of(card.uuid).refused == ""
    node.wall += HOLDERS_FOR
    node.turn(3)
    assert "dcgm" in node.journal().of(card.uuid).refused
    assert node.request() is None


def test_a_process_on_another_card_is_in_nobodys_way(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    node.holders = (Holder(9, "nvidia-smi", ("/dev/nvidiactl", "/dev/nvidia-uvm")),)
    node.wants_slice("a")
    until(node, mode=[1, 1])


def test_ampere_is_reset_only_where_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = made(tmp_path, monkeypatch, enabled=False, architecture="Ampere")
    node = SwitchedNode(tmp_path, card, "any")
    node.wants_slice("a")
    node.turn(4)
    assert "ModeSwitching" not in node.last_reason("a")
    (tmp_path / "r").mkdir()
    node = SwitchedNode(tmp_path / "r", card, "any", reset=True)
    node.wants_slice("a")
    node.turn(6)
    assert node.mode() == [0, 0]
    why = "it needs a reset, which failed: the node's GPU driver has no nvidia-smi; nothing is pending"
    assert why in node.journal().of(card.uuid).refused
    (tmp_path / "by").mkdir()
    node = SwitchedNode(tmp_path / "by", card, "any", reset=True)
    asked = []

    def resets(name: str, arguments: Sequence[str], env: Mapping[str, str], **_: object) -> list[str]:
        asked.append((name, *arguments))
        return ["sh", "-c", f"echo mode 0 1 1 >> {card.fake.folder / 'instances'}"]

    node.command = resets
    node.start_plugin()
    node.wants_slice("a")
    until(node, mode=[1, 1])
    assert asked == [("nvidia-smi", "--gpu-reset", "-i", card.uuid)]


def test_it_looks_again_soon_while_something_is_asked_for(tmp_path: Path, card: MigCard) -> None:
    """And no event makes it look at once again."""
    node = SwitchedNode(tmp_path, card, "any")
    assert node.switcher.step() == Pause(0.0, AT_REST)
    node.wants_slice("a")
    node.settle(passes=1)
    node.reads = False
    pauses = []
    while node.mode() != [1, 1]:
        node.switcher.see_node(node.node())
        pauses.append(node.switcher.step())
        node.publish()
        node.settle(passes=1)
    node.api.edit(NODES, NODE, lambda one: one["metadata"].pop("annotations", None))
    node.switcher.see_node(node.node())
    pauses.append(node.switcher.step())  # nobody asks any more, and the machine was not read yet
    assert len(pauses) > 2
    for pause in pauses:
        assert pause.at_most == LOOK_EVERY
        assert 0 < pause.at_least < LOOK_EVERY
    node.read()
    assert node.switcher.step() == Pause(0.0, AT_REST)


@pytest.mark.parametrize("again", ["the same", "nobody"])
def test_killed_between_any_two_steps_of_the_disk(tmp_path: Path, card: MigCard, again: str) -> None:
    class Mortal(StepDisk):
        left = 0

        def at_step(self, step: str, path: Path) -> None:
            super().at_step(step, path)
            self.left -= 1
            if not self.left:
                raise Killed

    number, killed = 1, True
    while killed:
        folder = tmp_path / str(number)
        folder.mkdir()
        node = SwitchedNode(folder, card, "any")
        node.wants_slice("a")
        disk = Mortal()
        node.start_plugin(disk)
        disk.left = number
        try:
            node.turn(6)
            killed = False
        except Killed:
            node.start_plugin()
            node.publish()
        if again == "nobody":
            node.pod_ends("a")
            node.api.delete(RESOURCE_CLAIMS, "a")
            node.api.edit(NODES, NODE, lambda one: one["metadata"].pop("annotations", None))
        node.pass_time(40)
        node.turn(6)
        assert node.mode() in ([0, 0], [1, 1])
        assert node.request() is None
        assert not node.inventory.current().modes.switching
        assert not any(entry.begun for entry in node.journal().cards)
        if again == "the same":
            node.settle()
            assert node.devices("a")
        restore(node)
        number += 1
    assert number > 6


def restore(node: SwitchedNode) -> None:
    with node.library().session() as nvml:
        nvml.nvmlDeviceSetMigMode(nvml.nvmlDeviceGetHandleByUUID(node.card.uuid), 0)
    assert node.mode() == [0, 0]


@pytest.mark.parametrize("again", ["the same", "nobody"])
def test_killed_at_any_call_of_nvml(tmp_path: Path, card: MigCard, again: str) -> None:
    number, killed = 1, True
    while killed:
        folder = tmp_path / str(number)
        folder.mkdir()
        node = SwitchedNode(folder, card, "any")
        node.wants_slice("a")
        node.turn(1)
        node.settle(passes=1)
        assert node.asked() == "clear"
        node.switcher.see_node(node.node())
        card.fake.order(f"kill {number}")
        killed = node.killed(node.switcher.step)
        card.fake.order()
        node.start_plugin()
        node.publish()
        if again == "nobody":
            node.pod_ends("a")
            node.api.delete(RESOURCE_CLAIMS, "a")
            node.api.edit(NODES, NODE, lambda one: one["metadata"].pop("annotations", None))
        node.pass_time(40)
        node.turn(6)
        assert node.mode() in ([0, 0], [1, 1])
        assert not node.inventory.current().modes.switching
        assert not any(entry.begun for entry in node.journal().cards)
        if again == "the same":
            node.settle()
            assert node.devices("a")
        restore(node)
        number += 1
    assert number > 4


def gang_of_slices(node: SwitchedNode, *members: str) -> None:
    for name in members:
        node.api.create(RESOURCE_CLAIMS, claim_of(name, names.CLASS_MIG, {"memory": "9Gi"}))
        body = pod(name, [name], gates=[names.JOINT_GATE])
        body["metadata"]["annotations"] = {GANG: "train", GANG_MIN: str(len(members))}
        node.api.create(PODS, body)


def test_a_waiting_gang_has_a_card_cut_for_all_its_members(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    gang_of_slices(node, "a", "b")
    node.settle(passes=1)
    for name in ("a", "b"):
        assert node.allocation(name) is None
        assert node.last_reason(name).startswith("ModeSwitching: "), node.last_reason(name)
    assert node.asked() == "asked"
    until(node, mode=[1, 1])
    node.settle()
    assert node.devices("a")
    assert node.devices("b")
    assert node.request() is None


def test_a_gang_that_no_switch_helps_asks_for_none(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    gang_of_slices(node, *(f"m{number}" for number in range(9)))  # a card has seven
    node.turn(4)
    assert node.request() is None
    assert node.mode() == [0, 0]
    assert "ModeSwitching" not in node.last_reason("m0")


def test_a_gang_that_is_gone_wants_nothing(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    gang_of_slices(node, "a", "b")
    node.settle(passes=1)
    assert node.asked() == "asked"
    for name in ("a", "b"):
        node.api.delete(PODS, name)
        node.api.delete(RESOURCE_CLAIMS, name)
    for _ in range(4):
        node.settle(passes=1)
        node.pass_time(40)
    assert node.request() is None


@pytest.mark.parametrize("again", ["the same", "nobody"])
def test_killed_while_a_mode_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str) -> None:
    """Ampere's mode is pending until a reset, which cannot be made here: whenever the plugin is killed, the
    card has its old mode afterwards, and no reset of somebody else's changes it."""
    card = made(tmp_path, monkeypatch, enabled=False, architecture="Ampere")
    number, killed, pending = 1, True, 0
    while killed:
        folder = tmp_path / str(number)
        folder.mkdir()
        node = SwitchedNode(folder, card, "any", reset=True)
        node.wants_slice("a")
        node.turn(1)
        node.settle(passes=1)
        assert node.asked() == "clear"
        node.switcher.see_node(node.node())
        card.fake.order(f"kill {number}")
        killed = node.killed(node.switcher.step)
        card.fake.order()
        pending += node.mode() == [0, 1]
        node.start_plugin()
        node.publish()
        if again == "nobody":
            node.pod_ends("a")
            node.api.delete(RESOURCE_CLAIMS, "a")
            node.api.edit(NODES, NODE, lambda one: one["metadata"].pop("annotations", None))
        node.pass_time(40)
        node.turn(6)
        assert node.mode() == [0, 0], number
        assert not node.inventory.current().modes.switching
        assert not any(entry.begun for entry in node.journal().cards)
        number += 1
    assert pending, "it was killed between the request and the reset, too"


def test_a_leader_that_is_gone_is_followed_by_another(tmp_path: Path, card: MigCard) -> None:
    node = SwitchedNode(tmp_path, card, "any")
    node.wants_slice("a")
    for _ in range(6):
        node.start_again()
        node.turn()
    node.settle()
    assert node.devices("a")


def test_a_request_that_was_given_up_is_not_taken_up_again(tmp_path: Path, card: MigCard) -> None:
    """The controller cleared it; then the cards were given back, and are somebody's now."""
    node = SwitchedNode(tmp_path, card, "any")
    node.wants_slice("a")
    node.turn(1)
    node.settle(passes=1)
    stale = node.node()
    assert node.asked() == "clear"
    node.inventory.withhold("the driver is to be free")
    node.switcher.see_node(stale)
    node.switcher.step()
    node.inventory.withhold("")
    node.start_plugin()
    node.switcher.see_node(stale)
    node.switcher.step()
    assert not node.inventory.current().modes.switching
    assert node.mode() == [0, 0]
