"""The annotations about gangs, those of tenants and of the controller; numbers and roles as pods write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordra.api import names

GANG: Final = names.DOMAIN + "gang"
GANG_BY: Final = GANG + "-by"
GANG_MIN: Final = GANG + "-min"
GANG_MAX: Final = GANG + "-max"
GANG_TIMEOUT: Final = GANG + "-timeout"
GANG_POLICY: Final = GANG + "-policy"
GANG_SHRINK: Final = GANG + "-shrink"
GANG_TOPOLOGY: Final = GANG + "-topology"
GANG_HOLD: Final = GANG + "-hold"
GANG_START: Final = GANG + "-start"
GANG_TOPOLOGY_PREFERRED: Final = GANG_TOPOLOGY + "-preferred"
GANG_SLICE_SIZE: Final = GANG + "-slice-size"
GANG_SLICE_TOPOLOGY: Final = GANG + "-slice-topology"
GANG_SLICE_TOPOLOGY_PREFERRED: Final = GANG_SLICE_TOPOLOGY + "-preferred"
GANG_ROLE: Final = GANG + "-role"
GANG_ROLE_MIN: Final = GANG_ROLE + "-min"
GANG_ROLE_MAX: Final = GANG_ROLE + "-max"
GANG_START_AFTER: Final = GANG_START + "-after"
GANG_ROLE_TOPOLOGY: Final = GANG_ROLE + "-topology"
GANG_ROLE_TOPOLOGY_PREFERRED: Final = GANG_ROLE_TOPOLOGY + "-preferred"
OWN: Final = (
    GANG,
    GANG_BY,
    GANG_MIN,
    GANG_MAX,
    GANG_TIMEOUT,
    GANG_POLICY,
    GANG_SHRINK,
    GANG_TOPOLOGY,
    GANG_HOLD,
    GANG_START,
    GANG_TOPOLOGY_PREFERRED,
    GANG_SLICE_SIZE,
    GANG_SLICE_TOPOLOGY,
    GANG_SLICE_TOPOLOGY_PREFERRED,
    GANG_ROLE,
    GANG_ROLE_MIN,
    GANG_ROLE_MAX,
    GANG_START_AFTER,
    GANG_ROLE_TOPOLOGY,
    GANG_ROLE_TOPOLOGY_PREFERRED,
)
"""Annotations that tenants write."""

COMMITTED: Final = "gate.koordra.io/gang"
"""Annotation that the controller alone writes, together with lifting the gate: the gang that the pod was let
go with."""

HELD: Final = "gate.koordra.io/gang-held"
"""Annotation that the controller writes to a pod that it may have let go without an answer, and that has to
stay."""

LIVE: Final = "gate.koordra.io/gang-"
LIVE_HOSTS: Final = LIVE + "hosts"
LIVE_RUNNING: Final = LIVE + "running"
LIVE_ENV: Final = LIVE + "env"
LIVE_FILES: Final = (LIVE_HOSTS, LIVE_RUNNING, LIVE_ENV)
"""Annotations that the controller writes to members of whose volumes one shows them, and keeps up to date
(`koordra.controller.gangs.live`)."""
LIVE_DIGEST: Final = LIVE + "told"
"""Annotation that the controller writes with them: what they say, in short."""

_MOST_DIGITS: Final = 9
"""Longer texts are no numbers: whoever wrote them may write 256 KiB of digits."""


def whole_number(text: str) -> int | None:
    """None where it is none, or is too long to be meant."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def starts_after(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The roles that a pod with these names."""
    return tuple(filter(None, map(str.strip, annotations.get(GANG_START_AFTER, "").split(","))))
