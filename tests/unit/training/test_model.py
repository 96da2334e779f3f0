"""TrainingJobs against a world that does what it likes: pods fail, are evicted, deleted, end; nodes on which
nothing comes up; controllers killed between any two writes, with caches that are behind. At any time a
replica has one pod, and one more while it moves; no state is without exit: once the world behaves, every job
comes to an end, and nothing of it is left that lives, or is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Explore
from hypothesis import strategies as st

from koordra.api import objects
from koordra.api.kinds import DEVICE_HOLDS, PODS, RESOURCE_CLAIMS, TRAINING_JOBS
from koordra.controller.training.members import Member, Phase, members_of
from koordra.controller.training.training_job import LAUNCHER_SLOT, Framework, State, read_job
from tests.fakes.kube_api import Killed
from tests.unit.training.training_cluster import TrainingCluster, killed_at

NAMES = ("a", "b")


def members(cluster: TrainingCluster, name: str) -> tuple[Member, ...]:
    claims = {objects.key(one): one for one in cluster.api.all(RESOURCE_CLAIMS)}
    return members_of(read_job(cluster.api.get(TRAINING_JOBS, name)), cluster.api.all(PODS), claims)


def one_pod_each(cluster: TrainingCluster, name: str) -> None:
    living = [one for one in members(cluster, name) if one.is_living]
    moving = [one for one in living if one.replaces in {other.name for other in living}]
    per_slot = Counter(one.slot for one in living if one not in moving)
    assert max(per_slot.values(), default=0) <= 1, living
    assert max(Counter(one.slot for one in moving).values(), default=0) <= 1, living


def finish(cluster: TrainingCluster) -> None:
    """The world behaves, and what runs ends well."""
    cluster.broken = set()
    cluster.start_again()
    for _ in range(60):
        cluster.wait(400)
        if all(State(cluster.status(name)["state"]).is_final for name in NAMES):
            break
        for name in NAMES:
            job, here = read_job(cluster.api.get(TRAINING_JOBS, name)), members(cluster, name)
            running = {one.slot: one.name for one in here if one.has_started}
            wanted = {LAUNCHER_SLOT} if job.framework.has_launcher else set(running)
            ended = {one.slot for one in here if one.phase is Phase.SUCCEEDED}
            if len(ended | running.keys()) >= job.gang_min:
                for slot in sorted(wanted & running.keys()):
                    cluster.phase(running[slot], "Succeeded")
    else:
        raise AssertionError([(cluster.status(name), members(cluster, name)) for name in NAMES])
    cluster.wait(1)
    assert not [one for name in NAMES for one in members(cluster, name) if one.is_living]
    cluster.wait(30)
    held = [seat for one in cluster.api.all(DEVICE_HOLDS) for seat in one["spec"]["seats"]]
    assert not [seat for seat in held if seat.get("until")], held


class World:
    def __init__(self, frameworks: Sequence[Framework], least: int, nodes: int, mover: bool) -> None:
        self.cluster = TrainingCluster(nodes=nodes, gpus=4 // nodes, mover=mover)
        for name, framework in zip(NAMES, frameworks, strict=True):
            most = least + 1 if framework.is_elastic else least
            moves = {"policy": "WhenItPays", "idleSeconds": 1, "gainPercent": 100}
            more = {"migration": moves} if framework.is_elastic else {}
            self.cluster.job(
                name, framework=framework.value, least=least, most=most, pendingSeconds=60, **more
            )
        self.stale = self.cluster.tables()

    def killed(self, at: int) -> None:
        """The training controller, before or after some write of a pass, if it makes as many."""
        api = self.cluster.api
        fault = killed_at(at // 2, Killed, len(api.writes))
        try:
            setattr(api, "after" if at % 2 else "before", fault)
            self.cluster.training_pass()
        except Killed:
            self.cluster.start_training_again()
        finally:
            api.before = api.after = lambda write: None

    def passes(self, at: int) -> None:
        """A pass, with pods and claims as they are, or as they were at the last one."""
        now = self.cluster.tables()
        self.cluster.training.reconcile(self.cluster.api.all(TRAINING_JOBS), self.stale if at % 2 else now)
        self.stale = now

    def others(self, _at: int) -> None:
        self.cluster.others()

    def settles(self, _at: int) -> None:
        self.cluster.settle()

    def waits(self, at: int) -> None:
        self.cluster.joint.pass_time((1, 11, 70, 700)[at % 4])

    def breaks(self, at: int) -> None:
        self.cluster.broken ^= {f"n{at % 2}"}

    def loses(self, at: int) -> None:
        running = self.cluster.pods("Running")
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


STEPS = (
    World.settles,
    World.killed,
    World.passes,
    World.others,
    World.waits,
    World.loses,
    World.settles,
    World.breaks,
    World.resizes,
)


def play(world: World, steps: Sequence[tuple[int, int]]) -> None:
    for step, at in steps:
        STEPS[step](world, at)
        for name in NAMES:
            one_pod_each(world.cluster, name)
    finish(world.cluster)


@pytest.mark.long
@settings(
    max_examples=12,
    deadline=None,
    phases=[Explore.generate],  # an example takes too long to be made smaller
    suppress_health_check=list(HealthCheck),
)
@given(
    frameworks=st.tuples(*[st.sampled_from(list(Framework))] * 2),
    least=st.integers(1, 2),
    nodes=st.integers(1, 2),
    mover=st.booleans(),
    steps=st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 24)), min_size=5, max_size=25),
)
def test_no_state_is_without_exit_and_no_pod_is_left(
    frameworks: tuple[Framework, Framework],
    least: int,
    nodes: int,
    mover: bool,
    steps: list[tuple[int, int]],
) -> None:
    play(World(frameworks, least, nodes, mover), steps)


def script(cluster: TrainingCluster, *, stop: int, after: bool) -> list[str]:
    """A job's life, the training controller killed at write number `stop` of its own, if it comes to that:
    where the pods were at each of its turns."""
    api, own, seen = cluster.api, [0], list[str]()

    def at_a_write(_write: object) -> None:
        own[0] += 1
        if own[0] - 1 == stop:
            raise Killed

    def settle() -> None:
        for _ in range(15):
            before, killed = len(api.history), False
            setattr(api, "after" if after else "before", at_a_write)
            try:
                cluster.training_pass()
            except Killed:
                killed = True
                cluster.start_training_again()
            finally:
                api.before = api.after = lambda write: None
            one_pod_each(cluster, "a")
            cluster.others()
            if len(api.history) == before and not killed:
                break
        seen.append(f"{cluster.state('a')} {cluster.pods('Running')} {cluster.held()}")

    def wait(seconds: float) -> None:
        cluster.joint.pass_time(seconds)
        settle()
        settle()

    cluster.job("a", framework="ElasticPyTorch", least=1, most=3, pendingSeconds=60)
    settle()
    cluster.phase("a-001-0", "Failed")
    wait(15)
    cluster.change("a", maxReplicas=2)
    settle()
    cluster.broken = {"n0", "n1"}
    cluster.delete(["a-000-0", "a-001-1"])
    settle()
    wait(61)
    cluster.broken = set()
    wait(61)
    wait(1801)
    for name in cluster.pods("Running"):
        cluster.phase(name, "Succeeded")
    settle()
    settle()
    assert cluster.state("a") is State.COMPLETE
    assert not [one for one in members(cluster, "a") if one.is_living]
    seen.append(str(own[0]))
    return seen


@pytest.mark.long
def test_killed_at_any_write_the_job_goes_the_same_way() -> None:
    """Before every fourth one, and after the ones between."""
    *whole, writes = script(TrainingCluster(nodes=2, gpus=1), stop=-1, after=False)
    assert int(writes) > 20
    for stop in range(0, int(writes), 2):
        *found, _ = script(TrainingCluster(nodes=2, gpus=1), stop=stop, after=stop % 4 == 0)
        assert found[-1] == whole[-1], stop
        assert len(found) == len(whole)
