"""A group's place, or why its claims wait, in the words of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from koordra.allocator.explain.telling import waits_for
from koordra.allocator.reasons import Cause, ClaimRefused, Reason, reason_of
from koordra.api.objects import Fields, Object
from koordra.errors import InvalidInput, KoordraError, SelectorError
from koordra.placement.mig.mode_switch import ModeSwitch

Reasons = tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class GroupPlacement:
    """The best place for a group, or why there is none (`reasons` by claim key).

    `allocations` are what is to be written, by claim key; `score`: higher is better, comparable between nodes
    for one group. `interrupted`: it is undecided because one question may cost so much only; asked again, it
    goes on. `switch`: cards that would do in the other MIG mode, where there is no place. `defect`: the
    traceback of an error inside the allocator. `served`: the pods that can start with it, of those that were
    asked for.
    """

    node: str | None = None
    allocations: Mapping[str, Fields] = field(default_factory=dict)
    levels: Mapping[str, str | None] = field(default_factory=dict)
    reasons: Mapping[str, Reasons] = field(default_factory=dict)
    undecided: bool = False
    interrupted: bool = False
    defect: str = ""
    served: tuple[Object, ...] = ()
    switch: ModeSwitch | None = None
    score: int | None = None


def renamed(
    reasons: tuple[Reasons, ...], before: tuple[str, ...], after: tuple[str, ...]
) -> tuple[Reasons, ...]:
    """Reasons that were worked out for one group of a class, in the words of another."""
    if before == after or len(before) != len(after):
        return reasons
    called = dict(zip(before, after, strict=True))
    if not any(name in reason.detail for given in reasons for reason in given for name in called):
        return reasons
    longest_first = "|".join(map(re.escape, sorted(called, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w./-])({longest_first})(?![\w-])")

    def new(reason: Reason) -> Reason:
        return replace(reason, detail=pattern.sub(lambda found: called[found.group()], reason.detail))

    return tuple(tuple(map(new, given)) for given in reasons)


def refused(keys: Sequence[str], error: KoordraError) -> dict[str, Reasons]:
    """The allocator's own reason where the error carries one; otherwise the nearest word for it. Other claims
    of the group wait."""
    if isinstance(error, ClaimRefused):
        waits = waits_for(error.claim, error.reason)
        return {key: (error.reason if key == error.claim else waits,) for key in keys}
    cause = Cause.CONSTRAINT_VIOLATED if isinstance(error, InvalidInput) else Cause.POOL_INCOMPLETE
    if isinstance(error, SelectorError):
        cause = Cause.SELECTOR_ERROR
    return dict.fromkeys(keys, (reason_of(cause, str(error)),))
