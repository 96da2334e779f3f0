"""How the requests of a claim are counted under the names of a dialect; quota_charges.py reads them from the claim.

Amounts are totals: memory on each of two cards counts twice, as HAMi counts it. What a claim does not say as an amount (all of a
card's memory, a percentage of it) is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from koordra.compat.settings import Settings


@dataclass(frozen=True, slots=True)
class Part:
    """One request: `memory` in bytes on each device, None where it is all or `percent`; `nic` is percent of each NIC."""

    count: int
    memory: int | None = None
    percent: int | None = None
    cores: int = 0
    profile: str = ""
    mig: bool = False
    nic: int | None = None

    @property
    def whole(self) -> bool:
        return self.memory is None and self.percent is None


Charge = Callable[[Sequence[Part], Settings], int | None]
"""The parts of a claim -> what they amount to. Parts on NICs and MIG instances are among them."""


def _on_cards(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.nic is None]


def count(parts: Sequence[Part], _settings: Settings) -> int:
    return sum(part.count for part in _on_cards(parts))


def whole_cards(parts: Sequence[Part], _settings: Settings) -> int:
    return sum(part.count for part in _on_cards(parts) if part.whole)


def shared_cards(parts: Sequence[Part], _settings: Settings) -> int:
    return sum(part.count for part in _on_cards(parts) if not part.whole)


def cores(parts: Sequence[Part], _settings: Settings) -> int:
    return sum(part.count * part.cores for part in _on_cards(parts))


def compute(parts: Sequence[Part], _settings: Settings) -> int:
    """Percent, where whole cards count 100 each."""
    return sum(
        part.count * (part.cores or (100 if part.whole else 0)) for part in _on_cards(parts) if not part.mig
    )


def percent(parts: Sequence[Part], _settings: Settings) -> int | None:
    cards = _on_cards(parts)
    if any(part.memory is not None for part in cards):
        return None
    return sum(part.count * (100 if part.percent is None else part.percent) for part in cards)


def nics(parts: Sequence[Part], _settings: Settings) -> int:
    """Percent."""
    return sum(part.count * (part.nic or 0) for part in parts)


def memory_in(unit: Callable[[Settings], int], *, of_shares: bool = False) -> Charge:
    """Units, rounded up; None where some part says no amount. `of_shares`: a whole card is asked for without memory."""

    def charged(parts: Sequence[Part], settings: Settings) -> int | None:
        counted = [part for part in _on_cards(parts) if not (of_shares and part.whole)]
        if any(part.memory is None for part in counted):
            return None
        return sum(part.count * -(-(part.memory or 0) // unit(settings)) for part in counted)

    return charged
