"""One pod on this node: what to do next, and what its status says.

    bound      ─> claims prepared ─> sandbox ─> containers created and started ─> Running
    problem    ─> Event, waiting reason in the container status, again after a growing pause
    finished   ─> claims unprepared; the object stays
    deleting   ─> containers stopped, claims unprepared, sandbox gone, then the object (grace 0, this uid)
    vanished   ─> the same without the object

A pod whose driver is away stays in Terminating until the driver is back: unprepare has to be answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from koordra.api.objects import (
    Object,
    annotations_of,
    labels_of,
    metadata,
    name,
    namespace,
    spec_of,
    status_of,
    uid,
)
from koordra_devcluster.apiserver.access.admission import with_condition
from koordra_devcluster.apiserver.fields.schema import format_time
from koordra_devcluster.container_runtime.oci import Mount
from koordra_devcluster.container_runtime.records import Record
from koordra_devcluster.container_runtime.runtime import EXITED, RUNNING, ContainerConfig
from koordra_devcluster.kubelet.volumes import fields_of

CONTAINER_ID: Final = "devcluster://"
HOST_IP: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the pod does not run: reason for the container status, text for people."""

    reason: str
    message: str


def pod_address(pod: Object) -> str:
    """An address of its own on this machine's loopback, the same for as long as the pod is there."""
    number = int.from_bytes(sha256(uid(pod).encode()).digest()[:3], "big")
    return f"127.{16 + (number >> 16) % 224}.{number >> 8 & 255}.{1 + number % 254}"


def sandbox_pod(pod: Object) -> dict[str, Any]:
    """What the runtime is told about a pod."""
    return {
        "namespace": namespace(pod),
        "name": name(pod),
        "uid": uid(pod),
        "hostname": str(spec_of(pod).get("hostname") or name(pod)),
        "labels": dict(labels_of(pod)),
        "annotations": dict(annotations_of(pod)),
    }


def container_config(
    pod: Object,
    container: Object,
    cdi_devices: Sequence[str],
    *,
    attempt: int = 0,
    volumes: Mapping[str, Path] | None = None,
) -> ContainerConfig:
    """What the runtime is asked to create for one container of the pod. `volumes`: where the kubelet's own
    lie, by name."""
    return ContainerConfig(
        name=container["name"],
        image=str(container.get("image", "")),
        command=[*(container.get("command") or ()), *(container.get("args") or ())],
        env=_environment(pod, container),
        mounts=_mounts(pod, container, volumes or {}),
        cdi_devices=cdi_devices,
        annotations={
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.container-name": container["name"],
            "io.kubernetes.cri.sandbox-namespace": namespace(pod),
            "io.kubernetes.cri.sandbox-name": name(pod),
            "io.kubernetes.cri.sandbox-uid": uid(pod),
        },
        privileged=bool((container.get("securityContext") or {}).get("privileged")),
        attempt=attempt,
    )


def _environment(pod: Object, container: Object) -> dict[str, str]:
    """Literal values and field references; there are no ConfigMaps or Secrets to take others from."""
    fields = {
        **fields_of(pod),
        "spec.nodeName": str(spec_of(pod).get("nodeName", "")),
        "spec.serviceAccountName": str(spec_of(pod).get("serviceAccountName", "")),
        "status.podIP": pod_address(pod),
        "status.hostIP": HOST_IP,
    }
    found: dict[str, str] = {}
    for variable in container.get("env") or ():
        source = (variable.get("valueFrom") or {}).get("fieldRef")
        if source is not None:
            found[variable["name"]] = fields.get(source.get("fieldPath", ""), "")
        elif "valueFrom" not in variable:
            found[variable["name"]] = str(variable.get("value", ""))
    return found


