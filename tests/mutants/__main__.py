"""`make mutants`: every named mutant and a seeded sample of the others (`--all`: all); the last line is the
verdict.

Ends 1 if fewer than 90 % die, or if one lives without a reason in benchmarks/results/mutants.md.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.areas import AREAS, files
from tests.mutants.judge import Judge, Verdict
from tests.mutants.named import is_named, named
from tests.mutants.operators import Mutant, mutants

REASONS: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "mutants.md"
LEAST: Final = 0.9
SUITE: Final = "not e2e and not cluster and not slow and not long"


class Run:
    """What the judge is asked, and what it says."""

    def __init__(self, options: argparse.Namespace) -> None:
        areas = [options.area] if options.area else list(AREAS)
        self._files = {module: path for area in AREAS for module, path in files(area).items()}
        self._trees = {module: ast.parse(path.read_text()) for module, path in self._files.items()}
        every = [
            mutant
            for area in areas
            for module in files(area)
            for mutant in mutants(area, module, self._trees[module])
        ]
        counted: Counter[str] = Counter()
        for mutant in every:
            name = mutant.name  # as long as it has no number
            mutant.number = counted[name]
            counted[name] += 1
        every.sort(key=lambda mutant: mutant.rank(options.seed))
        others = [mutant for mutant in every if not is_named(mutant)]
        self._named = [mutant for mutant in named() if mutant.area in areas] + list(filter(is_named, every))
        self._asked = [*self._named, *(others if options.all else others[: options.sample])]
        self._every = len(every)
        self.judge = Judge([str(path) for path in self._files.values()], options.jobs, self.ask)
        self.summary, self.code = "mutants: the tests could not be collected", 1

    def ask(self) -> None:
        started = time.monotonic()
        self.judge.measure()
        print(f"measured: {len(self.judge.seconds)} tests in {time.monotonic() - started:.0f} s", flush=True)
        tests = [self.judge.chosen(self._lines(mutant)) for mutant in self._asked]
        if any(
            verdict is not Verdict.LIVES
            for _, verdict in self.judge.judge([None] * len(tests[:8]), tests[:8])
        ):
            self.summary = "mutants: tests fail though nothing was changed; see make test"
            return
        why, reasonless = reasons(), 0
        died, lived, named_lived = Counter[str](), Counter[str](), 0
        for at, verdict in self.judge.judge(self._asked, tests):
            mutant = self._asked[at]
            died[mutant.area] += verdict is Verdict.DIES
            lived[mutant.area] += verdict is Verdict.LIVES
            if verdict is Verdict.LIVES:
                named_lived += at < len(self._named) and mutant.name not in why
                reasonless += mutant.name not in why
                reason = why.get(mutant.name, f"no reason is written down; {len(tests[at])} tests run it")
                print(f"- {mutant.name}\n  {mutant.module}:{mutant.lines.start}: {reason}", flush=True)
        for area in AREAS:
            if died[area] + lived[area]:
                print(f"{area}: {died[area]} of {died[area] + lived[area]} died")
        share = died.total() / max(1, died.total() + lived.total())
        self.summary = (
            f"mutants: {died.total()} of {died.total() + lived.total()} died ({share:.1%}; there are {self._every}); "
            f"{named_lived} of {len(self._named)} named ones live; {reasonless} live without a reason; "
            f"{(time.monotonic() - started) / 60:.1f} minutes"
        )
        self.code = int(named_lived > 0 or reasonless > 0 or share < LEAST)

    def _lines(self, mutant: Mutant) -> list[tuple[str, int]]:
        """Where tests may notice: the changed lines; for a constant, every line that reads it."""
        if mutant.constant is None:
            return [(str(self._files[mutant.module]), line) for line in mutant.lines]
        return [
            (str(self._files[module]), node.lineno)
            for module, tree in self._trees.items()
            for node in ast.walk(tree)
            if isinstance(node, (ast.Name, ast.Attribute))
            and mutant.constant == (node.id if isinstance(node, ast.Name) else node.attr)
        ]


def reasons() -> dict[str, str]:
    """Mutant -> why it may live: in REASONS a line `- name`, and the indented lines after it."""
    found: dict[str, str] = {}
    name = ""
    for line in REASONS.read_text().splitlines() if REASONS.exists() else ():
        if line.startswith("- "):
            name = line[2:]
        elif line.startswith("  ") and name:
            found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Do the tests notice small errors?"
    )
    parser.add_argument("--sample", type=int, default=400, help="how many besides the named ones")
    parser.add_argument("--all", action="store_true", help="every mutant there is")
    parser.add_argument("--seed", type=int, default=17, help="which sample")
    parser.add_argument("--area", choices=AREAS, help="only this one")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("tests", nargs="*", default=["tests"], help="only these files and folders of tests")
    options = parser.parse_args()
    run = Run(options)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "-m",
            SUITE,
            "-s",
            "-p",
            "no:cacheprovider",
            "--hypothesis-profile=mutants",
            f"--basetemp={folder}/t",
        ]
        pytest.main([*options.tests, *arguments], plugins=[run.judge])
    print(run.summary)
    return run.code


if __name__ == "__main__":
    sys.exit(main())
