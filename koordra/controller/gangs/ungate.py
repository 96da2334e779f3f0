"""Gates that this controller has lifted, or may have lifted, and that the caches do not show yet.

Lifting a gate is conditional on the pod's version. So a lift without an answer is in doubt only while the pod has that version:
once it has another one, either the lift is what made it, or it can never take effect. A conflict says only that the pod has
another version, which an earlier lift may have made: that is in doubt too, until the caches show it. While a lift is in doubt
nothing is taken back from its gang: it may be committed already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordra.api import objects
from koordra.controller.cache import pod_claims
from koordra.controller.cache.assume_cache import is_older


class UngateTracker:
    """By pod uid. Not thread-safe."""

    def __init__(self) -> None:
        self.touched: set[str] = set()
        """Pods of whose lift something was heard: a set that its reader empties."""
        self._lifted: set[str] = set()
        self._sent: dict[str, Mapping[str, Any]] = {}

    def sending(self, pod: Mapping[str, Any]) -> None:
        """A lift is about to be sent for the pod as it is."""
        self._sent[objects.uid(pod)] = pod
        self.touched.add(objects.uid(pod))

    def landed(self, pod: Mapping[str, Any]) -> None:
        """The gate is lifted."""
        self._sent.pop(objects.uid(pod), None)
        self._lifted.add(objects.uid(pod))
        self.touched.add(objects.uid(pod))

    def refused(self, pod: Mapping[str, Any]) -> None:
        """The server said no, for another reason than the pod's version: nothing was changed."""
        self._sent.pop(objects.uid(pod), None)
        self.touched.add(objects.uid(pod))

    def is_lifted(self, pod: Mapping[str, Any]) -> bool:
        return objects.uid(pod) in self._lifted

    def in_doubt(self, pod: Mapping[str, Any]) -> bool:
        """Whether a lift was sent of which nobody knows what became of it."""
        sent = self._sent.get(objects.uid(pod))
        return sent is not None and pod_claims.is_gated(pod) and not is_older(sent, pod)

    def sync(self, find: Callable[[str], Mapping[str, Any] | None]) -> None:
        """Forget what the caches show by now. `find`: a pod by its uid."""
        gated = {
            uid: pod
            for uid in (*self._lifted, *self._sent)
            if (pod := find(uid)) is not None and pod_claims.is_gated(pod)
        }
        self.touched |= (self._lifted | self._sent.keys()) - gated.keys()
        self._lifted &= gated.keys()
        sent = {
            uid: sent for uid, sent in self._sent.items() if uid in gated and not is_older(sent, gated[uid])
        }
        self.touched |= self._sent.keys() - sent.keys()
        self._sent = sent
