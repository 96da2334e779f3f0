"""Objects that say everything koordra reads, and what somebody hostile puts in the place of each part."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

from koordra.api import names
from koordra.api.objects import Object

Path = tuple[str | int, ...]
DEEP: Final = 200
LONG: Final = "x" * 10_000


def deep(levels: int = DEEP) -> Any:
    """Nested as deeply as an API server stores it, and then some."""
    found: Any = "bottom"
    for _ in range(levels):
        found = {"x": [found]}
    return found


TEXTS: Final = (
    "", " ", "0", "-1", "1e999", "9" * 5_000, "NaN", "20Gi", "koordra.io", "koordra.io/joint", "a/b/c", "../../etc",
    "\x1b[2J\r\n", "\u202eabc", "{{.}}", "[" * 64, "(" * 40 + "true" + ")" * 40, "*", "true", "rich", "innocent", LONG,
)  # fmt: skip
QUANTITIES: Final = (
    "0",
    "-1",
    "1m",
    "1n",
    "1e18",
    "9223372036854775807",
    "-9223372036854775808",
    "0.000000001",
)
TIMES: Final = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-01-01T00:00:00Z", "")
NUMBERS: Final = (0, 1, -1, 7, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
ANYTHING: Final[tuple[Any, ...]] = (
    None, True, 1.5, 10**40, *NUMBERS, *TEXTS, [], {}, [None], [[]], [{}], {"": ""}, {"x": None}, {"name": {}},
    ["x"] * 1_000, {f"k{number}": "v" for number in range(1_000)}, deep(),
)  # fmt: skip
MANY: Final = 128
"""Entries of a list, or of a map, that are too many for what they say."""

_UNTYPED: Final = ("parameters", "data")
"""Below these an API server keeps whatever it is given, as it does in no other place of its own kinds."""
_QUANTITIES: Final = ("requests", "limits", "overhead", "consumedCapacity", "capacity")


def hostile(obj: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every part of an object, with each thing that may stand in its place: of its JSON type, as an API
    server sees to, and absent; anything at all in opaque parameters."""
    if at:
        for value in (ABSENT, *_instead(obj, at)):
            yield at, value
    entries: Any = (
        obj.items() if isinstance(obj, Mapping) else enumerate(obj) if isinstance(obj, list) else ()
    )
    for key, value in entries:
        yield from hostile(value, (*at, key))


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()


def _instead(value: Any, at: Path) -> Iterator[Any]:
    if any(word in at[:-1] for word in _UNTYPED):
        yield from ANYTHING
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from NUMBERS
    elif isinstance(value, str):
        is_amount = any(word in at for word in _QUANTITIES) and "selectors" not in at
        is_time = str(at[-1]).endswith(("Time", "Timestamp"))
        yield from QUANTITIES if is_amount else TIMES if is_time else TEXTS
    elif isinstance(value, list):
        yield []
        if value:
            yield value * MANY
            yield [_numbered(value[0], number) for number in range(MANY)]
    elif isinstance(value, Mapping):
        yield {}
        if value and all(isinstance(one, str) for one in value.values()):
            first = next(iter(value.values()))
            yield {**value, **{f"example.org/{number}": first for number in range(MANY)}}


def _numbered(entry: Any, number: int) -> Any:
    """The entry under a name of its own."""
    if isinstance(entry, str):
        return f"{entry}-{number}"
    return {**entry, "name": f"{entry['name']}-{number}"} if "name" in entry else entry


def replaced(obj: Object, place: Path, value: Any) -> Object:
    """A copy with something else there."""
    made = copy.deepcopy(obj)
    inner: Any = made
    for key in place[:-1]:
        inner = inner[key]
    if value is ABSENT:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return made


def opaque(kind: str, **fields: Any) -> Object:
    body = {"apiVersion": "koordra.io/v1alpha1", "kind": kind, **fields}
    return {"requests": ["gpu"], "opaque": {"driver": names.DRIVER, "parameters": body}}


def rich_claim(name: str = "rich") -> Object:
    tolerations = [
        {"key": "koordra.io/unhealthy", "operator": "Equal", "value": "x", "effect": "NoExecute", "tolerationSeconds": 3}
    ]  # fmt: skip
    exactly = {
        "deviceClassName": names.CLASS_GPU,
        "selectors": [{"cel": {"expression": 'device.attributes["koordra.io"].type == "gpu"'}}],
        "allocationMode": "ExactCount",
        "count": 1,
        "adminAccess": False,
        "tolerations": tolerations,
        "capacity": {"requests": {"memory": "1Gi"}},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": "x"},
            "annotations": {
                names.POD_CLAIM_NAME: "gpu",
                "koordra.io/allocation-mode": "joint",
                "koordra.io/allocate": "Immediate",
            },
            "finalizers": ["example.org/mine"],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "rich", "uid": "u", "controller": True}
            ],
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "devices": {
                "requests": [
                    {"name": "gpu", "exactly": exactly},
                    {
                        "name": "either",
                        "firstAvailable": [
                            {
                                "name": "one",
                                "deviceClassName": names.CLASS_GPU,
                                "selectors": [],
                                "count": 1,
                                "allocationMode": "ExactCount",
                                "tolerations": tolerations,
                                "capacity": {"requests": {"memory": "1Gi"}},
                            }
                        ],
                    },
                ],
                "constraints": [
                    {"requests": ["gpu", "either"], "matchAttribute": "koordra.io/type"},
                    {"requests": ["gpu"], "distinctAttribute": "koordra.io/uuid"},
                ],
                "config": [
                    opaque(
                        "JointAllocation", scope="Node", enforcement="Preferred", pairing="Together", requests=["gpu"]
                    ),
                    opaque("PlacementPolicy", node="Binpack", device="Spread"),
                    opaque("GpuConfig", isolation="limiter", memoryPercent=10, coresPolicy="Hard", priority="High"),
                    opaque("RdmaConfig", mode="Shared", network={"vlan": 3, "pkey": "0x1", "mtu": 9000}),
                ],
            }
        },
    }  # fmt: skip


