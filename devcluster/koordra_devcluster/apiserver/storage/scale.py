"""The subresource `scale`: the replicas of a workload as an autoscaling/v1 Scale, for `kubectl scale` and
autoscalers. Pure."""

from __future__ import annotations

from typing import Any

from koordra.api.objects import Object
from koordra_devcluster.apiserver import status

_HEAD = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def of(obj: Object) -> Object:
    """The Scale of a workload."""
    spec = obj.get("spec") or {}
    shown: Object = {"replicas": int((obj.get("status") or {}).get("replicas", 0))}
    selector = selector_text(spec.get("selector") or {})
    if selector:
        shown["selector"] = selector
    wanted = {"replicas": spec["replicas"]} if spec.get("replicas") else {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: obj["metadata"][name] for name in _HEAD if name in obj["metadata"]},
        "spec": wanted,
        "status": shown,
    }


def applied(obj: Object, scale: Any) -> Object:
    """The workload with the replicas that a Scale asks for. Raises Refusal 400 or 422."""
    if not isinstance(scale, dict) or scale.get("kind", "Scale") != "Scale":
        raise status.bad_request("the body of the request is not a Scale")
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if type(replicas) is not int:
        raise status.bad_request("Scale.spec.replicas: not an integer")
    if replicas < 0:
        raise status.Refusal(
            422,
            "Invalid",
            f'Scale.autoscaling "{obj["metadata"]["name"]}" is invalid: spec.replicas: Invalid value: '
            f"{replicas}: must be greater than or equal to 0",
        )
    head = dict(obj["metadata"])
    asked = (scale.get("metadata") or {}).get("resourceVersion")
    if asked:
        head["resourceVersion"] = asked
    return {**obj, "metadata": head, "spec": {**obj["spec"], "replicas": replicas}}


def selector_text(selector: Object) -> str:
    """A LabelSelector as text: `a=b,c in (d,e)`."""
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for one in selector.get("matchExpressions") or ():
        values = ",".join(sorted(one.get("values") or ()))
        parts.append(
            {
                "In": f"{one['key']} in ({values})",
                "NotIn": f"{one['key']} notin ({values})",
                "Exists": one["key"],
                "DoesNotExist": f"!{one['key']}",
            }.get(one["operator"], one["key"])
        )
    return ",".join(parts)
