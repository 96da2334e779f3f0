"""Structured logs on stderr: a stable event name and key=value pairs, one line each. The only importer of
structlog.

Event names are identifiers (`claim_prepared`), so that they can be searched for and counted; values say which
claim, node or device. Set up once per process by `configure`; before that, nothing below a warning is shown.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TextIO

import structlog
import structlog.typing

from koordra.inert import inert, inert_lines, shortened

Logger = structlog.typing.FilteringBoundLogger
"""What the rest of koordra knows of a logger."""


LONGEST_VALUE: Final = 8192
"""Characters, of a traceback too."""


def _short_values(_logger: Any, _method: str, event: Any) -> Any:
    """A tenant's text fills no disk of a node."""
    return {name: _short(value) for name, value in event.items()}


def _short(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return shortened(value, LONGEST_VALUE) if isinstance(value, str) else value


def _inert_values(_logger: Any, _method: str, event: Any) -> Any:
    """JSON escapes by itself, and so does what is no text: its `repr` is shown."""
    return {name: inert(value) if isinstance(value, str) else value for name, value in event.items()}


def _inert_traceback(out: TextIO, info: Any) -> None:
    shown = io.StringIO()
    structlog.dev.plain_traceback(shown, info)
    out.write(inert_lines(shortened(shown.getvalue(), LONGEST_VALUE)))


_IMAGINED: Final[ContextVar[bool]] = ContextVar("imagined", default=False)


@contextmanager
def imagined() -> Iterator[None]:
    """What is only worked out, and not done, is not logged as if it were: of it errors alone are shown."""
    before = _IMAGINED.set(True)
    try:
        yield
    finally:
        _IMAGINED.reset(before)


def _not_imagined(_logger: Any, method: str, event: Any) -> Any:
    if _IMAGINED.get() and method in ("debug", "info", "warning"):
        raise structlog.DropEvent
    return event


def configure(*, level: str = "info", json: bool = False, process: str = "") -> None:
    """Send everything at `level` and above to stderr, as text or as one JSON object a line."""
    shared: list[Any] = [
        _not_imagined,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if json:
        rendered: list[Any] = [
            structlog.processors.format_exc_info,
            _short_values,
            structlog.processors.JSONRenderer(),
        ]
    else:
        # Plain tracebacks: the default one may print local variables, and those hold whole claims.
        rendered = [
            _short_values,
            _inert_values,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                sort_keys=False,
                exception_formatter=_inert_traceback,
            ),
        ]
    if process:
        shared.insert(0, lambda _logger, _method, event: {"process": process, **event})
    structlog.configure(
        processors=[*shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # Looked up at each use: a test or a daemon may have replaced sys.stderr since.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> Logger:
    """A logger that carries its module's name. Bind per-request values locally, never on a shared logger."""
    logger: Logger = structlog.get_logger(module=name.removeprefix("koordra."))
    return logger


configure(level="warning")
