"""The annotations about gangs, those of tenants and of the controller; numbers and roles as pods write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordra.api import names

GANG: Final = names.DOMAIN + "gang"
"""Annotation, or label, on a pod: the name of its gang in its namespace (docs/gangs.md). Without it: no
gang."""
GANG_BY: Final = GANG + "-by"
"""Annotation on a pod: labels by which replicas are gangs of their own. Without it: by the kind of the
workload."""
GANG_MIN: Final = GANG + "-min"
"""Annotation on a pod: members that have to be placed before any starts. Without it: required, but for the
pod group of somebody else, which says it."""
GANG_MAX: Final = GANG + "-max"
"""Annotation on a pod: most members that get devices. Without it: no bound."""
GANG_TIMEOUT: Final = GANG + "-timeout"
"""Annotation on a pod: how long a started gang may lack members (`300s`, `5m`, `1h30m`). Without it: `300s`,
or the pod group's own timeout."""
GANG_POLICY: Final = GANG + "-policy"
"""Annotation on a pod: what happens then, `Restart` or `Keep`. Without it: `Restart`; `Keep` for `PodGang`s
of Grove."""
GANG_SHRINK: Final = GANG + "-shrink"
"""Annotation on a pod: `ForOthers` where members above the least make room for a gang that waits. Without it:
`Never`."""
GANG_TOPOLOGY: Final = GANG + "-topology"
"""Annotation on a pod: level of the network, or its label, of which all members share one domain. Without it:
fewest domains, none required."""
GANG_HOLD: Final = GANG + "-hold"
"""Annotation on a pod: how long a started gang keeps what a lost member had; at most `1h`, `0` for not at
all. Without it: `10m`."""
GANG_START: Final = GANG + "-start"
"""Annotation on a pod: `Together`, or `LeaderFirst` where those that are there go before the others are made.
Without it: as the job says."""
GANG_TOPOLOGY_PREFERRED: Final = GANG_TOPOLOGY + "-preferred"
"""Annotation on a pod: the same as koordra.io/gang-topology, if there is a way. Without it: no level before
the others."""
GANG_SLICE_SIZE: Final = GANG + "-slice-size"
"""Annotation on a pod: how many members are a slice, which lies in one domain. Without it: no slices."""
GANG_SLICE_TOPOLOGY: Final = GANG + "-slice-topology"
"""Annotation on a pod: the level of the domains of slices."""
GANG_SLICE_TOPOLOGY_PREFERRED: Final = GANG_SLICE_TOPOLOGY + "-preferred"
"""Annotation on a pod: the same, if there is a way."""
GANG_ROLE: Final = GANG + "-role"
"""Annotation on a pod: its role in the gang. Without it: no roles."""
GANG_ROLE_MIN: Final = GANG_ROLE + "-min"
"""Annotation on a pod: members of its role that have to be placed before any starts. Without it: what the
gang needs."""
GANG_ROLE_MAX: Final = GANG_ROLE + "-max"
"""Annotation on a pod: most members of its role that get devices. Without it: what the gang may have."""
GANG_START_AFTER: Final = GANG_START + "-after"
"""Annotation on a pod: roles whose members are Ready before this pod starts. Without it: all start
together."""
GANG_ROLE_TOPOLOGY: Final = GANG_ROLE + "-topology"
"""Annotation on a pod: level of which the members of its role share one domain."""
GANG_ROLE_TOPOLOGY_PREFERRED: Final = GANG_ROLE_TOPOLOGY + "-preferred"
"""Annotation on a pod: the same, if there is a way."""
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
"""Annotation on a pod by the controller, together with lifting the gate: the gang that the pod was let go
with."""

HELD: Final = "gate.koordra.io/gang-held"
"""Annotation on a pod by the controller, which may have let it go without an answer: it has to stay."""

LEAVES: Final = "gate.koordra.io/gang-leaves"
"""Annotation that the controller writes to a member that is about to be deleted for good: its place is not
held for another."""

LIVE: Final = "gate.koordra.io/gang-"
LIVE_HOSTS: Final = LIVE + "hosts"
"""Annotation on a pod by the controller: the hosts of its gang, kept up to date for volumes that show
them."""
LIVE_RUNNING: Final = LIVE + "running"
"""Annotation on a pod by the controller: those of them that run."""
LIVE_ENV: Final = LIVE + "env"
"""Annotation on a pod by the controller: the gang's variables."""
LIVE_FILES: Final = (LIVE_HOSTS, LIVE_RUNNING, LIVE_ENV)
"""Annotations that the controller writes to members of whose volumes one shows them, and keeps up to date
(`koordra.controller.gangs.live`)."""
LIVE_DIGEST: Final = LIVE + "told"
"""Annotation on a pod by the controller: what the others of its gang say, in short."""

_MOST_DIGITS: Final = 9
"""Longer texts are no numbers: whoever wrote them may write 256 KiB of digits."""


def whole_number(text: str) -> int | None:
    """None where it is none, or is too long to be meant."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def starts_after(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The roles that a pod with these names."""
    return tuple(filter(None, map(str.strip, annotations.get(GANG_START_AFTER, "").split(","))))
