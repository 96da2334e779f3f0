"""Random interleavings of everybody who writes: pods and claims come and go, caches lag, answers get lost,
the scheduler binds, refuses and erases, the controller is killed between any two writes.

Held after every step: no device is allocated beyond its capacity. Held once things are quiet: every pod that
could be placed is bound, and nothing is allocated for nobody. A failure names its seed; the same seed gives
the same steps.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Kind
from koordra.errors import ApiUnreachable
from koordra.placement import plan
from koordra.quantity import parse
from tests.fakes.joint_cluster import JointCluster, explode_at
from tests.fakes.kube_api import Killed
from tests.long import mostly_long

CARD = parse("80Gi")
SEEDS = 150
STEPS = 60


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = JointCluster(nodes=2, gpus=3)
        self.made = 0

    def step(self) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (4, self.create_pod),
            (2, self.end_pod),
            (6, self.deliver),
            (6, self.reconcile),
            (4, self.bind),
            (1, self.erase),
            (1, self.refuse),
            (1, self.restart),
            (2, self.break_a_write),
            (1, self.kill_at_a_write),
            (2, self.pass_time),
            (1, self.touch_claim),
            (1, self.change_node),
        ]
        weights = [weight for weight, _ in actions]
        self.random.choices([action for _, action in actions], weights)[0]()
        self.check_capacity()

    # what may happen

    def create_pod(self) -> None:
        self.made += 1
        mine = []
        for index in range(self.random.choice([1, 1, 1, 2])):
            asked: dict[str, Any] = {"count": self.random.choice([1, 1, 2])}
            if self.random.random() < 0.5:
                asked = {"memory": self.random.choice(["20Gi", "50Gi"])}
            mine.append(f"c{self.made}-{index}")
            self.cluster.claim(mine[-1], **asked)
        gates = [names.JOINT_GATE] if self.random.random() < 0.5 else []
        self.cluster.pod(f"p{self.made}", *mine, gates=gates, priority=self.random.choice([0, 0, 5]))
        if self.random.random() < 0.2:
            self.cluster.pod(f"p{self.made}-too", mine[0], gates=gates)

    def end_pod(self) -> None:
        pods = self.pods()
        if pods:
            self.remove(self.random.choice(pods))

    def remove(self, pod: objects.Object) -> None:
        claims = [name for name in objects.pod_claim_names(pod).values() if name]
        self.cluster.pod_ends(objects.name(pod), *claims)

    def deliver(self) -> None:
        kind = self.random.choice([PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES, NODES, None])
        self.cluster.caches.deliver(kind, events=self.random.choice([1, 2, None]))

    def reconcile(self) -> None:
        try:
            self.cluster.reconciler.reconcile()
        except ApiUnreachable:
            return
        except Killed:
            self.restart()

    def bind(self) -> None:
        ready = [pod for pod in self.pods() if self.is_ready(pod)]
        if ready:
            self.do_bind(self.random.choice(ready))

    def do_bind(self, pod: objects.Object) -> None:
        claims = [name for name in objects.pod_claim_names(pod).values() if name]
        if len({self.cluster.node_of(name) for name in claims}) == 1:
            self.cluster.scheduler_binds(objects.name(pod), *claims)

    def erase(self) -> None:
        """PostFilter picks an unreserved claim of a pod that waits."""
        for pod in self.shuffled([pod for pod in self.pods() if self.is_ready(pod)]):
            for name in objects.pod_claim_names(pod).values():
                claim = self.cluster.api.get(RESOURCE_CLAIMS, str(name))
                if not claim["status"].get("reservedFor"):
                    self.cluster.scheduler_erases(str(name))
                    return

    def refuse(self) -> None:
        waiting = [
            pod
            for pod in self.pods()
            if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")
        ]
        for pod in self.shuffled(waiting)[:1]:
            self.cluster.scheduler_says_no(objects.name(pod), f"message {self.random.randrange(3)}")

    def restart(self) -> None:
        self.cluster.start_again()

    def break_a_write(self) -> None:
        when = self.random.choice(["before", "after"])
        fault = explode_at(self.random.randrange(4), lambda: ApiUnreachable("broken"))
        setattr(self.cluster.api, when, fault)

    def kill_at_a_write(self) -> None:
        when = self.random.choice(["before", "after"])
        setattr(self.cluster.api, when, explode_at(self.random.randrange(4), Killed))

    def pass_time(self) -> None:
        self.cluster.pass_time(self.random.choice([0.5, 3, 20]))

    def touch_claim(self) -> None:
        for claim in self.shuffled(self.cluster.api.all(RESOURCE_CLAIMS))[:1]:
            self.label(RESOURCE_CLAIMS, objects.name(claim))

    def change_node(self) -> None:
        self.label(NODES, "n0")

    def label(self, kind: Kind, name: str) -> None:
        value = str(self.random.randrange(1000))
        self.cluster.api.edit(
            kind, name, lambda found: found["metadata"].setdefault("labels", {}).update(seen=value)
        )

    # looking

    def pods(self) -> list[objects.Object]:
        return self.cluster.api.all(PODS)

    def is_ready(self, pod: objects.Object) -> bool:
        claims = objects.pod_claim_names(pod).values()
        return (
            not pod["spec"].get("nodeName")
            and not pod["spec"].get("schedulingGates")
            and all(self.cluster.allocation(str(name)) for name in claims)
        )

    def shuffled(self, found: list[objects.Object]) -> list[objects.Object]:
        return self.random.sample(found, len(found))

    def check_capacity(self) -> None:
        used: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
        for claim in self.cluster.api.all(RESOURCE_CLAIMS):
            allocation = (claim.get("status") or {}).get("allocation") or {"devices": {"results": []}}
            for result in allocation["devices"]["results"]:
                used[(result["pool"], result["device"])] += parse(result["consumedCapacity"]["memory"])
        over = {device: amount for device, amount in used.items() if amount > CARD}
        assert not over, over

    # quiet

    def become_quiet(self) -> None:
        self.cluster.api.before = self.cluster.api.after = lambda _write: None
        for _ in range(12):
            self.cluster.pass_time(400)
            self.cluster.settle()
            for pod in self.pods():
                if self.is_ready(pod):
                    self.do_bind(pod)
            self.check_capacity()

    def check_quiet(self) -> None:
        waiting = [pod for pod in self.pods() if not pod["spec"].get("nodeName")]
        everything = [
            obj
            for kind in (NODES, RESOURCE_SLICES, DEVICE_CLASSES, PODS)
            for obj in self.cluster.api.all(kind)
        ]
        claims = {objects.name(claim): claim for claim in self.cluster.api.all(RESOURCE_CLAIMS)}
        allocated = [claim for claim in claims.values() if (claim.get("status") or {}).get("allocation")]
        users = {name for pod in self.pods() for name in objects.pod_claim_names(pod).values()}
        assert {objects.name(claim) for claim in allocated} <= users, "allocated for nobody"
        for pod in waiting:
            wanted = [claims[str(name)] for name in objects.pod_claim_names(pod).values()]
            pending = [claim for claim in wanted if claim not in allocated]
            assert pending, f"{objects.name(pod)} has its devices and is not bound"
            alone = [obj for obj in everything if obj["kind"] != "Pod" or obj["spec"].get("nodeName")] + [pod]
            answer = plan([*alone, *allocated, *pending], report_errors=True)
            missing = {objects.key(claim) for claim in pending} - answer.allocations.keys()
            assert missing, f"{objects.name(pod)} would fit and waits"


@pytest.mark.parametrize("block", mostly_long(range(5)))
def test_no_double_use_ever_and_everything_that_fits_is_placed(block: int) -> None:
    for seed in range(block * SEEDS // 5, (block + 1) * SEEDS // 5):
        simulation = Simulation(seed)
        try:
            for _ in range(STEPS):
                simulation.step()
            simulation.become_quiet()
            simulation.check_quiet()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
