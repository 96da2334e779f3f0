"""Failover under load: the leader is killed in the middle of 1,000 claims, again and again; nothing is lost
or doubled."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from koordra.api.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.placement import plan
from tests.fakes.joint_cluster import claim, gpu_slice, node, pod
from tests.fakes.model_api import Killed, Request
from tests.fakes.model_planner import results_of
from tests.fakes.model_world import WATCHED, Controller, World
from tests.long import mostly_long

NODES_NUMBER = 125
CARDS = 8
CLAIMS = NODES_NUMBER * CARDS


class Failovers(World):
    """1,000 claims for 1,000 cards; `kills` are the numbers of writes at which the writing leader dies."""

    def __init__(self, seed: int, kills: int) -> None:
        super().__init__(seed, plan)
        self.starves_after, self.preemption, self.writes = 0.0, False, 0
        draw = random.Random(seed)
        self.kills = set(draw.sample(range(10, 2 * CLAIMS - 10), kills))
        self.after = draw.random() < 0.5
        for name in ("n0", "n1"):
            self.api.remove(NODES, name)
            self.api.remove(RESOURCE_SLICES, f"{name}-koordra")
        for number in range(NODES_NUMBER):
            self.api.create(NODES, node(f"node-{number:03d}"))
            self.api.create(RESOURCE_SLICES, gpu_slice(f"node-{number:03d}", CARDS))
        for number in range(CLAIMS):
            self.api.create(RESOURCE_CLAIMS, {**claim(f"c{number:04d}"), "status": {}})
            self.api.create(PODS, pod(f"p{number:04d}", [f"c{number:04d}"]))

    def carry(self, sender: Controller, request: Request, what: str) -> Object:
        if what == RESOURCE_CLAIMS.plural:
            self.writes += 1
            if self.writes in self.kills:
                self.after = not self.after
                if self.after:
                    self.land(sender, request, what)
                raise Killed
        return self.land(sender, request, what)

    def held(self) -> Counter[tuple[str, str]]:
        return Counter(
            (result["pool"], result["device"])
            for entry in self.api.table(RESOURCE_CLAIMS).values()
            for result in results_of(entry)
        )


@pytest.mark.parametrize("seed", mostly_long(range(2), fast=0))
def test_a_thousand_claims_outlive_their_leaders(seed: int) -> None:
    world, leaders = Failovers(seed, kills=6), set()
    for _ in range(60):
        for controller in world.controllers:
            controller.look_at_lease()
            if controller.caches is not None:
                for kind in WATCHED:
                    controller.caches.deliver(kind)
            if controller.reconciler is not None:
                leaders.add(controller.identity)
            controller.reconcile()
            assert max(world.held().values(), default=0) <= 1
        world.now += 7.0
        if len(world.held()) == CLAIMS:
            break
    assert not world.beyond
    assert len(leaders) == 7
    assert len(world.held()) == CLAIMS
    assert all(results_of(entry) for entry in world.api.table(RESOURCE_CLAIMS).values())
