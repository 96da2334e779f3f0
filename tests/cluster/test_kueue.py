"""Kueue charges what koordra gives: shares in bytes, in percent, whole cards, shares of NICs.

Runs where the cluster has Kueue (0.19 or later) with the gate KueueDRAIntegrationConsumableCapacity and the
configuration of docs/quota.md; the double has none. Kueue looks for devices that a class selects, as
kube-scheduler does, so the classes are those of the example, which select joint devices too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any, Final

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.quantity import parse
from tests.cluster.conftest import NAMESPACE
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.cluster
GROUP: Final = "kueue.x-k8s.io"
FLAVORS: Final = Kind(GROUP, "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
CLUSTER_QUEUES: Final = Kind(GROUP, "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
LOCAL_QUEUES: Final = Kind(GROUP, "v1beta2", "localqueues", "LocalQueue")
WORKLOADS: Final = Kind(GROUP, "v1beta2", "workloads", "Workload")
JOBS: Final = Kind("batch", "v1", "jobs", "Job")
NAME: Final = "koordra-test"
GPU, NIC = "kueue-gpu.koordra.io", "kueue-nic.koordra.io"
MEMORY, SHARE = "koordra.io/gpu-memory", "koordra.io/nic-share"
LONG: Final = 120.0


@pytest.fixture
def queue(client: KubeClient, namespace: str) -> Iterator[str]:
    """200Gi of memory, two NICs."""
    try:
        client.list(WORKLOADS)
    except ApiError:
        pytest.skip("this cluster has no Kueue")
    quotas = [{"name": MEMORY, "nominalQuota": "200Gi"}, {"name": SHARE, "nominalQuota": "200"}]
    flavors = [{"name": NAME, "resources": quotas}]
    groups = [{"coveredResources": [MEMORY, SHARE], "flavors": flavors}]
    made = (
        (FLAVORS, {"spec": {}}),
        (CLUSTER_QUEUES, {"spec": {"namespaceSelector": {}, "resourceGroups": groups}}),
        (LOCAL_QUEUES, {"spec": {"clusterQueue": NAME}}),
    )
    for kind, body in made:
        with suppress(Conflict):
            client.create(
                kind,
                {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": NAME}, **body},
                namespace=namespace if kind.namespaced else None,
            )
    for name, of in ((GPU, "gpu"), (NIC, "nic")):
        expression = f'device.driver == "koordra.io" && device.attributes["koordra.io"].type == "{of}"'
        with suppress(Conflict):
            selectors = [{"cel": {"expression": expression}}]
            client.create(
                kinds.DEVICE_CLASSES, {"metadata": {"name": name}, "spec": {"selectors": selectors}}
            )
    yield namespace
    for kind in (JOBS, WORKLOADS):
        for one in client.list(kind, namespace=namespace)[0]:
            with suppress(NotFound):
                client.delete(kind, objects.name(one), namespace=namespace, propagation="Background")


def job(client: KubeClient, namespace: str, name: str, requests: list[Object], config: list[Object]) -> None:
    devices: Object = {"requests": requests, **({"config": config} if config else {})}
    template = {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}
    client.create(kinds.RESOURCE_CLAIM_TEMPLATES, template, namespace=namespace)
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "devices"}]}}
    spec = {
        "restartPolicy": "Never",
        "nodeSelector": {"koordra.io/test": "true"},
        "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": name}],
        "containers": [container],
    }
    metadata = {"name": name, "labels": {f"{GROUP}/queue-name": NAME}}
    body = {"suspend": True, "backoffLimit": 0, "template": {"spec": spec}}
    client.create(JOBS, {"metadata": metadata, "spec": body}, namespace=namespace)


def workload(client: KubeClient, namespace: str, name: str) -> Object | None:
    for one in client.list(WORKLOADS, namespace=namespace)[0]:
        if any(owner.get("name") == name for owner in objects.metadata(one).get("ownerReferences") or ()):
            return one
    return None


def charged(client: KubeClient, namespace: str, name: str) -> dict[str, Fraction] | None:
    found = workload(client, namespace, name)
    admission = objects.status_of(found).get("admission") if found else None
    if not admission:
        return None
    (assigned,) = admission["podSetAssignments"]
    return {key: Fraction(parse(str(value))) for key, value in assigned["resourceUsage"].items()}


def given(client: KubeClient, namespace: str, name: str) -> dict[str, Fraction] | None:
    """What the devices of the job's pod take, of the claim's own words."""
    total = {MEMORY: Fraction(0), SHARE: Fraction(0)}
    found = [
        one
        for one in client.list(kinds.RESOURCE_CLAIMS, namespace=namespace)[0]
        if objects.metadata(one).get("ownerReferences", [{}])[0].get("name", "").startswith(f"{name}-")
    ]
    if not found or not all(map(claims_of.is_allocated, found)):
        return None
    for result in (result for one in found for result in claims_of.results(one)):
        taken = result["consumedCapacity"]
        total[MEMORY] += Fraction(parse(str(taken.get(names.CAPACITY_MEMORY, 0))))
        total[SHARE] += Fraction(parse(str(taken.get(names.CAPACITY_SHARE, 0))))
    return {key: amount for key, amount in total.items() if amount}


def asks(name: str, device_class: str, *, count: int = 1, **capacity: str) -> Object:
    exactly: Object = {"deviceClassName": device_class, "count": count}
    return {"name": name, "exactly": exactly | ({"capacity": {"requests": capacity}} if capacity else {})}


def gpu_config(**parameters: Any) -> list[Object]:
    body = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", **parameters}
    return [{"requests": ["gpu"], "opaque": {"driver": "koordra.io", "parameters": body}}]


CASES: Final[dict[str, tuple[list[Object], list[Object]]]] = {
    "bytes": ([asks("gpu", GPU, memory="10Gi")], []),
    "odd-bytes": ([asks("gpu", GPU, memory="1000000007")], []),
    "percent": ([asks("gpu", GPU)], gpu_config(memoryPercent=33)),
    "whole": ([asks("gpu", GPU, count=2)], []),
    "nics": (
        [
            asks("gpu", GPU, memory="4Gi"),
            asks("part", NIC, share="25"),
            asks("all", NIC),
        ],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_kueue_charges_exactly_what_is_given(client: KubeClient, queue: str, case: str) -> None:
    job(client, queue, case, *CASES[case])
    found = eventually(lambda: given(client, queue, case), f"the devices of {case}", timeout=LONG)
    assert charged(client, queue, case) == found


def test_a_percentage_beyond_the_queue_waits(client: KubeClient, queue: str) -> None:
    whole = ([asks("gpu", GPU, count=2)], [])
    job(client, queue, "first", *whole)
    eventually(lambda: charged(client, queue, "first"), "the first job", timeout=LONG)
    job(client, queue, "second", [asks("gpu", GPU)], gpu_config(memoryPercent=75))

    def told() -> bool:
        found = workload(client, queue, "second")
        return "insufficient" in str(objects.status_of(found).get("conditions")) if found else False

    eventually(told, "the second job waits for quota", timeout=LONG)
    assert charged(client, queue, "second") is None
    assert queue == NAMESPACE
