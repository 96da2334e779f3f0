"""Which word was meant, at a price that does not grow with what somebody writes."""

from __future__ import annotations

from koordra.spelling import meant
from tests.fakes.effort import calls


def test_the_word_that_is_most_alike() -> None:
    assert meant("isolatoin", ("isolation", "network")) == "isolation"
    assert meant("x", ("isolation", "network")) is None
    assert meant("isolate", ("isolation",), cutoff=0.95) is None


def test_a_long_text_is_no_word() -> None:
    assert meant("isolation" * 2_000, ("isolation",)) is None
    assert calls(lambda: meant("x" * 10_000, ("isolation",))) < 10
