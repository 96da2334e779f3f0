"""Which cases of a test belong to `make test`, and which to `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def mostly_long(values: Iterable[Any], *, fast: int = 1) -> list[Any]:
    """The first `fast` values as they are, the others marked `long`."""
    return [
        value if at < fast else pytest.param(value, marks=pytest.mark.long) for at, value in enumerate(values)
    ]


def examples(number: int) -> settings:
    """That many examples in `make test-long`, a fifth of them in `make test`, and in `make soak` as many as
    it asks for."""
    if "KOORDRA_EXAMPLES" in os.environ:
        return settings(max_examples=max(number, int(os.environ["KOORDRA_EXAMPLES"])))
    return settings(max_examples=max(1, number * settings().max_examples // 100))
