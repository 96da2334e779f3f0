"""A node handed over between koordra and each other stack, in random orders of events, faults and kills: no
device ever has two owners, and in the end it is whose the label says."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.kubelet_plugin.publish import hand_over, peers_on_node
from koordra.kubelet_plugin.publish.hand_over import HandOver, Phase, Standing
from koordra.kubelet_plugin.publish.peers_on_node import GPUS, PeersOnNode
from tests.fakes.hand_over_peers import (
    STACKS,
    DevicePlugin,
    DraDriver,
    Dranet,
    Hami,
    Koordinator,
    Peer,
    number_of,
)
from tests.fakes.hand_over_world import OTHER, HandOverWorld, one_schedule, small_machine
from tests.fakes.model_wire import Faults

FEW, MANY = 30, 300
MOST = 3000


def schedules(seeds: range, folder: Path) -> Counter[str]:
    seen: Counter[str] = Counter()
    machine = small_machine(folder / "machine")
    for seed in seeds:
        at = folder / str(seed)
        world = one_schedule(seed, at, machine)
        shutil.rmtree(at)
        seen["prepared"] += world.prepared
        seen["refused"] += world.refused
        seen.update(each.split(" ")[0] for each in world.happened)
    return seen


def test_no_card_has_two_owners(tmp_path: Path) -> None:
    seen = schedules(range(FEW), tmp_path)
    assert min(seen[each] for each in ("prepared", "refused", "killed", "disk")) > 0, seen


@pytest.mark.long
def test_no_card_has_two_owners_in_many_schedules(tmp_path: Path) -> None:
    schedules(range(FEW, MANY), tmp_path)


def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    real = hand_over.following

    def following(now: Standing, *, to: str, found: PeersOnNode, has_claims: bool) -> Standing:
        after = real(now, to=to, found=found, has_claims=has_claims)
        return (
            real(after, to=to, found=found, has_claims=has_claims) if after.phase is Phase.TAKING else after
        )

    monkeypatch.setattr(hand_over, "following", following)


def _guard_falls_before_claims_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over, "_has", lambda _kind, _records: False)


def _claims_before_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Standing,
        "withheld",
        property(
            lambda self: "" if self.phase is Phase.LEAVING else "x" * self.phase.value.startswith(("L", "T"))
        ),
    )


def _no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    real = DeviceGuardFile.leave
    monkeypatch.setattr(DeviceGuardFile, "leave", lambda self, types: real(self, types | {"gpu", "nic"}))


def _no_records_of_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_on_node, "_of_device_plugins", lambda _checkpoint, _pods, registered: ())


def _no_records_of_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_on_node, "_prepared", lambda _path, _kind: ())


def _nothing_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed guards again what it had left."""
    real = HandOver._write

    def write(self: HandOver, standings: tuple[Standing, ...]) -> None:
        if all(each.phase is not Phase.LEFT for each in standings):
            real(self, standings)

    monkeypatch.setattr(HandOver, "_write", write)


def _the_controllers_word_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    real = peers_on_node._of_node
    monkeypatch.setattr(
        peers_on_node,
        "_of_node",
        lambda node: real({**node, "metadata": {**node["metadata"], "annotations": {}}}),
    )


def _the_controller_trusts_its_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its word back without reading the node's pods anew."""
    monkeypatch.setattr(Koordinator, "read_anew", lambda self: self.listed)


MUTANTS = {
    DevicePlugin: (
        _no_second_look,
        _guard_falls_before_claims_end,
        _claims_before_refusal,
        _no_guard,
        _nothing_on_the_disk,
        _no_records_of_pods,
    ),
    DraDriver: (_no_guard, _no_records_of_claims),
    Hami: (_claims_before_refusal, _no_guard, _no_records_of_pods),
    Koordinator: (_no_guard, _the_controllers_word_is_not_read),
    Dranet: (_no_guard, _no_records_of_claims),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("stack", "mutant"), [(stack, mutant) for stack, found in MUTANTS.items() for mutant in found]
)
def test_a_defect_is_found(
    stack: type[Peer],
    mutant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    mutant(monkeypatch)
    with pytest.raises(
        AssertionError, match=r"two owners|is refused|was not|no claim gets|no card|not shown"
    ):
        schedules(range(number_of(stack), MOST, STACKS), tmp_path)


@pytest.mark.parametrize("trusts", [False, True])
def test_a_pod_of_koordinators_that_the_controller_sees_late(
    trusts: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rare in random orders: it runs, koordlet is gone, and no watch has shown it."""
    if trusts:
        _the_controller_trusts_its_watch(monkeypatch)
    machine = small_machine(tmp_path / "machine")
    machine = replace(machine, gpus=machine.gpus[:1])
    world = HandOverWorld(tmp_path / "node", Faults(0), machine, number_of(Koordinator))
    (koordlet,) = world.peers
    assert isinstance(koordlet, Koordinator)
    world.labels = {GPUS.label: OTHER}
    assert [*world.settle()][-1][0] is Phase.LEFT
    koordlet.programs(True)
    koordlet.admit()
    world.make_container()
    assert koordlet.pods[0].is_made
    world.labels = {}
    koordlet.stop()
    koordlet.controllers_pass()
    phases = [*world.settle()]
    world.prepare(GPUS)
    if trusts:
        with pytest.raises(AssertionError, match="two owners"):
            world.check()
        return
    world.check()
    assert phases[-1][0] is Phase.LEFT
    koordlet.end_pod()
    koordlet.controllers_pass()
    assert [*world.settle()][-1][0] is Phase.OWNED
