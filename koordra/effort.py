"""What a question costs, counted in steps where the work is done, for whoever asked it.

    with counted(selectors=...) as effort:      in here this thread's work counts
        ...
    effort.steps                                how much it was

    is_spent()                                  whether it was as much as `counted(steps=...)` allows: what
                                                can end early then says Undecided

A step is what trying one placement takes, some tens of microseconds. Selectors are a tenant's programs: what
they may cost together is limited here, by the estimate for each (koordra.cel.cost); the one that goes beyond
is still evaluated, so that who asks again gets on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import Final

from koordra.errors import SelectorsCostTooMuch

UNITS: Final = 32
"""Units of CEL's estimate in one step."""


@dataclass(slots=True)
class Effort:
    """`selectors`: units of CEL that are left; `most`: steps that are allowed."""

    selectors: int
    most: float = inf
    steps: int = 0


_counting: Final[ContextVar[Effort | None]] = ContextVar("effort", default=None)


@contextmanager
def counted(*, selectors: int, steps: float = inf) -> Iterator[Effort]:
    """`selectors`: units of CEL after which evaluating ends with SelectorsCostTooMuch; `steps`: after which
    `is_spent`."""
    effort = Effort(selectors, steps)
    before = _counting.set(effort)
    try:
        yield effort
    finally:
        _counting.reset(before)


def spend(steps: int) -> None:
    """Work of so many steps was done."""
    effort = _counting.get()
    if effort is not None:
        effort.steps += steps


def is_spent() -> bool:
    """Whether the question has cost what it may. Never where nobody counts."""
    effort = _counting.get()
    return effort is not None and effort.steps >= effort.most


def spend_on_selector(units: int) -> None:
    """An expression is about to be compiled or evaluated. Raises SelectorsCostTooMuch where those before it
    have cost enough."""
    effort = _counting.get()
    if effort is None:
        return
    if effort.selectors <= 0:
        raise SelectorsCostTooMuch(
            "the selectors of the claim cost too much to be evaluated for all devices at once; it goes on"
        )
    effort.selectors -= units
    effort.steps += units // UNITS
