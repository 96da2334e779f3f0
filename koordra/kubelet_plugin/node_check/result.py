"""What a check answers.

A check is a function from the node's readings to an `Outcome`; with the check's name that is a `CheckResult`.
`not-applicable` is the answer where the node lacks what the check is about (a node without GPUs has no MIG
mode), or where nothing about it can be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "problem", "not-applicable"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is not as it has to be, and what to do about it."""

    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """`found` is never empty; `remedy` only where `status` is `problem`."""

    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of the check of that name, as it is reported."""

    name: str
    status: Status
    found: str
    remedy: str


def ok(found: str) -> Outcome:
    return Outcome("ok", found)


def not_applicable(why: str) -> Outcome:
    return Outcome("not-applicable", why)


def problem(what: str, remedy: str) -> Outcome:
    return Outcome("problem", what, remedy)


def judged(found: Iterable[str], faults: Iterable[Fault]) -> Outcome:
    """`problem` with every fault, each remedy once, else `ok` with what was found."""
    facts, wrong = list(found), list(faults)
    if not wrong:
        return ok("; ".join(facts))
    whats = [*(fault.what for fault in wrong), *facts]
    return Outcome("problem", "; ".join(whats), "; ".join(dict.fromkeys(fault.remedy for fault in wrong)))
