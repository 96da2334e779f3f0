"""Warnings of the kubelet plugin in the Events of the pods that a claim is reserved for.

One per pod and reason: its name says so, and one that is there already is left alone. A refused Prepare needs
none, since the kubelet writes its text into an Event of the pod by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Final

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import Conflict, NotFound
from koordra.inert import inert
from koordra.kube.client import KubeClient

COMPONENT: Final = f"{names.FIELD_COMPONENT}-kubelet-plugin"


def warn_pods(client: KubeClient, claim: Object, *, reason: str, message: str, now: str) -> None:
    """Raises ApiError."""
    namespace = objects.namespace(claim)
    for entry in objects.status_of(claim).get("reservedFor") or ():
        if entry.get("resource") != "pods" or entry.get("apiGroup"):
            continue
        name, uid = str(entry.get("name")), str(entry.get("uid"))
        digest = hashlib.sha256(f"{uid}/{reason}/{COMPONENT}".encode()).hexdigest()[:16]
        body: Object = {
            "apiVersion": kinds.EVENTS.api_version,
            "kind": kinds.EVENTS.kind,
            "metadata": {"namespace": namespace, "name": f"{name[:200].rstrip('.-')}.{digest}"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": namespace,
                "name": name,
                "uid": uid,
            },
            "reason": reason,
            "message": inert(f"ResourceClaim {objects.name(claim)}: {message}"),
            "type": "Warning",
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": COMPONENT,
        }
        with contextlib.suppress(Conflict, NotFound):  # written before, or the namespace is gone
            client.create(kinds.EVENTS, body, namespace=namespace)
