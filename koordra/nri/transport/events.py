"""What a runtime can announce to a plugin, and which of it an older runtime knows.

Four things depend on the version of the runtime's NRI. A bit of the event mask that the runtime does not know
makes it reject the plugin, so the mask is cut to what it knows: events up to 11 before NRI 0.10, up to 14
from then on. A runtime before 0.12 does not send its NRI version in Configure, so it is
inferred from the runtime's name and version; where that fails, the older mask is safe. Device rules of an
adjustment are applied from 0.10 on, and silently dropped before. And until 0.12 most events arrive through
the one method StateChange, afterwards each through its own; a plugin answers both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from koordra._proto.nri import nri_pb2
from koordra._proto.nri.nri_pb2 import Event

FIRST_GENERATION: Final = 0x7FF
"""Events 1 to 11: NRI 0.9 and older."""
SECOND_GENERATION: Final = 0x3FFF
"""Events 1 to 14: NRI 0.10 and newer."""

_SECOND_GENERATION_SINCE: Final = {"nri": (0, 10), "containerd": (2, 2), "cri-o": (1, 34)}


@dataclass(frozen=True, slots=True)
class EventMethod:
    """One event: the method of the Plugin service that carries it, and the plugin's method that handles
    it."""

    event: Event
    method: str
    handler: str
    request: type[Any]

    @property
    def bit(self) -> int:
        """Its bit in the event mask."""
        return 1 << (int(self.event) - 1)


def _row(event: Event, method: str, handler: str) -> EventMethod:
    return EventMethod(event, method, handler, getattr(nri_pb2, f"{method}Request"))


EVENT_METHODS: Final = (
    _row(Event.RUN_POD_SANDBOX, "RunPodSandbox", "run_pod_sandbox"),
    _row(Event.UPDATE_POD_SANDBOX, "UpdatePodSandbox", "update_pod_sandbox"),
    _row(Event.POST_UPDATE_POD_SANDBOX, "PostUpdatePodSandbox", "post_update_pod_sandbox"),
    _row(Event.STOP_POD_SANDBOX, "StopPodSandbox", "stop_pod_sandbox"),
    _row(Event.REMOVE_POD_SANDBOX, "RemovePodSandbox", "remove_pod_sandbox"),
    _row(Event.CREATE_CONTAINER, "CreateContainer", "create_container"),
    _row(Event.POST_CREATE_CONTAINER, "PostCreateContainer", "post_create_container"),
    _row(Event.START_CONTAINER, "StartContainer", "start_container"),
    _row(Event.POST_START_CONTAINER, "PostStartContainer", "post_start_container"),
    _row(Event.UPDATE_CONTAINER, "UpdateContainer", "update_container"),
    _row(Event.POST_UPDATE_CONTAINER, "PostUpdateContainer", "post_update_container"),
    _row(Event.STOP_CONTAINER, "StopContainer", "stop_container"),
    _row(Event.REMOVE_CONTAINER, "RemoveContainer", "remove_container"),
    _row(Event.VALIDATE_CONTAINER_ADJUSTMENT, "ValidateContainerAdjustment", "validate_container_adjustment"),
)

BY_EVENT: Final = {row.event: row for row in EVENT_METHODS}


def known_events(*, runtime_name: str, runtime_version: str, nri_version: str) -> int:
    """The mask of events that a runtime knows, from what it says of itself in Configure."""
    name, version = ("nri", nri_version) if nri_version else (runtime_name, runtime_version)
    since = _SECOND_GENERATION_SINCE.get(name)
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if since is None or numbers is None:
        return FIRST_GENERATION
    return SECOND_GENERATION if (int(numbers[1]), int(numbers[2])) >= since else FIRST_GENERATION


def applies_device_rules(*, runtime_name: str, runtime_version: str, nri_version: str) -> bool:
    """Whether the runtime applies the device rules of an adjustment; before NRI 0.10 it drops them without a
    word."""
    known = known_events(runtime_name=runtime_name, runtime_version=runtime_version, nri_version=nri_version)
    return known == SECOND_GENERATION


def subscription(wanted: int, known: int) -> int:
    """The mask to answer Configure with: what is wanted and known. Never zero, which would mean
    everything."""
    return wanted & known or BY_EVENT[Event.REMOVE_POD_SANDBOX].bit
