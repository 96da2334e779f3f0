"""The controller's model world with jobs: gangs of pods that their owners make again, on few cards.

Beside everything that happens in `model_world`, jobs come and go, members fail, launchers without claims ride
along, a pod gets past the webhook without its gate, and time passes in which gangs are restarted. In some
schedules jobs have roles: a head, and workers that start after it. What must hold:

    at any time      what a started gang lost is given to nobody for HOLD seconds but to who is made in its
                     place, or is more urgent
                     a place that is held instead of another one, or for who is yet to come, is free, as far
                     as the controller knows
                     a gang gives up what it has to start anew, or for who is more urgent, or what is beyond
                     its least where it agreed
    at the commit    when the first gate of a gang is lifted, the controller knew of the least of members
                     whose claims had devices, of each role
                     gates are lifted in the order of the roles
    at rest          a gang that is not committed holds nothing; a committed one runs with its least, or
                     nobody of it waits
                     every member that reads them is told the hosts that have devices, by rank
    at the end       jobs that run finish, one after the other, and every job that fits into the cluster gets
                     its turn
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from koordra.api import names, objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import (
    COMMITTED,
    GANG,
    GANG_BY,
    GANG_HOLD,
    GANG_MAX,
    GANG_MIN,
    GANG_ROLE,
    GANG_ROLE_MIN,
    GANG_SHRINK,
    GANG_START,
    GANG_START_AFTER,
    GANG_TIMEOUT,
    LIVE_ENV,
    LIVE_HOSTS,
)
from koordra.controller.gangs.declared.workload_kind import COMPLETION_INDEX
from tests.fakes.joint_cluster import gpu_slice
from tests.fakes.model_api import Request
from tests.fakes.model_planner import CARD, results_of
from tests.fakes.model_world import WATCHED, Controller, InFlight, World, use_of

TIMEOUT = 40.0
HOLD = 60.0
_ROUNDING = 2.0
"""Seconds: the API's times are whole ones."""


@dataclass
class Job:
    """`size` pods of which `least` have to start together; the first may be a launcher without claims, or one
    after which the others are made (`led`), or start (`ordered`). With `roles` the first is a head, which is
    needed as soon as it is there. Jobs of one `gang` are its replicas, told apart by a label."""

    name: str
    gang: str
    uid: str
    size: int
    least: int
    launcher: bool
    priority: int
    elastic: bool
    shrinks: bool
    led: bool
    roles: bool = False
    ordered: bool = False
    made: int = 0
    finished: bool = False

    @property
    def cards(self) -> int:
        """Cards that the least of members need."""
        return self.least - (1 if self.launcher else 0)


