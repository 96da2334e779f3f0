"""How long tests wait for what has to happen."""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 60.0
"""Seconds: for a thread, a process or an answer that comes at once on an idle machine. Only a defect uses
them up, never a machine that is slow, so a test that passes is no slower for them. No test may fail because
something took a second longer: what has to be quick is proven by order, by count or on a clock that the test
moves, and measured in benchmarks."""
