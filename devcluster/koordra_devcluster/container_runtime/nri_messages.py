"""Sandboxes and containers of the runtime double as NRI messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordra._proto.nri import nri_pb2
from koordra_devcluster.container_runtime.oci import ContainerSpec, DeviceNode, DeviceRule, Mount, Rlimit

_STATES = {
    "created": nri_pb2.CONTAINER_CREATED,
    "running": nri_pb2.CONTAINER_RUNNING,
    "exited": nri_pb2.CONTAINER_STOPPED,
}


def pod_message(sandbox: Mapping[str, Any]) -> nri_pb2.PodSandbox:
    pod = sandbox["pod"]
    return nri_pb2.PodSandbox(
        id=sandbox["id"],
        name=pod["name"],
        uid=pod["uid"],
        namespace=pod["namespace"],
        labels=pod.get("labels") or {},
        annotations=pod.get("annotations") or {},
        linux=nri_pb2.LinuxPodSandbox(cgroup_parent=f"/kubepods/pod{pod['uid']}"),
    )


def container_message(record: Mapping[str, Any], spec: ContainerSpec | None = None) -> nri_pb2.Container:
    """`spec` while the container is being created; afterwards its record says it all. CDI names are not told
    to plugins."""
    devices = list(spec.devices.values()) if spec else [DeviceNode(**node) for node in record["deviceNodes"]]
    rules = spec.device_rules if spec else [DeviceRule(**rule) for rule in record["deviceRules"]]
    mounts = spec.mounts if spec else [Mount(**mount) for mount in record["mounts"]]
    rlimits = spec.rlimits if spec else [Rlimit(**limit) for limit in record["rlimits"]]
    env = spec.env if spec else record["env"]
    return nri_pb2.Container(
        id=record["id"],
        pod_sandbox_id=record["sandbox"],
        name=record["container"],
        state=nri_pb2.CONTAINER_UNKNOWN if spec else _STATES[record["state"]],
        annotations=record["annotations"],
        args=record["command"],
        env=[f"{name}={value}" for name, value in env.items()],
        mounts=[
            nri_pb2.Mount(destination=one.destination, type=one.type, source=one.source, options=one.options)
            for one in mounts
        ],
        linux=nri_pb2.LinuxContainer(
            devices=[_device(node) for node in devices],
            resources=nri_pb2.LinuxResources(devices=[_rule(rule) for rule in rules]),
        ),
        rlimits=[nri_pb2.POSIXRlimit(type=one.type, hard=one.hard, soft=one.soft) for one in rlimits],
        created_at=int(record["createdAt"] * 1e9),
    )


def _device(node: DeviceNode) -> nri_pb2.LinuxDevice:
    message = nri_pb2.LinuxDevice(path=node.path, type=node.type, major=node.major, minor=node.minor)
    if node.file_mode is not None:
        message.file_mode.value = node.file_mode
    return message


def _rule(rule: DeviceRule) -> nri_pb2.LinuxDeviceCgroup:
    message = nri_pb2.LinuxDeviceCgroup(allow=rule.allow, type=rule.type, access=rule.access)
    if rule.major is not None:
        message.major.value = rule.major
    if rule.minor is not None:
        message.minor.value = rule.minor
    return message
