"""What one site answers a group, and what is made of it: the values between the allocator and the choice of a node.

`Plan` and `Planner` are what the controller knows of `koordra.placement.plan`; an `Answer` is one site's, an `Exemplar` one
that holds for other groups and sites too (request_class.py), and `Offered` is the choice. An error of the allocator becomes an
answer with the nearest word of the reason vocabulary, so that one bad claim never ends a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from koordra.allocator.reasons import Cause, Reason, told_in_order
from koordra.controller.cache.groups import Group
from koordra.controller.sites import Inventory
from koordra.errors import InvalidInput, KoordraError, SelectorError

Reasons = tuple[Reason, ...]


class Plan(Protocol):
    """What the allocator answers; koordra.allocator.Plan is one."""

    @property
    def allocations(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def unsatisfiable(self) -> Mapping[str, Sequence[Reason]]: ...

    @property
    def undecided(self) -> Mapping[str, Sequence[Reason]]: ...

    @property
    def levels(self) -> Mapping[str, str | None]: ...

    @property
    def scores(self) -> Mapping[str, int]: ...


class Planner(Protocol):
    """`koordra.placement.plan`. Raises PlanError or InvalidInput for input that cannot be meant."""

    def __call__(
        self,
        objects: Iterable[Any],
        *,
        report_errors: bool = False,
        inventory: Inventory = None,
        cards: Any = None,
    ) -> Plan: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What one site said. `reasons` are per claim, in the order of the group's pending claims."""

    score: int | None = None
    allocations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    levels: Mapping[str, str | None] = field(default_factory=dict)
    reasons: tuple[Reasons, ...] = ()
    undecided: bool = False
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Exemplar:
    """An answer of the allocator, and the group and node that it was given for. `epoch`: by which table (leftovers)."""

    answer: Answer
    group: Group
    node: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Offered:
    """The best place for a group, or why there is none (`reasons` by claim key)."""

    node: str | None = None
    allocations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    levels: Mapping[str, str | None] = field(default_factory=dict)
    reasons: Mapping[str, Reasons] = field(default_factory=dict)
    undecided: bool = False
    broken: str = ""


def merged(answers: Iterable[Answer], number: int) -> tuple[Reasons, ...]:
    """All sites' reasons per claim, in the order in which they are told."""
    gathered: list[list[Reason]] = [[] for _ in range(number)]
    for answer in answers:
        for position, reasons in enumerate(answer.reasons):
            gathered[position] += reasons
    return tuple(told_in_order(reasons) for reasons in gathered)


def refused(keys: Sequence[str], error: KoordraError) -> Answer:
    """The allocator's own reason where the error carries one; otherwise the nearest word for it."""
    own = getattr(error, "reason", None)
    if isinstance(own, Reason):
        reason = own
    else:
        word = Cause.SELECTOR_ERROR if isinstance(error, SelectorError) else Cause.CONSTRAINT_VIOLATED
        cause = word if isinstance(error, InvalidInput) else Cause.POOL_INCOMPLETE
        reason = Reason(None, None, None, cause.value, str(error))
    named = getattr(error, "claim", None)
    concerned = [key for key in keys if key == named] or list(keys)
    return Answer(reasons=tuple((reason,) if key in concerned else () for key in keys))


def waits_for_others(reasons: Mapping[str, Reasons]) -> dict[str, Reasons]:
    """A claim without reasons of its own waits for its neighbours in the pod: it says so and names them."""
    if all(reasons.values()):
        return dict(reasons)
    stuck = sorted(key for key, given in reasons.items() if given)
    text = f"waits for {', '.join(stuck) or 'a node: there is none'}"
    waits = Reason(None, None, None, Cause.NODE_UNSUITABLE.value, text)
    return {key: given or (waits,) for key, given in reasons.items()}
