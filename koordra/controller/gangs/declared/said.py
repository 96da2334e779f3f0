"""What the members of a gang say together. Pure.

All members say the same, or the gang is refused: nobody can tell which of them is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import whole_number

LONGEST_TIMEOUT: Final = 7 * 24 * 3600.0
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME: Final = re.compile(r"(?:[0-9]{1,9}[smhd])+")
_PART: Final = re.compile(r"([0-9]+)([smhd])")

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
        seconds = None if text is None else seconds_of(text)
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


def seconds_of(text: str) -> float | None:
    """`300`, `90s`, `5m`, `1h30m`; None where it is no time, or too long."""
    spelled, total = f"{text}s" if text.isdecimal() else text, 0.0
    if _TIME.fullmatch(spelled):
        total = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(spelled))
    return total if 0 < total <= LONGEST_TIMEOUT else None
