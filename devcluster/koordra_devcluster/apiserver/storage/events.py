"""The two Event APIs over one set of objects: core/v1 is stored, events.k8s.io/v1 is converted on the way."""

from __future__ import annotations

from typing import Final

from koordra.api.objects import Object

_CORE_TO_EVENTS: Final = {
    "message": "note",
    "involvedObject": "regarding",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_EVENTS_TO_CORE: Final = {theirs: ours for ours, theirs in _CORE_TO_EVENTS.items()}


def to_core(event: Object) -> Object:
    """An events.k8s.io/v1 Event as core/v1."""
    return {_EVENTS_TO_CORE.get(field, field): value for field, value in event.items()} | {"apiVersion": "v1"}


def from_core(event: Object) -> Object:
    """A core/v1 Event as events.k8s.io/v1."""
    converted = {_CORE_TO_EVENTS.get(field, field): value for field, value in event.items()}
    return converted | {"apiVersion": "events.k8s.io/v1"}
