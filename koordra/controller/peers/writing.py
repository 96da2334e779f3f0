"""Which pods get the annotations of annotations.py, and writing them.

A pod that came through the shim (annotation koordra.io/dialect), that is bound, and whose claims are all allocated. What
stands there and differs is replaced: a user's forgery too. A pod is looked at again when it, one of its claims or the
published devices have changed. One patch for a pod, conditional on its uid; what the API server refuses is told once and not
tried again for that pod (a policy may reserve Koordinator's annotation for its scheduler).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from koordra.api import objects
from koordra.api.kinds import PODS, Kind
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.peers.annotations import DIALECT, wanted
from koordra.controller.peers.held import Devices, devices_of
from koordra.controller.snapshot import Cluster
from koordra.errors import ApiError, ApiUnreachable, Conflict, NotFound
from koordra.logs import get_logger
from koordra.process import spawn

log = get_logger(__name__)

PERIOD: Final = 30.0
GATHER: Final = 0.1
PAUSE: Final = 2.0


class PodClient(Protocol):
    """What is needed of koordra.kube.KubeClient."""

    def patch(self, kind: Kind, name: str, body: Any, *, namespace: str | None = None) -> Object: ...


class PeerAnnotations:
    """Not thread-safe."""

    def __init__(self, client: PodClient, *, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._may_write = may_write
        self._slices: Sequence[Object] = ()
        self._devices: Devices = {}
        self._seen: dict[str, tuple[object, ...]] = {}

    def look(self, cluster: Cluster) -> int:
        """One pass; how many pods were written. Raises ApiUnreachable."""
        if not _alike(cluster.slices, self._slices):
            self._slices, self._devices = cluster.slices, devices_of(cluster.slices)
            self._seen.clear()
        kept: dict[str, tuple[object, ...]] = {}
        written = 0
        for pod in cluster.pods:
            if DIALECT not in objects.annotations_of(pod) or not _is_served(pod):
                continue
            claims = _claims(pod, cluster)
            if claims is None:
                continue
            uid = objects.uid(pod)
            state = (pod, *claims)
            before = self._seen.get(uid)
            if before is not None and _alike(before, state):
                kept[uid] = before
                continue
            if not self._may_write():
                break
            written += self._write(pod, wanted(pod, claims, self._devices))
            kept[uid] = self._seen[uid] = state
        self._seen = kept
        return written

    def _write(self, pod: Object, annotations: Mapping[str, str]) -> bool:
        there = objects.annotations_of(pod)
        if all(there.get(key) == value for key, value in annotations.items()):
            return False
        body = {"metadata": {"uid": objects.uid(pod), "annotations": dict(annotations)}}
        try:
            self._client.patch(PODS, objects.name(pod), body, namespace=objects.namespace(pod))
        except (NotFound, Conflict):
            return False
        except ApiUnreachable:
            raise
        except ApiError as error:
            log.warning("peer_annotations_refused", pod=objects.key(pod), error=str(error))
            return False
        log.info("peer_annotations_written", pod=objects.key(pod), annotations=sorted(annotations))
        return True


def start_peer_annotations(
    writer: PeerAnnotations,
    *,
    observe: Callable[[], Cluster],
    changed: threading.Event,
    stop: threading.Event,
) -> threading.Thread:
    """Passes until `stop`, in a thread of its own: after any change, and every half minute."""
    return spawn(lambda: _run(writer, observe, changed, stop), name="peer-annotations")


def _run(
    writer: PeerAnnotations, observe: Callable[[], Cluster], changed: threading.Event, stop: threading.Event
) -> None:
    while not stop.is_set():
        changed.clear()
        try:
            writer.look(observe())
        except ApiUnreachable as error:
            log.warning("peer_annotations_interrupted", error=str(error), again_in=PAUSE)
            stop.wait(PAUSE)
            continue
        except Exception:  # annotations for readers must not end what allocates
            log.exception("peer_annotations_failed", again_in=PERIOD)
            stop.wait(PERIOD)
            continue
        for _ in range(int(PERIOD * 2)):
            if stop.is_set() or changed.wait(0.5):
                break
        stop.wait(GATHER)


def _is_served(pod: Object) -> bool:
    return (
        bool(objects.spec_of(pod).get("nodeName"))
        and not objects.pod_is_finished(pod)
        and not objects.is_deleting(pod)
    )


def _claims(pod: Object, cluster: Cluster) -> list[Object] | None:
    """The pod's claims with devices of koordra's; None while one of its claims is not there or not allocated."""
    found = []
    for name in objects.pod_claim_names(pod).values():
        claim = None if name is None else cluster.claims_by_key.get(f"{objects.namespace(pod)}/{name}")
        if claim is None or not claims_of.is_allocated(claim):
            return None
        if claims_of.holds_koordra_devices(claim):
            found.append(claim)
    return found


def _alike(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(mine is theirs for mine, theirs in zip(one, other, strict=True))
