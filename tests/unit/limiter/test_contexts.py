"""What is kept for a context: declared, usual for the architecture, or learned from what the driver says."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordra.kubelet_plugin.isolation.limiter.unaccounted_memory import (
    LEAST,
    MIB,
    MOST,
    UNKNOWN,
    USUAL,
    Contexts,
)
from koordra.topology.machine import Machine
from koordra.topology.presets import write_machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return write_machine("hgx-h100", tmp_path / "root", serial="contexts")


def contexts(tmp_path: Path, machine: Machine, declared: int | None = None) -> Contexts:
    return Contexts(tmp_path / "contexts.json", machine=lambda: machine, declared=declared)


def test_before_any_process_the_architecture_says_it(tmp_path: Path, machine: Machine) -> None:
    first = str(machine.gpus[0].uuid)
    assert contexts(tmp_path, machine).bytes_for(first) == USUAL["Hopper"]
    assert contexts(tmp_path, machine).bytes_for("GPU-ffffffff-0000-0000-0000-000000000000") == UNKNOWN
    assert max(USUAL.values()) <= UNKNOWN


def test_the_smallest_that_was_seen_counts_for_all_cards_of_the_kind_and_is_kept(
    tmp_path: Path, machine: Machine
) -> None:
    first, second = (str(gpu.uuid) for gpu in machine.gpus[:2])
    learning = contexts(tmp_path, machine)
    assert learning.learn(first, 900 * MIB)
    assert learning.learn(first, 512 * MIB)
    assert not learning.learn(second, 600 * MIB)
    assert learning.bytes_for(second) == 512 * MIB
    assert contexts(tmp_path, machine).bytes_for(second) == 512 * MIB


@pytest.mark.parametrize("lie", [0, LEAST - 1, MOST + 1, 1 << 50])
def test_a_process_that_lies_moves_nothing_beyond_the_bounds(
    tmp_path: Path, machine: Machine, lie: int
) -> None:
    first = str(machine.gpus[0].uuid)
    learning = contexts(tmp_path, machine)
    assert not learning.learn(first, lie)
    assert learning.bytes_for(first) == USUAL["Hopper"]


def test_a_declared_figure_is_not_learned_over(tmp_path: Path, machine: Machine) -> None:
    first = str(machine.gpus[0].uuid)
    fixed = contexts(tmp_path, machine, declared=0)
    assert not fixed.learn(first, 512 * MIB)
    assert fixed.bytes_for(first) == 0


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": "y"}', '{"x": [1]}'])
def test_a_damaged_file_is_started_anew(tmp_path: Path, machine: Machine, content: str) -> None:
    (tmp_path / "contexts.json").write_text(content)
    first = str(machine.gpus[0].uuid)
    learning = contexts(tmp_path, machine)
    assert learning.bytes_for(first) == USUAL["Hopper"]
    assert learning.learn(first, 512 * MIB)
    assert contexts(tmp_path, machine).bytes_for(first) == 512 * MIB
