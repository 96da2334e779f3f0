"""Prepares in progress, and whether somebody still waits for them.

The kubelet may give a Prepare up (45 s) and send the Unprepare while the first still waits for the API. A
call that the kubelet gave up, or that an Unprepare of the same claim has overtaken, has to end without
effect. Two Prepares of one claim (two pods that share it) do not disturb each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from koordra.errors import PrepareError
from koordra.node_state.claim_ref import ClaimRef


class CallsInProgress:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: set[tuple[str, object]] = set()
        """The claim's uid, and what tells the call from others of the claim."""

    @contextmanager
    def of(self, ref: ClaimRef, awaited: Callable[[], bool]) -> Iterator[Callable[[], None]]:
        """A call: what it is given raises PrepareError once nobody waits for the answer. `awaited`: whether
        the kubelet does."""
        call = ref.uid, object()
        with self._lock:
            self._calls.add(call)

        def require_wanted() -> None:
            with self._lock:
                overtaken = call not in self._calls
            if overtaken or not awaited():
                raise PrepareError(f"{ref}: the kubelet gave this call up; nothing was prepared by it")

        try:
            yield require_wanted
        finally:
            with self._lock:
                self._calls.discard(call)

    def overtake(self, uid: str) -> None:
        """The claim is unprepared."""
        with self._lock:
            self._calls = {call for call in self._calls if call[0] != uid}
