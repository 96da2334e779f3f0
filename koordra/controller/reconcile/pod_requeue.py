"""Pods that their kubelet has given up for a minute are looked at again.

A kubelet that cannot prepare a pod's claims does not count that as a failure of the pod: it tells an Event
(FailedPrepareDynamicResources) and comes back at its next resync, 60 to 90 seconds later. The reason is often
over in a second: the API server's node authorizer has not heard yet that the pod is on the node and refuses
the first read of the claim; the plugin is being updated; the card's last holder is being torn down. A change
of a pod's annotations makes the kubelet look at once, so the leader writes one:

    bound, claims of koordra's, kubelet has seen it (PodReadyToStartContainers False) for 3 s
        ──> koordra.io/look-again: "1"
        ──> each pause 1.5 times the last, up to 60 s ──> "2", "3", ... up to "10"
    sandbox made, finished, deleting, gone ──> forgotten

Nobody reads the annotation. After the last one the kubelet is left to its own resync. Pods are followed
through the term's watch, one step an event; at most so many are written a second that a cluster full of
failing nodes does not feel it. It takes `patch` of pods, which lifting gates takes already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.pod_index import is_bound, is_living
from koordra.controller.reconcile.reconcile_loop import run_passes
from koordra.errors import ApiError, ApiUnreachable
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.placement.request.claim_groups import claim_keys
from koordra.process.lifecycle import spawn

log = get_logger(__name__)

LOOK_AGAIN: Final = names.DOMAIN + "look-again"
"""Annotation: how often the kubelet was woken for the pod."""
FIRST: Final = 3.0
GROWTH: Final = 1.5
LONGEST: Final = 60.0
MOST: Final = 10
A_SECOND: Final = 50
"""Pods written in one `sync`; there is one a second."""
PERIOD: Final = 1.0
_CONDITION: Final = "PodReadyToStartContainers"


@dataclass(slots=True)
class _Waiting:
    """`due` by the monotonic clock; `requeued` times already."""

    pod: Object
    due: float
    requeued: int


@dataclass
class PodRequeue:
    """`ours` tells whether a pod has devices of koordra's. `on_pod` follows a watch, `sync` writes; one
    thread each."""

    client: KubeClient
    _: KW_ONLY
    ours: Callable[[Object], bool]
    clock: Callable[[], float]
    may_write: Callable[[], bool]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: dict[str, _Waiting] = field(default_factory=dict)

    def start(self, stop: threading.Event) -> threading.Thread:
        changed, name = threading.Event(), "kubelet-requeue"
        run = partial(run_passes, self.sync, name=name, gather=0.0, changed=changed, stop=stop)
        return spawn(run, name=name, until=stop)

    def on_pod(self, event: str, pod: Object, /) -> None:
        uid = objects.uid(pod)
        if event == "DELETED" or not is_waiting(pod):
            if uid in self._waiting:
                with self._lock:
                    self._waiting.pop(uid, None)
            return
        requeued = _requeued(pod)
        with self._lock:
            new = _Waiting(pod, self.clock() + _pause(requeued), requeued)
            self._waiting.setdefault(uid, new).pod = pod

    def sync(self) -> float:
        """Write what is due; the seconds until the next time. Raises ApiUnreachable."""
        now, tried = self.clock(), 0
        with self._lock:
            due = sorted((one for one in self._waiting.values() if one.due <= now), key=lambda one: one.due)
        for one in due:
            if one.requeued >= MOST or not self.ours(one.pod):
                one.due = now + LONGEST
                continue
            if tried == A_SECOND or not self.may_write():
                break
            tried += 1
            self._write(one)
            one.requeued += 1
            one.due = now + _pause(one.requeued)
        return PERIOD

    def _write(self, one: _Waiting) -> None:
        pod, again = one.pod, {LOOK_AGAIN: str(one.requeued + 1)}
        body = {"metadata": {"uid": objects.uid(pod), "annotations": again}}
        try:
            self.client.patch(PODS, objects.name(pod), body, namespace=objects.namespace(pod))
        except ApiUnreachable:
            one.due = self.clock() + PERIOD  # others first: it may be this pod alone that nobody can write
            raise
        except ApiError as error:  # gone, or a policy says no
            log.debug("kubelet_not_woken", pod=objects.key(pod), error=str(error))
        else:
            log.info("kubelet_woken", pod=objects.key(pod), times=one.requeued + 1)


def is_waiting(pod: Fields) -> bool:
    """Whether the kubelet has seen the pod and has no sandbox for it. Older kubelets do not say."""
    if not (is_bound(pod) and is_living(pod) and objects.spec_of(pod).get("resourceClaims")):
        return False
    return any(
        one.get("type") == _CONDITION and one.get("status") == "False"
        for one in objects.status_of(pod).get("conditions") or ()
    )


def has_ours(pod: Fields, find: Callable[[Kind, str], Object | None]) -> bool:
    """Whether one of its claims has devices of koordra's. `find` looks up by kind and key."""
    claims = filter(None, map(partial(find, RESOURCE_CLAIMS), claim_keys(pod)))
    return any(map(claims_of.holds_koordra_devices, claims))


def _requeued(pod: Fields) -> int:
    """By the leader before."""
    text = objects.annotations_of(pod).get(LOOK_AGAIN, "")
    return min(int(text), MOST) if text.isascii() and text.isdigit() and len(text) < 3 else 0


def _pause(requeued: int) -> float:
    return min(FIRST * GROWTH**requeued, LONGEST)
