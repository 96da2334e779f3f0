"""Supervision: what dies is started again, what keeps dying is given up, and everything ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.errors import ClusterError
from koordra_devcluster.demo import processes
from koordra_devcluster.demo.processes import ProcessGroup, Program
from tests.patience import PATIENCE


class SleepingGroup(ProcessGroup):
    """Runs `sleep` (or a failing command) in place of koordra's commands."""

    def _command(self, program: Program) -> list[str]:
        return list(program.arguments)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def group(tmp_path: Path, said: list[str]) -> Iterator[SleepingGroup]:
    group = SleepingGroup(tmp_path, say=said.append)
    yield group
    group.stop()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def until_supervised(group: ProcessGroup, name: str, old: int) -> int:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        group.supervise()
        if group.pids()[name] != old:
            return group.pids()[name]
        time.sleep(0.01)
    pytest.fail("was not started again")


def test_a_killed_process_is_started_again(group: SleepingGroup, said: list[str]) -> None:
    group.start(Program("one", ("sleep", "60")))
    first = group.pids()["one"]
    os.kill(first, signal.SIGKILL)
    second = until_supervised(group, "one", first)
    assert not gone(second)
    assert said == ["one ended (signal 9); starting it again"]
    group.stop()
    assert gone(second)


def test_what_keeps_dying_is_given_up_with_its_last_words(
    group: SleepingGroup, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TOO_OFTEN", 3)
    group.start(Program("bad", ("sh", "-c", "echo no such card; echo look; exit 3")))
    deadline = time.monotonic() + PATIENCE
    with pytest.raises(ClusterError, match="bad ended 3 times; its last words are above"):  # noqa: PT012
        while time.monotonic() < deadline:
            group.supervise()
            time.sleep(0.02)
    assert said[-2:] == ["bad said: no such card", "bad said: look"]


def test_deaths_far_apart_do_not_add_up(group: SleepingGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TOO_OFTEN", 2)
    monkeypatch.setattr(processes, "STEADY", 0.0)
    group.start(Program("one", ("sleep", "60")))
    for _ in range(3):
        old = group.pids()["one"]
        os.kill(old, signal.SIGKILL)
        until_supervised(group, "one", old)


def test_who_does_not_listen_is_killed(
    group: SleepingGroup, said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.3)
    deaf = tmp_path / "deaf"
    group.start(Program("deaf", ("sh", "-c", f"trap '' TERM; touch '{deaf}'; while :; do sleep 0.05; done")))
    pid = group.pids()["deaf"]
    deadline = time.monotonic() + PATIENCE
    while not deaf.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    group.stop()
    assert gone(pid)
    assert said == ["deaf did not end in time and was killed"]
