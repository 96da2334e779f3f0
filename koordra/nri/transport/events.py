"""What a runtime can announce to a plugin, which of it an older runtime knows, and the plugin that handles
it.

Four things depend on the version of the runtime's NRI. A bit of the event mask that the runtime does not know
makes it reject the plugin, so the mask is cut to what it knows: events up to 11 before NRI 0.10, up to 14
from then on. A runtime before 0.12 does not send its NRI version in Configure, so it is
inferred from the runtime's name and version; where that fails, the older mask is safe. Device rules of an
adjustment are applied from 0.10 on, and silently dropped before. And until 0.12 most events arrive through
the one method StateChange, afterwards each through its own; a plugin answers both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra._proto.nri import nri_pb2
from koordra._proto.nri.nri_pb2 import Event
from koordra.nri.transport.ttrpc import Call

FIRST_GENERATION: Final = 0x7FF
"""Events 1 to 11: NRI 0.9 and older."""
SECOND_GENERATION: Final = 0x3FFF
"""Events 1 to 14: NRI 0.10 and newer."""

_SECOND_GENERATION_SINCE: Final = {"nri": (0, 10), "containerd": (2, 2), "cri-o": (1, 34)}


@dataclass(frozen=True, slots=True)
class EventMethod:
    """One event: the method of the Plugin service that carries it, the plugin's method that handles it."""

    event: int
    method: str
    handler: str
    request: type[Any]

    @property
    def bit(self) -> int:
        return 1 << (self.event - 1)


def _event_method(name: str) -> EventMethod:
    """`RUN_POD_SANDBOX` is `RunPodSandbox`, with a `RunPodSandboxRequest`, handled by `run_pod_sandbox`."""
    method = "".join(word.capitalize() for word in name.split("_"))
    return EventMethod(Event.Value(name), method, name.lower(), getattr(nri_pb2, f"{method}Request"))


EVENT_METHODS: Final = tuple(
    _event_method(name) for name, number in Event.items() if Event.UNKNOWN < number < Event.LAST
)

BY_EVENT: Final = {row.event: row for row in EVENT_METHODS}


def known_events(runtime: nri_pb2.ConfigureRequest) -> int:
    """The mask of events that a runtime knows, from what it says of itself in Configure."""
    name, version = "nri", runtime.NRI_version
    if not version:
        name, version = runtime.runtime_name, runtime.runtime_version
    since = _SECOND_GENERATION_SINCE.get(name)
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if since is None or numbers is None:
        return FIRST_GENERATION
    return SECOND_GENERATION if (int(numbers[1]), int(numbers[2])) >= since else FIRST_GENERATION


def applies_device_rules(runtime: nri_pb2.ConfigureRequest) -> bool:
    """Whether the runtime applies the device rules of an adjustment; before NRI 0.10 it drops them without a
    word."""
    return known_events(runtime) == SECOND_GENERATION


def subscription(wanted: int, known: int) -> int:
    """The mask to answer Configure with: what is wanted and known. Never zero, which means everything."""
    return wanted & known or BY_EVENT[Event.REMOVE_POD_SANDBOX].bit


class Plugin:
    """What a plugin does; every method may be left as it is. Methods may be called from several threads at
    once.

    One method per event, named after it (`create_container`, `stop_pod_sandbox`, ...; see
    EVENT_METHODS), takes (request, call) and returns the response message, or None where nothing is to be
    changed. Only those that a subclass defines are subscribed to.
    """

    def configure(self, request: nri_pb2.ConfigureRequest) -> None:
        """The runtime introduces itself, and hands over the configuration text of a plugin it launched."""

    def synchronize(
        self, pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container]
    ) -> Sequence[nri_pb2.ContainerUpdate]:
        """What exists already; may answer with changes to it. Containers created meanwhile may be missing."""
        return ()

    def shutdown(self) -> None:
        """The runtime is about to end (not every runtime says so)."""

    def handler(self, row: EventMethod) -> Callable[[Any, Call], Any] | None:
        """The method that handles an event, or None where the class does not define it."""
        method: Callable[[Any, Call], Any] | None = getattr(self, row.handler, None)
        return method

    def wanted_events(self) -> int:
        return sum(row.bit for row in EVENT_METHODS if self.handler(row) is not None)
