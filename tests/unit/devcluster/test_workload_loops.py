"""The workload loops over HTTP. What the real controllers do alike is judged by
tests/cluster/test_workloads.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, objects
from koordra.api.kinds import Kind
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.apiserver.resources import DEPLOYMENTS, JOBS, REPLICA_SETS, STATEFUL_SETS
from koordra_devcluster.apiserver.server import ApiServer
from koordra_devcluster.controllers import garbage
from koordra_devcluster.controllers.informers import Informers
from koordra_devcluster.controllers.workloads.loops import WATCHED, WorkloadLoops
from tests.unit.devcluster.calling import Caller, eventually


@pytest.fixture
def loops(
    server: ApiServer, client: KubeClient, tmp_path: Path, stop: threading.Event
) -> Iterator[KubeClient]:
    del server
    start(client, tmp_path, stop)
    yield client
    stop.set()


def start(client: KubeClient, folder: Path, stop: threading.Event) -> None:
    """The loops at work, without a scheduler and without kubelets."""
    informers = Informers(
        new_client(str(folder / "kubeconfig")), tuple(dict.fromkeys((*WATCHED, *garbage.WATCHED)))
    )
    running = (WorkloadLoops(client, informers, first_backoff=0.1), garbage.GarbageLoops(client, informers))
    informers.start(stop)
    informers.wait_synced(stop)
    for one in running:
        one.start(stop)


def workload(app: str, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {"selector": {"matchLabels": {"app": app}}, "template": template, **spec}


def job(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    return {"template": template, **spec}


def create(client: KubeClient, kind: Kind, name: str, spec: dict[str, Any]) -> None:
    head = {"name": name, "namespace": "default"}
    client.create(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": head, "spec": spec})


def pods(client: KubeClient) -> list[dict[str, Any]]:
    found = client.list(kinds.PODS, namespace="default")[0]
    return sorted((pod for pod in found if not objects.is_deleting(pod)), key=objects.name)


def tell(client: KubeClient, pod: dict[str, Any], phase: str) -> None:
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False",
             "lastTransitionTime": "2026-11-21T12:00:00Z"}  # fmt: skip
    status = {"status": {"phase": phase, "conditions": [ready]}}
    client.patch(kinds.PODS, objects.name(pod), status, namespace="default", subresource="status")


def status(client: KubeClient, kind: Kind, name: str) -> dict[str, Any]:
    return dict(client.get(kind, name, namespace="default").get("status") or {})


def true_conditions(client: KubeClient, name: str) -> dict[str, str]:
    found = status(client, JOBS, name).get("conditions") or ()
    return {one["type"]: one["reason"] for one in found if one["status"] == "True"}


def test_a_deployment_rolls_to_its_new_template(loops: KubeClient) -> None:
    create(loops, DEPLOYMENTS, "d", workload("d", replicas=2))
    eventually(lambda: len(pods(loops)) == 2)
    for pod in pods(loops):
        tell(loops, pod, "Running")
    eventually(lambda: status(loops, DEPLOYMENTS, "d").get("availableReplicas") == 2)
    patch = {"spec": {"template": {"metadata": {"annotations": {"again": "yes"}}}}}
    loops.patch(DEPLOYMENTS, "d", patch, namespace="default")

    def rolled() -> bool:
        found = pods(loops)
        for pod in found:
            if pod["status"].get("phase") == "Pending":
                tell(loops, pod, "Running")
        return len(found) == 2 and all(objects.annotations_of(pod).get("again") for pod in found)

    eventually(rolled)
    eventually(lambda: status(loops, DEPLOYMENTS, "d").get("updatedReplicas") == 2)
    sets = loops.list(REPLICA_SETS, namespace="default")[0]
    assert sorted(one["spec"]["replicas"] for one in sets) == [0, 2]


def test_a_failed_pod_of_a_job_is_made_again_and_counted_once(loops: KubeClient) -> None:
    create(loops, JOBS, "j", job(backoffLimit=1))
    eventually(lambda: len(pods(loops)) == 1)
    tell(loops, pods(loops)[0], "Failed")
    eventually(lambda: len(pods(loops)) == 2)
    eventually(lambda: status(loops, JOBS, "j").get("failed") == 1)
    tell(loops, next(pod for pod in pods(loops) if pod["status"]["phase"] == "Pending"), "Succeeded")
    eventually(lambda: true_conditions(loops, "j").get("Complete") == "CompletionsReached")
    found = status(loops, JOBS, "j")
    assert (found["succeeded"], found["failed"], found["uncountedTerminatedPods"]) == (1, 1, {})


def test_a_job_past_its_deadline_fails(loops: KubeClient) -> None:
    create(loops, JOBS, "late", job(activeDeadlineSeconds=1))
    eventually(lambda: true_conditions(loops, "late").get("Failed") == "DeadlineExceeded")
    assert not pods(loops)


def test_a_finished_job_goes_after_its_time(loops: KubeClient) -> None:
    create(loops, JOBS, "brief", job(ttlSecondsAfterFinished=0))
    eventually(lambda: len(pods(loops)) == 1)
    tell(loops, pods(loops)[0], "Succeeded")
    eventually(lambda: not loops.list(JOBS, namespace="default")[0])
    eventually(lambda: not loops.list(kinds.PODS, namespace="default")[0])


def test_a_stateful_set_claims_volumes_that_outlive_its_pods(loops: KubeClient) -> None:
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    spec = workload("s", replicas=1, podManagementPolicy="Parallel", volumeClaimTemplates=[claim])
    create(loops, STATEFUL_SETS, "s", spec)
    (pod,) = eventually(lambda: pods(loops))
    (volume,) = pod["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "data-s-0"}
    loops.delete(STATEFUL_SETS, "s", namespace="default")
    eventually(lambda: not loops.list(kinds.PODS, namespace="default")[0])
    assert [objects.name(one) for one in loops.list(kinds.PERSISTENT_VOLUME_CLAIMS)[0]] == ["data-s-0"]


def test_loops_that_start_again_make_nothing_twice(
    server: ApiServer, client: KubeClient, tmp_path: Path
) -> None:
    """The first loops die at some moment; the next ones go on from what the API server has."""
    del server
    first, second = threading.Event(), threading.Event()
    start(client, tmp_path, first)
    create(client, DEPLOYMENTS, "d", workload("d", replicas=5))
    create(client, JOBS, "j", job(completions=3, parallelism=3))
    first.set()
    start(client, tmp_path, second)
    eventually(lambda: len(pods(client)) == 8)
    eventually(lambda: status(client, DEPLOYMENTS, "d").get("replicas") == 5)
    eventually(lambda: status(client, JOBS, "j").get("active") == 3)
    assert len(pods(client)) == 8
    second.set()


APPS = "/apis/apps/v1/namespaces/default/deployments"


def test_scale_is_a_document_of_its_own(api: Caller) -> None:
    api.ok("POST", APPS, {"metadata": {"name": "d"}, "spec": workload("d", replicas=2)})
    shown = api.ok("GET", f"{APPS}/d/scale")
    assert (shown["kind"], shown["spec"], shown["status"]) == (
        "Scale", {"replicas": 2}, {"replicas": 0, "selector": "app=d"}
    )  # fmt: skip
    api.ok("PUT", f"{APPS}/d/scale", {"kind": "Scale", "spec": {"replicas": 7}})
    assert api.ok("GET", f"{APPS}/d")["spec"]["replicas"] == 7
    api.refused(422, "PUT", f"{APPS}/d/scale", {"kind": "Scale", "spec": {"replicas": -1}})
    api.refused(
        409, "PUT", f"{APPS}/d/scale", {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 1}}
    )


def test_pod_groups_are_served_behind_their_gate(api: Caller, tmp_path: Path) -> None:
    path = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
    api.refused(404, "GET", path)
    gated = ApiServer(tmp_path / "gated", gates=frozenset({"GenericWorkload"}))
    with_gate = Caller(gated.store)
    with_gate.api.registry = gated.registry
    body = {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    assert with_gate.ok("POST", path, body)["spec"] == body["spec"]
    pod = {
        "metadata": {"name": "p"},
        "spec": {"schedulingGroup": {"podGroupName": "g"}, "containers": [{"name": "c", "image": "i"}]},
    }
    pods_path = "/api/v1/namespaces/default/pods"
    assert with_gate.ok("POST", pods_path, pod)["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    assert "schedulingGroup" not in api.ok("POST", pods_path, pod)["spec"]
    gated.close()
