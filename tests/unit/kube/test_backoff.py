"""How long loops wait after failures."""

from __future__ import annotations

import pytest

from koordra.process.backoff import Backoff


def test_pauses_double_up_to_the_bound_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(longest=1.0, draw=lambda: 0.5)
    assert [backoff.next() for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.failures == 5
    backoff.reset()
    assert backoff.next() == 0.2


@pytest.mark.parametrize(("drawn", "pause"), [(0.0, 0.1), (0.75, 0.25)])
def test_each_pause_is_drawn_between_half_and_one_and_a_half_of_it(drawn: float, pause: float) -> None:
    assert Backoff(draw=lambda: drawn).next() == pytest.approx(pause)


def test_no_two_loops_wait_alike() -> None:
    assert len({Backoff().next() for _ in range(20)}) > 10


def test_a_loop_that_has_failed_for_days_still_waits_for_half_a_minute() -> None:
    backoff = Backoff(draw=lambda: 0.5)
    backoff.failures = 1_000_000
    assert backoff.next() == 30.0
