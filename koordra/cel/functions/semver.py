"""Semantic versions 2.0.0 as Kubernetes' CEL library reads and orders them (blang/semver)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final

_STRICT: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """Build metadata does not take part in order or equality, so it is not kept."""

    numbers: tuple[int, int, int]
    prerelease: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, *, normalize: bool = False) -> Semver:
        """`normalize` strips a leading v and leading zeros and fills up missing numbers. Raises ValueError."""
        spelled = _normalized(text) if normalize else text
        found = _STRICT.fullmatch(spelled)
        if found is None:
            raise ValueError(f"{text!r} is not a semantic version")
        major, minor, patch, prerelease, _build = found.groups()
        return cls((int(major), int(minor), int(patch)), tuple(prerelease.split(".")) if prerelease else ())

    def _order(self) -> tuple[object, ...]:
        # A release is above its pre-releases; numeric identifiers are below words.
        identifiers = tuple(
            (0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.prerelease
        )
        return (self.numbers, not self.prerelease, identifiers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._order() == other._order()

    def __lt__(self, other: Semver) -> bool:
        return self._order() < other._order()

    def __hash__(self) -> int:
        return hash(self._order())

    def __str__(self) -> str:
        core = ".".join(str(number) for number in self.numbers)
        return f"{core}-{'.'.join(self.prerelease)}" if self.prerelease else core


def _normalized(text: str) -> str:
    core, mark, rest = re.fullmatch(r"([^-+]*)([-+]?)(.*)", text.removeprefix("v"), re.DOTALL).groups()  # type: ignore[union-attr]
    numbers = [part.lstrip("0") or "0" if part.isdigit() else part for part in core.split(".")]
    # Without all three numbers there can be no pre-release or build part, as in Kubernetes.
    if len(numbers) < 3 and not mark:
        numbers += ["0"] * (3 - len(numbers))
    return ".".join(numbers) + mark + rest
