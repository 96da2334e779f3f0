"""`kubectl get`: the columns that a real server prints, as meta.k8s.io/v1 Tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from koordra.api.objects import Object
from koordra_devcluster.apiserver.fields.durations import age
from koordra_devcluster.apiserver.fields.json_path import first
from koordra_devcluster.apiserver.resources import Served
from koordra_devcluster.apiserver.serving import workload_tables
from koordra_devcluster.apiserver.storage.events import to_core

Row = Callable[[Object, datetime], list[Any]]


@dataclass(frozen=True, slots=True)
class Printer:
    """Columns as (name, type, priority); priority 1 shows with -o wide only."""

    columns: tuple[tuple[str, str, int], ...]
    row: Row


def _created(obj: Object, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _name(obj: Object) -> str:
    return str(obj["metadata"].get("name", ""))


def _namespace(obj: Object, now: datetime) -> list[Any]:
    return [_name(obj), (obj.get("status") or {}).get("phase", ""), _created(obj, now)]


def _node(obj: Object, now: datetime) -> list[Any]:
    status, labels = obj.get("status") or {}, obj["metadata"].get("labels") or {}
    ready = next(
        (one["status"] for one in status.get("conditions") or () if one["type"] == "Ready"), "Unknown"
    )
    state = {"True": "Ready", "False": "NotReady"}.get(ready, "Unknown")
    if (obj.get("spec") or {}).get("unschedulable"):
        state += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = ",".join(sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix)))
    info = status.get("nodeInfo") or {}
    addresses = {one["type"]: one["address"] for one in status.get("addresses") or ()}
    return [
        _name(obj), state, roles or "<none>", _created(obj, now), info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"), addresses.get("ExternalIP", "<none>"), info.get("osImage", "<unknown>"),
        info.get("kernelVersion", "<unknown>"), info.get("containerRuntimeVersion", "<unknown>"),
    ]  # fmt: skip


def _pod(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    statuses = status.get("containerStatuses") or ()
    ready = sum(1 for one in statuses if one.get("ready"))
    restarts = sum(one.get("restartCount", 0) for one in statuses)
    gates = len(spec.get("readinessGates") or ())
    return [
        _name(obj), f"{ready}/{len(spec.get('containers') or ())}", pod_state(obj), str(restarts), _created(obj, now),
        status.get("podIP", "<none>"), spec.get("nodeName", "<none>"), status.get("nominatedNodeName", "<none>"),
        f"0/{gates}" if gates else "<none>",
    ]  # fmt: skip


def pod_state(pod: Object) -> str:
    """The STATUS column: the phase, or what keeps the pod from it."""
    status = pod.get("status") or {}
    state = str(status.get("reason") or status.get("phase", ""))
    conditions: list[Object] = status.get("conditions") or []
    scheduled: Object = next((one for one in conditions if one["type"] == "PodScheduled"), {})
    if scheduled.get("reason") == "SchedulingGated":
        state = "SchedulingGated"
    for one in status.get("containerStatuses") or ():
        inner = one.get("state") or {}
        state = (
            (inner.get("waiting") or {}).get("reason")
            or (inner.get("terminated") or {}).get("reason")
            or state
        )
    return "Terminating" if pod["metadata"].get("deletionTimestamp") else state


def _event(obj: Object, now: datetime) -> list[Any]:
    about, source = obj.get("involvedObject") or {}, obj.get("source") or {}
    series, count = obj.get("series") or {}, obj.get("count", 1)
    first = age(obj.get("firstTimestamp") or obj.get("eventTime"), now)
    last = age(series.get("lastObservedTime") or obj.get("lastTimestamp") or obj.get("eventTime"), now)
    component = source.get("component") or obj.get("reportingComponent", "")
    if series.get("count", 0) > 1 or count > 1:
        last = f"{last} (x{series.get('count', count)} over {first})"
    return [
        last, obj.get("type", ""), obj.get("reason", ""), f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""), ", ".join(part for part in (component, source.get("host")) if part),
        str(obj.get("message", "")).strip(), first, count, _name(obj),
    ]  # fmt: skip


def _core_event(obj: Object, now: datetime) -> list[Any]:
    if obj["apiVersion"] == "v1":
        return _event(obj, now)
    return _event(to_core(obj), now)


def _claim(obj: Object, now: datetime) -> list[Any]:
    status = obj.get("status") or {}
    states = []
    if obj["metadata"].get("deletionTimestamp"):
        states.append("deleted")
    if status.get("allocation") is None:
        states += [] if states else ["pending"]
    else:
        states.append("allocated")
        states.append("reserved") if status.get("reservedFor") else None
    return [_name(obj), ",".join(states), _created(obj, now)]


def _slice(obj: Object, now: datetime) -> list[Any]:
    spec = obj.get("spec") or {}
    node = "<all>" if spec.get("allNodes") else spec.get("nodeName", "<none>")
    return [
        _name(obj),
        node,
        spec.get("driver", ""),
        (spec.get("pool") or {}).get("name", ""),
        _created(obj, now),
    ]


def _plain(obj: Object, now: datetime) -> list[Any]:
    return [_name(obj), _created(obj, now)]


def _columns(*names: str, wide: tuple[str, ...] = ()) -> tuple[tuple[str, str, int], ...]:
    return tuple((name, "string", 0) for name in names) + tuple((name, "string", 1) for name in wide)


PLAIN: Final = Printer(_columns("Name", "Age"), _plain)
PRINTERS: Final = {
    "Namespace": Printer(_columns("Name", "Status", "Age"), _namespace),
    "Node": Printer(
        _columns("Name", "Status", "Roles", "Age", "Version", wide=("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")),
        _node,
    ),
    "Pod": Printer(
        _columns("Name", "Ready", "Status", "Restarts", "Age", wide=("IP", "Node", "Nominated Node", "Readiness Gates")), _pod
    ),
    "Event": Printer(
        (
            ("Last Seen", "string", 0), ("Type", "string", 0), ("Reason", "string", 0), ("Object", "string", 0),
            ("Subobject", "string", 1), ("Source", "string", 1), ("Message", "string", 0), ("First Seen", "string", 1),
            ("Count", "string", 1), ("Name", "string", 1),
        ),
        _core_event,
    ),
    "ServiceAccount": Printer(
        _columns("Name", "Secrets", "Age"), lambda obj, now: [_name(obj), len(obj.get("secrets") or ()), _created(obj, now)]
    ),
    "Lease": Printer(
        _columns("Name", "Holder", "Age"),
        lambda obj, now: [_name(obj), (obj.get("spec") or {}).get("holderIdentity", ""), _created(obj, now)],
    ),
    "ResourceSlice": Printer(_columns("Name", "Node", "Driver", "Pool", "Age"), _slice),
    "ResourceClaim": Printer(_columns("Name", "State", "Age"), _claim),
    **{kind: Printer(columns, row) for kind, (columns, row) in workload_tables.ROWS.items()},
}  # fmt: skip


def _printer(served: Served) -> Printer:
    """A built-in kind's own, or what a definition's additionalPrinterColumns say."""
    if served.schema is None:
        return PRINTERS.get(served.kind.kind, PLAIN)
    columns = served.columns or ({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},)
    named = tuple((str(one["name"]), str(one["type"]), int(one.get("priority") or 0)) for one in columns)

    def row(obj: Object, now: datetime) -> list[Any]:
        return [_name(obj), *(_cell(one, obj, now) for one in columns)]

    return Printer((("Name", "string", 0), *named), row)


def _cell(column: Mapping[str, Any], obj: Object, now: datetime) -> Any:
    value = first(str(column["jsonPath"]), obj)
    if column["type"] == "date" and value is not None:
        return age(str(value), now)
    return "" if value is None and column["type"] == "string" else value


def definitions(served: Served) -> list[Object]:
    """columnDefinitions of a kind's table."""
    printer = _printer(served)
    return [
        {
            "name": name,
            "type": type_,
            "format": "name" if name == "Name" else "",
            "description": name,
            "priority": priority,
        }
        for name, type_, priority in printer.columns
    ]


def table(
    served: Served,
    objects: Iterable[Object],
    now: datetime,
    *,
    revision: str,
    include: str = "Metadata",
    headers: bool = True,
) -> Object:
    """A Table of one kind. `include`: None, Metadata or Object, what each row carries beside its cells."""
    printer = _printer(served)
    rows: list[Object] = []
    for obj in objects:
        row: Object = {"cells": printer.row(obj, now)}
        if include == "Object":
            row["object"] = obj
        elif include != "None":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj["metadata"],
            }
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": revision},
        "columnDefinitions": definitions(served) if headers else None,
        "rows": rows,
    }
