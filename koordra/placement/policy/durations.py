"""How long claims have had their devices, by namespace and what they asked for, and what that lets expect of
one that has had them for a while.

Claims of one template ask the same; so do those of templates that say the same, which are counted together.
Lengths are counted in steps of a quarter of an octave, from a second up. Of a claim that has had its devices
for a while those count that had them longer; a quantile of what they had left is expected of it. Of fewer
than ENOUGH nobody knows.

A namespace learns from its own claims alone. Counts of a kind of claim are halved at HORIZON, and where there
are more kinds than MOST_KINDS the one counted least is forgotten, so that nobody who makes up kinds has
others forgotten that are counted more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import floor, log2
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Fields
from koordra.errors import InvalidManifest

ENOUGH: Final = 4
HORIZON: Final = 256
MOST_KINDS: Final = 2048
STEPS: Final = 4
"""In an octave."""
_LAST: Final = 30 * STEPS
"""34 years."""


def kind_of(claim: Fields) -> str:
    """The same for claims of a namespace that ask the same."""
    asked = json.dumps(objects.spec_of(claim).get("devices"), sort_keys=True, separators=(",", ":"))
    return f"{objects.namespace(claim)}/{hashlib.sha256(asked.encode()).hexdigest()[:16]}"


class Durations:
    """Counts by kind and step. `version` goes up with each claim. Not thread-safe."""

    def __init__(self, counts: Mapping[str, Mapping[int, int]] | None = None) -> None:
        self._counts: dict[str, dict[int, int]] = {kind: dict(of) for kind, of in (counts or {}).items()}
        self.version = 0

    def add(self, kind: str, seconds: float) -> None:
        """A claim of the kind had its devices for so long."""
        of = self._counts.setdefault(kind, {})
        step = min(_LAST, floor(STEPS * log2(max(1.0, seconds))))
        of[step] = of.get(step, 0) + 1
        if sum(of.values()) >= HORIZON:
            self._counts[kind] = {known: count // 2 for known, count in of.items() if count > 1}
        if len(self._counts) > MOST_KINDS:
            others = (one for one in self._counts if one != kind)
            del self._counts[min(others, key=lambda one: (sum(self._counts[one].values()), one))]
        self.version += 1

    def resume(self, known: Durations) -> None:
        """Count what is known besides."""
        for kind, of in known._counts.items():
            mine = self._counts.setdefault(kind, {})
            for step, count in of.items():
                mine[step] = mine.get(step, 0) + count

    def number(self, kind: str, elapsed: float = 0.0) -> int:
        """Of claims that had their devices longer."""
        return sum(self._longer(kind, elapsed).values())

    def left(self, kind: str, elapsed: float, quantile: float) -> float | None:
        """Seconds for which a claim of the kind keeps what it has had for `elapsed` seconds: as many of those
        before it as `quantile` says did not keep it longer."""
        longer = self._longer(kind, elapsed)
        total = sum(longer.values())
        if total < ENOUGH:
            return None
        sought, seen = quantile * total, 0
        for step, count in sorted(longer.items()):
            if seen + count >= sought:
                low, high = max(elapsed, 2 ** (step / STEPS)), 2 ** ((step + 1) / STEPS)
                return max(0.0, low + (high - low) * (sought - seen) / count - elapsed)
            seen += count
        return None

    def _longer(self, kind: str, elapsed: float) -> dict[int, int]:
        """Of the step that `elapsed` is in, the part that lies beyond it, rounded up."""
        here = floor(STEPS * log2(max(1.0, elapsed)))
        found = {step: count for step, count in self._counts.get(kind, {}).items() if step >= here}
        if here in found and elapsed > 0:
            low, high = 2 ** (here / STEPS), 2 ** ((here + 1) / STEPS)
            found[here] = round(found[here] * min(1.0, (high - elapsed) / (high - low)))
        return {step: count for step, count in found.items() if count}

    def to_document(self, most: int = MOST_KINDS) -> dict[str, dict[str, int]]:
        """The kinds that are counted most, plain, so that somebody can keep them."""
        ranked = sorted(self._counts, key=lambda kind: (-sum(self._counts[kind].values()), kind))[:most]
        return {
            kind: {str(step): count for step, count in sorted(self._counts[kind].items())}
            for kind in sorted(ranked)
        }

    @classmethod
    def from_document(cls, document: Any) -> Durations:
        """Raises InvalidManifest for what is no such document."""
        try:
            return cls(
                {
                    str(kind): {
                        min(_LAST, max(0, int(step))): max(0, int(count)) for step, count in of.items()
                    }
                    for kind, of in document.items()
                }
            )
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise InvalidManifest(
                f"cannot be read: {error!r}", object="durations", remedy="learn them anew"
            ) from error
