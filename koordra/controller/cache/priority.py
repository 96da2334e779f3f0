"""Who is planned first: pod priority (higher first), then age (older first), then the name, so that order is
total.

A group of pods that share claims counts as its most urgent pod. Age is the pod's creationTimestamp: the
moment from which its owner waits; a claim that was made long before its pod gives no right of way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koordra.api import objects

Urgency = tuple[int, str, str]
"""Sorts ascending: negated priority, creation time (RFC 3339 in UTC sorts as text), `namespace/name`."""

_NO_TIME = "9999"


def urgency(pod: Mapping[str, Any]) -> Urgency:
    """The sort key of one pod."""
    priority = objects.spec_of(pod).get("priority")
    known = priority if isinstance(priority, int) and not isinstance(priority, bool) else 0
    created = objects.metadata(pod).get("creationTimestamp")
    return (-known, str(created or _NO_TIME), objects.key(pod))


def most_urgent(pods: Iterable[Mapping[str, Any]]) -> Urgency:
    """The sort key of a group: its most urgent pod's."""
    return min(urgency(pod) for pod in pods)
