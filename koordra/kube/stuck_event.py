"""An Event of the Node when a thread of one of its programs makes no step any more: who looks after the
cluster is told without having looked at the metrics of the node.

It is written by a thread of its own, once for each time: the watchdog must not wait for the API server, and
what is not told is in the log and in koordra_stuck_threads all the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection

from koordra.api import kinds, names
from koordra.errors import ApiError
from koordra.inert import inert, shortened
from koordra.kube.client import KubeClient
from koordra.kube.wall_clock import utc_now
from koordra.logs import get_logger
from koordra.process.lifecycle import spawn

log = get_logger(__name__)

REASON = "ThreadStuck"
"""of a Node: a thread of koordra's program there stands still; its stacks are in the log"""
_LONGEST_MESSAGE = 1000


class StuckEvents:
    """`program`: as it is called in Events (`nri`, `kubelet-plugin`); `effect`: what its threads that stand
    still mean for the node."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        program: str,
        effect: str,
        now: Callable[[], str] = utc_now,
    ) -> None:
        self._client = client
        self._node = node
        self._component = f"{names.FIELD_COMPONENT}-{program}"
        self._effect = effect
        self._now = now

    def __call__(self, stuck: Collection[str]) -> None:
        spawn(lambda: self.write(stuck), name="stuck-event")

    def write(self, stuck: Collection[str]) -> None:
        """Does not raise ApiError: it is logged."""
        now, about = self._now(), {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node}
        text = f"no step for two minutes: {', '.join(sorted(stuck))}. {self._effect}"
        body = {
            "apiVersion": kinds.EVENTS.api_version,
            "kind": kinds.EVENTS.kind,
            "metadata": {"namespace": "default", "name": f"{self._node[:200]}.{uuid.uuid4().hex[:16]}"},
            "involvedObject": about,
            "reason": REASON,
            "message": inert(shortened(text, _LONGEST_MESSAGE)),
            "type": "Warning",
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component, "host": self._node},
            "reportingComponent": self._component,
            "reportingInstance": self._node,
        }
        try:
            self._client.create(kinds.EVENTS, body, namespace="default")
        except ApiError as error:
            log.warning("stuck_event_not_written", error=str(error))
