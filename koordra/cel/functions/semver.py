"""Semantic versions 2.0.0 as Kubernetes' CEL library reads and orders them (blang/semver)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_STRICT: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)


class Semver(NamedTuple):
    """Compared as semantic versions are: a release is above its pre-releases, whose numeric identifiers are below words.

    Build metadata takes no part in order or equality, so it is not kept.
    """

    numbers: tuple[int, int, int]
    is_release: bool
    prerelease: tuple[tuple[bool, int, str], ...]
    """Of each identifier whether it is a word, its number, its spelling."""

    @classmethod
    def parse(cls, text: str, *, normalize: bool = False) -> Semver:
        """`normalize` strips a leading v and leading zeros and fills up missing numbers. Raises ValueError."""
        found = _STRICT.fullmatch(_normalized(text) if normalize else text)
        if found is None:
            raise ValueError(f"{text!r} is not a semantic version")
        major, minor, patch, prerelease, _build = found.groups()
        parts = prerelease.split(".") if prerelease else ()
        identifiers = ((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts)
        return cls((int(major), int(minor), int(patch)), not parts, tuple(identifiers))

    def __str__(self) -> str:
        core = ".".join(str(number) for number in self.numbers)
        return core if self.is_release else f"{core}-{'.'.join(part for _, _, part in self.prerelease)}"


def _normalized(text: str) -> str:
    core, mark, rest = re.fullmatch(r"([^-+]*)([-+]?)(.*)", text.removeprefix("v"), re.DOTALL).groups()  # type: ignore[union-attr]
    numbers = [part.lstrip("0") or "0" if part.isdigit() else part for part in core.split(".")]
    # Without all three numbers there can be no pre-release or build part, as in Kubernetes.
    if len(numbers) < 3 and not mark:
        numbers += ["0"] * (3 - len(numbers))
    return ".".join(numbers) + mark + rest
