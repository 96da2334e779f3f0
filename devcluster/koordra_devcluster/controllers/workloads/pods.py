"""What the loops ask about pods, and the pod that a template stands for. Pure.

active       may still run: not finished, not going away
ready        its Ready condition is true
available    ready for at least minReadySeconds
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from koordra.api.objects import (
    Object,
    annotations_of,
    is_deleting,
    labels_of,
    metadata,
    name,
    pod_is_finished,
    spec_of,
    status_of,
    uid,
)

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}


def controller_of(obj: Object) -> Object | None:
    """The owner reference of the controller, where there is one."""
    owners: Sequence[Object] = metadata(obj).get("ownerReferences") or ()
    return next((one for one in owners if one.get("controller")), None)


def is_controlled_by(obj: Object, owner: Object) -> bool:
    reference = controller_of(obj)
    return reference is not None and reference.get("uid") == uid(owner)


def reference_to(owner: Object) -> Object:
    """The owner reference that makes `owner` the controller of an object."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": name(owner),
        "uid": uid(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_active(pod: Object) -> bool:
    return not pod_is_finished(pod) and not is_deleting(pod)


def phase(pod: Object) -> str:
    return str(status_of(pod).get("phase", "Pending"))


def _ready_condition(pod: Object) -> Mapping[str, Any]:
    conditions: Sequence[Object] = status_of(pod).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == "Ready"), {})


def is_ready(pod: Object) -> bool:
    return _ready_condition(pod).get("status") == "True"


def available_in(pod: Object, min_ready_seconds: int, now: datetime) -> float | None:
    """Seconds until the pod is available: 0 when it is, None while it is not even ready."""
    if not is_ready(pod):
        return None
    since = _ready_condition(pod).get("lastTransitionTime")
    if not min_ready_seconds or not since:
        return 0.0
    return max(0.0, min_ready_seconds - (now - datetime.fromisoformat(str(since))).total_seconds())


def template_hash(template: Object, collisions: int = 0) -> str:
    """A short name for a pod template, made of the letters that generated names use."""
    text = json.dumps([template, collisions], sort_keys=True, separators=(",", ":"))
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
    return "".join(_LETTERS[int(digit) % len(_LETTERS)] for digit in str(number).zfill(10))


def pod_from(
    template: Object,
    owner: Object,
    *,
    pod_name: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
) -> Object:
    """The pod that a template stands for, controlled by `owner`; named after it unless it has a name of its
    own."""
    wanted = metadata(template)
    head: Object = {
        "namespace": metadata(owner)["namespace"],
        "labels": {**(wanted.get("labels") or {}), **(labels or {})},
        "annotations": {**(wanted.get("annotations") or {}), **(annotations or {})},
        "finalizers": [*(wanted.get("finalizers") or ()), *finalizers],
        "ownerReferences": [reference_to(owner)],
    }
    head |= {"name": pod_name} if pod_name else {"generateName": f"{name(owner)}-"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": head,
        "spec": copy.deepcopy(dict(spec_of(template))),
    }


def first_to_go(pods: Sequence[Object], now: datetime) -> list[Object]:
    """The order in which a ReplicaSet gives pods up: those that lose least first."""

    def loss(pod: Object) -> tuple[Any, ...]:
        ready_for = 0.0
        if is_ready(pod) and _ready_condition(pod).get("lastTransitionTime"):
            ready_for = _seconds_since(_ready_condition(pod)["lastTransitionTime"], now)
        restarts = max(
            (int(one.get("restartCount", 0)) for one in status_of(pod).get("containerStatuses") or ()),
            default=0,
        )
        return (
            bool(spec_of(pod).get("nodeName")),
            _PHASES.get(phase(pod), 0),
            is_ready(pod),
            _deletion_cost(pod),
            ready_for,
            -restarts,
            _seconds_since(metadata(pod)["creationTimestamp"], now),
            name(pod),
        )

    return sorted(pods, key=loss)


def _deletion_cost(pod: Object) -> int:
    try:
        return int(annotations_of(pod).get(_DELETION_COST, "0"))
    except ValueError:
        return 0


def _seconds_since(timestamp: str, now: datetime) -> float:
    return (now - datetime.fromisoformat(timestamp)).total_seconds()


def has_labels(obj: Object, wanted: Mapping[str, str]) -> bool:
    return all(labels_of(obj).get(key) == value for key, value in wanted.items())