def live_volume(*names: str) -> Object:
    """In which a pod reads annotations of its own."""
    items = [
        {"path": name.rpartition("-")[2], "fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}
        for name in names
    ]
    return {"name": "gang", "downwardAPI": {"items": items}}


def is_of(job: Job, pod: Object) -> bool:
    return (pod["metadata"].get("labels") or {}).get("replica") == job.name


def is_let_go(pod: Object) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return COMMITTED in annotations and not pod["spec"].get("schedulingGates")


def _is_held(seat: Object) -> bool:
    return bool(seat.get("until"))


@dataclass
class Kept:
    """What a member has, or had: GiB by card. `claim`: uid of its claim; `lost`: when that was."""

    claim: str
    pod: str
    cards: dict[tuple[str, str], int]
    priority: int
    lost: float | None = None


@dataclass(frozen=True)
class Known:
    """What a controller knows when it sends something about holds: the priority of the most urgent of those
    who wait, what claims have of each card, the jobs of which it may give up anything, or so many, and the
    nodes; how many records had been deleted by then; and whom it had decided to give up."""

    urgent: int
    used: dict[tuple[str, str], int]
    may_give_up: dict[str, float]
    nodes: frozenset[str]
    deleted: int
    decided: frozenset[tuple[str, str]]


class GangWorld(World):
    watched = (*WATCHED, DEVICE_HOLDS)

    def __init__(self, seed: int, planner: Callable[..., Any]) -> None:
        self.jobs: dict[str, Job] = {}
        self.started: set[str] = set()
        self.kept: dict[tuple[str, str], Kept] = {}
        """By job and index, of members that were let go."""
        self.given_up: set[str] = set()
        self.decided: dict[str, set[tuple[str, str]]] = {}
        """By process, the marks of `marks` for which there was a reason when they were decided."""
        """Pods (by uid) that a controller evicted, or is about to evict, as the records say: their seats are
        for others, or for a new start."""
        self.taken: dict[str, str] = {}
        """Claims that have devices (by uid) -> the cards, as text."""
        self.roles = random.Random(f"roles {seed}") if seed % 5 == 0 else None
        """Draws of its own: the other schedules are the same with and without."""
        self.cards: dict[str, int] = {}
        """Cards of each node at rest."""
        super().__init__(seed, planner)
        self.moods = None  # a job that fits has its turn in the end, so no node is closed to it for good
        self.api.history.setdefault(RESOURCE_CLAIMS.plural, [])
        self.api.history.setdefault(DEVICE_HOLDS.plural, [])
        if random.Random(f"started {seed}").random() < 0.5:
            self.begin_with_a_job()

    def weighted(self) -> list[tuple[Callable[[], None], int]]:
        return [
            *super().weighted(),
            (self.create_job, 6),
            (self.job_step, 12),
            (self.delete_job, 1),
            (self.fail_member, 2),
            (self.lose_members, 3),
        ]

    # jobs

    def create_job(self) -> None:
        if len(self.jobs) > 3:
            return
        draw: random.Random = self.random
        self.made += 1
        gang = f"j{self.made}"
        others = [job.gang for job in self.jobs.values()]
        if others and draw.random() < 0.3:
            gang = draw.choice(others)
        size = draw.choice((2, 2, 3, 3, 4, 5))
        elastic, launcher = draw.random() < 0.3, draw.random() < 0.2
        job = Job(
            f"j{self.made}",
            gang,
            f"job-{self.made}",
            size,
            max(1, size - draw.choice((1, 2))) if elastic else size,
            launcher,
            5 if draw.random() < 0.2 else 0,
            elastic,
            draw.random() < 0.5,
            not elastic and not launcher and draw.random() < 0.4,
        )
        self.draw_terms(job)
        self.jobs[job.name] = job
        self.make_members(job)

    def draw_terms(self, job: Job) -> None:
        """What it says beside."""
        if self.roles is not None and job.least > 1 and not (job.led or job.launcher):
            job.roles = self.roles.random() < 0.8
            job.ordered = job.roles and self.roles.random() < 0.6

    def begin_with_a_job(self) -> None:
        """One that runs before anything goes wrong."""
        self.calm = self.faults.calm = True
        self.create_job()
        for _ in range(8):
            self.round_of_work()
            self.now += 1.0
        self.calm = self.faults.calm = False

    def lose_members(self) -> None:
        """One, or the whole group, which its owner makes again in its own time."""
        pod = self.any_pod(lambda one: bool(self.job_of(one)) and one["status"].get("phase") == "Running")
        job = None if pod is None else self.job_of(pod)
        if pod is None or job is None:
            return
        for gone in self.members(job) if self.random.random() < 0.3 else [pod]:
            self.api.remove(PODS, gone["metadata"]["name"])
        for name in ("n0", "n1"):
            self.clean_up(name)
        self.claim_controller()

    def job_step(self) -> None:
        for job in list(self.jobs.values()):
            if not job.finished and self.random.random() < 0.6:
                self.make_members(job)

    def make_members(self, job: Job) -> None:
        """What is missing is made; in its own time, so a pass may see a part."""
        alive = {
            pod["metadata"]["annotations"]["index"]: pod
            for pod in self.members(job)
            if pod["status"].get("phase") != "Failed"
        }
        leads = not job.led or bool(alive.get("0", {"spec": {}})["spec"].get("nodeName"))
        for index in range(job.size if leads else 1):
            if str(index) not in alive and (self.calm or self.random.random() < 0.8):
                self.make_member(job, index)

    def make_member(self, job: Job, index: int) -> None:
        job.made += 1
        annotations = {
            GANG: job.gang,
            GANG_BY: "replica",
            GANG_MIN: str(job.least),
            GANG_TIMEOUT: f"{TIMEOUT:.0f}s",
            GANG_HOLD: f"{HOLD:.0f}s",
        }
        annotations["index"] = str(index)
        annotations |= self.more_terms(job, index)
        if job.elastic:
            annotations[GANG_MAX] = str(job.size)
        if job.led:
            annotations[GANG_START] = "LeaderFirst"
        if job.shrinks:
            annotations[GANG_SHRINK] = "ForOthers"
        if job.roles:
            annotations |= {GANG_ROLE: "workers" if index else "head", GANG_ROLE_MIN: "1"}
        if job.ordered and index:
            annotations[GANG_START_AFTER] = "head"
        claims = [] if job.launcher and index == 0 else [{"name": "gpu", "resourceClaimTemplateName": "one"}]
        spec: Object = {"resourceClaims": claims, "containers": [{"name": "main", "image": "busybox"}]}
        if job.made % 2:
            spec["volumes"] = [live_volume(LIVE_HOSTS, LIVE_ENV)]
        if self.calm or self.random.random() > 0.02:
            spec["schedulingGates"] = [{"name": names.JOINT_GATE}]
        if job.priority:
            spec["priority"] = job.priority
        owner = {"kind": "Trainer", "name": job.name, "uid": job.uid, "controller": True}
        metadata = {
            "name": f"{job.name}-{job.made}",
            "labels": {"replica": job.name, COMPLETION_INDEX: str(index)},
            "annotations": annotations,
            "ownerReferences": [owner],
        }
        body = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        self.api.create(PODS, body, created=self.timestamp())

    def more_terms(self, _job: Job, _index: int) -> dict[str, str]:
        return {}

    def members(self, job: Job) -> list[Object]:
        return [pod for pod in self.pods() if is_of(job, pod)]

    def job_of(self, pod: Object) -> Job | None:
        return self.jobs.get((pod["metadata"].get("labels") or {}).get("replica", ""))

    def delete_job(self) -> None:
        if self.jobs:
            job = self.jobs.pop(self.random.choice(sorted(self.jobs)))
            for pod in self.members(job):
                self.ask_to_end(pod)
            self.collect_garbage()

    def claim_controller(self) -> None:
        super().claim_controller()
        self.collect_garbage()

    def owners(self) -> set[str]:
        """Uids of those who may own a hold."""
        return {job.uid for job in self.jobs.values()}

    def collect_garbage(self) -> None:
        living = self.owners()
        for hold in list(self.api.table(DEVICE_HOLDS).values()):
            owners = {owner["uid"] for owner in hold["metadata"]["ownerReferences"]}
            if not owners & living:
                self.api.remove(DEVICE_HOLDS, hold["metadata"]["name"])

    def fail_member(self) -> None:
        pod = self.any_pod(lambda one: bool(self.job_of(one)) and one["status"].get("phase") == "Running")
        if pod is not None:
            for running in self.running.values():
                running.pop(pod["metadata"]["uid"], None)
            for name in ("n0", "n1"):
                self.unprepare(name)
            self.api.change(PODS, pod["metadata"]["name"], status={**pod["status"], "phase": "Failed"})

    # kube-scheduler: a pod without claims goes anywhere

    def schedule(self, pod: Object) -> None:
        if pod["spec"]["resourceClaims"]:
            super().schedule(pod)
            return
        if pod["spec"].get("schedulingGates") or pod["metadata"].get("deletionTimestamp"):
            return
        free = [node for node in self.api.table(NODES).values() if self.accepts(pod, node)]
        if free:
            spec = {**pod["spec"], "nodeName": free[0]["metadata"]["name"]}
            self.api.change(PODS, pod["metadata"]["name"], spec=spec)

    def run_pod(self, node_name: str, pod: Object) -> None:
        """Heads are Ready when they have run for a while."""
        super().run_pod(node_name, pod)
        job, found = self.job_of(pod), self.api.find(PODS, pod["metadata"]["name"])
        if (
            self.roles is None
            or job is None
            or found is None
            or not job.ordered
            or objects.pod_is_ready(found)
        ):
            return
        if found["status"].get("phase") == "Running" and (self.calm or self.roles.random() < 0.5):
            status = {**found["status"], "conditions": [{"type": "Ready", "status": "True"}]}
            self.api.change(PODS, pod["metadata"]["name"], status=status)

    # what must hold

    def carry(self, sender: Controller, request: Request, what: str) -> Object:
        """What had no answer is written again, whatever is known by then: whom a controller gives up it has
        decided by its next request."""
        if sender.reconciler is not None:
            decided = self.decided.setdefault(sender.process, set())
            here = list(sender.reconciler.cache.holds.values())
            new = self.marks(here) - self.marks() - decided
            if new and self.has_reason(new, self.known_to(sender)):
                decided |= new
        return super().carry(sender, request, what)

    def land(self, sender: Controller, request: Request, what: str) -> Object:
        if what == "evictions":
            return self.eviction_lands(partial(super().land, sender, request, what))
        if what == DEVICE_HOLDS.plural:
            return self.hold_lands(partial(super().land, sender, request, what), self.known_to(sender))
        if what != PODS.plural:
            return super().land(sender, request, what)
        before = self.let_go()
        answer = super().land(sender, request, what)
        for name in self.let_go() - before:
            pod = self.api.get(PODS, name)
            job = self.job_of(pod)
            if job is not None:
                self.check_commit(job, pod, before, sender)
        return answer

    def sent(self, sender: Controller, request: Request, what: str) -> InFlight:
        """Also of a request that lands late it is known what it was sent for."""
        if what == "evictions":
            request = partial(self.eviction_lands, request)
        elif what == DEVICE_HOLDS.plural:
            request = partial(self.hold_lands, request, self.known_to(sender))
        return super().sent(sender, request, what)

    def eviction_lands(self, request: Request) -> Object:
        before = {pod["metadata"]["uid"]: pod for pod in self.pods()}
        answer = request()
        after = {pod["metadata"]["uid"]: pod for pod in self.pods()}
        self.given_up |= {uid for uid, pod in before.items() if after.get(uid) is not pod}
        return answer

    def hold_lands(self, request: Request, known: Known) -> Object:
        """Seats may be taken for somebody more urgent, as far as the controller knows, or given up, which is
        written before anybody is evicted. One write may say at once that a seat is held and what became of it
        since: those before it were lost."""
        before, marked = self.seats(), self.marks()
        answer = request()
        after, held = self.seats(), self.seats(_is_held)
        for key in before.keys() & self.kept.keys():
            if key not in after and known.urgent > self.kept[key].priority:
                del self.kept[key]
            elif held.get(key, before[key]) != before[key]:
                self.kept[key].cards = held[key]  # another place is held for it now
        # A creation without an answer, made again and undone, may land after that: it is ended as nobody's.
        is_stale = self.deleted_records() > known.deleted
        for key, cards in held.items():
            if cards != before.get(key) and self.upheaval is None and not self.beyond and not is_stale:
                self.check_free(key, held, known)
        new = self.marks() - marked
        assert self.has_reason(new - known.decided, known), f"{sorted(new)} are given up for nobody"
        living = {
            pod["metadata"]["uid"] for pod in self.pods() if not pod["metadata"].get("deletionTimestamp")
        }
        recorded = {seat["pod"] for _, seat in self.recorded()}
        given_up = {pod for _, pod in self.marks()}
        self.given_up -= (recorded - given_up) & living
        self.given_up |= given_up
        return answer

    def check_free(
        self, key: tuple[str, str], held: dict[tuple[str, str], dict[tuple[str, str], int]], known: Known
    ) -> None:
        for card in held[key]:
            kept = sum(cards.get(card, 0) for cards in held.values())
            assert known.used.get(card, 0) + kept <= CARD, f"{card} is held for {key} and is not free"

    def has_reason(self, marks: set[tuple[str, str]], known: Known) -> bool:
        numbers = Counter(job for job, _ in marks)
        return all(number <= known.may_give_up.get(job, 0) for job, number in numbers.items())

    def known_to(self, sender: Controller) -> Known:
        assert sender.reconciler is not None
        cache = sender.reconciler.cache
        urgent = self.most_urgent(sender)
        may = {
            job.name: self.may_give_up(job, list(cache.pods.values()), urgent) for job in self.jobs.values()
        }
        return Known(
            urgent,
            use_of(cache.claims.values()),
            may,
            frozenset(cache.nodes),
            self.deleted_records(),
            frozenset(self.decided.get(sender.process, ())),
        )

    def deleted_records(self) -> int:
        return sum(event == "DELETED" for event, _, _ in self.api.history[DEVICE_HOLDS.plural])

    def may_give_up(self, job: Job, pods: list[Object], urgent: int) -> float:
        """How many seats: all, where fewer than the least run, or somebody more urgent waits; those beyond
        the least where the job agrees to that."""
        own = [pod for pod in pods if is_of(job, pod) and pod["status"].get("phase") != "Failed"]
        there = [pod for pod in own if pod["spec"].get("nodeName")]
        if len(there) < job.least or (self.preemption and urgent > job.priority):
            return math.inf
        return len(there) - job.least if job.shrinks and job.elastic and urgent >= job.priority else 0

    def most_urgent(self, sender: Controller) -> int:
        """Of those who wait, as the sender knows them."""
        assert sender.reconciler is not None
        pods = sender.reconciler.cache.pods.values()
        return max(
            (pod["spec"].get("priority", 0) for pod in pods if not pod["spec"].get("nodeName")), default=0
        )

    def recorded(self, holds: list[Object] | None = None) -> list[tuple[str, Object]]:
        """Seats with the names of their jobs, in the API or in these."""
        return [
            (seat["name"].partition("/")[0], seat)
            for hold in (list(self.api.table(DEVICE_HOLDS).values()) if holds is None else holds)
            if hold["spec"]["owner"].startswith("gang ")
            for seat in hold["spec"]["seats"]
        ]

    def marks(self, holds: list[Object] | None = None) -> set[tuple[str, str]]:
        """Job and pod (by uid) of the seats that are given up."""
        return {(job, seat["pod"]) for job, seat in self.recorded(holds) if seat.get("givenUp")}

    def seats(
        self, which: Callable[[Object], bool] = lambda _seat: True
    ) -> dict[tuple[str, str], dict[tuple[str, str], int]]:
        """Those recorded: GiB by card, by job and index."""
        return {
            (job, seat["name"].rpartition("/")[2]): use_of(
                [{"status": {"allocation": {"devices": {"results": seat["devices"]}}}}]
            )
            for job, seat in self.recorded()
            if which(seat)
        }

    def check_claims(self) -> None:
        super().check_claims()
        self.check_kept()

    def check_kept(self) -> None:
        """What a started gang lost is for who is made in its place, for a while."""
        if self.upheaval is not None:
            return  # wall clocks that are an hour apart agree on no time
        claims = {
            claim["metadata"]["uid"]: claim
            for claim in self.api.table(RESOURCE_CLAIMS).values()
            if results_of(claim)
        }
        taken = {uid: str(results_of(claim)) for uid, claim in claims.items()}
        new = [uid for uid, cards in taken.items() if self.taken.get(uid) != cards]
        self.forget_kept(claims)
        for uid in new:
            self.check_taker(claims[uid], claims)
        self.taken = taken
        for pod in self.pods():
            self.keep(pod)

    def forget_kept(self, claims: dict[str, Object]) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self.pods()}
        for key, kept in list(self.kept.items()):
            job, pod = self.jobs.get(key[0]), pods.get(kept.pod)
            is_over = job is None or job.finished or kept.pod in self.given_up
            is_over = is_over or (pod is not None and pod["status"].get("phase") == "Succeeded")
            if kept.lost is None and kept.claim not in claims:
                kept.lost = self.now
            if is_over or (kept.lost is not None and self.now >= kept.lost + HOLD - _ROUNDING):
                del self.kept[key]

    def pod_of(self, claim: Object) -> Object | None:
        name, history = claim["metadata"]["name"], self.api.history.get(PODS.plural, ())
        known = chain(self.pods(), (obj for _, _, obj in reversed(history)))  # its pod may be gone
        return next((pod for pod in known if name in (self.names_of(pod) or ())), None)

    def check_taker(self, claim: Object, claims: dict[str, Object]) -> None:
        pod = self.pod_of(claim)
        who = ("", "") if pod is None else self.seat_of(pod)
        mine = use_of([claim])
        if who in self.kept and self.kept[who].lost is not None and mine != self.kept[who].cards:
            del self.kept[who]  # it has another place
        priority = 0 if pod is None else pod["spec"].get("priority", 0)
        for card, amount in mine.items():
            held = {
                key: kept
                for key, kept in self.kept.items()
                if kept.lost is not None and key != who and card in kept.cards
            }
            used = use_of(claims.values()).get(card, 0)
            if used + sum(kept.cards[card] for kept in held.values()) <= CARD or self.beyond:
                continue
            for key, kept in held.items():
                told = f"{claim['metadata']['name']} ({amount}) was given {card}, which was held for {key}"
                is_own = key[0] == who[0] and self.is_placed_anew(who)
                assert priority > kept.priority or is_own, told
                del self.kept[key]

    def is_placed_anew(self, who: tuple[str, str]) -> bool:
        """A head that has no place of its own any more is needed: with it all of its gang are placed as if
        nothing was held for them."""
        return self.jobs[who[0]].roles and (who[1] == "0" or (who[0], "0") not in self.kept)

    def seat_of(self, pod: Object) -> tuple[str, str]:
        job = self.job_of(pod)
        return ("", "") if job is None else (job.name, pod["metadata"]["annotations"]["index"])

    def keep(self, pod: Object) -> None:
        """The seat of a member that was let go."""
        key, phase = self.seat_of(pod), pod["status"].get("phase")
        if key[0] not in self.jobs or not is_let_go(pod) or phase in {"Succeeded", "Failed"}:
            return
        if pod["metadata"].get("deletionTimestamp") or pod["metadata"]["uid"] in self.given_up:
            return
        claims = self.claims_of(pod) or ()
        for claim in claims:
            if results_of(claim):
                uid, job = claim["metadata"]["uid"], self.jobs[key[0]]
                self.kept[key] = Kept(uid, pod["metadata"]["uid"], use_of([claim]), job.priority)

    def let_go(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods() if is_let_go(pod)}

    def check_commit(self, job: Job, first: Object, before: set[str], sender: Controller) -> None:
        """The controller has seen that the least were there, with devices. What it has seen may be over by
        now."""
        self.started.add(job.name)
        if job.ordered and first["metadata"]["annotations"]["index"] != "0":
            self.check_order(job, first, sender)
        history = self.api.history[PODS.plural]
        if any(
            COMMITTED in (obj["metadata"].get("annotations") or {})
            and is_of(job, obj)
            and obj["metadata"]["name"] != first["metadata"]["name"]
            for _, _, obj in history
        ):
            return
        assert sender.reconciler is not None
        had = {
            obj["metadata"]["name"]
            for _, _, obj in self.api.history.get(RESOURCE_CLAIMS.plural, ())
            if results_of(obj)
        }
        seen = [
            pod
            for pod in sender.reconciler.cache.pods.values()  # as its pass saw them
            if is_of(job, pod)
            and not pod["metadata"].get("deletionTimestamp")
            and pod["status"].get("phase") not in {"Failed"}
        ]
        placed = [pod for pod in seen if self.names_of(pod) is not None and self.names_of(pod) <= had]  # type: ignore[operator]
        there = {pod["metadata"]["annotations"]["index"] for pod in placed}
        held = {
            seat["name"].rpartition("/")[2]
            for _, _, obj in self.api.history[DEVICE_HOLDS.plural]
            for seat in obj["spec"]["seats"]
            if job.led and seat.get("until") and seat["name"].startswith(f"{job.name}/")
        }
        number = len(placed) + len(held - there)
        assert number >= job.least, f"{job.name} starts with {number} of {job.least}"
        has_head = any(pod["metadata"]["annotations"]["index"] == "0" for pod in seen)
        assert not (job.roles and has_head) or {"0"} < there, (
            f"{job.name} starts without a role: {sorted(there)}"
        )

    def check_order(self, job: Job, worker: Object, sender: Controller) -> None:
        """The head is Ready, or has ended well; or other workers went before, and it is lost."""
        assert sender.reconciler is not None
        own = [pod for pod in sender.reconciler.cache.pods.values() if is_of(job, pod)]
        heads = [pod for pod in own if pod["metadata"]["annotations"]["index"] == "0"]
        ready = [
            pod for pod in heads if objects.pod_is_ready(pod) or pod["status"].get("phase") == "Succeeded"
        ]
        others = [
            pod for pod in own if pod not in heads and pod["metadata"]["uid"] != worker["metadata"]["uid"]
        ]
        went = ready or any(is_let_go(pod) or pod["spec"].get("nodeName") for pod in others)
        assert went, f"{worker['metadata']['name']} starts before the head of {job.name}"

    def names_of(self, pod: Object) -> set[str] | None:
        """The names of the pod's claims, None while one has none."""
        made = {
            one["name"]: one["resourceClaimName"] for one in pod["status"].get("resourceClaimStatuses") or ()
        }
        found = {
            entry.get("resourceClaimName") or made.get(entry["name"])
            for entry in pod["spec"]["resourceClaims"]
        }
        return None if None in found else {name for name in found if name is not None}

    def become_quiet(self) -> None:
        self.settle_down()
        self.rest()

    def settle_down(self) -> None:
        self.calm = True
        self.in_flight.clear()
        while self.cycles:
            self.finish_cycle()
        self.blocked.clear()
        if self.api.find(DEVICE_CLASSES, names.CLASS_GPU) is None:
            self.change_class()
        for name in ("n0", "n1"):
            if self.api.find(NODES, name) is None:
                self.add_node(name)
            self.api.change(NODES, name, spec={})
            entry = self.api.get(RESOURCE_SLICES, f"{name}-koordra")
            number = self.random.choice((1, 2, 2))
            self.cards[name] = number
            self.publish(entry, gpu_slice(name, number)["spec"])
        for job in self.jobs.values():
            for pod in self.members(job):
                if self.is_stray(pod) or self.has_lost_its_claim(pod):
                    self.ask_to_end(pod)

    def is_stray(self, pod: Object) -> bool:
        """It came past the webhook: it is not held, was not let go, and runs nowhere."""
        placed = pod["spec"].get("nodeName")
        return not (
            pod["spec"].get("schedulingGates") or placed or COMMITTED in pod["metadata"]["annotations"]
        )

    def has_lost_its_claim(self, pod: Object) -> bool:
        """Such a pod can never run; its owner sees that, in a real cluster after some time."""
        return bool(pod["status"].get("resourceClaimStatuses")) and self.claims_of(pod) is None

    def rest(self) -> None:
        still = 0
        for _ in range(250):
            before = self.work_version()
            self.round_of_work()
            still = still + 1 if self.work_version() == before else 0
            self.now += 7.0 if still < 2 else 310.0
            if still >= 4:
                return
        raise AssertionError("does not come to rest")

    def round_of_work(self) -> None:
        if self.calm:
            for job in self.jobs.values():
                if not job.finished:
                    self.make_members(job)
        super().round_of_work()

    def check_quiet(self) -> None:
        for job in self.jobs.values():
            self.check_job(job)
        super().check_quiet()
        self.finish_in_turn()

    def check_pod(self, pod: Object) -> None:
        if self.job_of(pod) is None:
            super().check_pod(pod)

    def is_held_back(self, answer: Any) -> bool:
        leading = [one.reconciler for one in self.controllers if one.reconciler is not None]
        held = [entry for one in leading for entry in one.allocation.gangs.reservation._held.values()]
        nodes = {node for entry in held for node in entry.nodes}
        return bool(nodes & set(answer.nodes.values())) or super().is_held_back(answer)

    def check_job(self, job: Job) -> None:
        """Whole, or nothing."""
        members = [
            pod for pod in self.members(job) if pod["status"].get("phase") not in {"Succeeded", "Failed"}
        ]
        held = [pod for pod in members if any(results_of(claim) for claim in self.claims_of(pod) or ())]
        running = [pod for pod in members if pod["spec"].get("nodeName")]
        waiting = [pod for pod in members if not pod["spec"].get("nodeName")]
        for pod in members:
            placed = self.claims_of(pod) and all(results_of(claim) for claim in self.claims_of(pod) or ())
            assert not (placed and pod["spec"].get("schedulingGates")), (
                f"{pod['metadata']['name']} was left behind"
            )
        has_started = any(pod["spec"]["resourceClaims"] or is_let_go(pod) for pod in running)
        if has_started and not any(pod["metadata"].get("deletionTimestamp") for pod in members):
            self.check_told(running, held)
        ranks = [rank for pod in held for rank in self.ranks_of(pod)]
        assert len(set(ranks)) == len(ranks), f"{job.name} has ranks {sorted(ranks)}"
        if not has_started:  # a launcher that came past its gate may run
            assert not held, f"{job.name} has not started and holds {len(held)} claims"
        elif len(running) < job.least:
            done = sum(1 for pod in self.members(job) if pod["status"].get("phase") == "Succeeded")
            assert not waiting or len(running) + done >= job.least, (
                f"{job.name} runs with {len(running)} of {job.least}, {len(waiting)} wait"
            )

    def check_told(self, pods: list[Object], held: list[Object]) -> None:
        """In the files of the members that run are the members that have devices, by rank."""
        placed = [pod for pod in held if not pod["spec"].get("schedulingGates")]
        by_rank = sorted(placed, key=lambda pod: min(self.ranks_of(pod), default=-1))
        hosts = [pod["metadata"]["name"] for pod in by_rank]
        for pod in pods:
            if pod["spec"].get("volumes") and not pod["metadata"].get("deletionTimestamp"):
                said = pod["metadata"]["annotations"].get(LIVE_HOSTS, "nothing at all")
                read = [line.partition(" slots=")[0] for line in said.splitlines()]
                assert read == hosts, f"{pod['metadata']['name']} reads {read} of {hosts}"

    def ranks_of(self, pod: Object) -> set[int]:
        return {
            entry["opaque"]["parameters"]["rank"]
            for claim in self.claims_of(pod) or ()
            for entry in claim["status"]["allocation"]["devices"].get("config") or ()
            if entry.get("opaque", {}).get("parameters", {}).get("kind") == "GangMember"
        }

    def finish_in_turn(self) -> None:
        """Whoever runs ends; in the end every job that fits into the cluster has had its turn."""
        fitting = {job.name for job in self.jobs.values() if self.fits(job) and not job.finished}
        had: set[str] = set()
        for _ in range(len(self.jobs) + len(self.pods()) + 2):
            for job in self.jobs.values():
                living = [
                    pod for pod in self.members(job) if pod["status"].get("phase") in {"Running", "Succeeded"}
                ]
                if len(living) >= job.least:
                    had.add(job.name)
                    job.finished = True
                    for pod in self.members(job):
                        self.end_well(pod)
            for pod in self.pods():
                if self.job_of(pod) is not None:
                    continue
                if pod["status"].get("phase") == "Running":
                    self.end_well(pod)
                elif self.claims_of(pod) is None:
                    self.api.remove(PODS, pod["metadata"]["name"])
            for claim in list(self.api.table(RESOURCE_CLAIMS).values()):
                if names.MODE_LABEL in (claim["metadata"].get("annotations") or {}):
                    self.api.change(RESOURCE_CLAIMS, claim["metadata"]["name"], status={})
                    self.api.remove(RESOURCE_CLAIMS, claim["metadata"]["name"])
            if fitting <= had:
                return
            self.rest()
        raise AssertionError(f"{sorted(fitting - had)} never had their turn")

    def fits(self, job: Job) -> bool:
        """When nobody else is there."""
        return job.cards <= sum(self.cards.values())

    def end_well(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if pod["status"].get("phase") == "Running":
            for running in self.running.values():
                running.pop(pod["metadata"]["uid"], None)
            for node_name in ("n0", "n1"):
                self.unprepare(node_name)
            self.api.change(PODS, name, status={**pod["status"], "phase": "Succeeded"})
        elif pod["status"].get("phase") == "Pending":
            self.ask_to_end(pod)
