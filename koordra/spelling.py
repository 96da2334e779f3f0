"""Which word somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

LONGEST: Final = 100
"""Characters. Comparing costs by their number, and a tenant may write ten thousand where a word belongs."""


def meant(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that is most like it; None where none is (difflib's ratio, `cutoff` or more)."""
    if len(word) > LONGEST:
        return None
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)
