"""Time by samples: against a card that works as somebody says, sampled as a driver does it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.sampling.device_time import PERIODS, SILENCE, CardClock, SeenTime, seen_time
from koordra.kubelet_plugin.sampling.nvml_cards import Utilisation

EPOCH = 1_700_000_000_000_000
"""Drivers stamp in microseconds of the wall clock."""


@dataclass
class Driver:
    """Samples each process every `period` us, and keeps the last samples. `loads`: the part of the time in
    which kernels of a pid run."""

    period: int
    loads: dict[int, float] = field(default_factory=dict)
    at: int = EPOCH
    kept: list[Utilisation] = field(default_factory=list)
    clock: CardClock = field(default_factory=CardClock)
    counted: dict[int, int] = field(default_factory=dict)
    began: int = 0

    def run(self, us: int) -> None:
        for stamp in range(self.at - self.at % self.period + self.period, self.at + us + 1, self.period):
            self.kept += [
                Utilisation(pid, stamp, round(100 * load)) for pid, load in self.loads.items() if load
            ]
        self.at += us

    def ask(self, *, newest: bool = True) -> SeenTime | None:
        """`newest`: the driver tells one sample of each process, as most do; else all."""
        since = self.clock.question
        there = [each for each in self.kept if each.at > since]
        last = {each.pid: each for each in there}
        self.clock, seen = seen_time(
            self.clock, list(last.values()) if newest else there, now=(self.at - EPOCH) / 1e6
        )
        for pid, ns in seen.ns.items() if seen else ():
            self.counted[pid] = self.counted.get(pid, 0) + ns
        self.began += seen.began if seen else 0
        return seen


@given(
    period=st.sampled_from([166_667, 250_000, 1_000_000]),
    pauses=st.lists(st.integers(50_000, 1_500_000), min_size=20, max_size=60),
    load=st.integers(1, 100).map(lambda percent: percent / 100),
    newest=st.booleans(),
)
def test_time_is_what_it_was_at_whatever_pace_it_is_asked(
    period: int, pauses: list[int], load: float, newest: bool
) -> None:
    driver = Driver(period, {1: load, 2: 0.0})
    driver.run(2 * period)
    driver.ask(newest=newest)
    assert not driver.counted, "what was before is not counted"
    started = driver.clock.since
    for pause in pauses:
        driver.run(pause)
        driver.ask(newest=newest)
    wanted = load * (driver.clock.since - started) * 1000
    assert abs(driver.counted.get(1, 0) - wanted) <= wanted * 0.001 + 1
    assert 2 not in driver.counted


def test_idle_time_is_nobodys() -> None:
    driver = Driver(PERIODS[0], {1: 1.0})
    driver.run(1_000_000)
    driver.ask()
    driver.run(200_000)
    driver.ask()
    driver.loads, before = {}, dict(driver.counted)
    for _ in range(100):
        driver.run(100_000)
        driver.ask()
    driver.loads = {1: 1.0}
    driver.run(200_000)
    driver.ask()
    assert 0 < driver.counted[1] - before[1] <= 3.1 * PERIODS[0] * 1000, "ten seconds of nothing do not count"


def test_samples_that_were_lost_are_as_the_newest() -> None:
    driver = Driver(PERIODS[0], {1: 0.5})
    driver.run(1_000_000)
    driver.ask()
    driver.run(5_000_000)
    driver.ask()
    assert abs(driver.counted[1] - 2.5e9) < 0.1e9
    driver.run(60_000_000)
    driver.ask()
    assert driver.counted[1] < 2.6e9 + 5e9, "but a sample stands for ten seconds at most"


def test_each_process_has_its_own() -> None:
    driver = Driver(PERIODS[0], {1: 0.3, 2: 0.7})
    driver.run(1_000_000)
    driver.ask()
    for _ in range(50):
        driver.run(100_000)
        driver.ask()
    assert abs(driver.counted[1] / driver.counted[2] - 3 / 7) < 0.001


def test_a_clock_that_was_set_back_is_noticed() -> None:
    driver = Driver(PERIODS[0], {1: 0.5})
    driver.run(1_000_000)
    driver.ask()
    driver.kept.clear()
    driver.at -= 3600 * 1_000_000
    now = 1.0
    answers = []
    while now < SILENCE + 5:
        now += 0.1
        driver.run(100_000)
        there = {each.pid: each for each in driver.kept if each.at > driver.clock.question}
        driver.clock, seen = seen_time(driver.clock, there.values(), now=now)
        answers.append(seen)
    began = [each for each in answers if each and each.began]
    assert len(began) == 1
    assert answers[-1] or answers[-2], "and goes on from there"
    assert driver.clock.since <= driver.at
    assert sum(each.ns[1] for each in answers if each and not each.began) < 5e9


@pytest.mark.parametrize("samples", [[], [Utilisation(1, 0, 50)]])
def test_nothing_new_is_nothing(samples: list[Utilisation]) -> None:
    clock = CardClock(since=5, asked=1.0, answered=1.0)
    after, seen = seen_time(clock, samples, now=2.0)
    assert seen is None or seen.began
    assert after.asked == 2.0
