"""A value with the place that says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """`where`: file and line, `/etc/containerd/config.toml:12`, or in words (a flag of a process)."""

    value: Any
    where: str
