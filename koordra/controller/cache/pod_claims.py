"""A pod with its claims, and what a pod says about itself. Pure.

A pod *waits* when it is neither finished nor being deleted, every one of its claims exists and stays (a
template's claim is the one made for this very pod), and at least one claim of koordra's is not allocated.
Gated and ungated pods alike; a pod that carries somebody else's scheduling gate (a queue, a quota) is not
planned before that gate is gone, since nobody knows when it will be.

Claims of other drivers in a pod count when they are allocated (they may pin the pod to a node) and not while they are
pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.claims import Owner


@dataclass(frozen=True, slots=True)
class PodClaims:
    """A pod with all its claims: `ours` are koordra's, `others` another driver's, `refused` nobody's (with why). `pending` are
    those of ours that are still to be allocated."""

    pod: Object
    ours: tuple[Object, ...]
    others: tuple[Object, ...] = ()
    refused: tuple[tuple[Object, Owner], ...] = ()
    pending: tuple[Object, ...] = field(init=False, compare=False)
    pending_keys: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        pending = tuple([claim for claim in self.ours if not claims_of.is_allocated(claim)])
        object.__setattr__(self, "pending", pending)
        object.__setattr__(self, "pending_keys", tuple([objects.key(claim) for claim in pending]))

    @property
    def is_open(self) -> bool:
        """Whether anything is left to decide: the pod has no node yet, or claims without devices."""
        return bool(self.pending or self.refused) or not is_bound(self.pod)


@dataclass(frozen=True, slots=True)
class Condition:
    """The pod's PodScheduled condition; empty strings and 0 where it says nothing."""

    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    transition: str = ""

    @property
    def is_unschedulable(self) -> bool:
        return self.status == "False" and self.reason == "Unschedulable"


def gates(pod: Mapping[str, Any]) -> list[str]:
    return [str(gate.get("name")) for gate in objects.spec_of(pod).get("schedulingGates") or ()]


def is_gated(pod: Mapping[str, Any]) -> bool:
    return names.JOINT_GATE in gates(pod)


def is_bound(pod: Mapping[str, Any]) -> bool:
    return bool(objects.spec_of(pod).get("nodeName"))


def is_living(pod: Mapping[str, Any]) -> bool:
    """Neither finished nor being deleted."""
    return not objects.pod_is_finished(pod) and not objects.is_deleting(pod)


def may_be_planned(member: PodClaims) -> bool:
    """Whether the pod waits for koordra and for nobody else; see the module's docstring."""
    is_free = all(gate == names.JOINT_GATE for gate in gates(member.pod))
    return bool(member.pending) and is_free and not member.refused


def pod_scheduled(pod: Mapping[str, Any]) -> Condition:
    for entry in objects.status_of(pod).get("conditions") or ():
        if entry.get("type") == "PodScheduled":
            return Condition(
                status=str(entry.get("status", "")),
                reason=str(entry.get("reason") or ""),
                message=str(entry.get("message") or ""),
                observed_generation=int(entry.get("observedGeneration") or 0),
                transition=str(entry.get("lastTransitionTime") or ""),
            )
    return Condition()
