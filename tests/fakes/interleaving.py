"""Threads of which one runs at a time, and the schedule says which: at every point where a task calls `pause`
it stops, and the same or another one goes on. They are greenlets: to change from one to another is a call,
not two waits for the kernel.

Code under test meets it in what it is given (a disk, a backend, a source of claims) and in the `threading`
and `time` of its locks, for which `Interleaving` stands in: a task that waits for a lock or sleeps pauses,
and time goes on. A task whose process is killed gets `Killed` where it stands, and again wherever it would
touch something on its way out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from greenlet import getcurrent, greenlet

from tests.fakes.disks import Killed

ENOUGH = 20_000
"""Steps of one task; more are an endless loop."""


@dataclass(eq=False)
class Process:
    """`killed`: nothing of it reaches the world any more."""

    name: str
    killed: bool = False


@dataclass(eq=False)
class Task:
    """`answer` or `error` is what came of it; neither, where its process was killed."""

    name: str
    process: Process
    work: Callable[[], object]
    answer: object = None
    error: Exception | None = None
    is_over: bool = False
    point: str = "start"
    steps: int = 0
    wakes: float = 0.0
    waits: Callable[[], bool] = lambda: False
    """Whether it would only look and go on waiting."""
    thread: greenlet | None = None


class Interleaving:
    """`now`: seconds on the monotonic clock of all processes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tasks: list[Task] = []
        self._current: Task | None = None
        self._schedule = getcurrent()

    def start(self, name: str, process: Process, work: Callable[[], object]) -> Task:
        task = Task(name, process, work)
        task.thread = greenlet(lambda: self._run(task), self._schedule)
        self.tasks.append(task)
        return task

    def go_on(self, task: Task) -> None:
        """To the task's next pause, or its end."""
        task.steps += 1
        task.waits = lambda: False
        assert task.steps < ENOUGH, f"{task.name} does not come to an end at {task.point}"
        self.now = max(self.now, task.wakes)
        self._current = task
        assert task.thread is not None
        task.thread.switch()
        self._current = None
        if task.is_over:
            self.tasks.remove(task)

    def kill(self, process: Process) -> None:
        process.killed = True
        for task in [each for each in self.tasks if each.process is process]:
            while not task.is_over:
                self.go_on(task)

    def pause(self, point: str) -> None:
        """Called by a task, before it does something that others can see. Nothing outside of tasks."""
        task = self._current
        if task is None:
            return
        if task.process.killed:
            raise Killed
        task.point = point
        self._schedule.switch()
        if task.process.killed:
            raise Killed

    def _run(self, task: Task) -> None:
        try:
            if not task.process.killed:
                task.answer = task.work()
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001  the schedule looks at it
            task.error = error
        task.is_over = True

    # --- what stands in for `time` and `threading`

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if self._current is not None:
            self._current.wakes = self.now + seconds
        self.pause("sleep")

    def wait(self, waits: Callable[[], bool]) -> None:
        if self._current is not None:
            self._current.waits = waits
        self.sleep(0.01)

    def Lock(self) -> Lock:
        return Lock(self)


class Lock:
    """Of the threads of one process; a process that is killed takes it along."""

    def __init__(self, interleaving: Interleaving) -> None:
        self._interleaving = interleaving
        self._is_held = False

    def acquire(self, timeout: float = -1.0) -> bool:
        ends = self._interleaving.now + timeout if timeout >= 0.0 else math.inf
        self._interleaving.pause("lock")
        while self._is_held:
            if self._interleaving.now >= ends:
                return False
            self._interleaving.wait(lambda: self._is_held and self._interleaving.now < ends)
        self._is_held = True
        return True

    def release(self) -> None:
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()