def allocation() -> Object:
    results = [
        {
            "request": "gpu",
            "driver": names.DRIVER,
            "pool": "n0",
            "device": "gpu-1",
            "shareID": "b0b0b0b0-0000-4000-8000-000000000000",
            "consumedCapacity": {"memory": "1Gi"},
            "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
        }
    ]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}]
    return {
        "allocationTimestamp": "2026-01-01T00:00:00Z",
        "nodeSelector": {"nodeSelectorTerms": terms},
        "devices": {
            "results": results,
            "config": [{"source": "FromClass", **opaque("GpuConfig", isolation="limiter")}],
        },
    }


def allocated_claim(name: str = "held") -> Object:
    made = rich_claim(name)
    conditions = [{"type": "Ready", "status": "True", "reason": "x", "message": "x", "observedGeneration": 1}]
    made["status"] = {
        "allocation": allocation(),
        "reservedFor": [{"apiGroup": "", "resource": "pods", "name": "rich", "uid": "u"}],
        "devices": [
            {"driver": names.DRIVER, "pool": "n0", "device": "gpu-1", "conditions": conditions, "data": {"x": 1}}
        ],
    }  # fmt: skip
    return made


def rich_pod(name: str = "rich", claim: str = "rich") -> Object:
    selector = {
        "matchLabels": {"app": "x"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
    }
    term = {
        "labelSelector": selector,
        "namespaces": ["default"],
        "namespaceSelector": {"matchLabels": {}},
        "topologyKey": "kubernetes.io/hostname",
        "matchLabelKeys": ["app"],
        "mismatchLabelKeys": ["tier"],
    }
    expressions = [{"key": "kubernetes.io/hostname", "operator": "Exists", "values": []}]
    gang = "koordra.io/gang"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": "u",
            "labels": {"app": "x", "tier": "c", "kueue.x-k8s.io/pod-group-name": ""},
            "annotations": {
                gang: "g",
                f"{gang}-min": "1",
                f"{gang}-max": "2",
                f"{gang}-timeout": "5m",
                f"{gang}-policy": "Strict",
                f"{gang}-shrink": "1",
                f"{gang}-topology": "zone",
                "gate.koordra.io/gang": "g",
                "gate.koordra.io/gang-held": "x",
                "gate.koordra.io/gang-told": "x",
            },
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": True}],
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 30,
        },
        "spec": {
            "resourceClaims": [
                {"name": "gpu", "resourceClaimName": claim},
                {"name": "made", "resourceClaimTemplateName": "t"},
            ],
            "schedulingGates": [{"name": names.JOINT_GATE}],
            "containers": [
                {
                    "name": "main",
                    "image": "x",
                    "env": [{"name": "A", "value": "b"}],
                    "ports": [{"containerPort": 80, "hostPort": 80, "hostIP": "0.0.0.0", "protocol": "TCP"}],
                    "resources": {
                        "requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"},
                        "limits": {"cpu": "2"},
                        "claims": [{"name": "gpu", "request": "gpu"}],
                    },
                }
            ],
            "initContainers": [
                {"name": "i", "image": "x", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
            ],
            "overhead": {"cpu": "10m"},
            "resources": {"requests": {"cpu": "1"}},
            "nodeSelector": {"kubernetes.io/hostname": "n0"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": expressions, "matchFields": []}]
                    },
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "preference": {"matchExpressions": expressions}}
                    ],
                },
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [term],
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}],
                },
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
            },
            "tolerations": [
                {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule", "tolerationSeconds": 1}
            ],
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "minDomains": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": selector,
                    "nodeAffinityPolicy": "Honor",
                    "nodeTaintsPolicy": "Ignore",
                    "matchLabelKeys": ["app"],
                }
            ],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}, "ephemeral": {}}],
            "priority": 5,
            "priorityClassName": "x",
            "preemptionPolicy": "Never",
            "schedulerName": "default-scheduler",
            "schedulingGroup": {"podGroupName": "pg"},
            "workloadRef": {"name": "w", "podGroup": "pg", "podGroupReplicaKey": "0"},
        },
        "status": {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/2 nodes are available: 2 Insufficient cpu.",
                    "observedGeneration": 1,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
            "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "rich"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "rich", "requestMappings": []},
            "nominatedNodeName": "n0",
        },
    }  # fmt: skip
