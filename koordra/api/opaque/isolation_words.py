"""The words for what keeps a share of a GPU: koordra's own, and those that other packages register."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import entry_points
from typing import Final

NO_ISOLATION: Final = "none"
ISOLATIONS: Final = (NO_ISOLATION, "limiter", "mps", "timeslicing", "mig", "hami-core")
"""Backends that koordra knows by name."""
COUNTING: Final = frozenset({NO_ISOLATION, "limiter", "timeslicing"})
"""Those of them that count compute and do not limit it; the limiter does in a preview (--limiter-cores)."""
AUTO: Final = "Auto"
"""In place of a backend: the first one of the operator's order that the node has (isolation.py)."""
ISOLATION_ENTRY_POINTS: Final = "koordra.isolation"


@cache
def isolations() -> tuple[str, ...]:
    """koordra's own words and those of backends that other packages register as entry points
    (kubelet_plugin/isolation). The name is part of an attribute's, which has 32 characters."""
    registered = sorted({entry.name for entry in entry_points(group=ISOLATION_ENTRY_POINTS)})
    return ISOLATIONS + tuple(
        name for name in registered if name not in ISOLATIONS and _BACKEND_NAME.fullmatch(name)
    )


POOLS: Final = "isolation/"
"""Begins the names of pools whose devices are on no node: `isolation/remote` are those of the backend
`remote`. No node has a name with a slash."""


def backend_of(pool: str) -> str | None:
    """The backend whose devices are in the pool; None for that of a node."""
    return pool.removeprefix(POOLS) or None if pool.startswith(POOLS) else None


def wishes() -> tuple[str, ...]:
    """What may be asked for."""
    return (*isolations(), AUTO)


_BACKEND_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*(?<!.{23})")
