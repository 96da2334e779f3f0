"""What one reading of the machine gives: the machine, and what discovery could not be certain of."""

from __future__ import annotations

from dataclasses import dataclass

from koordra.topology.machine import Machine


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One fact that is missing or contradicts another: of which object, which field, what is wrong, what to do."""

    object: str
    field: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.object}: {self.field}: {self.problem}; {self.remedy}"

    def to_dict(self) -> dict[str, str]:
        return {"object": self.object, "field": self.field, "problem": self.problem, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class Discovery:
    """What is there, and what could not be made certain (sorted, without repetitions)."""

    machine: Machine
    problems: tuple[Problem, ...]
