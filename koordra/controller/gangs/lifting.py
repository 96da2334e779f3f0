"""Gates that this controller has lifted, or may have lifted, and that the caches do not show yet.

Lifting a gate is conditional on the pod's version. So a lift without an answer is in doubt only while the pod has that version:
once it has another one, either the lift is what made it, or it can never take effect. A conflict says only that the pod has
another version, which an earlier lift may have made: that is in doubt too, until the caches show it. While a lift is in doubt
nothing is taken back from its gang: it may be committed already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koordra.api import objects
from koordra.controller import snapshot
from koordra.controller.assumed import is_older


class Lifts:
    """By pod uid. Not thread-safe."""

    def __init__(self) -> None:
        self.changes = 0
        """Goes up with everything that is heard of a lift."""
        self._lifted: set[str] = set()
        self._sent: dict[str, Mapping[str, Any]] = {}

    def sending(self, pod: Mapping[str, Any]) -> None:
        """A lift is about to be sent for the pod as it is."""
        self._sent[objects.uid(pod)] = pod
        self.changes += 1

    def landed(self, pod: Mapping[str, Any]) -> None:
        """The gate is lifted."""
        self._sent.pop(objects.uid(pod), None)
        self._lifted.add(objects.uid(pod))
        self.changes += 1

    def refused(self, pod: Mapping[str, Any]) -> None:
        """The server said no, for another reason than the pod's version: nothing was changed."""
        self._sent.pop(objects.uid(pod), None)
        self.changes += 1

    def is_lifted(self, pod: Mapping[str, Any]) -> bool:
        return objects.uid(pod) in self._lifted

    def in_doubt(self, pod: Mapping[str, Any]) -> bool:
        """Whether a lift was sent of which nobody knows what became of it."""
        sent = self._sent.get(objects.uid(pod))
        return sent is not None and snapshot.is_gated(pod) and not is_older(sent, pod)

    def look(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Forget what the caches show by now."""
        if not self._lifted and not self._sent:
            return
        gated = {objects.uid(pod): pod for pod in pods if snapshot.is_gated(pod)}
        self._lifted &= gated.keys()
        self._sent = {
            uid: sent for uid, sent in self._sent.items() if uid in gated and not is_older(sent, gated[uid])
        }
