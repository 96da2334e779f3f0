"""What discovery could not be certain of, in words that somebody can act on."""

from __future__ import annotations

from dataclasses import dataclass


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
