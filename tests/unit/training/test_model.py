"""The model of TrainingJobs (training_model): schedules that hypothesis draws, and a job's life with the
controller killed at every write in turn."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Explore
from hypothesis import strategies as st

from koordra.controller.training.training_job import Framework, State
from tests.fakes.kube_api import Killed
from tests.unit.training.training_cluster import TrainingCluster
from tests.unit.training.training_model import STEPS, Schedule, members, one_pod_each, play

SCHEDULES = st.builds(
    Schedule,
    frameworks=st.tuples(*[st.sampled_from(list(Framework))] * 2),
    least=st.integers(1, 2),
    nodes=st.integers(1, 2),
    mover=st.booleans(),
    graceful=st.booleans(),
    steps=st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 24)), min_size=5, max_size=25),
)


@pytest.mark.long
@settings(
    max_examples=12,
    deadline=None,
    phases=[Explore.generate],  # an example takes too long to be made smaller
    suppress_health_check=list(HealthCheck),
)
@given(schedule=SCHEDULES)
def test_no_state_is_without_exit_and_no_pod_is_left(schedule: Schedule) -> None:
    play(schedule)


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
            one_pod_each(members(cluster, "a"))
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
