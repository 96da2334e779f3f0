"""Gangs on a cluster: eight pods with the stock scheduler, all or none; and a gang that an indexed Job
makes."""

from __future__ import annotations

import contextlib

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.cache.changes import POD_GROUPS
from koordra.controller.gangs.declared.annotations import COMMITTED, GANG, GANG_MIN
from koordra.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from koordra.kube.client import KubeClient
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import NODES, eventually

pytestmark = pytest.mark.cluster

POD_GROUPS_ALPHA = next(kind for kind in POD_GROUPS if kind.version == "v1alpha2")
JOBS = Kind("batch", "v1", "jobs", "Job")
MEMBERS = 8
PATIENCE = 240.0


@pytest.fixture
def workload(client: KubeClient, namespace: str) -> Workload:
    return Workload(client, namespace)


def pod_spec(claim_template: str) -> Object:
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"koordra.io/test": "true"},
        "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": claim_template}],
        "containers": [
            {
                "name": "main",
                "image": "local.test/busybox:1",
                "imagePullPolicy": "Never",
                "command": ["sleep", "3600"],
                "resources": {"claims": [{"name": "devices"}], "requests": {"cpu": "100m"}},
            }
        ],
    }


def member(workload: Workload, name: str, **annotations: str) -> Object:
    said = {GANG: "train", GANG_MIN: str(MEMBERS)} | {
        key.replace("_", "-"): value for key, value in annotations.items()
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": workload.namespace, "annotations": said},
        "spec": pod_spec("pair"),
    }
    return workload.client.create(kinds.PODS, body)


def pods(workload: Workload) -> list[Object]:
    return [
        pod
        for pod in workload.client.list(kinds.PODS, namespace=workload.namespace)[0]
        if GANG in objects.annotations_of(pod)
    ]


def bound(workload: Workload) -> list[str]:
    return [objects.name(pod) for pod in pods(workload) if objects.spec_of(pod).get("nodeName")]


def allocated(workload: Workload) -> list[Object]:
    """Claims of gang members with devices."""
    mine = {name for pod in pods(workload) for name in objects.pod_claim_names(pod).values()}
    claims, _ = workload.client.list(kinds.RESOURCE_CLAIMS, namespace=workload.namespace)
    return [
        claim
        for claim in claims
        if objects.name(claim) in mine and objects.status_of(claim).get("allocation")
    ]


def test_eight_pods_are_bound_together(workload: Workload) -> None:
    """Two nodes of eight GPUs: eight places of two GPUs each."""
    workload.template("pair", [request("gpu", names.CLASS_GPU, count=2)])
    for number in range(MEMBERS - 1):
        member(workload, f"w{number}")
    gated = pods(workload)
    assert len(gated) == MEMBERS - 1
    assert all(
        [gate["name"] for gate in pod["spec"]["schedulingGates"]] == [names.JOINT_GATE] for pod in gated
    )
    member(workload, f"w{MEMBERS - 1}")
    eventually(lambda: len(bound(workload)) == MEMBERS, "binding of the gang", timeout=PATIENCE)
    found = allocated(workload)
    devices = [
        (result["pool"], result["device"])
        for claim in found
        for result in claim["status"]["allocation"]["devices"]["results"]
    ]
    assert len(devices) == len(set(devices)) == 2 * MEMBERS
    assert {pool for pool, _ in devices} == set(NODES)
    assert all(objects.annotations_of(pod)[COMMITTED] == "train" for pod in pods(workload))


def test_with_seven_places_nobody_is_bound_and_nothing_allocated(workload: Workload) -> None:
    workload.template("pair", [request("gpu", names.CLASS_GPU, count=2)])
    workload.claim("other", [request("gpu", names.CLASS_GPU, count=2)])
    workload.pod("other", claim="other")
    workload.bound("other")
    for number in range(MEMBERS):
        member(workload, f"w{number}")

    def told() -> list[Object]:
        return [event for event in workload.events("w0") if event.get("reason") == "GangWaiting"]

    (event, *_) = eventually(told, "the Event that tells why the gang waits", timeout=PATIENCE)
    assert "7 of 8" in event["message"], event["message"]
    assert bound(workload) == []
    assert allocated(workload) == []
    workload.client.delete(kinds.PODS, "other", namespace=workload.namespace, grace_period=0)
    eventually(lambda: len(bound(workload)) == MEMBERS, "binding once there is room", timeout=PATIENCE)


