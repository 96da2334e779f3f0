"""Lists of CPUs, and of other numbers, as the kernel writes them: ``"0-55,112-167"``."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_CPUS = 1 << 16


def cpu_numbers(cpus: str) -> list[int]:
    """``"0-2,8"`` -> [0, 1, 2, 8]; nothing for a range that is backwards or absurdly long."""
    numbers: list[int] = []
    for part in filter(None, cpus.split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high < low or high >= _MOST_CPUS:
            return []
        numbers.extend(range(low, high + 1))
    return numbers


def number_ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as the kernel lists CPUs: ``"0,2-33"``."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, ends)) for ends in ranges)
