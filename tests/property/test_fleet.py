"""Adversarial life of a fleet: thousands of request classes on clusters that are soon full.

One *chapter* is some thousand decisions on a cluster of its own, drawn from one number: classes that nobody
asks for twice, a table that is learned meanwhile. After it, every key that the fleet keeps is computed afresh
and must be equal, nothing may be over-committed, and what the fleet holds in memory must be bounded by nodes
and classes.

`make soak` runs more and other chapters: KOORDRA_EXAMPLES / 100 of them, from a seed that is printed with the
number of decisions. KOORDRA_SOAK_SEED=N starts from that chapter again, so that a long soak can be resumed
where it stopped (each chapter prints its number before it begins).
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from koordra.placement.free_amounts.state import FreeAmounts, Request
from koordra.placement.policy.workload import Online, Workload
from koordra.simulation.fleet import Fleet, FleetPlacement
from koordra.simulation.learning import FleetExpectedWaste, capacity_of
from koordra.simulation.replay import policy_named
from tests.long import mostly_long
from tests.unit.placement import fleets
from tests.unit.placement.fleets import KINDS

EXAMPLES = os.environ.get("KOORDRA_EXAMPLES")
CHAPTERS = max(3, int(EXAMPLES) // 100) if EXAMPLES else 3
FIRST = int(
    os.environ.get("KOORDRA_SOAK_SEED") or (np.random.SeedSequence().entropy or 0) % 10**6 if EXAMPLES else 0
)
DECISIONS = 6000 if EXAMPLES else 500


def _nodes(generator: np.random.Generator) -> list[FreeAmounts]:
    states = []
    for _ in range(int(generator.integers(20, 120))):
        kind = int(generator.integers(len(KINDS)))
        gpus = KINDS[kind].gpus
        states.append(FreeAmounts(kind, 12_000 * gpus, 96_000 * gpus, (1000,) * gpus))
    return states


def _request(generator: np.random.Generator, *, wild: bool) -> Request:
    """Of some thousands of classes if `wild`, otherwise of a few dozen."""
    step = 1 if wild else 2000
    cpu = int(generator.integers(0, 16_000)) // step * step
    memory = int(generator.integers(0, 65_536)) // (1 if wild else 16_384) * 16
    sort = int(generator.integers(12))
    if sort == 0:
        return Request(cpu, memory, 0, 0)
    if sort == 1:
        return Request(cpu, memory, int(generator.integers(2, 9)), 1000)
    if sort < 5:
        return Request(cpu, memory, 1, 1000)
    milli = int(generator.integers(1, 1000)) if wild else 10 * int(generator.integers(1, 100, 1)[0])
    return Request(cpu, memory, 1, milli, ("T4",) if sort == 6 else ())


@pytest.mark.parametrize("chapter", mostly_long(range(FIRST, FIRST + CHAPTERS)))
def test_a_long_life_leaves_no_drift(chapter: int) -> None:
    print(f"chapter {chapter}")
    generator = np.random.default_rng(chapter)
    nodes, wild = _nodes(generator), chapter % 3 == 0
    names = ("koordra", "koordra", "koordra", "fgd", "best-fit", "gpu-packing")
    name = names[int(generator.integers(len(names)))]
    learning = [_request(generator, wild=False) for _ in range(200)]
    policy = policy_named(name, KINDS, Workload.of(learning))
    fleet = Fleet(KINDS, nodes, policy)
    online = Online(capacity_of(KINDS, nodes))
    placed = list[FleetPlacement | None]()
    for _ in range(DECISIONS):
        request = _request(generator, wild=wild)
        table = online.observe(request)
        if table is not None and isinstance(policy, FleetExpectedWaste):
            policy.learn(table)
            fleet.policy_changed()
        placed.append(fleet.place(request))
    assert fleets.drifted(fleet) == []
    in_use = {one.node for one in placed if one is not None}
    for number, state in enumerate(fleet.nodes):
        assert min(state.cpu, state.memory, *state.gpus, 0) == 0
        assert number in in_use or state == nodes[number]
    assert sum(keys.nbytes for keys, _ in fleet._rows.values()) <= 64 << 20


def test_what_the_soak_ran() -> None:
    """One line for who reads the log."""
    print(f"fleet soak: chapters {FIRST}..{FIRST + CHAPTERS - 1}, {CHAPTERS * DECISIONS} decisions")