def test_a_gang_of_an_indexed_job(workload: Workload, client: KubeClient) -> None:
    workload.template("pair", [request("gpu", names.CLASS_GPU, count=2)])
    annotations = {GANG: "train", GANG_MIN: str(MEMBERS)}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": workload.namespace},
        "spec": {
            "completionMode": "Indexed",
            "completions": MEMBERS,
            "parallelism": MEMBERS,
            "template": {"metadata": {"annotations": annotations}, "spec": pod_spec("pair")},
        },
    }
    try:
        client.create(JOBS, job)
    except ApiError as error:
        if error.code == 404:
            pytest.skip("this cluster has no Jobs")
        raise
    try:
        eventually(lambda: len(bound(workload)) == MEMBERS, "binding of the Job's pods", timeout=PATIENCE)
        ranks = {
            objects.labels_of(pod).get("batch.kubernetes.io/job-completion-index"): _rank(workload, pod)
            for pod in pods(workload)
        }
        assert ranks == {str(number): number for number in range(MEMBERS)}
    finally:
        end_job(workload)


def end_job(workload: Workload) -> None:
    """The Job takes its pods along; nobody but us ends those that are bound, since no kubelet is there."""
    client, namespace = workload.client, workload.namespace
    client.delete(JOBS, "train", namespace=namespace, propagation="Background")

    def gone() -> bool:
        left = client.list(kinds.PODS, namespace=namespace)[0]
        for pod in left:
            with contextlib.suppress(NotFound):
                client.delete(kinds.PODS, objects.name(pod), namespace=namespace, grace_period=0)
        return not left

    eventually(gone, "the end of the Job's pods", timeout=PATIENCE)


def _rank(workload: Workload, pod: Object) -> int | None:
    (name,) = objects.pod_claim_names(pod).values()
    claim = workload.client.get(kinds.RESOURCE_CLAIMS, str(name), namespace=workload.namespace)
    for entry in claim["status"]["allocation"]["devices"].get("config") or ():
        parameters = (entry.get("opaque") or {}).get("parameters") or {}
        if parameters.get("kind") == "GangMember":
            return int(parameters["rank"])
    return None


def test_terms_that_cannot_be_meant_are_refused(workload: Workload) -> None:
    workload.template("pair", [request("gpu", names.CLASS_GPU, count=2)])
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bad", "namespace": workload.namespace, "annotations": {GANG: "train"}},
        "spec": pod_spec("pair"),
    }
    with pytest.raises((Invalid, Forbidden, Conflict), match=GANG_MIN):
        workload.client.create(kinds.PODS, body)


def test_a_pod_group_of_kubernetes(workload: Workload, client: KubeClient) -> None:
    """Where the server has them (1.36: gate GenericWorkload), beside kube-scheduler's own gang scheduling
    where that is on."""
    group = {
        "apiVersion": POD_GROUPS_ALPHA.api_version,
        "kind": "PodGroup",
        "metadata": {"name": "train", "namespace": workload.namespace},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}},
    }
    try:
        client.create(POD_GROUPS_ALPHA, group)
    except ApiError as error:
        if error.code == 404:
            pytest.skip("this cluster does not serve scheduling.k8s.io PodGroups")
        raise
    try:
        workload.template("pair", [request("gpu", names.CLASS_GPU, count=2)])
        for number in range(3):
            grouped(workload, f"w{number}")
        workload.claim("probe", [request("gpu", names.CLASS_GPU)])
        workload.pod("probe", claim="probe")
        workload.bound("probe")
        found = members_of_group(workload)
        assert all(pod["spec"].get("schedulingGates") for pod in found)
        assert not any(pod["spec"].get("nodeName") for pod in found)
        grouped(workload, "w3")
        eventually(
            lambda: sum(1 for pod in members_of_group(workload) if pod["spec"].get("nodeName")) == 4,
            "binding of the pod group",
            timeout=PATIENCE,
        )
    finally:
        for pod in members_of_group(workload):
            client.delete(kinds.PODS, objects.name(pod), namespace=workload.namespace, grace_period=0)
        client.delete(POD_GROUPS_ALPHA, "train", namespace=workload.namespace)


def grouped(workload: Workload, name: str) -> None:
    spec = pod_spec("pair") | {"schedulingGroup": {"podGroupName": "train"}}
    metadata = {"name": name, "namespace": workload.namespace}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    workload.client.create(kinds.PODS, body)


def members_of_group(workload: Workload) -> list[Object]:
    found, _ = workload.client.list(kinds.PODS, namespace=workload.namespace)
    return [pod for pod in found if pod["spec"].get("schedulingGroup")]
