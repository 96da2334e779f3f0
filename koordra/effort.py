"""What a question costs, counted in steps where the work is done, for whoever asked it.

    with counted(selectors=...) as effort:      in here this thread's work counts
        ...
    effort.steps                                how much it was

A step is what trying one placement takes, some tens of microseconds. Selectors are a tenant's programs: what
they may cost together is limited here, by the estimate for each (koordra.cel.cost); the one that goes beyond
is still evaluated, so that who asks again gets on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from koordra.errors import SelectorsCostTooMuch

UNITS: Final = 32
"""Units of CEL's estimate in one step."""


@dataclass(slots=True)
class Effort:
    """`selectors`: units of CEL that are left."""

    selectors: int
    steps: int = 0


_counting: Final[ContextVar[Effort | None]] = ContextVar("effort", default=None)


@contextmanager
def counted(*, selectors: int) -> Iterator[Effort]:
    """`selectors`: units of CEL after which evaluating ends with SelectorsCostTooMuch."""
    effort = Effort(selectors)
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
