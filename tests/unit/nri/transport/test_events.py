"""What a runtime knows is told by its version, and a mask is never empty."""

from __future__ import annotations

import pytest

from koordra._proto.nri.nri_pb2 import ConfigureRequest, Event
from koordra.nri.transport.events import (
    BY_EVENT,
    EVENT_METHODS,
    applies_device_rules,
    known_events,
    subscription,
)


@pytest.mark.parametrize(
    ("name", "version", "nri", "known"),
    [
        ("containerd", "1.7.24~ds1", "", 0x7FF),
        ("containerd", "v2.1.9", "", 0x7FF),
        ("containerd", "2.2.0", "", 0x3FFF),
        ("containerd", "v3.0.0-rc.1", "", 0x3FFF),
        ("containerd", "v2.3.0", "v0.12.0", 0x3FFF),
        ("containerd", "v2.3.0", "0.9.1", 0x7FF),
        ("cri-o", "1.33.2", "", 0x7FF),
        ("cri-o", "1.34.0", "", 0x3FFF),
        ("somebody-else", "9.9.9", "", 0x7FF),
        ("containerd", "", "", 0x7FF),
        ("containerd", "unknown", "", 0x7FF),
    ],
)
def test_known_events(name: str, version: str, nri: str, known: int) -> None:
    runtime = ConfigureRequest(runtime_name=name, runtime_version=version, NRI_version=nri)
    assert known_events(runtime) == known
    assert applies_device_rules(runtime) == (known == 0x3FFF)


def test_a_subscription_is_what_is_wanted_and_known_and_never_everything() -> None:
    create, validate = 1 << 3, 1 << 13
    assert subscription(create | validate, 0x7FF) == create
    assert subscription(create | validate, 0x3FFF) == create | validate
    assert subscription(validate, 0x7FF) == subscription(0, 0x3FFF) == BY_EVENT[Event.REMOVE_POD_SANDBOX].bit


def test_the_table_has_every_event_once() -> None:
    assert {row.event for row in EVENT_METHODS} == set(Event.values()) - {Event.UNKNOWN, Event.LAST}
    assert sum(row.bit for row in EVENT_METHODS) == 0x3FFF
