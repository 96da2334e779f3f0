"""The policy on a fleet, over all nodes at once, is held to the engine: what the engine takes costs the
fleet's least.

Requests for a GPU or a share of one arrive at a small cluster of two kinds of machines until it is full
(several GPUs have a cost of their own, for where they stand on the machine). The engine decides each one.
Then a fleet is made of the very same states: the key of the node that the engine took is the fleet's least,
up to the rounding of one node's key, and on that node the state afterwards is the one that the fleet's own
choice makes. What the engine refuses fits nowhere on the fleet.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from koordra.allocator.offer import Offer
from koordra.allocator.request.classes import shipped_classes
from koordra.api import objects
from koordra.api.claims import ResourceClaim
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import engine_for
from koordra.placement.decide import Engine
from koordra.placement.free_amounts.state import FreeAmounts, MachineType, Request
from koordra.placement.index import CLASS, NODE, SLICE, ClusterChange
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload import Workload, expected
from koordra.placement.policy.workload_table import LearnedTable
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.simulation.fleet import INFEASIBLE, Fleet
from koordra.simulation.learning import FleetExpectedWaste
from koordra.simulation.machine_cluster import claim_of, pod_of
from koordra.topology.machine import Machine
from tests.long import mostly_long
from tests.machines import catalogue

T4S = catalogue.machine("t4x4-1nic")
MACHINES = (
    replace(T4S, nics=()),
    replace(T4S, nics=(), gpus=tuple(replace(gpu, product_name="NVIDIA A10") for gpu in T4S.gpus[:2])),
)
"""Without switches: to keep those of a machine intact is a term of the engine that nodes of a trace do not
have."""
MODELS = ("T4", "A10")
OTHERS = [Request(2000, 4096, 2, 1000)] * 20 + [
    Request(2000, 4096, 1, 1000, (model,)) for model in MODELS[:1] * 20
]
"""What the table expects besides what arrives: several GPUs, and GPUs of one model."""
SHARES = (190, 320, 470, 500, 810)
KEY_BITS = 10
ROUNDING = 1
"""Thousandths of a GPU: the engine reads them from bytes, which the driver rounds to MiB."""


def engine_on(machines: tuple[Machine, ...], table: LearnedTable) -> Engine:
    engine = engine_for(learned=Learned(table))
    apply = engine.index.apply
    for one in shipped_classes():
        apply(ClusterChange(CLASS, objects.name(one), one))
    for number, machine in enumerate(machines):
        name = f"node-{number}"
        for one in build_slices(machine, node_name=name, node_uid=name, mode="joint", generation=1):
            apply(ClusterChange(SLICE, objects.name(one), one))
        gpus = len(machine.gpus)
        size = {"cpu": str(12 * gpus), "memory": f"{96 * gpus}Gi", "pods": "10000"}
        apply(ClusterChange(NODE, name, {"metadata": {"name": name}, "status": {"allocatable": size}}))
    return engine


def states(engine: Engine) -> tuple[list[MachineType], list[FreeAmounts]]:
    """The engine's nodes as a fleet sees them: GPUs without places."""
    engine.settle()
    kinds: list[MachineType] = []
    found = []
    for _, info in sorted(engine.index.nodes.items()):
        known = engine.order.free(info)
        assert known is not None
        devices, free = known
        kind = MachineType(devices.kind.model, devices.kind.gpus)
        if kind not in kinds:
            kinds.append(kind)
        found.append(FreeAmounts(kinds.index(kind), free.cpu, free.memory, free.gpus))
    return kinds, found


def drawn(draw: random.Random) -> Request:
    cpu, memory = draw.randrange(1, 13) * 1000, draw.randrange(1, 65) * 1024
    return Request(cpu, memory, 1, draw.choice((1000, *SHARES)))


@pytest.mark.parametrize("seed", mostly_long(list(range(40)), fast=4))
def test_what_the_engine_takes_costs_the_fleet_s_least(seed: int) -> None:
    draw = random.Random(seed)
    machines = tuple(draw.choice(MACHINES) for _ in range(draw.randrange(2, 6)))
    requests = [drawn(draw) for _ in range(60)]
    engine = engine_on(machines, expected(Workload.of([*requests, *OTHERS]), dict.fromkeys(MODELS, 8)))
    assert engine.order.table.blocks
    assert engine.order.table.reserved
    placed = 0
    for number, request in enumerate(requests):
        kinds, before = states(engine)
        fleet = Fleet(kinds, before, FleetExpectedWaste(kinds, engine.order.table))
        keys = fleet.keys(request)
        manifest, pod = claim_of(request, f"c{number}"), pod_of(request, f"c{number}")
        group = ClaimGroup((ResourceClaim.from_dict(manifest),), (pod,))
        answer = engine.decide(engine.resolve(group))
        if not isinstance(answer, Offer):
            assert int(keys.min()) >= INFEASIBLE, (number, request)
            continue
        at = sorted(engine.index.nodes).index(answer.node)
        assert (int(keys[at]) >> KEY_BITS) - (int(keys.min()) >> KEY_BITS) <= ROUNDING, (number, request)
        (allocation,) = answer.allocations(pin_to_node=True)
        engine.index.assume(
            manifest, allocation, key=objects.key(manifest), node=answer.node, pods=group.pods
        )
        _, after = states(engine)
        own = fleet.policy.choose(fleet, at, request)
        left = list(before[at].gpus)
        for gpu in own:
            left[gpu] -= request.milli
        assert sorted(after[at].gpus) == pytest.approx(sorted(left), abs=ROUNDING), (number, request)
        placed += 1
    assert placed > 5
