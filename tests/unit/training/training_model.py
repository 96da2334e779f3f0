"""TrainingJobs against a world that does what it likes: pods fail, are evicted, deleted, end; nodes on which
nothing comes up; pods that take their time to end; controllers killed between any two writes, with caches
that are behind. A schedule is a value (`Schedule`), so that hypothesis draws them, and a number does
(`drawn`).

`Witness` says after every pass what the controller may do: the rules of docs/training-jobs.md, read from the
objects alone. `finish` says that no state is without exit: once the world behaves, every job comes to an end,
and nothing of it is left that lives, or is held.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from koordra.api import objects
from koordra.api.kinds import DEVICE_HOLDS, PODS, RESOURCE_CLAIMS, TRAINING_JOBS
from koordra.api.objects import Object
from koordra.controller.training.members import OVERDUE, Member, Phase, members_of
from koordra.controller.training.training_job import LAUNCHER_SLOT, Framework, State, TrainingJob, read_job
from tests.fakes.kube_api import Killed
from tests.unit.training.training_cluster import TrainingCluster, killed_at, template

NAMES = ("a", "b")
IDLE, GAIN = 60.0, 1.0
"""Of moves: the first one pays after a minute."""
_WRITTEN = {"pods", "services", "trainingjobs"}


@dataclass(frozen=True)
class Schedule:
    """`steps`: which step (of STEPS), and which of its kinds."""

    frameworks: tuple[Framework, Framework]
    least: int
    nodes: int
    mover: bool
    graceful: bool
    steps: Sequence[tuple[int, int]]


def drawn(seed: int) -> Schedule:
    """Of every fourth number: of jobs that may move, and are told to early."""
    by, moves = random.Random(seed), seed % 4 == 3
    kinds = [one for one in Framework if one.is_elastic or not moves]
    steps = [(by.randrange(len(STEPS)), by.randrange(25)) for _ in range(by.randint(5, 25))]
    return Schedule(
        (by.choice(kinds), by.choice(kinds)),
        by.randint(1, 2),
        2 if moves else by.randint(1, 2),
        moves or by.random() < 0.5,
        by.random() < 0.5,
        [(0, 0), (STEPS.index(World.places), 1), *steps] if moves else steps,
    )


def members(cluster: TrainingCluster, name: str) -> tuple[Member, ...]:
    claims = {objects.key(one): one for one in cluster.api.all(RESOURCE_CLAIMS)}
    return members_of(read_job(cluster.api.get(TRAINING_JOBS, name)), cluster.api.all(PODS), claims)


def one_pod_each(there: Sequence[Member]) -> None:
    living = [one for one in there if one.is_living]
    moving = [one for one in living if one.replaces in {other.name for other in living}]
    per_slot = Counter(one.slot for one in living if one not in moving)
    assert max(per_slot.values(), default=0) <= 1, f"two pods of a replica: {living}"
    assert max(Counter(one.slot for one in moving).values(), default=0) <= 1, f"two targets: {living}"


@dataclass
class Seen:
    """Of one job: what has been there, by uid."""

    began: dict[str, int] = field(default_factory=dict)
    """Who has started: at which look."""
    lost: list[int] = field(default_factory=list)
    """The looks at which one that had started was not there any more, or had ended otherwise than well."""
    over: dict[str, datetime] = field(default_factory=dict)
    """Who has ended, well or not: when that was seen."""
    ended: State | None = None


class Witness:
    """Looks on; raises AssertionError for what the controller may not have done."""

    def __init__(self, cluster: TrainingCluster) -> None:
        self.cluster = cluster
        self._seen = {name: Seen() for name in NAMES}
        self._looks = 0
        self._marked: dict[str, datetime] = {}
        """By uid: since when a pod has been told to go for good."""
        self._let_go = set[str]()
        """By uid: pods that had started, and were deleted by the controller for good."""

    def turn(self, act: Callable[[], object], *, stale: bool = False) -> None:
        """A pass of the controller, maybe killed."""
        self.look()
        before = {name: members(self.cluster, name) for name in NAMES}
        paused = {name: self._releases(name) for name in NAMES}
        first = len(self.cluster.api.writes)
        act()
        written = {write.kind for write in self.cluster.api.writes[first:]}
        assert written <= _WRITTEN, f"not its own: {written - _WRITTEN}"
        for name in NAMES:
            job, after = self.job(name), members(self.cluster, name)
            self._deleted(job, before[name], after, stale=stale)
            self._made(job, before[name], after, [*paused[name], *self._releases(name)])
        self.look()

    def look(self) -> None:
        """At what is there, whoever did it."""
        self._looks += 1
        for name, seen in self._seen.items():
            job, there, status = self.job(name), members(self.cluster, name), self.cluster.status(name)
            one_pod_each(there)
            if seen.ended is not None:
                assert status["state"] == seen.ended, f"{name} was {seen.ended} already"
            elif status and State(status["state"]).is_final:
                seen.ended = State(status["state"])
            if moves := (status.get("moves") or {}).get("count", 0):
                ran = (self.cluster.now() - self._created(name)).total_seconds()
                assert GAIN * ran >= IDLE * 2 ** (moves - 1), f"{moves} moves in {ran} s"
            self._generations(job, there, seen)
            for one in there:
                if one.is_ended:
                    seen.over.setdefault(one.uid, self.cluster.now())
                if one.leaves:
                    self._marked.setdefault(one.uid, self.cluster.now())
        held = {seat["pod"] for seat in held_seats(self.cluster)}
        assert not held & self._let_go, "a place is held that was given up for good"

    def _generations(self, job: TrainingJob, there: Sequence[Member], seen: Seen) -> None:
        """What is not elastic starts together: nobody runs beside one who came after a loss that he saw."""
        now_there = {one.uid for one in there if one.has_started or one.phase is Phase.SUCCEEDED}
        for uid in seen.began.keys() - now_there:
            seen.lost.append(self._looks)
            del seen.began[uid]
        for uid in now_there:
            seen.began.setdefault(uid, self._looks)
        living = [seen.began[one.uid] for one in there if one.has_started]
        if not job.framework.is_elastic and living:
            between = [at for at in seen.lost if min(living) < at <= max(living)]
            assert not between, f"{job.name}: pods from before a loss run beside one from after it"

    def _deleted(
        self, job: TrainingJob, before: Sequence[Member], after: Sequence[Member], *, stale: bool
    ) -> None:
        left, now = {one.uid: one for one in after if one.gone_at is None}, self.cluster.now()
        there = {one.slot for one in before if one.is_living or one.phase is Phase.SUCCEEDED}
        if not job.framework.is_elastic and not there.issuperset(job.slots):
            return  # all go, to start together again
        for one in before:
            if not one.has_started or one.uid in left:
                continue
            if now - self._marked.get(one.uid, now) < OVERDUE:
                self._let_go.add(one.uid)
            others = [other for other in before if other.slot == one.slot and other.uid in left]
            why = (
                stale,
                one.phase is not Phase.RUNNING,
                one.slot >= job.most,
                State(self.cluster.status(job.name)["state"]).is_final,
                any(other.phase is Phase.RUNNING for other in others),
                any(covers(slots, one.slot) for slots, _ in self._releases(job.name)),
            )
            assert any(why), f"{one.name} ran, and nobody has taken over"

    def _made(
        self, job: TrainingJob, before: Sequence[Member], after: Sequence[Member], paused: Sequence[Pause]
    ) -> None:
        known, now, over = {one.uid for one in before}, self.cluster.now(), self._seen[job.name].over
        for new in after:
            if new.uid in known or new.replaces:
                continue
            alike = [one for one in before if one.slot == new.slot or not job.framework.is_elastic]
            failed = [one for one in alike if one.phase is Phase.FAILED]
            number = max(Counter(one.slot for one in failed).values(), default=0)
            pause = timedelta(seconds=min(360, 10 * 2 ** (number - 1)) if number else 0)
            ends = [until for slots, until in paused if covers(slots, new.slot)]
            ends += [max(over[one.uid] for one in failed) + pause] if failed else []
            ends += [over[one.uid] + timedelta(seconds=10) for one in alike if one.phase is Phase.DISRUPTED]
            assert max(ends, default=now) <= now, f"{new.name} is made before its pause is over"

    def _releases(self, name: str) -> list[Pause]:
        found = self.cluster.status(name).get("releases") or []
        return [(one.get("replicas") or [], datetime.fromisoformat(one["until"])) for one in found]

    def job(self, name: str) -> TrainingJob:
        return read_job(self.cluster.api.get(TRAINING_JOBS, name))

    def _created(self, name: str) -> datetime:
        metadata = objects.metadata(self.cluster.api.get(TRAINING_JOBS, name))
        return datetime.fromisoformat(str(metadata["creationTimestamp"]))


Pause = tuple[Sequence[int], datetime]
"""Whose, none: of all; and until when."""


def covers(slots: Sequence[int], slot: int) -> bool:
    return not slots or slot in slots


def held_seats(cluster: TrainingCluster) -> list[Object]:
    """Those that nobody has."""
    seats = [seat for one in cluster.api.all(DEVICE_HOLDS) for seat in one["spec"]["seats"]]
    return [seat for seat in seats if seat.get("until")]


class World:
    def __init__(self, schedule: Schedule) -> None:
        nodes, scattered = schedule.nodes, schedule.mover and schedule.nodes > 1
        gpus = 3 if scattered else 4 // nodes
        self.cluster = TrainingCluster(
            nodes=nodes, gpus=gpus, mover=schedule.mover, graceful=schedule.graceful
        )
        others = ["x", "y"] if scattered else []
        for name, node in zip(others, ("n0", "n1"), strict=False):
            there = template(nodeSelector={"kubernetes.io/hostname": node})
            self.cluster.job(name, framework="PyTorch", least=2, most=2, template=there)
        self.cluster.settle()
        for name, framework in zip(NAMES, schedule.frameworks, strict=True):
            least = schedule.least
            most = least + 1 if framework.is_elastic else least
            moves = {"policy": "WhenItPays", "idleSeconds": IDLE, "gainPercent": 100 * GAIN}
            more = {"migration": moves} if framework.is_elastic else {}
            self.cluster.job(
                name, framework=framework.value, least=least, most=most, pendingSeconds=60, **more
            )
        if scattered:  # one place was left on each node; the others are free now
            self.cluster.settle()
            for pod in self.cluster.pods("Running"):
                if pod.partition("-")[0] in others:
                    self.cluster.phase(pod, "Succeeded")
        self.witness = Witness(self.cluster)
        self.stale = self.cluster.api.all(TRAINING_JOBS), self.cluster.tables()

    def killed(self, at: int) -> None:
        """The training controller, before or after some write of a pass, if it makes as many."""
        api = self.cluster.api
        fault = killed_at(at // 2, Killed, len(api.writes))
        try:
            setattr(api, "after" if at % 2 else "before", fault)
            self.witness.turn(self._pass_or_death)
        finally:
            api.before = api.after = lambda write: None

    def _pass_or_death(self) -> None:
        try:
            self.cluster.training_pass()
        except Killed:
            self.cluster.start_training_again()

    def passes(self, at: int) -> None:
        """A pass, with jobs, pods and claims as they are, or as they were at the last one."""
        now = self.cluster.api.all(TRAINING_JOBS), self.cluster.tables()
        seen = self.stale if at % 2 else now
        self.witness.turn(lambda: self.cluster.training.reconcile(*seen), stale=bool(at % 2))
        self.stale = now

    def others(self, _at: int) -> None:
        self.cluster.others()

    def settles(self, _at: int) -> None:
        self.cluster.settle(turn=self.witness.turn)

    def waits(self, at: int) -> None:
        self.cluster.joint.pass_time((1, 11, 70, 700)[at % 4])

    def places(self, at: int) -> None:
        """After some time, in which a move may have come to pay: a pass, devices for whom it made, and
        another pass before anything comes up."""
        self.cluster.joint.pass_time((70, 700)[at % 2])
        self.passes(0)
        self.cluster.claim_controller()
        self.cluster.joint.settle()
        self.passes(0)

    def breaks(self, at: int) -> None:
        self.cluster.broken ^= {f"n{at % 2}"}

    def loses(self, at: int) -> None:
        running = [pod for pod in self.cluster.pods("Running") if pod.partition("-")[0] in NAMES]
        if not running:
            return
        name, how = running[at // 5 % len(running)], at % 5
        if how == 4:
            self.cluster.delete([name])
        elif how == 3:
            self.cluster.phase(name, "Failed", reason="Evicted")
        else:
            self.cluster.phase(name, "Succeeded" if how == 2 else "Failed")

    def resizes(self, at: int) -> None:
        name = NAMES[at % 2]
        job = read_job(self.cluster.api.get(TRAINING_JOBS, name))
        if job.framework.is_elastic:
            self.cluster.change(name, maxReplicas=job.least + at // 2 % 3)

    def lets_none_be_stuck(self) -> None:
        """While the world is still bad: who was placed, and did not come up in time, is not there any more;
        nor is who is beyond the most, or lives of a job that has ended."""
        self.settles(0)
        for name in NAMES:
            job, ended = self.witness.job(name), State(self.cluster.status(name)["state"]).is_final
            living = [one for one in members(self.cluster, name) if one.is_living]
            left = [one.name for one in living if ended or one.slot >= job.most]
            assert not left, f"left alive: {left}"
        stuck = self._under_way()
        for _ in range(3):
            self.cluster.joint.pass_time(61)
            self.settles(0)
        still = stuck & self._under_way()
        assert not still, f"for three minutes placed and not released, or moving: {sorted(still)}"

    def _under_way(self) -> set[str]:
        """Pods that are placed and do not run, and those that move."""
        living = [one for name in NAMES for one in members(self.cluster, name) if one.is_living]
        there = {one.name for one in living}
        return {one.name for one in living if one.phase is Phase.PLACED or one.replaces in there}

    def finish(self) -> None:
        """The world behaves, and what runs ends well."""
        self.cluster.broken = set()
        self.cluster.start_again()
        for _ in range(60):
            self.cluster.joint.pass_time(400)
            self.settles(0)
            if all(State(self.cluster.status(name)["state"]).is_final for name in NAMES):
                break
            for name in NAMES:
                self._ends_well(name)
        else:
            states = [(self.cluster.status(name), members(self.cluster, name)) for name in NAMES]
            raise AssertionError(f"no end: {states}")
        self.cluster.wait(1)
        living = [one.name for name in NAMES for one in members(self.cluster, name) if one.is_living]
        assert not living, f"left alive: {living}"
        self.cluster.wait(30)
        assert not held_seats(self.cluster), "a place is held for a job that has ended"

    def _ends_well(self, name: str) -> None:
        job, here = read_job(self.cluster.api.get(TRAINING_JOBS, name)), members(self.cluster, name)
        running = {one.slot: one.name for one in here if one.phase is Phase.RUNNING}
        wanted = {LAUNCHER_SLOT} if job.framework.has_launcher else set(running)
        ended = {one.slot for one in here if one.phase is Phase.SUCCEEDED}
        if len(ended | running.keys()) >= job.gang_min:
            for slot in sorted(wanted & running.keys()):
                self.cluster.phase(running[slot], "Succeeded")


STEPS: Sequence[Callable[[World, int], None]] = (
    World.settles,
    World.killed,
    World.passes,
    World.others,
    World.waits,
    World.places,
    World.loses,
    World.settles,
    World.breaks,
    World.resizes,
)


def play(schedule: Schedule) -> None:
    world = World(schedule)
    for step, at in schedule.steps:
        STEPS[step](world, at)
        world.witness.look()
    world.lets_none_be_stuck()
    world.finish()
