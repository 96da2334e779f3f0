"""What a reading of a machine gives: the machine, and the problems that it could not resolve."""

from __future__ import annotations

from dataclasses import dataclass

from koordra.topology.machine import Machine


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A fact that is missing or contradicts another: the object, the field, what is wrong, and the remedy."""

    object: str
    field: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.object}: {self.field}: {self.problem}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Discovery:
    """`problems` are sorted and unique."""

    machine: Machine
    problems: tuple[Problem, ...] = ()
