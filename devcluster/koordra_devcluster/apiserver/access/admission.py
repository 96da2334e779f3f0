"""What admission plugins and the binding subresource of the real server check, as pure functions.

NamespaceLifecycle, ServiceAccount, Priority, the admin-access check of resource.k8s.io, and assigning a pod
to a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.kube.validation.field_errors import FieldErrors
from koordra.kube.validation.refusal import NEEDS_LABEL, admin_access
from koordra_devcluster.apiserver import status
from koordra_devcluster.apiserver.fields.schema import format_time
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage.store import Key


def check_namespace(kind: Kind, obj: Object, namespace: str, place: Object | None) -> None:
    """The namespace exists, is not going away, and allows admin access where the claim asks for it."""
    name = obj["metadata"].get("name") or obj["metadata"].get("generateName", "")
    if place is None:
        raise status.not_found(kinds.NAMESPACES, namespace)
    if place["metadata"].get("deletionTimestamp"):
        raise status.forbidden(
            kind,
            name,
            f"unable to create new content in namespace {namespace} because it is being terminated",
        )
    if path := admin_access(kind, obj, place):
        errors = FieldErrors()
        errors.forbidden(path, NEEDS_LABEL)
        raise status.invalid(kind, name, errors.found)


def service_account(pod: Object) -> str:
    spec = pod.get("spec") or {}
    return str(spec.get("serviceAccountName") or spec.get("serviceAccount") or "default")


def no_service_account(pod: Object, namespace: str, account: str) -> Refusal:
    name = pod["metadata"].get("name") or pod["metadata"].get("generateName", "")
    why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
    return status.forbidden(kinds.PODS, name, why)


def priority_class(pod: Object, classes: Mapping[str, Object]) -> Object | None:
    """The PriorityClass that a new pod names, or the default one. Raises Refusal 403 for one that is not
    there."""
    wanted = (pod.get("spec") or {}).get("priorityClassName")
    if not wanted:
        defaults = [one for one in classes.values() if one.get("globalDefault")]
        return min(defaults, key=lambda one: int(one.get("value", 0))) if defaults else None
    if wanted not in classes:
        raise _not_allowed(pod, f"no PriorityClass with name {wanted} was found")
    return classes[wanted]


def set_priority(pod: Object, found: Object | None) -> None:
    """The class sets the number; a number of the pod's own must be the same."""
    spec = pod.setdefault("spec", {})
    value = int(found.get("value", 0)) if found else 0
    if spec.get("priority") not in (None, value):
        raise _not_allowed(
            pod,
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name",
        )
    spec["priority"] = value
    if found:
        spec["priorityClassName"] = found["metadata"]["name"]
        spec.setdefault("preemptionPolicy", found.get("preemptionPolicy", "PreemptLowerPriority"))


def _not_allowed(pod: Object, why: str) -> Refusal:
    return status.forbidden(kinds.PODS, pod["metadata"].get("name", ""), why)


def bound(kind: Kind, key: Key, body: Object, old: Object, now: datetime) -> Object:
    """The pod assigned to the node that a Binding names. Raises Refusal 409 where that is not possible any
    more."""
    target, spec, metadata = body.get("target") or {}, old.get("spec") or {}, old["metadata"]
    node, asked = target.get("name", ""), (body.get("metadata") or {}).get("uid")
    if not node or target.get("kind", "Node") not in ("", "Node"):
        errors = FieldErrors()
        errors.required("target.name") if not node else errors.not_supported(
            "target.kind", target["kind"], ("Node",)
        )
        raise status.invalid(kind, key[1], errors.found)
    if asked and asked != metadata["uid"]:
        raise status.conflict(
            kind,
            key[1],
            f"Precondition failed: UID in precondition: {asked}, UID in object meta: {metadata['uid']}",
        )
    if metadata.get("deletionTimestamp"):
        raise status.conflict(kind, key[1], f"pod {key[1]} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise status.conflict(kind, key[1], f'pod {key[1]} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise status.conflict(kind, key[1], f"pod {key[1]} has non-empty .spec.schedulingGates")
    state = old.get("status") or {}
    return old | {
        "spec": spec | {"nodeName": node},
        "status": state | {"conditions": with_condition(state.get("conditions") or (), _scheduled(old, now))},
    }


def _scheduled(pod: Object, now: datetime) -> Object:
    return {
        "type": "PodScheduled",
        "status": "True",
        "observedGeneration": pod["metadata"].get("generation", 1),
        "lastProbeTime": None,
        "lastTransitionTime": format_time(now),
    }


def with_condition(conditions: list[Object] | tuple[()], condition: Object) -> list[Object]:
    """The conditions with one of them replaced; its transition time moves only when the status does."""
    kept = [one for one in conditions if one.get("type") != condition["type"]]
    earlier = next((one for one in conditions if one.get("type") == condition["type"]), None)
    added = {name: value for name, value in condition.items() if value is not None}
    if earlier and earlier.get("status") == condition["status"]:
        added["lastTransitionTime"] = earlier.get("lastTransitionTime", added["lastTransitionTime"])
    return [*kept, added]
