"""A tenant whose objects are refused by the thousand fills no log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from koordra import logs
from koordra.controller.webhook import refusal_log
from koordra.controller.webhook.refusal_log import MINUTE, MOST_LINES, MOST_TEXT, RefusalLog
from koordra.errors import InvalidInput, InvalidManifest
from tests.fakes.clock import Clock


@pytest.fixture(autouse=True)
def shown() -> Iterator[None]:
    """As a process that serves has it."""
    logs.configure(level="info")
    yield
    logs.configure(level="warning")


PROBLEM = InvalidManifest("is wrong", object="ResourceClaim tenant/c", field="spec")


def told(
    log: RefusalLog,
    number: int,
    *,
    namespace: str = "tenant",
    problems: tuple[InvalidInput, ...] = (PROBLEM,),
) -> list[Any]:
    with capture_logs() as lines:
        for _ in range(number):
            log.tell(problems, path="/validate", namespace=namespace)
    return lines


def test_a_namespace_has_so_many_lines_a_minute_and_is_told_what_was_left_out() -> None:
    clock = Clock()
    log = RefusalLog(clock.monotonic)
    assert len(told(log, 1000)) == MOST_LINES
    assert len(told(log, 1, namespace="another")) == 1
    clock.now += MINUTE
    (line,) = told(log, 1)
    assert line["refused_besides"] == 1000 - MOST_LINES
    assert len(told(log, 1000)) == MOST_LINES - 1
    clock.now += 10 * MINUTE
    assert told(log, 1)[0]["refused_besides"] == 1001 - MOST_LINES
    clock.now += MINUTE
    assert "refused_besides" not in told(log, 1)[0]


def test_a_line_has_a_length() -> None:
    many = tuple(InvalidManifest("x" * 5000, object="c") for _ in range(8192))
    (line,) = told(RefusalLog(Clock().monotonic), 1, problems=many)
    assert line["number"] == 8192
    assert len(line["problems"]) <= MOST_TEXT + 4
    (line,) = told(RefusalLog(Clock().monotonic), 1)
    assert line["problems"] == "ResourceClaim tenant/c: spec: is wrong"


def test_namespaces_by_the_thousand_share_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_log, "MOST_NAMESPACES", 4)
    clock = Clock()
    log = RefusalLog(clock.monotonic)
    lines = sum(len(told(log, 5, namespace=f"n{number}")) for number in range(100))
    assert lines == 4 * 5 + MOST_LINES
    assert len(log._lines) <= 5
    clock.now += MINUTE
    assert len(told(log, 1, namespace="n77")) == 1
    assert len(log._lines) <= 5
