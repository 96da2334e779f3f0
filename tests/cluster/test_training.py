"""A TrainingJob on a cluster, with kube-controller-manager's claims and garbage collection, and the admission
of a real server or of the double: it starts with what there is, grows, and remakes a failed replica."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from koordra.api import names, objects
from koordra.api.kinds import PODS, SERVICES, TRAINING_JOBS
from koordra.api.objects import Object
from koordra.errors import Invalid
from koordra.kube.client import KubeClient
from tests.cluster.test_gangs import PATIENCE, pod_spec
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually
from tests.cluster.without_kubelet import ends_deleted, fails, runs, succeeds

pytestmark = pytest.mark.cluster


class Training(Workload):
    def job(self, name: str, **spec: object) -> Object:
        body = {
            "framework": "ElasticPyTorch",
            "minReplicas": 2,
            "maxReplicas": 4,
            "template": {"spec": pod_spec("half")},
            **spec,
        }
        metadata = {"name": name, "namespace": self.namespace}
        return self.client.create(
            TRAINING_JOBS, {**TRAINING_JOBS.type_meta, "metadata": metadata, "spec": body}
        )

    def pods(self, job: str) -> dict[str, Object]:
        found, _ = self.client.list(PODS, namespace=self.namespace)
        return {objects.name(pod): pod for pod in found if objects.name(pod).startswith(f"{job}-")}

    def running(self, job: str) -> list[str]:
        """Those that are bound and not told otherwise run."""
        ends_deleted(self.client, self.namespace)
        found = []
        for name, pod in self.pods(job).items():
            phase = objects.status_of(pod).get("phase")
            if objects.spec_of(pod).get("nodeName") and phase == "Pending":
                runs(self.client, pod)
            if phase == "Running":
                found.append(name)
        return found

    def status(self, job: str) -> Object:
        return self.client.get(TRAINING_JOBS, job, namespace=self.namespace).get("status") or {}

    def is_in(self, job: str, state: str, *running: str) -> None:
        eventually(
            lambda: set(self.running(job)) == set(running) and self.status(job).get("state") == state,
            f"{job} {state}: {running}; it is {self.status(job)}",
            timeout=PATIENCE,
        )


@pytest.fixture
def training(client: KubeClient, namespace: str) -> Iterator[Training]:
    training = Training(client, namespace)
    training.template("half", [request("gpus", names.CLASS_GPU, count=4)])
    yield training
    for job in client.list(TRAINING_JOBS, namespace=namespace)[0]:
        client.delete(TRAINING_JOBS, objects.name(job), namespace=namespace, propagation="Background")
    eventually(lambda: ends_deleted(client, namespace), "no pods left", timeout=PATIENCE)


def test_the_course_of_a_job(training: Training, client: KubeClient) -> None:
    training.job("first", framework="PyTorch", minReplicas=2, maxReplicas=2)
    training.is_in("first", "Running", "first-000-0", "first-001-0")
    training.job("train")
    training.is_in("train", "Running", "train-000-0", "train-001-0")
    for pod in training.pods("first").values():
        succeeds(client, pod)
    training.is_in("train", "Running", *(f"train-00{at}-0" for at in range(4)))
    training.is_in("first", "Complete")
    fails(client, training.pods("train")["train-003-0"])
    training.is_in("train", "Running", "train-000-0", "train-001-0", "train-002-0", "train-003-1")
    client.patch(TRAINING_JOBS, "train", {"spec": {"maxReplicas": 3}}, namespace=training.namespace)
    training.is_in("train", "Running", "train-000-0", "train-001-0", "train-002-0")
    for name in training.running("train"):
        succeeds(client, training.pods("train")[name])
    training.is_in("train", "Complete")
    client.delete(TRAINING_JOBS, "train", namespace=training.namespace, propagation="Background")
    eventually(lambda: not training.pods("train"), "its pods gone with it", timeout=PATIENCE)


def test_a_service_of_the_jobs_name_that_is_not_its_own(training: Training, client: KubeClient) -> None:
    body = {"metadata": {"name": "taken"}, "spec": {"clusterIP": "None"}}
    client.create(SERVICES, body, namespace=training.namespace)
    training.job("taken", framework="PyTorch", minReplicas=2, maxReplicas=2)

    def trouble() -> str:
        found = training.status("taken").get("conditions") or ()
        return next((one["message"] for one in found if one["type"] == "Trouble"), "")

    eventually(lambda: "a Service taken that is not this job's" in trouble(), "what is in its way")
    client.delete(SERVICES, "taken", namespace=training.namespace)
    training.is_in("taken", "Running", "taken-000-0", "taken-001-0")
    assert trouble() == ""


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"framework": "MPI"}, "MPI is never elastic, mpirun reads its hostfile once"),
        ({"minReplicas": 5}, "minReplicas is more than maxReplicas"),
        (
            {
                "template": {
                    "metadata": {"annotations": {"gate.koordra.io/gang": "x"}},
                    "spec": pod_spec("half"),
                }
            },
            "annotations of gate.koordra.io are the controller's own",
        ),
    ],
    ids=["mpi", "numbers", "gate"],
)
def test_what_the_server_refuses(training: Training, spec: dict[str, object], words: str) -> None:
    if "koordra-devcluster" in training.client.version():
        pytest.skip("the double evaluates no x-kubernetes-validations; tests/unit/training has their words")
    more = {"launcher": {"spec": pod_spec("half")}} if spec.get("framework") == "MPI" else {}
    with pytest.raises(Invalid) as refused:
        training.job("wrong", **spec, **more)
    assert words in str(refused.value)
