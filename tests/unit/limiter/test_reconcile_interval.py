"""How often the node looks: brisk while something happens, never more than its share of a processor."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from koordra.kubelet_plugin.isolation.limiter import reconcile, region
from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse, OveruseSamples
from koordra.kubelet_plugin.isolation.limiter.reconcile import (
    BRISK,
    BRISK_FOR,
    LOAD,
    LONGEST,
    QUIET,
    Reconciler,
    pause_after,
)
from koordra.kubelet_plugin.isolation.limiter.unaccounted_memory import Contexts
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses
from koordra.metrics import Metrics
from koordra.process.lifecycle import spawn
from koordra.process.wakeable import Pause
from koordra.topology.machine import Machine
from koordra.topology.presets import write_machine
from tests.patience import PATIENCE


def test_brisk_while_something_happens_and_quiet_after() -> None:
    quick = BRISK * LOAD / 2
    assert pause_after(took=quick, quiet_for=0.0) == Pause(BRISK, BRISK)
    assert pause_after(took=quick, quiet_for=BRISK_FOR) == Pause(BRISK, BRISK)
    assert pause_after(took=quick, quiet_for=BRISK_FOR + 0.1) == Pause(BRISK, QUIET)


@pytest.mark.parametrize("took", [0.001, 0.02, 0.09, 0.3, 5.0])
@pytest.mark.parametrize("quiet_for", [0.0, 100.0])
def test_looking_takes_no_more_than_its_share_or_waits_longest(took: float, quiet_for: float) -> None:
    waits = pause_after(took=took, quiet_for=quiet_for)
    assert took / (took + waits.at_least) <= LOAD or waits.at_least == LONGEST
    assert waits.at_most is not None
    assert waits.at_least <= waits.at_most <= LONGEST


@pytest.mark.parametrize("took", [0.001, 0.1, 0.5, 1.0])
def test_overuse_is_told_within_ten_seconds_of_its_first_byte(took: float) -> None:
    """Also by a driver that takes a second to answer: time is made of polls and pauses alone."""
    longest = pause_after(took=took, quiet_for=100.0).at_most
    assert longest is not None
    samples, now, told = OveruseSamples(), longest, {}
    while not told:
        now += took
        told = samples.add({("c", "GPU-1"): Overuse("c", "GPU-1", 3, 1, 1)}, now=now)
        now += longest
    assert now - longest <= 10.0


class Counted:
    """NVML's lists, empty; `looked` is set at each look."""

    def __init__(self) -> None:
        self.looked = threading.Event()

    def __call__(self, uuids: Iterable[str]) -> Mapping[str, CardProcesses]:
        self.looked.set()
        return {uuid: CardProcesses() for uuid in uuids}


def test_a_call_makes_the_node_look_and_so_does_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine: Machine = write_machine("hgx-h100", tmp_path / "root", serial="pace")
    claims, lists = tmp_path / "claims", Counted()
    region.allow(claims / "c", claim="c", uuid=str(machine.gpus[0].uuid), limit=1)
    monkeypatch.setattr(reconcile, "QUIET", 3600.0)
    monkeypatch.setattr(reconcile, "BRISK", 0.001)
    monkeypatch.setattr(reconcile, "BRISK_FOR", -1.0)
    reconciler = Reconciler(
        claims,
        contexts=Contexts(tmp_path / "contexts.json", machine=lambda: machine),
        metrics=Metrics(),
        processes=HostProcesses(claims),
        lists=lists,
    )
    stop = threading.Event()
    thread = spawn(lambda: reconciler.run(stop), name="pace")
    for _ in range(3):
        assert lists.looked.wait(PATIENCE)
        lists.looked.clear()
        reconciler.wake()
    assert lists.looked.wait(PATIENCE)
    stop.set()
    reconciler.wake()
    thread.join(PATIENCE)
    assert not thread.is_alive()
