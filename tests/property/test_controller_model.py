"""The controller in a world of its own: random schedules of everything that can happen, replayed from their
seed.

`tests/fakes/model_world` has the world and what must hold. What the controller should have found is judged by
a small exact allocator, in some schedules by the real one. They run on all processors; `python -m tests.soak`
runs many more than these. `KOORDRA_SEED=N` runs one schedule and prints what happened in it.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from koordra.placement import plan
from tests.fakes.model_planner import plan_model
from tests.fakes.model_world import World
from tests.long import mostly_long

SCHEDULES = 2_400
BLOCKS = 20
REAL_SCHEDULES = 100
STEPS = 36
FOUND = (19609, 21209, 29813, 30317, 37835, 41849, 41885, 46280, 56378, 224618, 224733, 254293)
"""Schedules far from the first ones that a soak has found wrong."""
SEED = os.environ.get("KOORDRA_SEED")


def one_schedule(seed: int, *, real: bool = False) -> World:
    world = World(seed, plan if real else plan_model)
    try:
        world.run(STEPS)
        world.become_quiet()
        world.check_quiet()
    except Exception as error:
        how = "KOORDRA_SEED" + ("_REAL" if real else "")
        story = "\n".join(world.trace[-40:])
        raise AssertionError(f"{how}={seed}: {error}\n{story}\n{traceback.format_exc(limit=-6)}") from error
    return world


def one_block(block: int) -> None:
    size = SCHEDULES // BLOCKS
    for seed in range(block * size, (block + 1) * size):
        one_schedule(seed)


@pytest.fixture(scope="module")
def blocks() -> Iterator[list[Future[None]]]:
    """All blocks but the first, under way in one process for each processor."""
    processors = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(processors, mp_context=get_context("spawn")) as pool:
        yield [pool.submit(one_block, block) for block in range(1, BLOCKS)]
        pool.shutdown(cancel_futures=True)


@pytest.mark.skipif(SEED is not None, reason="one seed is replayed")
@pytest.mark.parametrize("block", mostly_long(range(BLOCKS)))
def test_no_schedule_prepares_twice_or_loses_anything(request: pytest.FixtureRequest, block: int) -> None:
    if block == 0:
        one_block(block)
    else:
        request.getfixturevalue("blocks")[block - 1].result()


@pytest.mark.skipif(SEED is not None, reason="one seed is replayed")
@pytest.mark.parametrize("seed", FOUND)
def test_a_schedule_that_was_wrong(seed: int) -> None:
    one_schedule(seed)


@pytest.mark.skipif(SEED is not None, reason="one seed is replayed")
@pytest.mark.parametrize("schedules", mostly_long([range(50), range(50, REAL_SCHEDULES)]), ids=str)
def test_the_same_judged_by_the_real_allocator(schedules: range) -> None:
    for seed in schedules:
        one_schedule(seed, real=True)


@pytest.mark.skipif(SEED is None, reason="KOORDRA_SEED names a schedule to replay")
def test_one_seed() -> None:
    world = one_schedule(int(SEED or 0), real="KOORDRA_SEED_REAL" in os.environ)
    print("\n".join(world.trace))
