"""Gates that were lifted, and that the caches do not show yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordra.api import objects
from koordra.controller.cache import pod_index
from koordra.controller.cache.assume_cache import is_older


class UngateTracker:
    """Gates that this controller has lifted, or may have lifted, and that the caches do not show yet. By pod
    uid; not thread-safe.

    Lifting a gate is conditional on the pod's version. So a write without an answer is in doubt only while
    the pod has that version: once it has another one, either the write is what made it, or it can never take
    effect. A conflict says only that the pod has another version, which an earlier write may have made: that
    is in doubt too, until the caches show it. While an ungating is in doubt nothing is taken back from its
    gang: it may be committed already.
    """

    def __init__(self) -> None:
        self.touched: set[str] = set()
        """Pods whose ungating was sent, confirmed or refused: a set that its reader empties."""
        self._confirmed: set[str] = set()
        self._sent: dict[str, Mapping[str, Any]] = {}

    def sending(self, pod: Mapping[str, Any]) -> None:
        """A write that ungates this version of the pod is about to be sent."""
        self._sent[objects.uid(pod)] = pod
        self.touched.add(objects.uid(pod))

    def answered(self, pod: Mapping[str, Any], *, ungated: bool) -> None:
        """The gate is lifted; or the server said no, for another reason than the pod's version: nothing was
        changed."""
        self._sent.pop(objects.uid(pod), None)
        if ungated:
            self._confirmed.add(objects.uid(pod))
        self.touched.add(objects.uid(pod))

    def is_ungated(self, pod: Mapping[str, Any]) -> bool:
        return objects.uid(pod) in self._confirmed

    def in_doubt(self, pod: Mapping[str, Any]) -> bool:
        """Whether an ungating was sent whose result nobody knows."""
        sent = self._sent.get(objects.uid(pod))
        return sent is not None and pod_index.is_gated(pod) and not is_older(sent, pod)

    def sync(self, find: Callable[[str], Mapping[str, Any] | None]) -> None:
        """Forget what the caches show by now. `find`: a pod by its uid."""
        for uid in self._confirmed | self._sent.keys():
            pod = find(uid)
            if pod is None or not pod_index.is_gated(pod):
                self._confirmed.discard(uid)
            elif uid not in self._sent or not is_older(self._sent[uid], pod):
                continue
            self._sent.pop(uid, None)
            self.touched.add(uid)
