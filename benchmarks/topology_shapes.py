"""The best GPUs and NICs of a node: a look-up in the shape's table, and the search of large shapes, against trying all choices.

The plain implementation is the objective as its module's text states it, every choice compared (the same that the tests use as
truth), in the same process. It keeps what it has computed about a set of devices, so the second answer is the one measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from koordra.topology.machine import Machine
from koordra.topology.shape_search import ShapeSearch
from koordra.topology.shape_tables import ShapeTables
from koordra.topology.shapes import shape_of_machine
from tests.fakes.best_choice import BestChoice, mask_of, numbers
from tests.machines import catalogue

Question = tuple[int, int, int, int]


def questions(machine: Machine, *, count: int, eligible: int) -> list[Question]:
    """Masks of so many eligible devices of each kind, and two of them asked for."""
    rng = random.Random(7)
    found = []
    for _ in range(count):
        gpus = mask_of(rng.sample(range(len(machine.gpus)), eligible))
        nics = mask_of(rng.sample(range(len(machine.nics)), eligible))
        found.append((gpus, nics, 2, 2))
    return found


def microseconds(answer: Callable[[Question], object], asked: Sequence[Question], *, rounds: int) -> float:
    """For one question; the best of three runs, after one that warms up."""
    best = float("inf")
    for run in range(4):
        began = time.perf_counter()
        for _ in range(rounds):
            for question in asked:
                answer(question)
        taken = (time.perf_counter() - began) / (rounds * len(asked))
        best = min(best, taken) if run else best
    return best * 1e6


def main() -> None:
    small = catalogue.machine("azure-ndv5")
    shape, truth = shape_of_machine(small), BestChoice.of(small)
    began = time.perf_counter()
    tables = ShapeTables(shape)
    built = time.perf_counter() - began
    print(f"  table of 8 GPUs and 8 NICs: built in {built:.2f} s, 1,638,400 answers")
    report("look-up, 6 + 6 of 8 + 8 eligible", tables.best, truth, questions(small, count=20, eligible=6))
    large = catalogue.machine("gpu16-nic16")
    search, truth = ShapeSearch(shape_of_machine(large)), BestChoice.of(large)
    asked = questions(large, count=10, eligible=12)
    report("search, 12 + 12 of 16 + 16 eligible", search.search, truth, asked)
    report("search remembered", search.best, truth, asked)
    whole = (1 << 16) - 1
    taken = microseconds(lambda question: search.search(*question), [(whole, whole, 8, 8)], rounds=3)
    print(f"  search, 8 + 8 of 16 + 16, 165,636,900 choices: {taken / 1000:.1f} ms")


def report(
    title: str, best: Callable[[int, int, int, int], object], truth: BestChoice, asked: Sequence[Question]
) -> None:
    for question in asked:
        gpus, nics, level = truth.best(numbers(question[0]), numbers(question[1]), *question[2:])
        assert best(*question) == (mask_of(gpus), mask_of(nics), level)

    def plain(question: Question) -> object:
        return truth.best(numbers(question[0]), numbers(question[1]), *question[2:])

    ours = microseconds(lambda question: best(*question), asked, rounds=20)
    theirs = microseconds(plain, asked, rounds=1)
    print(f"  {title}: {ours:.2f} us, trying all {theirs:.0f} us, ratio {theirs / ours:.0f}")
