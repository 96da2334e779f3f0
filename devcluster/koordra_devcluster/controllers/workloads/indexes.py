"""Completion indexes of an Indexed Job, written as `0,2-4,7`. Pure."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count, islice


def parse(text: str) -> set[int]:
    """The numbers of `0,2-4`; "" is none."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def text(numbers: Collection[int]) -> str:
    """Runs of three and more with a dash, as the real controller writes them."""
    parts: list[str] = []
    for first, last in _runs(numbers):
        if first == last:
            parts.append(str(first))
        else:
            parts.append(f"{first}{',' if last == first + 1 else '-'}{last}")
    return ",".join(parts)


def _runs(numbers: Collection[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def lowest_free(taken: Collection[int], wanted: int, below: int) -> list[int]:
    """The lowest numbers under `below` that are not taken, at most `wanted` of them."""
    free = (number for number in count() if number not in taken)
    return [number for number in islice(free, max(0, wanted)) if number < below]
