"""How much a client may ask of the API server: one token bucket a process, as client-go has
(`--kube-api-qps`, `--kube-api-burst`), and the server's own word where it says Retry-After.

What matters most waits least:

    Leases      never wait: a leader that cannot renew would stand aside because of its own writes. They take
                their tokens from the others
    spare ones  Events, and what an admission review looks up: they leave half of the bucket to everything
                else, so that no tenant's pods and no words about allocations hold allocations up
    the rest    in turn, each as soon as there is a token

Waiting is part of a request's time limit, which the fence of the lease (controller/reconcile/leadership)
rests on: what has no turn in that time fails like a request that nobody answered, and was not sent.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from koordra.api import kinds
from koordra.errors import ApiUnreachable

LONGEST_REST: Final = 60.0
"""Seconds; a Retry-After that says more is of a proxy that knows nothing of Kubernetes."""
_MOMENT: Final = 1e-6
"""Seconds that are none: sums of fractions of tokens are not exact."""


class Lane(Enum):
    LEASE = auto()
    ORDINARY = auto()
    SPARE = auto()


LANES: Final = {
    kinds.LEASES: Lane.LEASE,
    **dict.fromkeys((kinds.EVENTS, kinds.TOKEN_REVIEWS, kinds.SUBJECT_ACCESS_REVIEWS), Lane.SPARE),
}
"""Of requests about these kinds."""


class RequestLimit:
    """`qps` requests a second in the long run, `burst` at once; no limit where `qps` is 0. `clock` is
    monotonic, `draw` a number of [0, 1). Thread-safe."""

    def __init__(
        self,
        qps: float = 0.0,
        burst: int = 1,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._qps, self._burst = qps, float(max(burst, 1))
        self._clock, self._sleep, self._draw = clock, sleep, draw
        self._lock = threading.Lock()
        self._tokens, self._at = self._burst, clock()
        self._rest_until = self._at

    def take(self, lane: Lane, *, within: float) -> float:
        """Wait for the request's turn; returns the seconds that are left of `within`. Raises ApiUnreachable
        where they are not enough."""
        ends = self._clock() + within
        while pause := self._reserve(lane, ends):
            self._sleep(pause)
            if lane is not Lane.SPARE:
                break  # its token is taken already; a spare one gives way to whoever came meanwhile
        return max(ends - self._clock(), 0.001)

    def rest(self, seconds: float) -> None:
        """The server asked for so many seconds without requests. Clients that were told so together come back
        one by one."""
        until = self._clock() + min(seconds, LONGEST_REST) * (1 + self._draw() / 2)
        with self._lock:
            self._rest_until = max(self._rest_until, until)

    def _reserve(self, lane: Lane, ends: float) -> float:
        """Seconds until the turn, for which a token is taken now; for a spare one, after which to ask
        again."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps)
            self._at = now
            if lane is Lane.LEASE:
                self._tokens -= 1
                return 0.0
            kept = self._burst / 2 if lane is Lane.SPARE else 0.0
            short = (1 + kept - self._tokens) / self._qps if self._qps else 0.0
            pause = max(short, self._rest_until - now)
            if pause < _MOMENT:
                pause = 0.0
            if now + pause > ends:
                why = "the API server asks for" if pause > short else "--kube-api-qps leaves"
                raise ApiUnreachable(f"not sent: {why} {pause:.1f} s before the next request")
            if lane is Lane.ORDINARY or not pause:
                self._tokens -= 1
            return pause
