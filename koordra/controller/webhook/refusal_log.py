"""What the log says of refused objects.

Whoever may create objects may have them refused, thousands a minute and each with thousands of problems, and
nothing of it is stored that a quota counts. So a namespace has MOST_LINES lines a minute, of MOST_TEXT
characters; the first line of its next minute says how many more were refused. The answer to who asked has
everything, and the metrics count all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.errors import InvalidInput
from koordra.logs import get_logger

log = get_logger(__name__)

MOST_LINES: Final = 20
MOST_TEXT: Final = 1024
MINUTE: Final = 60.0
MOST_NAMESPACES: Final = 1024
"""Of which lines are counted; the others have theirs together."""


@dataclass(slots=True)
class _Lines:
    since: float
    written: int = 0
    left_out: int = 0


@dataclass(slots=True)
class RefusalLog:
    """`clock` is monotonic. Thread-safe."""

    clock: Callable[[], float] = time.monotonic
    _lines: dict[str, _Lines] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, problems: Sequence[InvalidInput], *, path: str, namespace: str) -> None:
        with self._lock:
            left_out = self._turn(namespace)
        if left_out is None:
            return
        text = "; ".join(map(str, problems[:MOST_LINES]))
        shown = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ..."
        more = {"refused_besides": left_out} if left_out else {}
        log.info(
            "admission_refused",
            path=path,
            namespace=namespace,
            number=len(problems),
            problems=shown,
            **more,
        )

    def _turn(self, namespace: str) -> int | None:
        """How many were left out since the last line; None where this one is."""
        now = self.clock()
        if namespace not in self._lines and len(self._lines) >= MOST_NAMESPACES:
            self._lines = {name: one for name, one in self._lines.items() if now < one.since + MINUTE}
            if len(self._lines) >= MOST_NAMESPACES:
                namespace = ""
        lines = self._lines.setdefault(namespace, _Lines(now))
        if now >= lines.since + MINUTE:
            left_out = lines.left_out
            self._lines[namespace] = _Lines(now, written=1)
            return left_out
        if lines.written >= MOST_LINES:
            lines.left_out += 1
            return None
        lines.written += 1
        return 0
