"""Prepare and Unprepare interleaved step by step, and the same with one error in the plugin, which a schedule
has to find. `tests/fakes/prepare_world` has the schedules and what must hold; `make soak` runs many more.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from koordra import logs
from koordra.kubelet_plugin.isolation import realisation, shares
from koordra.kubelet_plugin.prepare import calls_in_progress, device_state
from koordra.node_state import locks
from tests.fakes.mutated import mutated
from tests.fakes.prepare_world import one_schedule
from tests.long import mostly_long

MOST = 2000
"""A schedule takes about 20 ms: if a change of the model moved the one that found a mutant, another one of
these does so within seconds."""


@pytest.fixture(autouse=True, scope="module")
def no_logs() -> Iterator[None]:
    """What is refused is part of every schedule."""
    logs.configure(level="critical")
    yield
    logs.configure(level="warning")


@pytest.mark.parametrize("schedules", mostly_long([range(10), range(10, 1000)]), ids=str)
def test_no_order_prepares_twice_or_loses_a_file(schedules: range) -> None:
    drawn: set[str] = set()
    for seed in schedules:
        drawn |= one_schedule(seed).faults.drawn.keys()
    assert {"plugin: killed", "plugin: beside another", "answer: refused"} < drawn


@pytest.mark.parametrize("seed", [101348, 101515, 102670, 103578, 215848])
def test_a_schedule_that_was_wrong(seed: int) -> None:
    one_schedule(seed)


MUTANTS: tuple[tuple[ModuleType, str, str, int], ...] = (
    # One of two calls, or of two plugins, does not wait for the other.
    (
        device_state,
        "        with self._alone(ref, claim):\n            require_wanted()\n",
        "        if True:\n            require_wanted()\n",
        1,
    ),
    (
        device_state,
        "        with self._alone(ref):\n            if not awaited():\n",
        "        if True:\n            if not awaited():\n",
        0,
    ),
    (device_state, "with self._lock.held(), one_by_one() as one:", "with one_by_one() as one:", 1),
    (
        device_state,
        '        with self._lock.held():\n            try:\n                checkpoint = self._stored.load()\n            except CheckpointError as error:\n                log.error("checkpoint_unreadable"',
        '        if True:\n            try:\n                checkpoint = self._stored.load()\n            except CheckpointError as error:\n                log.error("checkpoint_unreadable"',
        1,
    ),
    (
        locks,
        "        return False\n    return True\n\n\ndef wait",
        "        return True\n    return True\n\n\ndef wait",
        11,
    ),
    (locks, "if not self._threads.acquire(timeout=self._timeout):", "if False:", 0),
    # A call that nobody waits for takes effect.
    (
        device_state,
        "            require_wanted()\n            return self._prepare",
        "            return self._prepare",
        193,
    ),
    (device_state, "        self._calls.overtake(ref.uid)\n", "", 71),
    (calls_in_progress, "if overtaken or not awaited():", "if overtaken:", 165),
    # A kill leaves what nobody undoes, or a claim that nobody knows of.
    (device_state, "            journal.save(journal.checkpoint)\n", "", 1),
    (
        device_state,
        "            self._write_files(record)\n            journal.put(journal.checkpoint.with_claim(record))\n",
        "            journal.put(journal.checkpoint.with_claim(record))\n            self._write_files(record)\n",
        1,
    ),
    (
        device_state,
        "                    if record.state is State.STARTED:\n                        checkpoint = self",
        "                    if False:\n                        checkpoint = self",
        0,
    ),
    (
        device_state,
        "            self._files.remove(ref.uid)\n            if record is not None:\n                journal.put(journal.checkpoint.without(ref.uid))\n                self._imex.settle(journal.checkpoint.claims)\n",
        "            if record is not None:\n                journal.put(journal.checkpoint.without(ref.uid))\n                self._imex.settle(journal.checkpoint.claims)\n            self._files.remove(ref.uid)\n",
        0,
    ),
    (
        device_state,
        "        self._realisation.undo(journal, record)\n        self._release_network(record.ref)\n",
        "        self._release_network(record.ref)\n",
        0,
    ),
    (
        device_state,
        "            if record is not None:\n                self._realisation.undo(journal, record)\n",
        "",
        0,
    ),
    # What a backend wrote down is lost, comes too late, or is not looked at.
    (realisation, "        self.save(checkpoint)\n        self.checkpoint", "        self.checkpoint", 0),
    (shares, "        journal=device.journal,\n", "", 0),
    (realisation, "shares, record.journal)", "shares)", 0),
    (realisation, "(), record.journal)", "())", 0),
    (realisation, "if left.shares:", "if False:", 23),
    (realisation, "if left.shares:", "if True:", 0),
    (
        realisation,
        "        others = journal.checkpoint.without(record.ref.uid)\n",
        "        others = journal.checkpoint\n",
        0,
    ),
    (realisation, "            if each.backend.capabilities.per_card:", "            if False:", 3),
    # Who holds what is not looked at, or not told apart.
    (device_state, "[self._enlarged(one) for one in checkpoint.of_boot(inventory.boot_id)]", "()", 1),
    (device_state, "nonce = held.nonce if held else self._new_nonce()", "nonce = self._new_nonce()", 1),
    (
        device_state,
        "            keep = {record.ref.uid for record in checkpoint.of_boot(boot_id)}\n",
        "            keep = set()\n",
        0,
    ),
)


@pytest.mark.parametrize("mutant", mostly_long(MUTANTS, fast=6), ids=lambda mutant: mutant[1].strip()[:40])
def test_an_error_is_found(mutant: tuple[ModuleType, str, str, int]) -> None:
    """By the schedule that found it last, or else the first from the beginning on."""
    module, text, replaced, last = mutant
    with mutated(module, text, replaced):
        for seed in (last, *range(MOST)):
            try:
                one_schedule(seed)
            except AssertionError as error:
                print(f"found by schedule {seed}: {error}")
                return
    raise AssertionError(f"{MOST} schedules have not found it")
