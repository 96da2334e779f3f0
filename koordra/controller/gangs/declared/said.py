"""What the members of a gang say together. Pure.

All members say the same, or the gang is refused: nobody can tell which of them is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import whole_number
from koordra.quantity import seconds_of

LONGEST_TIMEOUT: Final = 7 * 24 * 3600.0

_Word = TypeVar("_Word", bound=StrEnum)
_Read = Callable[[Object], Mapping[str, str]]


@dataclass(slots=True)
class Said:
    """What the members say together; `problems`: what cannot be meant."""

    pods: list[Object]
    problems: list[str]

    def text(self, name: str, of: _Read = objects.annotations_of) -> str | None:
        """What all agree on, None where nobody says anything."""
        said = sorted({str(value) for pod in self.pods if (value := of(pod).get(name)) is not None})
        if len(said) > 1:
            self.problems.append(f"its members disagree about {name}: {', '.join(said)}")
        return said[0] if said else None

    def number(self, name: str, of: _Read = objects.annotations_of) -> int | None:
        text = self.text(name, of)
        number = None if text is None else whole_number(text)
        if text is not None and not 0 < (number or 0) <= 100_000:
            self.problems.append(f"{name} is {text[:40]!r}: write a number from 1 on")
            return None
        return number

    def seconds(self, name: str) -> float | None:
        text = self.text(name)
        seconds = None if text is None else seconds_of(text, longest=LONGEST_TIMEOUT)
        if text is not None and seconds is None:
            self.problems.append(
                f"{name} is {text[:40]!r}: write a time such as 300s, 5m or 1h30m, 7 days at most"
            )
        return seconds

    def word(self, name: str, words: type[_Word]) -> _Word | None:
        text = self.text(name)
        if text is None or text in list(words):
            return None if text is None else words(text)
        self.problems.append(f"{name} is {text[:40]!r}: write {' or '.join(words)}")
        return None