def _mounts(pod: Object, container: Object, volumes: Mapping[str, Path]) -> list[Mount]:
    """hostPath volumes and the kubelet's own; others have nothing behind them here."""
    paths = {name: str(path) for name, path in volumes.items()} | {
        volume["name"]: str(volume["hostPath"].get("path", ""))
        for volume in spec_of(pod).get("volumes") or ()
        if isinstance(volume.get("hostPath"), dict)
    }
    return [
        Mount(
            mount["mountPath"],
            f"{paths[mount['name']]}/{mount['subPath']}" if mount.get("subPath") else paths[mount["name"]],
            "bind",
            ("rbind", "rprivate", "ro" if mount.get("readOnly") else "rw"),
        )
        for mount in container.get("volumeMounts") or ()
        if mount["name"] in paths
    ]


def is_complete(pod: Object, records: Sequence[Record]) -> bool:
    """Every container has run to its end and will not be started again."""
    if spec_of(pod).get("restartPolicy") == "Always":
        return False
    states = {record["container"]: record["state"] for record in records}
    wanted = [container["name"] for container in spec_of(pod).get("containers") or ()]
    return bool(wanted) and all(states.get(one) == EXITED for one in wanted)


def pod_status(pod: Object, records: Sequence[Record], problem: Problem | None, now: datetime) -> Object:
    """The pod's status from its containers; fields that others write are kept."""
    latest = {record["container"]: record for record in records}
    current = status_of(pod)
    statuses = [
        _container_status(container, latest.get(container["name"]), problem)
        for container in spec_of(pod).get("containers") or ()
    ]
    running = [one for one in statuses if "running" in one["state"]]
    complete = is_complete(pod, records)
    phase = "Running" if running else "Pending"
    if complete:
        phase = "Succeeded" if all(record["exitCode"] == 0 for record in latest.values()) else "Failed"
    ready = bool(statuses) and len(running) == len(statuses)
    wanted: Object = {
        **current,
        "phase": phase,
        "hostIP": HOST_IP,
        "hostIPs": [{"ip": HOST_IP}],
        "startTime": current.get("startTime") or format_time(now),
        "containerStatuses": statuses,
        "observedGeneration": metadata(pod).get("generation", 1),
        "conditions": _conditions(current.get("conditions") or [], ready=ready, complete=complete, now=now),
    }
    if records:
        wanted |= {"podIP": pod_address(pod), "podIPs": [{"ip": pod_address(pod)}]}
    return wanted


def _container_status(container: Object, record: Mapping[str, Any] | None, problem: Problem | None) -> Object:
    status: Object = {
        "name": container["name"],
        "image": str(container.get("image", "")),
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": int(record["attempt"]) if record else 0,
    }
    if record is None or record["state"] not in (RUNNING, EXITED):
        reason = problem or Problem("ContainerCreating", "")
        waiting = {"reason": reason.reason} | ({"message": reason.message} if reason.message else {})
        return status | {"state": {"waiting": waiting}}
    status["containerID"] = CONTAINER_ID + record["id"]
    started = _time(record["startedAt"] or record["createdAt"])
    if record["state"] == RUNNING:
        return status | {"ready": True, "started": True, "state": {"running": {"startedAt": started}}}
    ended: Object = {
        "exitCode": record["exitCode"],
        "reason": "Completed" if record["exitCode"] == 0 else "Error",
        "startedAt": started,
        "finishedAt": _time(record["finishedAt"]),
        "containerID": status["containerID"],
    }
    return status | {"state": {"terminated": ended}}


def _conditions(current: list[Object], *, ready: bool, complete: bool, now: datetime) -> list[Object]:
    stamp = format_time(now)
    reason = "PodCompleted" if complete else ("" if ready else "ContainersNotReady")
    conditions = [dict(one) for one in current]
    for type_, state in (("Initialized", True), ("Ready", ready), ("ContainersReady", ready)):
        condition: Object = {
            "type": type_,
            "status": "True" if state else "False",
            "lastTransitionTime": stamp,
        }
        if reason and not state:
            condition["reason"] = reason
        conditions = with_condition(conditions, condition)
    return sorted(conditions, key=lambda one: str(one["type"]))


def _time(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))
