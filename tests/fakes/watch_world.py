"""Watches alone: somebody writes, some processes follow, and everything happens on the wire that may. Cheap
enough for hundreds of thousands of schedules."""

from __future__ import annotations

import random
from collections.abc import Callable

from koordra.api.kinds import NODES, PODS, RESOURCE_SLICES, Kind
from koordra.api.objects import Object
from tests.fakes.model_api import ModelApi, Request
from tests.fakes.model_watch import Deaf, Watch, client_over
from tests.fakes.model_wire import Faults, Wire

KINDS: tuple[Kind, ...] = (NODES, PODS, RESOURCE_SLICES)
NAMES = ("a", "b", "c", "d", "e")
STEPS = 24


def _at_once(request: Request, what: str) -> Object:
    del what
    return request()


class WatchWorld:
    """One schedule. What must hold is in `model_watch`; beyond that, the kinds are as far apart as they like,
    and a kind is listed anew only where it has to be (`Wire.needless`)."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.api = ModelApi()
        self.trace: list[str] = []
        self.faults = Faults(seed, often=self.random.choice((0.03, 0.1, 0.3)))
        self.deaf = self.random.random() < 0.15
        for _ in range(self.random.randrange(6)):
            self.write()
        self.wire = Wire(self.api, _at_once, self.faults)
        self.wire.meanwhile = self.meanwhile
        client = client_over(self.wire)
        self.watches = [Watch(self.api, self.wire, client, kind, self.take, deaf=self.deaf) for kind in KINDS]

    def run(self, steps: int = STEPS) -> None:
        for watch in self.watches:
            watch.begin()
        moves: tuple[Callable[[], None], ...] = (self.write, self.write, self.write, self.follow, self.step)
        for _ in range(steps):
            self.random.choice(moves)()
        self.faults.calm = True
        for watch in self.watches:
            watch.settle()

    def take(self, _kind: Kind, event: str, obj: Object) -> None:
        if self.deaf and not self.faults.calm and self.faults.draw("listener", "deaf"):
            raise Deaf(f"{event} {obj['metadata']['name']}")

    def write(self) -> None:
        kind, name = self.random.choice(KINDS), self.random.choice(NAMES)
        there = self.api.find(kind, name) is not None
        if not there:
            spec: Object = {"containers": []} if kind is PODS else {}
            self.api.create(kind, {"metadata": {"name": name}, "spec": spec, "status": {}})
        elif self.random.random() < 0.3:
            self.api.remove(kind, name)
        else:
            self.api.change(kind, name, metadata={"labels": {"seen": str(self.random.random())}})
        self.trace.append(f"write {kind.plural} {name} {self.api.version}")

    def meanwhile(self) -> None:
        if self.faults.draw("meanwhile", "write"):
            self.write()

    def follow(self) -> None:
        watch = self.random.choice(self.watches)
        watch.deliver(self.random.choice((1, 2, None)), again=self.random.choice((0, 0, 0, 2)))
        self.trace.append(f"follow {watch.kind.plural} to {watch.version}")

    def step(self) -> None:
        """Whatever the watch does next, where nothing more may have happened: its stream ends."""
        self.random.choice(self.watches).step()


def one_schedule(seed: int) -> WatchWorld:
    """AssertionError tells the seed, what was wrong, and what had happened."""
    world = WatchWorld(seed)
    try:
        world.run()
    except Exception as error:
        raise AssertionError(f"schedule {seed}: {error}\n" + "\n".join(world.trace[-20:])) from error
    return world
