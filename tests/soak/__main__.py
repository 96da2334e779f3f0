"""Run schedules of the models and write what came of them to benchmarks/results/model-soak.md.

    python -m tests.soak --schedules 100000                   what `make soak` does
    python -m tests.soak --schedules 1000000 --from 0 --name model-soak-million

So many schedules of each model are run, with seeds that follow each other: the first is `--from`, or drawn
and printed. A violation is told with its seed, written down, and the run goes on. The result is rewritten
every minute, so that a run that is stopped (SIGTERM, SIGINT) leaves what it has done. Exit code 1 where
anything was violated.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import _results
from koordra import logs
from tests.fakes import prepare_world, watch_world
from tests.fakes.model_wire import Faults
from tests.property import test_controller_model

ROOT: Final = Path(__file__).parents[2]
EVERY: Final = 60.0
"""Seconds between two writes of the result."""


def _watches(seed: int) -> Faults:
    return watch_world.one_schedule(seed).faults


def _controller(seed: int) -> Faults:
    return test_controller_model.one_schedule(seed).faults


def _prepare(seed: int) -> Faults:
    return prepare_world.one_schedule(seed).faults


MODELS: Final[dict[str, Callable[[int], Faults]]] = {
    "watches": _watches,
    "controller": _controller,
    "prepare": _prepare,
}


@dataclass
class Run:
    """What has been done of one model."""

    schedules: int = 0
    cpu_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def one(self, model: str, seed: int) -> None:
        began = time.process_time()
        try:
            self.faults += MODELS[model](seed).drawn
        except AssertionError as error:
            told = f"{model} {seed}: {str(error).partition(chr(10))[0]}"
            print(told, flush=True)
            self.violations.append(told)
        self.schedules += 1
        self.cpu_seconds += time.process_time() - began


def commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    changed = git("status", "--porcelain", "--untracked-files=no").strip()
    return git("rev-parse", "--short=12", "HEAD").strip() + (" with changes" if changed else "")


def write(name: str, runs: dict[str, Run], *, first: int, asked: int, code: str) -> None:
    lines = [
        "# Schedules of the models",
        f"Commit {code}; of each model {asked} schedules were asked for, from seed {first} on. Seconds are of one",
        "processor that others used as well.",
        "",
        _results.table(
            ("model", "schedules", "violations", "faults", "processor seconds"),
            [
                (model, run.schedules, len(run.violations), run.faults.total(), round(run.cpu_seconds))
                for model, run in runs.items()
            ],
        ),
    ]
    for model, run in runs.items():
        faults = [(kind, count) for kind, count in sorted(run.faults.items())]
        lines += ["", f"## {model}", "", *(f"- {each}" for each in run.violations[:50]), ""]
        lines += [_results.table(("fault", "times"), faults)]
    document = {
        "commit": code,
        "first": first,
        "asked": asked,
        "models": {
            model: {
                "schedules": run.schedules,
                "seconds": round(run.cpu_seconds),
                "violations": run.violations[:50],
                "faults": dict(sorted(run.faults.items())),
            }
            for model, run in runs.items()
        },
    }
    _results.write(name, document, "\n".join(lines))


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
    runs = {model: Run() for model in MODELS if given.only in (None, model)}
    print(f"{given.schedules} schedules of each model from seed {first} on, commit {code}", flush=True)
    due = time.monotonic() + EVERY
    for seed in range(first, first + given.schedules):
        for model, run in runs.items():
            run.one(model, seed)
        if time.monotonic() >= due:
            write(given.name, runs, first=first, asked=given.schedules, code=code)
            due = time.monotonic() + EVERY
        if stopped:
            break
    for model, run in runs.items():
        rate = run.schedules / run.cpu_seconds * 60 if run.cpu_seconds else 0.0
        print(f"{model}: {run.schedules} schedules, {len(run.violations)} violations, {rate:.0f} a minute")
    write(given.name, runs, first=first, asked=given.schedules, code=code)
    return int(any(run.violations for run in runs.values()))


if __name__ == "__main__":
    sys.exit(main())
