"""Claims that came to a namespace before the API server asked for reviews there: they count as others do.

The API server asks about namespaces that have quotas (scope). Between a namespace's first quota and its first
review claims come in unasked, and a watch may show them late. So for a while after the first review, in
which every API server has begun to ask, the namespace's claims are read from the API server before anybody is
let in: nobody is let in without having counted all who were before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.controller.quota.bounds import Charge
from koordra.controller.quota.claim_usage import ClaimUsage
from koordra.controller.quota.usage import RESERVED_FOR
from koordra.kube.client import KubeClient

SETTLE: Final = 15.0
"""Seconds within which every API server reads a changed webhook configuration, and a watch shows what was
stored before."""


@dataclass(frozen=True, slots=True)
class Unreviewed:
    """`term` of a namespace is another number whenever its claims begin to be counted; `clock` is
    monotonic."""

    client: KubeClient
    claims: ClaimUsage
    term: Callable[[str], int]
    clock: Callable[[], float]
    _first: dict[str, tuple[int, float]] = field(default_factory=dict)
    """When a namespace's first review of a term came."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, namespace: str) -> dict[str, tuple[float, Charge]]:
        """Raises ApiError."""
        if self.clock() - self._begun(namespace) > SETTLE:
            return {}
        found, _ = self.client.list(RESOURCE_CLAIMS, namespace=namespace)
        return {uid: (RESERVED_FOR, charge) for uid, charge in self.claims.unseen(found).items()}

    def _begun(self, namespace: str) -> float:
        term = self.term(namespace)
        with self._lock:
            of_term, first = self._first.get(namespace, (0, 0.0))
            if of_term != term:
                first = self.clock()
                self._first[namespace] = term, first
                for gone in [one for one in self._first if not self.term(one)]:
                    del self._first[gone]
            return first
