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

from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.tables import DueKeys
from koordra.placement.decide import Excluded

FIRST: Final = 5.0
LONGEST: Final = 300.0


@dataclass(frozen=True, slots=True)
class BackedOffNode:
    """`until`: when the node may be tried again; `why`: the refusal in the scheduler's words; `refusals` so
    far."""

    why: str
    until: float
    refusals: int


class PodBackoff:
    """Pods, by uid, for which the API server has refused a write: until when it is not asked again, each time
    for twice as long."""

    def __init__(self, *, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._until: dict[str, tuple[float, float]] = {}

    def refused(self, pod: Object, now: float) -> float:
        """Until when."""
        kept = {uid: entry for uid, entry in self._until.items() if sum(entry) > now}
        _, before = kept.get(objects.uid(pod), (now, self._first / 2))
        pause = min(before * 2, self._longest)
        self._until = {**kept, objects.uid(pod): (now + pause, pause)}
        return now + pause

    def is_due(self, pod: Object, now: float) -> bool:
        return self._until.get(objects.uid(pod), (now, 0.0))[0] <= now


class NodeBackoff:
    """By pod uid and node. Not thread-safe: the reconciler's worker owns it."""

    def __init__(self) -> None:
        self._by_pod: dict[str, dict[str, BackedOffNode]] = {}
        self._changed: set[str] = set()
        self._ends = DueKeys()

    def exclude(self, pod_uid: str, node: str, *, why: str, now: float) -> BackedOffNode:
        nodes = self._by_pod.setdefault(pod_uid, {})
        before = nodes[node].refusals if node in nodes else 0
        until = now + min(FIRST * 2.0**before, LONGEST)
        found = nodes[node] = BackedOffNode(why, until, before + 1)
        self._changed.add(pod_uid)
        self._ends.add(until, pod_uid)
        return found

    def active(self, pod_uid: str, now: float) -> dict[str, str]:
        return {
            node: entry.why
            for node, entry in sorted(self._by_pod.get(pod_uid, {}).items(), key=lambda item: item[0])
            if entry.until > now
        }

    def excluded_nodes(self, pods: Iterable[Object], now: float) -> Excluded:
        """Node -> why some of the pods has to stay off it now."""
        found: dict[str, Reason] = {}
        for pod in pods:
            for node, why in self.active(objects.uid(pod), now).items():
                text = f"kube-scheduler refused the node for pod {objects.key(pod)}: {why}"
                found.setdefault(node, reason_of(Cause.NODE_UNSUITABLE, text, node))
        return found

    def refusals(self, pod_uid: str) -> int:
        """How often the pod was refused so far, all nodes together."""
        return sum(entry.refusals for entry in self._by_pod.get(pod_uid, {}).values())

    def changed(self, now: float) -> set[str]:
        """Pods (by uid) that other nodes are left out for than at the last call."""
        self._changed |= self._ends.pop(now)
        found, self._changed = self._changed, set()
        return found

    @property
    def next_expiry(self) -> float | None:
        """In the past for one that ended since the last call of `changed`: the pass that is due at once takes
        it up."""
        return self._ends.next

    def retry_node(self, node: str, now: float) -> None:
        """The node has changed: pods may try it at once."""
        for uid, entries in self._by_pod.items():
            if node in entries:
                self._changed.add(uid)
                entries[node] = replace(entries[node], until=min(entries[node].until, now))

    def forget(self, pod_uid: str) -> None:
        self._by_pod.pop(pod_uid, None)
