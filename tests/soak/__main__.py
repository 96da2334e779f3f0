"""Run schedules of the models, and add what came of them to benchmarks/results/model-soak.md.

    python -m tests.soak --schedules 100000                       what `make soak` does
    python -m tests.soak --schedules 1000000 --only controller --from 200000

So many schedules of each model are run, with seeds that follow each other: the first is `--from`, or drawn
and printed. A violation is told with its seed, written down, and the run goes on. The result is rewritten
every minute, so that a run that is stopped (SIGTERM, SIGINT) leaves what it has done; what earlier runs did
stays, each with its commit. Exit code 1 where anything was violated.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks import _results
from koordra import logs
from koordra.topology.machine import Machine
from tests.fakes import hand_over_world, mig_world, nvml_library, prepare_world, watch_world
from tests.fakes.model_wire import Faults
from tests.property import test_controller_model, test_forecast_model, test_gang_model

ROOT: Final = Path(__file__).parents[2]
EVERY: Final = 60.0
"""Seconds between two writes of the result."""
MOST_TOLD: Final = 50


def _watches(seed: int) -> Faults:
    return watch_world.one_schedule(seed).faults


def _controller(seed: int) -> Faults:
    return test_controller_model.one_schedule(seed).faults


def _gangs(seed: int) -> Faults:
    return test_gang_model.one_schedule(seed).faults


def _forecast(seed: int) -> Faults:
    return test_forecast_model.one_case(seed)


def _prepare(seed: int) -> Faults:
    return prepare_world.one_schedule(seed).faults


@cache
def _machine() -> Machine:
    with TemporaryDirectory() as root:
        return hand_over_world.small_machine(Path(root) / "machine")


def _hand_over(seed: int) -> Faults:
    with TemporaryDirectory() as folder:
        return hand_over_world.one_schedule(seed, Path(folder), _machine()).faults


_nvml = cache(nvml_library.build)


def _mig(seed: int) -> Faults:
    with TemporaryDirectory() as folder:
        return mig_world.one_schedule(seed, Path(folder), _nvml(), turns=8)


MODELS: Final[dict[str, Callable[[int], Faults]]] = {
    "watches": _watches,
    "controller": _controller,
    "gangs": _gangs,
    "forecast": _forecast,
    "prepare": _prepare,
    "hand-over": _hand_over,
    "mig": _mig,
}


@dataclass
class Run:
    """What has been done of one model at one commit, from the seed `first` on."""

    model: str
    commit: str
    first: int
    schedules: int = 0
    seconds: float = 0.0
    """Of the processor."""
    violations: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)

    def one(self, seed: int) -> None:
        began = time.process_time()
        try:
            drawn = MODELS[self.model](seed).drawn
        except AssertionError as error:
            told = f"{seed}: {str(error).partition(chr(10))[0]}"
            print(f"{self.model} {told}", flush=True)
            self.violations.append(told)
        else:
            self.faults = dict(Counter(self.faults) + drawn)
        self.schedules += 1
        self.seconds = round(self.seconds + time.process_time() - began, 3)


def commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    changed = git("status", "--porcelain", "--untracked-files=no").strip()
    return git("rev-parse", "--short=12", "HEAD").strip() + (" with changes" if changed else "")


def earlier(name: str) -> list[Run]:
    """The runs that the result has so far."""
    file = _results.FOLDER / f"{name}.json"
    return [Run(**each) for each in json.loads(file.read_text())["runs"]] if file.exists() else []


def write(name: str, runs: Sequence[Run]) -> None:
    lines = [
        "# Schedules of the models",
        "What `python -m tests.soak` has run, each run with its commit; `make soak` adds 100,000 schedules of each",
        "model. Seconds are of a processor that others used as well. A violation was a defect of the commit at which",
        "it was found, in koordra or in the model; its seed is a test since (in",
        "tests/property/test_controller_model.py, test_forecast_model.py, test_gang_model.py, test_prepare_model.py).",
        "",
        _results.table(
            ("model", "commit", "from seed", "schedules", "violations", "processor seconds"),
            [
                (run.model, run.commit, run.first, run.schedules, len(run.violations), round(run.seconds))
                for run in runs
            ],
        ),
    ]
    for model in MODELS:
        own = [run for run in runs if run.model == model]
        faults: Counter[str] = sum((Counter(run.faults) for run in own), Counter())
        lines += ["", f"## {model}", "", f"{sum(run.schedules for run in own)} schedules.", ""]
        lines += [f"- {run.commit}: {told}" for run in own for told in run.violations[:MOST_TOLD]]
        lines += ["", _results.table(("fault", "times"), sorted(faults.items()))]
    _results.write(name, {"runs": [_document(run) for run in runs]}, "\n".join(lines))


def _document(run: Run) -> dict[str, Any]:
    return {**asdict(run), "faults": dict(sorted(run.faults.items())), "seconds": round(run.seconds)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--schedules", type=int, default=100_000, help="of each model")
    parser.add_argument("--from", type=int, dest="first", help="the first seed; drawn and printed without")
    parser.add_argument("--only", choices=sorted(MODELS), help="one model")
    parser.add_argument("--name", default="model-soak", help="of the result")
    given = parser.parse_args()
    logs.configure(level="critical")
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stopped.append(number))
    drawn = int.from_bytes(os.urandom(4), "big") * 1_000_000
    first, code = drawn if given.first is None else given.first, commit()
    before = earlier(given.name)
    runs = [Run(model, code, first) for model in MODELS if given.only in (None, model)]
    print(f"{given.schedules} schedules of each model from seed {first} on, commit {code}", flush=True)
    gc.freeze()  # what has been imported is no schedule's
    gc.set_threshold(100_000)  # nor are worlds worth looking for before some have ended
    due = time.monotonic() + EVERY
    for seed in range(first, first + given.schedules):
        for run in runs:
            run.one(seed)
        if time.monotonic() >= due:
            write(given.name, [*before, *runs])
            due = time.monotonic() + EVERY
        if stopped:
            break
    for run in runs:
        rate = run.schedules / run.seconds * 60 if run.seconds else 0.0
        print(
            f"{run.model}: {run.schedules} schedules, {len(run.violations)} violations, {rate:.0f} a minute"
        )
    write(given.name, [*before, *runs])
    return int(any(run.violations for run in runs))


if __name__ == "__main__":
    sys.exit(main())
