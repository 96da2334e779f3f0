"""Why a claim waits: one vocabulary for Events, conditions, metrics, logs and the command line.

A Reason says where (node, device), which request, which clause failed and both figures of it. `device` is
None for what concerns a whole node, `node` is None for what holds on every node. Input that cannot be planned
anywhere uses the same words, so that there is nothing else to learn:

    a DeviceClass that does not exist              SelectorMismatch    (no device can match it)
    a selector that does not compile or fails      SelectorError
    an amount or a count that can never be met     InsufficientCapacity
    opaque parameters that are misspelt            ConstraintViolated  (what they demand is not known)
    a gate that is off                             FeatureDisabled

One is about claims that want devices before a pod needs them:

    ImmediateRefused    its namespace may have no more of them, or nobody knows who wrote that it wants them

Two words are about claims that several pods share:

    SharedClaimPinned   a claim of the pod is allocated on another node, so the pod's other claims cannot be
                        here
    ReservedForFull     a claim of the pod has as many consumers as `status.reservedFor` can name
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from koordra.errors import PlanError
from koordra.inert import inert
from koordra.quantity import canonical


class Cause(StrEnum):
    """The words for why, in the order in which they are told when several hold."""

    SELECTOR_ERROR = "SelectorError"
    FEATURE_DISABLED = "FeatureDisabled"
    FOREIGN_DRIVER = "ForeignDriver"
    SEARCH_LIMIT = "SearchLimit"
    NODE_UNSUITABLE = "NodeUnsuitable"
    POOL_INCOMPLETE = "PoolIncomplete"
    TOPOLOGY_SCOPE_UNMET = "TopologyScopeUnmet"
    CONSTRAINT_VIOLATED = "ConstraintViolated"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    COUNTERS_EXHAUSTED = "CountersExhausted"
    ALREADY_ALLOCATED = "AlreadyAllocated"
    RESERVED_FOR_FULL = "ReservedForFull"
    SHARED_CLAIM_PINNED = "SharedClaimPinned"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    TAINTED = "Tainted"
    PARTITION_MISMATCH = "PartitionMismatch"
    IMMEDIATE_REFUSED = "ImmediateRefused"
    BACKEND_UNAVAILABLE = "BackendUnavailable"
    SELECTOR_MISMATCH = "SelectorMismatch"


@dataclass(frozen=True, slots=True)
class Reason:
    """`detail` names the clause and its figures and is never empty. All texts are inert (koordra.inert)."""

    node: str | None
    device: str | None
    request: str | None
    reason: str
    detail: str

    def __post_init__(self) -> None:
        for name in ("node", "device", "request", "detail"):
            text = getattr(self, name)
            if text is not None and not text.isprintable():
                object.__setattr__(self, name, inert(text))

    def to_dict(self) -> dict[str, str | None]:
        return asdict(self)

    def __str__(self) -> str:
        where = "/".join(part for part in (self.node, self.device) if part) or "everywhere"
        asked = f" (request {self.request})" if self.request else ""
        return f"{where}{asked}: {self.reason}: {self.detail}"


def reason_of(cause: Cause, detail: str, node: str | None = None) -> Reason:
    """What concerns a node as a whole, or every node."""
    return Reason(node, None, None, cause.value, detail)


class ClaimRefused(PlanError):
    """One claim cannot be planned at all; upstream ends with an error. `reason` is told on the claim."""

    def __init__(self, claim: str, reason: Reason) -> None:
        self.claim = claim
        self.reason = reason
        asked = f", request {reason.request}" if reason.request else ""
        super().__init__(f"claim {claim}{asked}: {reason.detail}")


def refusal(
    claim: str, cause: Cause, detail: str, *, request: str | None = None, node: str | None = None
) -> ClaimRefused:
    return ClaimRefused(claim, Reason(node, None, request, cause.value, detail))


_UNITS: Final = (("Ti", 1024**4), ("Gi", 1024**3), ("Mi", 1024**2), ("Ki", 1024))


def figure(amount: Decimal | int) -> str:
    """An amount for people: exact where that is short, otherwise one decimal of the largest binary unit."""
    exact = Decimal(amount)
    spelled = canonical(exact)
    if len(spelled.rstrip("KMGTPEim")) <= 4:
        return spelled
    for suffix, unit in _UNITS:
        if abs(exact) >= unit:
            return f"{exact / unit:.1f}{suffix}"
    return spelled


def ordered_reasons(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Without repetitions, whole nodes before single devices, nearest miss first within a node."""
    rank = {cause.value: position for position, cause in enumerate(Cause)}

    def order(reason: Reason) -> tuple[object, ...]:
        return (
            reason.node or "",
            reason.device is not None,
            reason.request or "",
            rank.get(reason.reason, len(rank)),
            reason.device or "",
            reason.detail,
        )

    return tuple(sorted(dict.fromkeys(reasons), key=order))
