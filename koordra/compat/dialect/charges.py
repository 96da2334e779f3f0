"""How the requests of a claim are counted under the names of a dialect; quota_charges.py reads them from the
claim.

Amounts are totals: memory on each of two cards counts twice, as HAMi counts it. What a claim does not say as
an amount (all of a card's memory, a percentage of it, TFLOPS) is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from koordra.compat.normalized_request import Share
from koordra.compat.settings import Settings


class Charged(NamedTuple):
    """The shares of a claim, MIG instances among them, its NICs, and percent of NICs."""

    settings: Settings
    shares: Sequence[Share]
    nics: int = 0
    nic_percent: int = 0


Charge = Callable[[Charged], int | None]
"""A claim -> what it amounts to."""


def summed(of_a_card: Callable[[Share], int | None]) -> Charge:
    """Over all cards of the claim; None where some share says no amount."""

    def charged(claim: Charged) -> int | None:
        total = 0
        for share in claim.shares:
            amount = of_a_card(share)
            if amount is None:
                return None
            total += share.count * amount
        return total

    return charged


def _compute(share: Share) -> int | None:
    if share.tflops:
        return None
    return 0 if share.mig else share.cores or (100 if share.memory.whole else 0)


def _percent(share: Share) -> int | None:
    if share.memory.bytes is not None:
        return None
    return 100 if share.memory.percent is None else share.memory.percent


count: Final = summed(lambda share: 1)
whole_cards: Final = summed(lambda share: int(share.memory.whole))
shared_cards: Final = summed(lambda share: int(not share.memory.whole))
cores: Final = summed(lambda share: None if share.tflops else share.cores)
compute: Final = summed(_compute)
"""Percent, where whole cards count 100 each."""
percent: Final = summed(_percent)


def nics(claim: Charged) -> int:
    """Percent."""
    return claim.nic_percent


def memory_in(unit: Callable[[Settings], int], *, of_shares: bool = False) -> Charge:
    """Units, rounded up. `of_shares`: a whole card is asked for without memory."""

    def charged(claim: Charged) -> int | None:
        def units(share: Share) -> int | None:
            if of_shares and share.memory.whole:
                return 0
            return None if share.memory.bytes is None else -(-share.memory.bytes // unit(claim.settings))

        return summed(units)(claim)

    return charged
