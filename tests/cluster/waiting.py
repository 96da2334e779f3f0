"""Waiting for a cluster that decides in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

NODES = ("koordra-test-a", "koordra-test-b")
PATIENCE = 120.0

T = TypeVar("T")


def eventually(look: Callable[[], T | None], what: str, timeout: float = PATIENCE) -> T:
    """The first truthy answer of `look`, or a failure that says what was waited for."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    pytest.fail(f"{what}: not within {timeout:.0f} s")
