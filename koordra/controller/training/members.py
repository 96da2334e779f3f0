"""The pods of a TrainingJob, each as what it is to the job. Pure.

    WAITING     held by the gang's gate
    PLACED      let go: its devices are its own; it does not run yet
    RUNNING     its containers run
    SUCCEEDED   it has ended well
    FAILED      its program has failed: counts against backoffLimit
    DISRUPTED   it was ended by something else than its program (evicted, its node is lost or refused it)

A pod that is being deleted, and has not ended, is `leaving`: nobody counts on it, and its place is not given
to another one before it is gone, or has been overdue for OVERDUE seconds, as on a node that does not answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.gangs.declared.annotations import LEAVES
from koordra.controller.training.training_job import (
    LAUNCHER,
    LAUNCHER_SLOT,
    MOST_REPLICAS,
    REPLACES,
    REPLICA_LABEL,
    ROLE_LABEL,
    UNTIL,
    TrainingJob,
    time_of,
)
from koordra.placement.holders.device_hold import DeviceHold

OVERDUE: Final = timedelta(seconds=30)

_ATTEMPT: Final = re.compile(r"-([0-9]{1,9})$")
_OTHERS_DOING: Final = frozenset(
    {
        "Evicted",
        "NodeAffinity",
        "NodeLost",
        "NodeShutdown",
        "Preempting",
        "Shutdown",
        "Terminated",
        "UnexpectedAdmissionError",
    }
)
"""`status.reason` of pods that the kubelet has ended; OutOf... besides."""


class Phase(StrEnum):
    WAITING = "Waiting"
    PLACED = "Placed"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DISRUPTED = "Disrupted"


_LIVING: Final = frozenset({Phase.WAITING, Phase.PLACED, Phase.RUNNING})


@dataclass(frozen=True, slots=True)
class Member:
    """`slot`: which replica it is, LAUNCHER_SLOT for the launcher; `moved`: it has the replica's other
    number. `has_claims`: all its claims have devices. `gone_at`: of one
    being deleted, when its grace is over. `replaces`: name of the pod whose place it is to take. `leaves`:
    the gang knows that it goes for good. `until`: for how long it may wait for the nodes that it is kept
    to."""

    name: str
    uid: str
    slot: int
    moved: bool
    attempt: int
    phase: Phase
    created: datetime
    ended: datetime
    node: str = ""
    has_claims: bool = True
    gone_at: datetime | None = None
    replaces: str = ""
    leaves: bool = False
    until: datetime | None = None

    @property
    def is_living(self) -> bool:
        return self.phase in _LIVING and self.gone_at is None

    @property
    def has_started(self) -> bool:
        return self.is_living and self.phase is not Phase.WAITING

    @property
    def is_ended(self) -> bool:
        return self.phase not in _LIVING

    def is_leaving(self, now: datetime) -> bool:
        return self.phase in _LIVING and self.gone_at is not None and now < self.gone_at + OVERDUE


def members_of(job: TrainingJob, pods: Iterable[Object], claims: Mapping[str, Object]) -> tuple[Member, ...]:
    """Of the pods whose controller is the job, in the order of their names. `claims` by key."""
    ours = (pod for pod in pods if owner_uid(pod) == job.uid)
    found = (member for pod in ours if (member := _member(pod, claims)) is not None)
    return tuple(sorted(found, key=lambda one: one.name))


def owner_uid(pod: Fields) -> str:
    """Of its controller, empty where it has none."""
    owners = objects.mappings(objects.metadata(pod).get("ownerReferences"))
    return next((str(one.get("uid")) for one in owners if one.get("controller")), "")


def kept_for(leaving: Collection[str], holds: Mapping[str, Object]) -> set[str]:
    """Of these pods, by uid, those whose seats would be held if they were gone now: their gang has not
    written yet that they go for good."""
    if not leaving:
        return set()
    seats = [seat for hold in holds.values() for seat in DeviceHold.of(hold).seats]
    return {seat.pod for seat in seats if seat.pod in leaving and not seat.given_up}


def _member(pod: Object, claims: Mapping[str, Object]) -> Member | None:
    labels, name = objects.labels_of(pod), objects.name(pod)
    number, attempt = labels.get(REPLICA_LABEL, ""), _ATTEMPT.search(name)
    if attempt is None or not number.isdecimal():
        return None  # somebody made a pod of his own the job's
    moved, slot = divmod(int(number), MOST_REPLICAS)
    is_launcher = labels.get(ROLE_LABEL) == LAUNCHER
    created = time_of(str(objects.metadata(pod)["creationTimestamp"]))
    deleted = objects.metadata(pod).get("deletionTimestamp")
    return Member(
        name,
        objects.uid(pod),
        LAUNCHER_SLOT if is_launcher else slot,
        bool(moved),
        int(attempt[1]),
        _phase(pod),
        created,
        _ended(pod, created),
        str(objects.spec_of(pod).get("nodeName") or ""),
        _has_claims(pod, claims),
        time_of(str(deleted)) if deleted else None,
        objects.annotations_of(pod).get(REPLACES, ""),
        LEAVES in objects.annotations_of(pod),
        _until(pod),
    )


def _until(pod: Object) -> datetime | None:
    """Tenants may write there, too: what is no time says nothing."""
    try:
        found = time_of(objects.annotations_of(pod).get(UNTIL, ""))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _phase(pod: Object) -> Phase:
    status = objects.status_of(pod)
    match status.get("phase"):
        case "Succeeded":
            return Phase.SUCCEEDED
        case "Failed":
            return Phase.DISRUPTED if _is_disrupted(status) else Phase.FAILED
        case "Running":
            return Phase.RUNNING
    gates = objects.mappings(objects.spec_of(pod).get("schedulingGates"))
    return Phase.WAITING if any(gate.get("name") == names.JOINT_GATE for gate in gates) else Phase.PLACED


def _is_disrupted(status: Fields) -> bool:
    reason = str(status.get("reason") or "")
    return reason in _OTHERS_DOING or reason.startswith("OutOf") or _since(status, "DisruptionTarget") != ""


def _since(status: Fields, condition: str, value: str = "True") -> str:
    """Since when the condition has the value, empty where it has another."""
    for one in objects.mappings(status.get("conditions")):
        if one.get("type") == condition and one.get("status") == value:
            return str(one.get("lastTransitionTime") or "1970-01-01T00:00:00Z")
    return ""


def _ended(pod: Object, created: datetime) -> datetime:
    """Of one that has ended: since when it is not Ready, if anybody says so."""
    since = _since(objects.status_of(pod), "Ready", "False")
    return max(created, time_of(since)) if since else created


def _has_claims(pod: Object, claims: Mapping[str, Object]) -> bool:
    place = objects.namespace(pod)
    for name in objects.pod_claim_names(pod).values():
        found = None if name is None else claims.get(f"{place}/{name}")
        if found is None or not claims_of.is_allocated(found):
            return False
    return True
