"""The gangs' model world with levels: each node is a zone of its own, and most jobs require that all members,
or all workers, are in one.

What must hold beside everything else, of those that have to be together:

    when a gate is lifted      those that were let go, and have devices, are in one zone
    when a held seat is moved  it goes where the others are recorded, as long as that node is there; beside a
                               leader that waits, whose own seat is written after those of who come later
    at rest                    those that have devices are in one zone
    at the end                 every job that fits so gets its turn
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from koordra.api.kinds import NODES, PODS
from koordra.api.objects import Object
from koordra.controller.gangs.declared import annotations
from koordra.controller.gangs.declared.annotations import GANG_ROLE_TOPOLOGY, GANG_TOPOLOGY
from tests.fakes.gang_world import GangWorld, Job, Known, is_let_go
from tests.fakes.model_api import Request
from tests.fakes.model_planner import results_of
from tests.fakes.model_world import Controller

ZONE = "topology.kubernetes.io/zone"


class LevelledWorld(GangWorld):
    def __init__(self, seed: int, planner: Callable[..., Any]) -> None:
        self.levels = random.Random(f"levels {seed}")
        """Draws of its own."""
        self.together: dict[str, str] = {}
        """By job that requires a zone: the annotation that says of whom."""
        super().__init__(seed, planner)

    def add_node(self, name: str) -> None:
        super().add_node(name)
        labels = {**self.api.get(NODES, name)["metadata"]["labels"], ZONE: f"zone-{name}"}
        self.api.change(NODES, name, metadata={"labels": labels})

    def draw_terms(self, job: Job) -> None:
        super().draw_terms(job)
        if self.levels.random() < 0.8:
            of_role = job.roles and self.levels.random() < 0.5
            self.together[job.name] = GANG_ROLE_TOPOLOGY if of_role else GANG_TOPOLOGY

    def more_terms(self, job: Job, index: int) -> dict[str, str]:
        said = self.together.get(job.name)
        return {said: "zone"} if said and self.belongs(job, str(index)) else {}

    def belongs(self, job: Job, index: str) -> bool:
        """Whether the member is one of those that are together."""
        return self.together.get(job.name) == GANG_TOPOLOGY or index != "0"

    def fits(self, job: Job) -> bool:
        """Of a role with a level all that are there are placed, or nobody."""
        most = max(self.cards.values())
        match self.together.get(job.name):
            case annotations.GANG_TOPOLOGY:
                return job.cards <= most
            case annotations.GANG_ROLE_TOPOLOGY:
                return job.size - 1 <= most and job.size <= sum(self.cards.values())
        return super().fits(job)

    def nodes_of(self, job: Job, pods: list[Object]) -> set[str]:
        """Of those of them that are together, the nodes where they have devices."""
        return {
            result["pool"]
            for pod in pods
            if self.belongs(job, pod["metadata"]["annotations"]["index"])
            for claim in self.claims_of(pod) or ()
            for result in results_of(claim)
        }

    def living(self, job: Job) -> list[Object]:
        return [
            pod
            for pod in self.members(job)
            if not pod["metadata"].get("deletionTimestamp")
            and pod["status"].get("phase") not in {"Succeeded", "Failed"}
        ]

    def land(self, sender: Controller, request: Request, what: str) -> Object:
        if what != PODS.plural or not sender.lease.may_write() or sender.is_beyond():
            return super().land(sender, request, what)
        before = self.let_go()
        answer = super().land(sender, request, what)
        for name in self.let_go() - before:
            job = self.job_of(self.api.get(PODS, name))
            if job is not None and job.name in self.together:
                nodes = self.nodes_of(job, [pod for pod in self.living(job) if is_let_go(pod)])
                assert len(nodes) <= 1, f"{name} is let go while {job.name} is on {sorted(nodes)}"
        return answer

    def hold_lands(self, request: Request, known: Known) -> Object:
        before = self.places()
        answer = super().hold_lands(request, known)
        after = self.places()
        for key, node in after.items():
            job = self.jobs.get(key[0])
            if job is None or job.name not in self.together or not self.belongs(job, key[1]):
                continue
            others = {
                place
                for other, place in after.items()
                if other[0] == key[0] and other != key and before.get(other) == place
                if self.belongs(job, other[1]) and not (other[1] == "0" and self.leader_waits(job))
            }
            if (
                key in before
                and node != before[key]
                and key in self.seats(lambda seat: bool(seat.get("until")))
            ):
                told = f"the seat of {key} moves to {node}, and the others are on {sorted(others)}"
                assert not (others & known.nodes) - {node}, told
        return answer

    def leader_waits(self, job: Job) -> bool:
        leaders = (pod for pod in self.living(job) if pod["metadata"]["annotations"]["index"] == "0")
        return job.led and any(not pod["spec"].get("nodeName") for pod in leaders)

    def places(self) -> dict[tuple[str, str], str]:
        """By job and index, where the recorded seats are."""
        return {(job, seat["name"].rpartition("/")[2]): seat["node"] for job, seat in self.recorded()}

    def check_job(self, job: Job) -> None:
        super().check_job(job)
        if job.name in self.together:
            nodes = self.nodes_of(job, self.living(job))
            assert len(nodes) <= 1, f"{job.name} rests on {sorted(nodes)}"
