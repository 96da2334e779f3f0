"""What the limiters of this node's claims say of themselves, for metrics and for who verifies containers.

The figures come from the claims' regions (limiter_region.py). A tenant writes `usage`, so they are its own word: good for
charts and for finding a limiter that did not start, not for settling a dispute.

    koordra_limiter_used_bytes, koordra_limiter_limit_bytes   by claim and GPU; a share without a limit has no limit
    koordra_limiter_claims                                    how many wait, enforce, or turned a process away
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation import limiter_region
from koordra.kubelet_plugin.isolation.limiter_region import ClaimUse
from koordra.metrics import Metrics

HANDSHAKES: Final = ("waiting", "enforcing", "refused")


def uses(claims: Path) -> Iterator[tuple[str, ClaimUse]]:
    """The claims (by uid) whose region can be read now."""
    for folder in sorted(claims.iterdir()) if claims.is_dir() else []:
        try:
            yield folder.name, limiter_region.read(folder)
        except NodeError:
            continue  # being made, or taken away


def enforces(claims: Path, uid: str) -> bool | None:
    """Whether the claim's limiter enforces; None where there is no limiter, or no process has used CUDA yet."""
    try:
        handshake = limiter_region.read(claims / uid).handshake
    except NodeError:
        return None
    return None if handshake == "waiting" else handshake == "enforcing"


class LimiterMetrics:
    """`claims` is the folder with one folder per claim."""

    def __init__(self, metrics: Metrics, claims: Path) -> None:
        self._claims = claims
        labels = ("claim", "gpu")
        self._used = metrics.gauge(
            "koordra_limiter_used_bytes", "GPU memory that a limited claim uses.", labels
        )
        self._limit = metrics.gauge(
            "koordra_limiter_limit_bytes", "GPU memory that a limited claim may use.", labels
        )
        self._handshakes = metrics.gauge(
            "koordra_limiter_claims", "Claims by what their limiter says.", ("state",)
        )
        self.observe()

    def observe(self) -> None:
        """Read all regions again; claims that are gone go."""
        seen = list(uses(self._claims))
        self._used.clear()
        self._limit.clear()
        for uid, use in seen:
            for device in use.devices:
                self._used.labels(uid, device.uuid).set(device.used)
                if device.limit is not None:
                    self._limit.labels(uid, device.uuid).set(device.limit)
        states = [use.handshake for _, use in seen]
        for state in HANDSHAKES:
            self._handshakes.labels(state).set(states.count(state))
