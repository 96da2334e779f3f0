"""Adversarial life of a fleet: thousands of request classes, flapping nodes, storms, departures as fast as arrivals.

One *chapter* is some thousand decisions on a cluster of its own, drawn from one number: nodes with and without a known shape,
classes that nobody asks for twice, nodes that go and come back, releases. After it, every key that the fleet keeps is
computed afresh and must be equal, nothing may be over-committed, what was released must be free, and what the fleet holds in memory
must be bounded by nodes and classes, not by how long it lived.

`make soak` runs more and other chapters: KOORDRA_EXAMPLES / 100 of them, from a seed that is printed with the number of
decisions. KOORDRA_SOAK_SEED=N starts from that chapter again, so that a long soak can be resumed where it stopped (each
chapter prints its number before it begins).
"""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest

from koordra.placement.columns.fleet import Fleet, Placement
from koordra.placement.columns.state import Kind, Request, Slice, State
from koordra.placement.policy.expected_waste import ExpectedWaste
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_learning import Online, capacity_of
from koordra.simulation.policies import policy_named
from koordra.simulation.replay import Cluster
from koordra.topology import presets
from koordra.topology.machine_shape import shape_of_machine
from tests.long import mostly_long
from tests.unit.placement import fleets
from tests.unit.placement.fleets import mig_layout

