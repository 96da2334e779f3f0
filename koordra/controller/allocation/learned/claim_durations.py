"""Learns from claims that end how long they had their devices: from the allocation until the claim is gone,
or has given them back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.placement.policy.durations import Durations, kind_of


class ClaimDurations:
    """Thread-safe. `now`: Unix time."""

    def __init__(self, *, now: Callable[[], float]) -> None:
        self._durations, self._now = Durations(), now
        self._lock = threading.Lock()
        self._began: dict[str, tuple[str, float]] = {}
        """By uid of the claim: its kind, and since when it has its devices."""

    def on_claim(self, event: str, claim: Object) -> None:
        uid, since = objects.uid(claim), _since(claim)
        with self._lock:
            before = self._began.pop(uid, None)
            if event == "DELETED":
                if before is None and since is not None:
                    before = kind_of(claim), since
                since = None
            if since is not None:
                kind = before[0] if before is not None else kind_of(claim)
                self._began[uid] = kind, since
            if before is not None and before[1] != since:
                self._durations.add(before[0], max(0.0, self._now() - before[1]))

    def resume(self, known: Durations) -> None:
        """Go on from what an earlier life has learned."""
        with self._lock:
            self._durations.resume(known)

    @property
    def version(self) -> int:
        return self._durations.version

    def to_document(self, most: int) -> dict[str, dict[str, int]]:
        with self._lock:
            return self._durations.to_document(most)


def _since(claim: Object) -> float | None:
    """Unix time of koordra's allocation; None where it has none, or nobody says when."""
    if not claims_of.holds_koordra_devices(claim):
        return None
    try:
        return datetime.fromisoformat(
            str((claims_of.allocation(claim) or {}).get("allocationTimestamp"))
        ).timestamp()
    except ValueError:
        return None
