"""The columns of `kubectl get` for workloads and what belongs to them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from koordra.api.objects import Object
from koordra_devcluster.apiserver.fields.durations import age, duration
from koordra_devcluster.apiserver.storage.scale import selector_text

Row = Callable[[Object, datetime], list[Any]]
Columns = tuple[tuple[str, str, int], ...]


def _spec(obj: Object) -> Object:
    return obj.get("spec") or {}


def _status(obj: Object) -> Object:
    return obj.get("status") or {}


def _name(obj: Object) -> str:
    return str(obj["metadata"].get("name", ""))


def _created(obj: Object, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _containers(obj: Object) -> list[Any]:
    found = ((_spec(obj).get("template") or {}).get("spec") or {}).get("containers") or ()
    return [",".join(str(one.get(field, "")) for one in found) for field in ("name", "image")]


def _selector(obj: Object) -> str:
    return selector_text(_spec(obj).get("selector") or {}) or "<none>"


def _deployment(obj: Object, now: datetime) -> list[Any]:
    status = _status(obj)
    ready = f"{status.get('readyReplicas', 0)}/{_spec(obj).get('replicas', 0)}"
    counts = [str(status.get(field, 0)) for field in ("updatedReplicas", "availableReplicas")]
    return [_name(obj), ready, *counts, _created(obj, now), *_containers(obj), _selector(obj)]


def _replica_set(obj: Object, now: datetime) -> list[Any]:
    status = _status(obj)
    counts = [_spec(obj).get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [_name(obj), *counts, _created(obj, now), *_containers(obj), _selector(obj)]


def _stateful_set(obj: Object, now: datetime) -> list[Any]:
    ready = f"{_status(obj).get('readyReplicas', 0)}/{_spec(obj).get('replicas', 0)}"
    return [_name(obj), ready, _created(obj, now), *_containers(obj)]


def _job(obj: Object, now: datetime) -> list[Any]:
    spec, status = _spec(obj), _status(obj)
    done = status.get("succeeded", 0)
    wanted = spec.get("completions")
    parallelism = spec.get("parallelism", 0)
    if wanted is not None:
        completions = f"{done}/{wanted}"
    else:
        completions = f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"
    return [
        _name(obj), _job_state(obj), completions, _job_duration(obj, now), _created(obj, now),
        *_containers(obj), _selector(obj),
    ]  # fmt: skip


def _job_state(obj: Object) -> str:
    conditions = {one["type"] for one in _status(obj).get("conditions") or () if one.get("status") == "True"}
    known = (
        ("Complete", "Complete"), ("Failed", "Failed"), ("SuccessCriteriaMet", "SuccessCriteriaMet"),
        ("FailureTarget", "FailureTarget"), ("Suspended", "Suspended"),
    )  # fmt: skip
    if obj["metadata"].get("deletionTimestamp") and not conditions & {"Complete", "Failed"}:
        return "Terminating"
    return next((text for type_, text in known if type_ in conditions), "Running")


def _job_duration(obj: Object, now: datetime) -> str:
    start, end = _status(obj).get("startTime"), _status(obj).get("completionTime")
    if not start:
        return ""
    return duration((datetime.fromisoformat(end) if end else now) - datetime.fromisoformat(start))


def _revision(obj: Object, now: datetime) -> list[Any]:
    owner = next((one for one in obj["metadata"].get("ownerReferences") or () if one.get("controller")), None)
    text = "<none>"
    if owner:
        group = owner["apiVersion"].partition("/")[0]
        text = f"{owner['kind'].lower()}.{group}/{owner['name']}"
    return [_name(obj), text, obj.get("revision", 0), _created(obj, now)]


def _priority_class(obj: Object, now: datetime) -> list[Any]:
    return [
        _name(obj), obj.get("value", 0), bool(obj.get("globalDefault")), _created(obj, now),
        obj.get("preemptionPolicy", ""),
    ]  # fmt: skip


def _pod_group(obj: Object, now: datetime) -> list[Any]:
    policy = _spec(obj).get("schedulingPolicy") or {}
    reference = (_spec(obj).get("podGroupTemplateRef") or {}).get("workload") or {}
    scheduled: Object = next(
        (one for one in _status(obj).get("conditions") or () if one.get("type") == "PodGroupScheduled"), {}
    )
    state = {"True": "Scheduled", "False": scheduled.get("reason", "")}.get(
        scheduled.get("status", ""), "Pending"
    )
    kind = "Gang" if "gang" in policy else "Basic"
    return [_name(obj), kind, reference.get("workloadName", "<none>"), state, _created(obj, now)]


def _quota(obj: Object, now: datetime) -> list[Any]:
    hard, used = _status(obj).get("hard") or {}, _status(obj).get("used") or {}
    shown: dict[bool, list[str]] = {True: [], False: []}
    for resource in sorted(hard):
        limit = resource.startswith("limits.")
        shown[limit].append(f"{resource}: {used.get(resource, '0')}/{hard[resource]}")
    return [_name(obj), ", ".join(shown[False]), ", ".join(shown[True]), _created(obj, now)]


def _strings(*names: str, wide: tuple[str, ...] = ()) -> Columns:
    return tuple((name, "string", 0) for name in names) + tuple((name, "string", 1) for name in wide)


_WIDE: Final = ("Containers", "Images", "Selector")
ROWS: Final[dict[str, tuple[Columns, Row]]] = {
    "Deployment": (_strings("Name", "Ready", "Up-to-date", "Available", "Age", wide=_WIDE), _deployment),
    "ReplicaSet": (
        (
            ("Name", "string", 0), ("Desired", "integer", 0), ("Current", "integer", 0), ("Ready", "integer", 0),
            ("Age", "string", 0), *_strings(wide=_WIDE),
        ),
        _replica_set,
    ),
    "StatefulSet": (_strings("Name", "Ready", "Age", wide=_WIDE[:2]), _stateful_set),
    "Job": (_strings("Name", "Status", "Completions", "Duration", "Age", wide=_WIDE), _job),
    "ControllerRevision": (_strings("Name", "Controller", "Revision", "Age"), _revision),
    "PriorityClass": (
        (
            ("Name", "string", 0), ("Value", "integer", 0), ("Global-Default", "boolean", 0), ("Age", "string", 0),
            ("PreemptionPolicy", "string", 0),
        ),
        _priority_class,
    ),
    "PodGroup": (_strings("Name", "Policy", "Workload", "Status", "Age"), _pod_group),
    "ResourceQuota": (_strings("Name", "Request", "Limit", "Age"), _quota),
}  # fmt: skip
