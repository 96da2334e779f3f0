"""What a kubelet would say of pods and do with them, on nodes that have none."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.errors import NotFound
from koordra.kube.client import KubeClient


def runs(client: KubeClient, pod: Object) -> None:
    """All its containers are ready."""
    _say(client, pod, {"phase": "Running", "conditions": [_ready("True")]})


def fails(client: KubeClient, pod: Object) -> None:
    """Its container has just ended with code 1: from then on the back-off of a Job counts."""
    ended = {"exitCode": 1, "finishedAt": now()}
    (container,) = objects.spec_of(pod)["containers"]
    states = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": ended},
        }
    ]
    _say(client, pod, {"phase": "Failed", "conditions": [_ready("False")], "containerStatuses": states})


def succeeds(client: KubeClient, pod: Object) -> None:
    _say(client, pod, {"phase": "Succeeded", "conditions": [_ready("False")]})


def ends_deleted(client: KubeClient, namespace: str) -> bool:
    """Pods that are being deleted go; whether there are none left at all."""
    found, _ = client.list(kinds.PODS, namespace=namespace)
    for pod in found:
        if objects.is_deleting(pod):
            with suppress(NotFound):
                client.delete(kinds.PODS, objects.name(pod), namespace=namespace, grace_period=0)
    return not found


def events_of(client: KubeClient, pod: Object) -> list[Object]:
    """Not those of an earlier pod of the name."""
    found, _ = client.list(kinds.EVENTS, namespace=objects.namespace(pod))
    return [event for event in found if event["involvedObject"].get("uid") == objects.uid(pod)]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ready(status: str) -> Object:
    return {"type": "Ready", "status": status, "lastTransitionTime": now()}


def _say(client: KubeClient, pod: Object, status: Object) -> None:
    others = [one for one in objects.status_of(pod).get("conditions") or () if one["type"] != "Ready"]
    status = {**status, "conditions": [*others, *status["conditions"]]}
    place = objects.namespace(pod)
    client.patch(kinds.PODS, objects.name(pod), {"status": status}, namespace=place, subresource="status")
