"""A built limiter, once per run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.limiter.native_build import build


@pytest.fixture(scope="session")
def built() -> Path:
    return build()
