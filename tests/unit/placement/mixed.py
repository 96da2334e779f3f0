"""A mixed cluster as plain objects: four models, zones, a pool that is set aside by a taint, nodes out of
use. And claims for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from koordra.allocator.request.classes import shipped_classes
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from tests.machines import catalogue

Object = dict[str, Any]
MACHINES = {"A100": "dgx-a100", "H100": "hgx-h100", "V100": "v100x8-sxm2", "T4": "t4x4-1nic"}
ZONES = ("east", "north", "west")
SET_ASIDE = {"key": "team", "value": "vision", "effect": "NoSchedule"}
TOLERATED = [{"key": "team", "operator": "Exists"}]


def name_of(number: int) -> str:
    return f"node-{number:03}"


def model_of(number: int) -> str:
    return list(MACHINES)[number % len(MACHINES)]


def nodes(count: int) -> list[Object]:
    """Every fourth is of one model, every third in one zone, every tenth set aside; two are out of use."""
    found = []
    for number in range(count):
        name = name_of(number)
        node: Object = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "uid": name,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "zone": ZONES[number % len(ZONES)],
                    "rack": f"r{number:03}",
                    "generation": str(number % 4),
                },
            },
            "spec": {},
            "status": {
                "allocatable": {"cpu": "96", "memory": "900Gi", "pods": "200"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        if number % 10 == 9:
            node["spec"]["taints"] = [SET_ASIDE]
        if number == 0:
            node["spec"]["unschedulable"] = True
        if number == 1:
            node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
        found.append(node)
    return found


def slices(count: int) -> list[Object]:
    found = []
    built = {
        model: build_slices(
            catalogue.machine(machine), node_name="n", node_uid="n", mode="joint", generation=1
        )
        for model, machine in MACHINES.items()
    }
    for number in range(count):
        for at, entry in enumerate(built[model_of(number)]):
            spec = {
                **entry["spec"],
                "nodeName": name_of(number),
                "pool": {**entry["spec"]["pool"], "name": name_of(number)},
            }
            called = f"{name_of(number)}-{at}"
            found.append(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceSlice",
                    "metadata": {"name": called, "uid": called},
                    "spec": spec,
                }
            )
    return found


def classes() -> list[Object]:
    return [
        {**entry, "metadata": {**entry["metadata"], "uid": entry["metadata"]["name"]}}
        for entry in shipped_classes()
    ]


def of_model(*models: str) -> str:
    return " || ".join(f'device.attributes["koordra.io"].model == "{model}"' for model in models)


def claim(
    name: str,
    *,
    gpus: int = 1,
    memory: str = "",
    nics: int = 0,
    selector: str = "",
    of_nics: str = "",
    tolerations: Iterable[Mapping[str, Any]] = (),
    pod: Mapping[str, Any] | None = None,
    cpu: int = 4,
) -> list[Object]:
    """The claim and its pod; `pod` is what the pod's spec says beside that."""
    requests: list[Object] = []
    if gpus:
        gpu: Object = {"deviceClassName": "gpu.koordra.io", "count": gpus}
        if memory:
            gpu["capacity"] = {"requests": {"memory": memory}}
        if selector:
            gpu["selectors"] = [{"cel": {"expression": selector}}]
        if tolerations:
            gpu["tolerations"] = list(tolerations)
        requests.append({"name": "gpu", "exactly": gpu})
    if nics:
        nic: Object = {"deviceClassName": "nic.koordra.io", "count": nics}
        if of_nics:
            nic["selectors"] = [{"cel": {"expression": of_nics}}]
        requests.append({"name": "nic", "exactly": nic})
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "d", "uid": f"c-{name}"},
            "spec": {"devices": {"requests": requests}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "d", "uid": f"p-{name}"},
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": str(cpu), "memory": "1Gi"}}}],
                "resourceClaims": [{"name": "x", "resourceClaimName": name}],
                **(pod or {}),
            },
        },
    ]


def affinity(*terms: list[Object], fields: bool = False) -> Object:
    place = "matchFields" if fields else "matchExpressions"
    return {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{place: term} for term in terms]
                }
            }
        }
    }
