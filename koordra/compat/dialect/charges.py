"""How the requests of a claim are counted under the names of a dialect; quota_charges.py reads them from the claim.

Amounts are totals: memory on each of two cards counts twice, as HAMi counts it. What a claim does not say as an amount (all of a
card's memory, a percentage of it) is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from koordra.compat.normalized_request import Share
from koordra.compat.settings import Settings


class Charged(NamedTuple):
    """The shares of a claim, MIG instances among them, and percent of NICs."""

    shares: Sequence[Share]
    nics: int = 0


Charge = Callable[[Charged, Settings], int | None]
"""A claim -> what it amounts to."""


def count(claim: Charged, _settings: Settings) -> int:
    return sum(share.count for share in claim.shares)


def whole_cards(claim: Charged, _settings: Settings) -> int:
    return sum(share.count for share in claim.shares if share.memory.whole)


def shared_cards(claim: Charged, _settings: Settings) -> int:
    return sum(share.count for share in claim.shares if not share.memory.whole)


def cores(claim: Charged, _settings: Settings) -> int:
    return sum(share.count * share.cores for share in claim.shares)


def compute(claim: Charged, _settings: Settings) -> int:
    """Percent, where whole cards count 100 each."""
    return sum(
        share.count * (share.cores or (100 if share.memory.whole else 0))
        for share in claim.shares
        if not share.mig
    )


def percent(claim: Charged, _settings: Settings) -> int | None:
    if any(share.memory.bytes is not None for share in claim.shares):
        return None
    return sum(
        share.count * (100 if share.memory.percent is None else share.memory.percent)
        for share in claim.shares
    )


def nics(claim: Charged, _settings: Settings) -> int:
    return claim.nics


def memory_in(unit: Callable[[Settings], int], *, of_shares: bool = False) -> Charge:
    """Units, rounded up; None where some part says no amount. `of_shares`: a whole card is asked for without memory."""

    def charged(claim: Charged, settings: Settings) -> int | None:
        counted = [share for share in claim.shares if not (of_shares and share.memory.whole)]
        if any(share.memory.bytes is None for share in counted):
            return None
        return sum(share.count * -(-(share.memory.bytes or 0) // unit(settings)) for share in counted)

    return charged
