"""A cluster in files, of which everything that `koordra explain` can be asked has an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from koordra.api import names, objects
from koordra.api.opaque.isolation import node_policy
from koordra.compat.dialect.allocation import DIALECT_LABEL
from koordra.compat.original_request import ANNOTATION
from koordra.placement import plan
from tests.unit.allocator.machines import claim, device_classes, joint, machine, pod, request

Dict = dict[str, Any]
LIMITED = {name: {"bool": value} for name, value in node_policy(["limiter"]).attributes().items()}


def cluster() -> list[Dict]:
    """Three nodes of four GPUs and NICs. `pair` is on the one whose NICs are near; `share` beside it, with a
    limit that holds; `train` is a gang of two of which one member has its node; `vgpu` came from HAMi;
    `large` waits, and nothing has that much memory; `old` was never rewritten."""
    fixed = [
        *device_classes(),
        *_limited(machine(4, 4, name="node-1")),
        *_limited(machine(4, 4, name="node-2")),
        *_limited(machine(4, 1, name="node-3")),
    ]
    given = given_out(
        [
            *fixed,
            claim("pair", request("gpu"), request("nic", "nic"), configs=[joint("NUMANode")]),
            _user("pair", ["pair"], nodeName="node-1"),
            claim("share", request("gpu", capacity={"memory": "20Gi", "cores": "30"})),
            _user("share", ["share"], nodeName="node-1"),
            claim("train-0", request("gpus", count=4)),
        ]
    )
    with_condition(given, "share", "Limited", "True", "Enforced", "the limit of 20Gi holds in 2 processes")
    return [
        *given,
        claim("train-1", request("gpus", count=4)),
        *(_member(number) for number in range(2)),
        claim("vgpu", request("gpu", count=2, capacity={"memory": "90Gi"})),
        _from_hami("vgpu"),
        claim("large", request("gpu", capacity={"memory": "120Gi"})),
        _user("large", ["large"]),
        claim("lonely", request("gpu")),
        _legacy("old"),
    ]


def _user(name: str, claims: Iterable[str], **spec: Any) -> Dict:
    made = pod(name, *claims)
    made["spec"] |= spec
    if "nodeName" in spec:
        made["status"] = {"phase": "Running"}
    else:
        made["spec"]["schedulingGates"] = [{"name": names.JOINT_GATE}]
    return made


def _member(number: int) -> Dict:
    member = _user(f"train-{number}", [f"train-{number}"])
    member["metadata"]["annotations"] = {"koordra.io/gang": "train", "koordra.io/gang-min": "2"}
    return member


def _from_hami(name: str) -> Dict:
    asked = {"main": {"limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "92160"}}}
    made = _user(name, [name])
    words = json.dumps({"koordra-devices": {"containers": asked, "schedulerName": "hami-scheduler"}})
    made["metadata"]["annotations"] = {ANNOTATION: words, DIALECT_LABEL: "hami"}
    return made


def _legacy(name: str) -> Dict:
    made = _user(name, [])
    made["metadata"]["uid"] = name  # it is in the cluster
    made["spec"].pop("schedulingGates")
    asked = {"limits": {"aliyun.com/gpu-mem": "4"}}
    made["spec"]["containers"] = [{"name": "main", "image": "x", "resources": asked}]
    return made


def _limited(found: list[Dict]) -> list[Dict]:
    """With the policy that a node publishes of itself."""
    for device in found[1]["spec"]["devices"]:
        if device["attributes"]["type"]["string"] == "gpu":
            device["attributes"] |= LIMITED
    return found


def given_out(manifests: list[Dict]) -> list[Dict]:
    """The claims have what they would get."""
    found = plan(manifests)
    assert not found.unsatisfiable
    for obj in manifests:
        if obj["kind"] == "ResourceClaim":
            key = objects.key(obj)
            reserved = [{"resource": "pods", "name": obj["metadata"]["name"], "uid": "u"}]
            obj["status"] = {"allocation": found.allocations[key], "reservedFor": reserved}
    return manifests


def with_condition(
    manifests: Iterable[Mapping[str, Any]], name: str, kind: str, status: str, reason: str, message: str
) -> None:
    """As the node's plugin writes it, of the claim's first device."""
    (found,) = (
        obj for obj in manifests if obj["kind"] == "ResourceClaim" and obj["metadata"]["name"] == name
    )
    result = found["status"]["allocation"]["devices"]["results"][0]
    entry = {field: result[field] for field in ("driver", "pool", "device", "shareID")}
    condition = {"type": kind, "status": status, "reason": reason, "message": message}
    found["status"]["devices"] = [{**entry, "conditions": [condition]}]
