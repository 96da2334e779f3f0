"""Nodes that a pod stays off for a while, because the scheduler refused it there.

The first refusal keeps the pod off the node for FIRST seconds, each further one for twice as long, up to
LONGEST. The count outlives the exclusion, so that a node that keeps refusing is asked ever less often; it is
forgotten with the pod. A node that has changed (capacity, taints, labels) may be tried at once, but its count
stays. Times are seconds of a monotonic clock that the caller passes in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

FIRST: Final = 5.0
LONGEST: Final = 300.0


@dataclass(frozen=True, slots=True)
class Exclusion:
    """`until`: when the node may be tried again; `why`: the refusal in the scheduler's words; `refusals` so
    far."""

    node: str
    why: str
    until: float
    refusals: int


class Exclusions:
    """By pod uid and node. Not thread-safe: the reconciler's worker owns it."""

    def __init__(self, *, first: float = FIRST, longest: float = LONGEST) -> None:
        self._first = first
        self._longest = longest
        self._by_pod: dict[str, dict[str, Exclusion]] = {}

    def exclude(self, pod_uid: str, node: str, *, why: str, now: float) -> Exclusion:
        """One more refusal of this pod by this node."""
        before = self._by_pod.setdefault(pod_uid, {}).get(node)
        refusals = 1 if before is None else before.refusals + 1
        pause: float = min(self._first * 2.0 ** (refusals - 1), self._longest)
        found = Exclusion(node, why, now + pause, refusals)
        self._by_pod[pod_uid][node] = found
        return found

    def active(self, pod_uid: str, now: float) -> dict[str, str]:
        """node -> why, for the nodes the pod has to stay off now; sorted by node."""
        entries = self._by_pod.get(pod_uid, {})
        return {node: entries[node].why for node in sorted(entries) if entries[node].until > now}

    def refusals(self, pod_uid: str) -> int:
        """How often the pod was refused so far, all nodes together."""
        return sum(entry.refusals for entry in self._by_pod.get(pod_uid, {}).values())

    def next_expiry(self, now: float) -> float | None:
        """When the next exclusion ends, None when none is active."""
        ends = [
            entry.until
            for entries in self._by_pod.values()
            for entry in entries.values()
            if entry.until > now
        ]
        return min(ends, default=None)

    def retry_node(self, node: str, now: float) -> None:
        """The node has changed: pods may try it at once."""
        for entries in self._by_pod.values():
            if node in entries:
                entries[node] = replace(entries[node], until=min(entries[node].until, now))

    def retain(self, pod_uids: Iterable[str]) -> None:
        """Forget every pod that is not among these."""
        if not self._by_pod:
            return
        kept = set(pod_uids)
        self._by_pod = {uid: entries for uid, entries in self._by_pod.items() if uid in kept}