EXAMPLES = os.environ.get("KOORDRA_EXAMPLES")
CHAPTERS = max(3, int(EXAMPLES) // 100) if EXAMPLES else 3
FIRST = int(
    os.environ.get("KOORDRA_SOAK_SEED") or (np.random.SeedSequence().entropy or 0) % 10**6 if EXAMPLES else 0
)
DECISIONS = 6000 if EXAMPLES else 500
MACHINE = shape_of_machine(presets.load("dgx-a100").machine(serial="a"))
H100 = mig_layout("H100-SXM5-80GB")
HALF = tuple(H100 if at % 2 else None for at in range(MACHINE.gpus))
KINDS = (
    Kind("T4", 2),
    Kind("G2", 8),
    Kind("A100", MACHINE.gpus, MACHINE),
    Kind("H100", MACHINE.gpus, MACHINE, layouts=(H100,) * MACHINE.gpus),
    Kind("H100", MACHINE.gpus, MACHINE, layouts=HALF),
)
"""Nodes with and without a known shape, and with all or half of their cards in MIG mode."""


def _cluster(generator: np.random.Generator) -> Cluster:
    states = []
    for _ in range(int(generator.integers(20, 120))):
        kind = int(generator.integers(len(KINDS)))
        gpus, shape, layouts = KINDS[kind].gpus, KINDS[kind].shape, KINDS[kind].layouts
        nics = (100,) * shape.nics if shape is not None else ()
        free = tuple(0 if layout else 1000 for layout in layouts) or (1000,) * gpus
        cuts = (0,) * len(layouts)
        states.append(State(kind, 12_000 * gpus, 96_000 * gpus, free, nics, cuts=cuts))
    return Cluster(KINDS, tuple(states))


def _request(generator: np.random.Generator, *, wild: bool) -> Request:
    """Of some thousands of classes if `wild`, otherwise of a few dozen."""
    step = 1 if wild else 2000
    cpu = int(generator.integers(0, 16_000)) // step * step
    memory = int(generator.integers(0, 65_536)) // (1 if wild else 16_384) * 16
    sort = int(generator.integers(16))
    if sort > 11:
        slices = [_slice(generator) for _ in range(int(generator.choice([1, 1, 1, 1, 1, 1, 1, 2])))]
        nics = int(generator.integers(2)) if len(slices) == 1 or sort == 12 else 0
        return Request(cpu, memory, 0, 0, (), nics, 25, slices=tuple(sorted(slices)))
    if sort == 0:
        return Request(cpu, memory, 0, 0)
    if sort == 1:
        count = int(generator.integers(2, 9))
        return Request(cpu, memory, count, 1000, (), count if sort % 2 and count < 5 else 0, 100)
    if sort < 5:
        return Request(cpu, memory, 1, 1000, (), int(generator.integers(2)), 25)
    milli = int(generator.integers(1, 1000)) if wild else 10 * int(generator.integers(1, 100, 1)[0])
    return Request(cpu, memory, 1, milli, ("T4",) if sort == 6 else ())


def _slice(generator: np.random.Generator) -> Slice:
    """Of one profile, or of any of two."""
    names = {H100.profiles[int(at)] for at in generator.integers(len(H100.profiles), size=2)}
    if int(generator.integers(3)):
        names = {min(names)}
    return Slice(tuple(sorted(names)), min(place.milli for place in H100.places if place.profile in names))


@pytest.mark.parametrize("chapter", mostly_long(range(FIRST, FIRST + CHAPTERS)))
def test_a_long_life_leaves_no_drift(chapter: int) -> None:
    print(f"chapter {chapter}")
    generator = np.random.default_rng(chapter)
    cluster = _cluster(generator)
    wild = chapter % 3 == 0
    names = ("koordra", "koordra", "koordra", "fgd", "best-fit", "gpu-packing")
    name = names[int(generator.integers(len(names)))]
    learning = [_request(generator, wild=False) for _ in range(200)]
    policy = policy_named(name, Workload.of(learning))
    most = 256 if chapter % 2 else 8192
    fleet = Fleet(cluster.kinds, cluster.nodes, policy, most_classes=most)
    online = (
        Online(policy, capacity_of(cluster.kinds, cluster.nodes))
        if isinstance(policy, ExpectedWaste)
        else None
    )
    story = _Story(fleet, online, generator, wild=wild)
    for turn in range(DECISIONS):
        story.turn(turn)
    story.check(cluster)


class _Story:
    """What happens, and what is held."""

    def __init__(
        self, fleet: Fleet, online: Online | None, generator: np.random.Generator, *, wild: bool
    ) -> None:
        self.fleet, self.online, self.generator, self.wild = fleet, online, generator, wild
        self.held: list[Placement] = []
        self.away: dict[int, State] = {}
        self.shapeless = fleet.policy.name != "koordra"

    def turn(self, turn: int) -> None:
        request = _request(self.generator, wild=self.wild)
        if self.shapeless:
            # Slices fit nowhere under a policy that does not know them.
            request = request._replace(nics=0, percent=0)
        if self.online is not None and self.online.observe(request):
            self.fleet.tables_changed()
        placement = self.fleet.place(request)
        if placement is not None:
            self.held.append(placement)
        storm = turn // 300 % 2
        if self.held and (not storm or int(self.generator.integers(4)) == 0):
            self._depart()
        if turn % 5 == 0:
            self._flap()

    def _depart(self) -> None:
        at = int(self.generator.integers(len(self.held)))
        if self.held[at].node not in self.away:
            self.fleet.release(self.held.pop(at))

    def _flap(self) -> None:
        number = int(self.generator.integers(len(self.fleet.nodes)))
        state = self.fleet.nodes[number]
        if state is not None:
            self.away[number] = state
            self.fleet.set_node(number, None)
        for back in list(self.away)[:: 2 if len(self.away) > 3 else 3]:
            self.fleet.set_node(back, self.away.pop(back))

    def check(self, cluster: Cluster) -> None:
        fleet = self.fleet
        for number, state in list(self.away.items()):
            fleet.set_node(number, state)
        self.away.clear()
        assert fleets.drifted(fleet) == []
        held = Counter(placement.node for placement in self.held)
        for number, state in enumerate(fleet.nodes):
            assert state is not None
            assert min(state.cpu, state.memory, *state.gpus, *state.nics, 0) == 0
            self._not_cut_twice(number, state)
            if not held[number]:
                assert state._replace(tags=0) == cluster.nodes[number]
        self._bounded()
        for placement in self.held:
            fleet.release(placement)
        assert [state._replace(tags=0) for state in fleet.nodes if state] == list(cluster.nodes)

    def _not_cut_twice(self, number: int, state: State) -> None:
        """What is taken of each card is what is held of it, and no counter is overdrawn."""
        taken = [0] * len(state.cuts)
        for card, place in (cut for held in self.held if held.node == number for cut in held.cuts):
            assert not taken[card] >> place & 1
            taken[card] |= 1 << place
        assert tuple(taken) == state.cuts
        for layout, code in zip(KINDS[state.kind].layouts, state.cuts, strict=True):
            if layout is not None:
                rows = [place.takes for at, place in enumerate(layout.places) if code >> at & 1]
                used = [sum(row[at] for row in rows) for at in range(len(layout.counters))]
                assert all(amount <= has for amount, has in zip(used, layout.counters, strict=True))

    def _bounded(self) -> None:
        """By nodes and classes, whatever has happened."""
        fleet, nodes = self.fleet, len(self.fleet.nodes)
        assert fleet.slots.used <= nodes + 1
        assert len(fleet.classes) <= fleet.most_classes
        assert sum(map(len, fleet._members)) <= 3 * nodes + 64 * fleet.slots.used
        assert sum(column.nbytes for column in fleet._kept.values()) <= 64 << 20


def test_what_the_soak_ran() -> None:
    """One line for who reads the log."""
    print(f"fleet soak: chapters {FIRST}..{FIRST + CHAPTERS - 1}, {CHAPTERS * DECISIONS} decisions")
