"""A node handed over between koordra and another stack, in random orders of events, faults and kills: no card
ever has two owners, and in the end it is whose the label says."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.kubelet_plugin.publish import hand_over, peers_on_node
from koordra.kubelet_plugin.publish.hand_over import HandOver, Phase, Standing
from koordra.kubelet_plugin.publish.peers_on_node import PeersOnNode
from tests.fakes.hand_over_world import one_schedule, small_machine

FEW, MANY = 30, 1500


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
    monkeypatch.setattr(DeviceGuardFile, "leave", lambda self, types: real(self, types | {"gpu"}))


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


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _no_second_look,
    _guard_falls_before_claims_end,
    _claims_before_refusal,
    _no_guard,
    _no_records_of_pods,
    _no_records_of_claims,
    _nothing_on_the_disk,
]


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_defect_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=r"two owners|is refused|was not|no claim gets|not shown"):
        schedules(range(MANY), tmp_path)
