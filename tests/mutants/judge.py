"""One pytest session, collected once: coverage tells which tests run which lines, and a fork for each mutant
runs those.

measure    all tests, in forks that share them out by file, with coverage of the judged files; a test that
           fails, or may have a second try, judges nobody
judge      a fork per mutant: the changed function gets its code in place, wherever it has been imported to (a
           constant is put into every module that has it); then the tests that run a changed line, the fastest
           case of each test function first, until one fails
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

import coverage
import pytest

from koordra.api.tables import SizedCache
from tests.mutants.operators import Mutant, definitions

BUDGET: Final = 10.0
"""Seconds of CPU time that the tests of one mutant take without it."""

Line = tuple[str, int]


class Verdict(IntEnum):
    """How the process of a mutant ends."""

    LIVES = 0
    DIES = 1
    DOES_NOT_FIT = 2


class Judge:
    """A plugin of pytest: collects as usual; in place of the tests, `task` runs."""

    def __init__(self, files: Sequence[str], jobs: int, task: Callable[[], None]) -> None:
        self._files, self._jobs, self._task = files, jobs, task
        self._items: dict[str, pytest.Item] = {}
        self._failed = False
        self.seconds: dict[str, float] = {}
        self._tests: defaultdict[Line, set[str]] = defaultdict(set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.get_closest_marker("second_try") is None]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        session.config._tmp_path_factory.getbasetemp()  # one for all forks
        gc.freeze()
        self._task()
        return True

    def _runs(self, tests: Sequence[str], before: Callable[[str], None] = id) -> Iterator[tuple[str, bool]]:
        """Each test, and whether it passes; `before` each its name is called."""
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True) if items else ():
            before(item.nodeid)
            self._failed = False
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item.nodeid, not self._failed

    def measure(self) -> None:
        by_file: defaultdict[Path, list[str]] = defaultdict(list)
        for test, item in self._items.items():
            by_file[item.path].append(test)
        shares: list[list[str]] = [[] for _ in range(8 * self._jobs)]
        for at, of_file in enumerate(by_file.values()):
            shares[at % len(shares)] += of_file
        with tempfile.TemporaryDirectory() as folder:
            works = [
                functools.partial(self._measured, share, Path(folder, str(at)))
                for at, share in enumerate(shares)
            ]
            for at, status in self._forks(works, limit=1800.0):
                if status:
                    raise RuntimeError(f"tests could not be measured ({status}), share {at}")
                seconds, lines = pickle.loads(Path(folder, str(at)).read_bytes())
                self.seconds |= seconds
                for line, tests in lines.items():
                    self._tests[line] |= tests

    def _measured(self, tests: Sequence[str], to: Path) -> int:
        measuring = coverage.Coverage(data_file=None, include=self._files)
        measuring.set_option("run:disable_warnings", ["no-data-collected"])
        seconds: dict[str, float] = {}
        lines: dict[Line, set[str]] = {}
        measuring.start()
        last = sum(os.times()[:4])
        for test, passes in self._runs(tests, measuring.switch_context):
            now = sum(os.times()[:4])
            if passes:
                seconds[test] = now - last
            last = now
        measuring.stop()
        for file in measuring.get_data().measured_files():
            for line, found in measuring.get_data().contexts_by_lineno(file).items():
                lines[file, line] = set(found) & set(seconds)
        to.write_bytes(pickle.dumps((seconds, lines)))
        return 0

    def chosen(self, lines: Iterable[Line]) -> list[str]:
        """The tests that run one of these lines: of each test function the fastest case first, within the
        budget."""
        cases: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        for test in set[str]().union(*(self._tests[line] for line in lines)):
            cases[test.partition("[")[0]].append((self.seconds[test], test))
        order = sorted((turn, *case) for one in cases.values() for turn, case in enumerate(sorted(one)))
        picked: list[str] = []
        spent = 0.0
        for _, seconds, test in order:
            if not picked or spent + seconds <= BUDGET:
                picked.append(test)
                spent += seconds
        return picked

    def judge(
        self, mutants: Sequence[Mutant | None], tests: Sequence[list[str]]
    ) -> Iterator[tuple[int, Verdict]]:
        """Number and verdict of each mutant, as they end. Without a mutant (None) all tests must pass."""
        works = [functools.partial(self._judged, *case) for case in zip(mutants, tests, strict=True)]
        for at, status in self._forks(works, limit=20.0 * BUDGET):
            code = os.waitstatus_to_exitcode(status)
            yield at, Verdict(code) if code in set(Verdict) else Verdict.DIES  # out of time

    def _judged(self, mutant: Mutant | None, tests: Sequence[str]) -> int:
        if mutant is not None:
            try:
                _put_in_place(mutant)
            except ValueError:  # the function no longer reads the same names around it
                return Verdict.DOES_NOT_FIT
        resource.setrlimit(resource.RLIMIT_CPU, (int(4 * BUDGET), int(4 * BUDGET)))
        return Verdict.LIVES if all(passes for _, passes in self._runs(tests)) else Verdict.DIES

    def _forks(self, works: Sequence[Callable[[], int]], *, limit: float) -> Iterator[tuple[int, int]]:
        """Each in a process of its own, as many at once as there are jobs: number, and how it ended."""
        waiting = list(enumerate(works))[::-1]
        running: dict[int, tuple[int, float]] = {}
        while waiting or running:
            while waiting and len(running) < self._jobs:
                at, work = waiting.pop()
                running[_fork(work)] = (at, time.monotonic() + limit)
            process, status = os.waitpid(-1, os.WNOHANG)
            if process in running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process, signal.SIGKILL)  # what it has started
                yield running.pop(process)[0], status
            elif not process:
                time.sleep(0.005)
                for late, (_, end) in running.items():
                    if time.monotonic() > end:
                        os.kill(late, signal.SIGKILL)


def _fork(work: Callable[[], int]) -> int:
    process = os.fork()
    if process:
        return process
    code = int(Verdict.DIES)
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        code = work()
    finally:
        os._exit(code)


def _put_in_place(mutant: Mutant) -> None:
    """Swap the code of the module's living functions for the mutant's, and forget what they have
    remembered."""
    module = sys.modules[mutant.module]
    tree = mutant.applied()
    if mutant.constant is not None:
        _rebind(module, tree, mutant.constant)
    made = functions(compile(tree, str(module.__file__), "exec"))
    gc.unfreeze()
    for one in gc.get_objects():
        if isinstance(one, functools._lru_cache_wrapper):
            one.cache_clear()
        elif isinstance(one, SizedCache):
            one.clear()
        elif isinstance(one, types.FunctionType) and one.__code__.co_filename == module.__file__:
            code = made.get((one.__code__.co_qualname, one.__code__.co_firstlineno))
            if code is not None and differ(code, one.__code__):
                one.__code__ = code


def differ(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether they do something else, wherever they stand. A call of another function is another name."""
    return (one.co_code, one.co_consts, one.co_names) != (other.co_code, other.co_consts, other.co_names)


def functions(code: types.CodeType) -> dict[tuple[str, int], types.CodeType]:
    """By name and first line."""
    return {(found.co_qualname, found.co_firstlineno): found for found in _codes(code)}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _rebind(module: types.ModuleType, tree: ast.Module, constant: str) -> None:
    """Run the statement of a constant anew, and those of constants made of it, and put them where the old
    ones were."""
    changed, names = {constant}, dict(vars(module))
    for name, statement, of in definitions(tree.body):
        read = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        if of is not None and (name in changed or read & changed):
            exec(compile(ast.Module([statement], []), str(module.__file__), "exec"), names)
            changed.add(name)
    old = {name: vars(module)[name] for name in changed}
    for other in [*sys.modules.values()]:
        for name in changed & vars(other).keys():
            if vars(other)[name] is old[name]:
                setattr(other, name, names[name])
