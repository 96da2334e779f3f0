"""Reasons as people read them: lines on a terminal, one line of an Event, one word for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from koordra.allocator.explain.grouping import rank
from koordra.allocator.reasons import Cause, Reason, reason_of

MOST_LINES: Final = 24
"""Lines for one claim."""
NOTHING: Final = "no node offers devices of koordra"

_OF_KIND: Final = frozenset({Cause.SELECTOR_MISMATCH.value})
_HOPELESS: Final = frozenset({Cause.EXCEEDS_DEVICE.value})
_OF_NODES: Final = frozenset(
    {Cause.NODE_UNSUITABLE.value, Cause.SHARED_CLAIM_PINNED.value, Cause.POOL_INCOMPLETE.value}
)


def headline(reasons: Sequence[Reason]) -> str:
    """The one word for many reasons: of the node that the pod has to run on, if there is one.

    What lacks room says more than a node that is none for the pod though its devices would do, that more than
    devices that never will, that more than devices of the wrong kind, and what is told aside says nothing.
    Among the rest the vocabulary's order decides, then the more frequent.
    """
    relevant = _without_vain_hopes(_without_asides([one for one in reasons if one.is_pinned] or reasons))
    found = Counter[str]()
    for reason in relevant:
        found[reason.reason] += max(1, reason.devices or reason.nodes)

    def order(word: str) -> tuple[object, ...]:
        unlikely = (word in _OF_KIND, word in _HOPELESS, word in _OF_NODES)
        return *unlikely, rank(word), -found[word], word

    return min(found, key=order, default=Cause.NODE_UNSUITABLE.value)


def in_one_line(reasons: Sequence[Reason], *, most: int) -> str:
    """As many clauses as fit into so many bytes, those of the headline first, and how many were left out."""
    word = headline(reasons)
    shown = _without_vain_hopes(_without_asides(reasons))
    shown = _without_counts_of_one([one for one in shown if one.reason not in _OF_KIND] or shown)
    shown.sort(key=lambda one: (not one.is_pinned, one.reason != word))
    text = ""
    for number, reason in enumerate(shown):
        longer = f"{text}; {_clause(reason, word)}" if text else _clause(reason, word)
        if len(longer.encode()) > most - 24:
            return f"{text}; and {len(shown) - number} more" if text else longer
        text = longer
    return text or NOTHING


def waiting_for_others(reasons: Mapping[str, Sequence[Reason]]) -> dict[str, tuple[Reason, ...]]:
    """By key of claims that are placed together: one that would fit by itself waits for the others, in the
    words of the first of these."""
    stuck = {
        key: without for key, given in reasons.items() if (without := _without_asides(given, or_all=False))
    }
    if not stuck:
        nowhere = reason_of(Cause.NODE_UNSUITABLE, "there is no node for it")
        return {key: tuple(given) or (nowhere,) for key, given in reasons.items()}
    first = min(stuck)
    waits = waits_for(first, stuck[first][0])
    return {key: tuple(given) if key in stuck else (waits, *given) for key, given in reasons.items()}


def waits_for(claim: str, why: Reason) -> Reason:
    """Of a claim that waits for another one, which has this reason."""
    text = f"waits for ResourceClaim {claim}, which belongs to it: {why.detail}"
    return Reason(None, None, None, why.reason, text)


def _without_asides(reasons: Sequence[Reason], *, or_all: bool = True) -> list[Reason]:
    """Without what only stands beside the rest; all where there is no rest."""
    return [one for one in reasons if not one.is_aside] or ([*reasons] if or_all else [])


def _without_vain_hopes(reasons: Sequence[Reason]) -> list[Reason]:
    """Without what devices lack for a request that asks for more of them than any node has."""
    never = {one.request for one in reasons if one.device is None and one.reason in _HOPELESS and one.node}
    return [
        one for one in reasons if one.request not in never or one.reason in _HOPELESS or one.device is None
    ]


def _without_counts_of_one(reasons: Sequence[Reason]) -> list[Reason]:
    """That a request needs one device is not said where the devices, or something else, say why it has
    none."""
    told = {one.request for one in reasons if not _is_count_of_one(one)}
    return [one for one in reasons if not (_is_count_of_one(one) and one.request in told)]


def lines(reasons: Sequence[Reason], *, most: int = MOST_LINES) -> list[str]:
    """For a terminal: a line for each, and below it where that is, if it is on several nodes or devices."""
    found: list[str] = []
    shown = _without_counts_of_one(reasons)
    for number, reason in enumerate(shown):
        own = _lines(reason)
        left = len(shown) - number
        if len(found) + len(own) > most - (left > 1):
            return [*found, f"... and {left} more"]
        found += own
    return found


def _lines(reason: Reason) -> list[str]:
    first = str(reason)
    if reason.node is None or (reason.nodes == 1 and reason.devices <= 1):
        return [first]
    places = []
    if _is_nearest(reason):
        places.append(f"nearest {_place(reason)}")
    if reason.nodes > 1:
        more = (
            f" and {reason.nodes - len(reason.examples):,} more"
            if reason.nodes > len(reason.examples)
            else ""
        )
        places.append(f"nodes {', '.join(reason.examples)}{more}")
    elif reason.short is None and reason.device:
        places.append(f"e.g. {reason.device}")
    return [first, f"    {'; '.join(places)}"] if places else [first]


def _clause(reason: Reason, word: str) -> str:
    what = reason.detail if reason.reason == word else f"{reason.reason}: {reason.detail}"
    if reason.node is None:
        return f"request {reason.request}: {what}" if reason.request else what
    where = reason.where
    if reason.nodes > 1 and _is_nearest(reason):
        where += f", nearest {_place(reason)}"
    asked = f"request {reason.request}, " if reason.request else ""
    return f"{asked}{where}: {what}"


def _is_nearest(reason: Reason) -> bool:
    """Whether one place lacks less than the others."""
    return reason.short is not None and reason.reason not in _HOPELESS


def _place(reason: Reason) -> str:
    return f"{reason.node}/{reason.device}" if reason.device else str(reason.node)


def _is_count_of_one(reason: Reason) -> bool:
    return (
        reason.device is None
        and reason.short is not None
        and reason.clause.startswith("devices: requested 1 ")
    )
