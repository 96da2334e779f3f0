"""The doubles of operators over HTTP: what each makes of the jobs in deploy/examples, and that it makes it
once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, objects
from koordra.api.kinds import Kind
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.apiserver.resources import CRDS, JOBS
from koordra_devcluster.apiserver.server import ApiServer
from koordra_devcluster.controllers.informers import Informers
from koordra_devcluster.controllers.operators import OPERATORS, loops
from koordra_devcluster.controllers.operators.definitions import (
    JOB_SETS,
    VOLCANO_JOBS,
    VOLCANO_POD_GROUPS,
    definitions,
)
from koordra_devcluster.controllers.operators.making import SERVICES
from koordra_devcluster.controllers.workloads import loops as workloads
from koordra_devcluster.demo import examples, manifests
from tests.unit.devcluster.calling import eventually


def run(client: KubeClient, folder: Path, stop: threading.Event, *operators: str) -> None:
    """The operators and the workload loops at work, without a scheduler and without kubelets."""
    loops.install(client, operators)
    loops.install(client, operators)
    watched = dict.fromkeys((*workloads.WATCHED, *loops.watched(operators)))
    informers = Informers(new_client(str(folder / "kubeconfig")), tuple(watched))
    running = (workloads.WorkloadLoops(client, informers), loops.OperatorLoops(client, informers, operators))
    informers.start(stop)
    informers.wait_synced(stop)
    for one in running:
        one.start(stop)


def apply(client: KubeClient, example: str) -> None:
    documents = [document for file in examples.files(example) for document in manifests.read(file)]
    there = [one for operator in OPERATORS for one in definitions(operator)]
    assert manifests.apply(client, documents, rest=lambda: None, installed=there) == []


def found(client: KubeClient, kind: Kind = kinds.PODS) -> list[dict[str, Any]]:
    return sorted(client.list(kind, namespace="default")[0], key=objects.name)


@pytest.fixture
def started(server: ApiServer, client: KubeClient, tmp_path: Path, stop: threading.Event) -> KubeClient:
    del server
    run(client, tmp_path, stop, *OPERATORS)
    return client


def test_a_job_set_is_a_job_for_each_replica_and_a_service(started: KubeClient) -> None:
    apply(started, "job-jobset")
    eventually(lambda: len(found(started)) == 4)
    (job,) = found(started, JOBS)
    assert objects.name(job) == "pretrain-workers-0"
    for pod in found(started):
        labels = objects.labels_of(pod)
        assert labels["jobset.sigs.k8s.io/jobset-name"] == "pretrain"
        assert labels["jobset.sigs.k8s.io/job-global-index"] == "0"
        assert pod["spec"]["subdomain"] == "pretrain"
        assert pod["spec"]["hostname"].startswith("pretrain-workers-0-")
    (service,) = found(started, SERVICES)
    assert (service["spec"]["clusterIP"], objects.name(service)) == ("None", "pretrain")


def test_kueue_lets_a_job_of_a_queue_start_and_no_other(started: KubeClient) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    for name, labels in (("queued", {"kueue.x-k8s.io/queue-name": "q"}), ("held", {})):
        head = {"name": name, "namespace": "default", "labels": labels}
        started.create(
            JOBS, {**JOBS.type_meta, "metadata": head, "spec": {"suspend": True, "template": template}}
        )
    eventually(lambda: len(found(started)) == 1)
    suspended = {objects.name(job): job["spec"]["suspend"] for job in found(started, JOBS)}
    assert suspended == {"queued": False, "held": True}


def test_pytorch_and_mpi_jobs_are_pods_of_their_replicas(started: KubeClient) -> None:
    apply(started, "job-training-operator")
    eventually(lambda: len(found(started)) == 7)
    pods = {objects.name(pod): pod for pod in found(started)}
    ranks = {}
    for name, pod in pods.items():
        env = {one["name"]: one["value"] for one in pod["spec"]["containers"][0].get("env") or ()}
        if "RANK" in env:
            ranks[name] = (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"], pod["spec"]["restartPolicy"])
    same = ("4", "pretrain-master-0", "OnFailure")
    assert ranks == {
        "pretrain-master-0": ("0", *same),
        **{f"pretrain-worker-{index}": (str(index + 1), *same) for index in range(3)},
    }
    assert pods["allreduce-worker-1"]["spec"]["subdomain"] == "allreduce"
    assert objects.labels_of(pods["allreduce-worker-1"])["training.kubeflow.org/replica-index"] == "1"
    (launcher,) = [name for name in pods if name.startswith("allreduce-launcher-")]
    assert objects.annotations_of(pods[launcher])["koordra.io/gang-min"] == "3"


def test_a_volcano_job_is_a_pod_group_and_its_tasks_pods(started: KubeClient) -> None:
    apply(started, "job-volcano")
    eventually(lambda: len(found(started)) == 4)
    (group,) = found(started, VOLCANO_POD_GROUPS)
    assert group["spec"]["minMember"] == 4
    for index, pod in enumerate(found(started)):
        assert objects.name(pod) == f"pretrain-worker-{index}"
        told = objects.annotations_of(pod)
        assert told["scheduling.k8s.io/group-name"] == objects.name(group)
        assert told["volcano.sh/task-index"] == str(index)
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        assert {"name": "VC_TASK_INDEX", "value": str(index)} in pod["spec"]["containers"][0]["env"]


def test_what_the_server_refuses_is_told_on_the_owner(started: KubeClient) -> None:
    task = {"name": "t", "template": {"spec": {"containers": [{"name": "NOT A NAME", "image": "i"}]}}}
    head = {"name": "bad", "namespace": "default"}
    started.create(VOLCANO_JOBS, {**VOLCANO_JOBS.type_meta, "metadata": head, "spec": {"tasks": [task]}})

    def told() -> bool:
        return any(
            event["reason"] == "FailedCreate" and event["involvedObject"]["name"] == "bad"
            for event in started.list(kinds.EVENTS)[0]
        )

    eventually(told)
    assert found(started) == []


def test_groups_outside_of_kubernetes_need_no_approval(client: KubeClient) -> None:
    """jobset.x-k8s.io is no protected group; something.k8s.io is."""
    loops.install(client, ["jobset"])
    (definition,) = definitions("jobset")
    spec = {**definition["spec"], "group": "jobset.k8s.io"}
    mine = {**definition, "metadata": {"name": "jobsets.jobset.k8s.io"}, "spec": spec}
    with pytest.raises(Exception, match="protected groups must have approval"):
        client.create(CRDS, mine)
    approval = {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"}
    client.create(CRDS, {**mine, "metadata": {**mine["metadata"], "annotations": approval}})
    assert client.list(JOB_SETS)[0] == []
