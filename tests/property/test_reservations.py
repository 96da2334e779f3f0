"""Reservations under everything that happens to them, in an order drawn from a seed, the controller killed at
any write: nothing is given out twice, and a seat is what is kept of it and what its claims have.
`KOORDRA_EXAMPLES=N` (make soak) runs N further schedules."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_HOLDS, PODS, RESERVATIONS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.quantity import parse
from tests.fakes.joint_cluster import JointCluster
from tests.fakes.kube_api import Killed, Write
from tests.long import mostly_long
from tests.unit.reservations.test_reservations import reservation

BLOCKS, SIZE, STEPS = 6, 20, 14
CARD = 80 * 1024**3
EXAMPLES = os.environ.get("KOORDRA_EXAMPLES")

Card = tuple[str, str]


def amounts(results: list[Object]) -> Counter[Card]:
    found: Counter[Card] = Counter()
    for one in results:
        consumed = one.get("consumedCapacity") or {"memory": "80Gi"}
        found[one["pool"], one["device"]] += int(parse(consumed["memory"]))
    return found


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = JointCluster(nodes=2, gpus=2)
        self.made = 0
        self.story: list[str] = []

    def run(self) -> None:
        for _ in range(STEPS):
            step = self.random.choice(
                (
                    self.reserve,
                    self.comes,
                    self.comes,
                    self.comes,
                    self.ends,
                    self.ends,
                    self.delete,
                    self.wait,
                )
            )
            self.story.append(step.__name__)
            step()
            self.passes()
            self.check()
        self.over()

    def reserve(self) -> None:
        if len(self.cluster.api.all(RESERVATIONS)) < 3:
            self.made += 1
            draw = self.random
            memory, count = draw.choice((None, "20Gi", "40Gi")), draw.choice((1, 1, 2))
            more = {"seats": draw.choice((1, 2)), "allocateOnce": draw.random() < 0.3}
            start = draw.choice((None, None, self.later(120)))
            asked = reservation(f"r{self.made}", count=count, memory=memory, ttl="30m", **more)
            asked["metadata"]["creationTimestamp"] = self.cluster.timestamp()
            if start:
                asked["spec"]["start"] = start
            self.cluster.api.create(RESERVATIONS, asked)

    def later(self, seconds: float) -> str:
        self.cluster.now += seconds
        found = self.cluster.timestamp()
        self.cluster.now -= seconds
        return found

    def comes(self) -> None:
        self.made += 1
        name, draw = f"p{self.made}", self.random
        self.cluster.claim(name, count=draw.choice((1, 1, 2)), memory=draw.choice((None, "20Gi", "40Gi")))
        self.cluster.pod(name, name, gates=[names.JOINT_GATE], priority=draw.choice((None, None, None, 5)))
        team = draw.choice("aab")
        self.cluster.api.edit(PODS, name, lambda pod: pod["metadata"].update(labels={"team": team}))

    def ends(self) -> None:
        pods = [objects.name(one) for one in self.cluster.api.all(PODS)]
        if pods:
            name = self.random.choice(pods)
            if self.cluster.allocation(name) and self.random.random() < 0.7:
                self.cluster.scheduler_binds(name, name)
            self.cluster.pod_ends(name, name)

    def delete(self) -> None:
        there = [objects.name(one) for one in self.cluster.api.all(RESERVATIONS)]
        if there and self.random.random() < 0.4:
            self.cluster.api.delete(RESERVATIONS, self.random.choice(there))

    def wait(self) -> None:
        self.cluster.pass_time(self.random.choice((70.0, 130.0, 700.0)))

    def passes(self) -> None:
        """In some of them the controller dies at a write, and the next one goes on."""
        left = self.random.randrange(8) if self.random.random() < 0.4 else -1

        def dies(write: Write) -> None:
            nonlocal left
            if write.kind != "events":
                left -= 1
                if left == -1:
                    raise Killed

        if left >= 0:
            setattr(self.cluster.api, self.random.choice(("before", "after")), dies)
            left += 1
        try:
            self.cluster.settle()
        except Killed:
            self.story.append("  killed")
            self.cluster.api.before = self.cluster.api.after = lambda _write: None
            self.cluster.start_again()
            self.cluster.settle()
        self.cluster.api.before = self.cluster.api.after = lambda _write: None
        self.cluster.settle()

    def check(self) -> None:
        claims = {objects.uid(one): one for one in self.cluster.api.all(RESOURCE_CLAIMS)}
        results = {uid: self.results(one) for uid, one in claims.items()}
        used = sum((amounts(one) for one in results.values()), Counter[Card]())
        seats = [seat for hold in self.cluster.api.all(DEVICE_HOLDS) for seat in hold["spec"]["seats"]]
        held = sum((amounts(seat["devices"]) for seat in seats), Counter[Card]())
        for card in used | held:
            assert used[card] + held[card] <= CARD, f"{card}: {used[card]} used, {held[card]} held"
        for seat in seats:
            takers = [results[one["uid"]] for one in seat["claims"]]
            assert all(takers), "it is taken from by a claim that has nothing"
            taken = sum((amounts(one) for one in takers), Counter[Card]())
            whole, left = amounts(seat["whole"]), amounts(seat["devices"])
            assert all(left[card] <= whole[card] for card in left)
            if not seat.get("givenUp"):
                assert all(left[card] >= whole[card] - taken[card] for card in whole), (
                    "more is gone than is used"
                )

    def results(self, claim: Object) -> list[Object]:
        found: list[Object] = ((claim.get("status") or {}).get("allocation") or {"devices": {}})[
            "devices"
        ].get("results", [])
        return found

    def over(self) -> None:
        self.cluster.pass_time(7200)
        self.cluster.settle()
        self.check()
        assert self.cluster.api.all(DEVICE_HOLDS) == []


def one_schedule(seed: int) -> None:
    world = World(seed)
    try:
        world.run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(world.story)) from error


@pytest.mark.parametrize("block", mostly_long(range(BLOCKS), fast=1))
def test_nothing_is_given_twice_whatever_happens(block: int) -> None:
    for seed in range(block * SIZE, (block + 1) * SIZE):
        one_schedule(seed)


@pytest.mark.skipif(EXAMPLES is None, reason="make soak sets KOORDRA_EXAMPLES")
def test_many_more_schedules() -> None:
    start = int.from_bytes(os.urandom(4), "big") * 1_000_000
    for seed in range(start, start + int(EXAMPLES or 0)):
        one_schedule(seed)
