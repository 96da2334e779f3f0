"""What the engine decided for a group, in the controller's words: plain allocations to be written, or reasons by claim.

An error of the allocator becomes a reason with the nearest word of the vocabulary, so that one bad claim never ends a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordra.allocator.reasons import Cause, ClaimRefused, Reason
from koordra.errors import InvalidInput, KoordraError, SelectorError

Reasons = tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Offered:
    """The best place for a group, or why there is none (`reasons` by claim key).

    `broken`: the traceback of an error inside the allocator.
    """

    node: str | None = None
    allocations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    levels: Mapping[str, str | None] = field(default_factory=dict)
    reasons: Mapping[str, Reasons] = field(default_factory=dict)
    undecided: bool = False
    broken: str = ""


def refused(keys: Sequence[str], error: KoordraError) -> dict[str, Reasons]:
    """The allocator's own reason where the error carries one; otherwise the nearest word for it. Other claims of the group wait."""
    if isinstance(error, ClaimRefused):
        reason = error.reason
        text = f"waits for ResourceClaim {error.claim}, which belongs to it: {reason.detail}"
        waits = Reason(None, None, None, reason.reason, text)
        return {key: (reason if key == error.claim else waits,) for key in keys}
    word = Cause.SELECTOR_ERROR if isinstance(error, SelectorError) else Cause.CONSTRAINT_VIOLATED
    cause = word if isinstance(error, InvalidInput) else Cause.POOL_INCOMPLETE
    return {key: (Reason(None, None, None, cause.value, str(error)),) for key in keys}


def waits_for_others(reasons: Mapping[str, Reasons]) -> dict[str, Reasons]:
    """A claim without reasons of its own waits for its neighbours in the pod: it says so and names them."""
    if all(reasons.values()):
        return dict(reasons)
    stuck = sorted(key for key, given in reasons.items() if given)
    text = f"waits for {', '.join(stuck) or 'a node: there is none'}"
    waits = Reason(None, None, None, Cause.NODE_UNSUITABLE.value, text)
    return {key: given or (waits,) for key, given in reasons.items()}
