"""Why a claim waits: one vocabulary for Events, conditions, metrics, logs and the command line.

A Reason says where (node, device), which request, which clause failed and both figures of it. What many nodes
and devices say alike is one Reason (`explain/grouping`): `nodes` and `devices` are how many, `node` and
`device` the nearest miss among them. `device` is None for what concerns a whole node, `node` is None for what
holds on every node. Input that cannot be planned anywhere uses the same words, so that there is nothing else
to learn:

    a DeviceClass that does not exist              SelectorMismatch    (no device can match it)
    a selector that does not compile or fails      SelectorError
    an amount or a count that can never be met     ExceedsDevice       (no device could ever serve it; of
                                                                       counts: no node has so many)
    an amount below the least                      ConstraintViolated
    opaque parameters that are misspelt            ConstraintViolated  (what they demand is not known)
    a gate that is off                             FeatureDisabled

InsufficientCapacity, CountersExhausted and AlreadyAllocated are about room: somebody else has it now.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from koordra.api import names
from koordra.errors import PlanError
from koordra.inert import inert
from koordra.quantity import canonical


class Cause(StrEnum):
    """The words for why, in the order in which they are told when several hold."""

    SELECTOR_ERROR = "SelectorError"
    """a selector does not compile, or fails on a device"""
    FEATURE_DISABLED = "FeatureDisabled"
    """a feature gate of the API server that the claim needs is off"""
    FOREIGN_DRIVER = "ForeignDriver"
    """another stack gives the device out, or has it"""
    SEARCH_LIMIT = "SearchLimit"
    """it was not decided within the bounds of one pass; it goes on"""
    MODE_SWITCHING = "ModeSwitching"
    """a card will do once its MIG mode has been switched, which koordra does while the claim waits"""
    NODE_UNSUITABLE = "NodeUnsuitable"
    """the pod cannot run on the node, or the node is kept for somebody else"""
    POOL_INCOMPLETE = "PoolIncomplete"
    """not all slices of the node's pool are there"""
    TOPOLOGY_SCOPE_UNMET = "TopologyScopeUnmet"
    """devices are free, but not near enough to each other"""
    CONSTRAINT_VIOLATED = "ConstraintViolated"
    """a constraint of the claim (matchAttribute, a least amount, parameters that are misspelt) fails"""
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """less is free than is asked for: somebody else has it now"""
    COUNTERS_EXHAUSTED = "CountersExhausted"
    """the card that the device is a part of has too little left"""
    ALREADY_ALLOCATED = "AlreadyAllocated"
    """another claim has the device"""
    RESERVED_FOR_FULL = "ReservedForFull"
    """a claim of the pod has as many consumers as `status.reservedFor` can name"""
    SHARED_CLAIM_PINNED = "SharedClaimPinned"
    """a claim of the pod is allocated on another node, so the pod's other claims cannot be here"""
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    """the device has a fault (docs/health.md)"""
    TAINTED = "Tainted"
    """a taint of the device, or of its node, is not tolerated"""
    PARTITION_MISMATCH = "PartitionMismatch"
    """the free GPUs are no partition of the node's NVLink fabric"""
    IMMEDIATE_REFUSED = "ImmediateRefused"
    """the claim's namespace may have no more devices before a pod needs them, or nobody knows who wrote that
    it wants them"""
    IMEX_DOMAIN_IN_USE = "ImexDomainInUse"
    """the node's IMEX channels are in the domain of another gang, and it is in one at a time"""
    BACKEND_UNAVAILABLE = "BackendUnavailable"
    """the node or the class does not allow the isolation that is asked for, or has not got it"""
    EXCEEDS_DEVICE = "ExceedsDevice"
    """no device could ever serve the amount; of counts: no node has so many"""
    SELECTOR_MISMATCH = "SelectorMismatch"
    """no device matches the class or the selectors, or there is no such class"""


@dataclass(frozen=True, slots=True)
class Reason:
    """`detail` names the clause and its figures and is never empty. All texts are inert (koordra.inert).

    What a reason is told together with others by: `clause`, the beginning of `detail` that is the same
    wherever the clause fails; then either `at_best`, the figures in the words for the best of several, and
    `short`, which part of the whole is lacking there; or `values`, which differ, each with the number of
    devices (of nodes, where `device` is None) that have it.

    `examples` are the first nodes by name. `is_pinned`: of the node that the pod has to run on.
    `is_aside`: it is not what keeps the claim waiting: devices of a request that has enough others there,
    nodes that have nothing for anybody.
    """

    node: str | None
    device: str | None
    request: str | None
    reason: str
    detail: str
    _: KW_ONLY
    clause: str = ""
    at_best: str = ""
    short: float | None = None
    values: tuple[tuple[str, int], ...] = ()
    nodes: int = 0
    devices: int = 0
    examples: tuple[str, ...] = ()
    is_pinned: bool = False
    is_aside: bool = False

    def __post_init__(self) -> None:
        for name in ("node", "device", "request", "detail", "clause", "at_best"):
            text = getattr(self, name)
            if text is not None and not text.isprintable():
                object.__setattr__(self, name, inert(text))
        if not all(value.isprintable() for value, _ in self.values):
            object.__setattr__(self, "values", tuple([(inert(value), times) for value, times in self.values]))
        if self.node is not None and not self.nodes:
            object.__setattr__(self, "nodes", 1)
            object.__setattr__(self, "examples", (self.node,))
        if self.device is not None and not self.devices:
            object.__setattr__(self, "devices", 1)

    def to_dict(self) -> dict[str, Any]:
        """For JSON and YAML."""
        return {
            "node": self.node,
            "device": self.device,
            "request": self.request,
            "reason": self.reason,
            "detail": self.detail,
            "nodes": self.nodes,
            "devices": self.devices,
            "examples": list(self.examples),
        }

    @property
    def where(self) -> str:
        """`node-1/gpu-0`, `node-1 (8 devices)`, `1,000 nodes (8,000 devices)`, `everywhere`."""
        if self.node is None:
            return "everywhere"
        if self.nodes == 1 and self.devices == 1:
            return f"{self.node}/{self.device}"
        nodes = self.node if self.nodes == 1 else f"{self.nodes:,} nodes"
        devices = "1 device" if self.devices == 1 else f"{self.devices:,} devices"
        return f"{nodes} ({devices})" if self.devices else nodes

    def __str__(self) -> str:
        asked = f" (request {self.request})" if self.request else ""
        return f"{self.where}{asked}: {self.reason}: {self.detail}"


ClaimReason = tuple[int, Reason]
"""A reason with the position of the claim, among those that are decided together, that it is for."""


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
_BIT_RATES: Final = (("Tb/s", 10**12), ("Gb/s", 10**9), ("Mb/s", 10**6), ("kb/s", 10**3))


@lru_cache(maxsize=1 << 12)
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


def free_text(name: str, free: Decimal | int, *, asked: Decimal | int) -> str:
    """What is free of what is asked for; and by how much that is too little, where both read alike."""
    text = amount_text(name, free)
    if free >= asked or text.replace(".0", "") != amount_text(name, asked).replace(".0", ""):
        return text
    return f"{text} ({amount_text(name, asked - free)} too little)"


def amount_text(name: str, amount: Decimal | int) -> str:
    """An amount of the capacity of this name, in the unit that people write it in: `80Gi`, `200 Gb/s`."""
    if name.rpartition("/")[2] != names.CAPACITY_BANDWIDTH:
        return figure(amount)
    for suffix, unit in _BIT_RATES:
        if amount >= unit:
            return f"{float(amount / Decimal(unit)):.4g} {suffix}"
    return f"{figure(amount)} b/s"
