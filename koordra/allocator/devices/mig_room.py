"""What can be had at once of a card's MIG devices that are free each by itself: they overlap, so that their
amounts do not add up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from koordra.allocator.devices.pools import PublishedDevice

_SLICE: Final = re.compile(r"memory-slice-(\d+)")


def card_and_places(one: PublishedDevice) -> tuple[str, int, int] | None:
    """Its card's counter set, the first memory slice that it takes, and the one after the last; None of one
    that takes none."""
    found = [
        (card, int(match[1]))
        for card, counter in one.device.counters
        if (match := _SLICE.fullmatch(counter)) is not None
    ]
    if not found:
        return None
    places = [place for _, place in found]
    return found[0][0], min(places), max(places) + 1


def most_at_once(parts: Iterable[tuple[int, int, int]]) -> int:
    """Of (first slice, the one after the last, amount), the largest sum of amounts without two that
    overlap. The engines that instances take besides are not counted."""
    of_end: dict[int, list[tuple[int, int]]] = {}
    for start, end, amount in parts:
        of_end.setdefault(end, []).append((start, amount))
    best = [0]
    for end in range(1, max(of_end, default=0) + 1):
        best.append(max([best[-1], *(best[start] + amount for start, amount in of_end.get(end, ()))]))
    return best[-1]
