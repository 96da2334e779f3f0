"""A started gang keeps its seats through the back-off of its Job, as kube-controller-manager has it and frees
the claims of failed pods, while another Job of the same priority waits for exactly these seats."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.controller.gangs.declared.workload_kind import COMPLETION_INDEX
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import JOBS
from tests.cluster.test_gangs import PATIENCE, pod_spec
from tests.cluster.test_joint_allocation import Workload, request, results
from tests.cluster.waiting import eventually
from tests.cluster.without_kubelet import ends_deleted, fails, runs

pytestmark = pytest.mark.cluster

MEMBERS = 4
LONG = timedelta(seconds=60)
"""A back-off that reaches this is one that a Job has after its fourth failed pod (10 s, 20 s, 40 s, 80 s)."""

Place = tuple[str, tuple[str, ...], int]
"""Node, devices and rank."""


class Jobs(Workload):
    def job(self, name: str, size: int, *, backs_off: int = 20) -> None:
        """Pods with half a node's GPUs each."""
        annotations = {GANG: name, GANG_MIN: str(size)}
        spec: dict[str, Any] = {
            "completionMode": "Indexed",
            "completions": size,
            "parallelism": size,
            "backoffLimit": backs_off,
            "template": {
                "metadata": {"annotations": annotations, "labels": {"job": name}},
                "spec": pod_spec("half"),
            },
        }
        self.client.create(
            JOBS,
            {
                "apiVersion": JOBS.api_version,
                "kind": JOBS.kind,
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": spec,
            },
        )

    def end(self, name: str) -> None:
        try:
            self.client.delete(JOBS, name, namespace=self.namespace, propagation="Background")
        except NotFound:
            return

    def pods(self, job: str) -> dict[int, Object]:
        """Those that have not failed, by completion index."""
        found, _ = self.client.list(kinds.PODS, namespace=self.namespace, label_selector=f"job={job}")
        return {
            int(objects.labels_of(pod)[COMPLETION_INDEX]): pod
            for pod in found
            if objects.status_of(pod).get("phase") != "Failed" and not objects.is_deleting(pod)
        }

    def running(self, job: str) -> dict[int, Object]:
        """Those that are bound, which run from then on."""
        found = {at: pod for at, pod in self.pods(job).items() if objects.spec_of(pod).get("nodeName")}
        for pod in found.values():
            if objects.status_of(pod).get("phase") == "Pending":
                runs(self.client, pod)
        return found

    def place(self, pod: Object) -> Place:
        (name,) = objects.pod_claim_names(pod).values()
        claim = self.client.get(kinds.RESOURCE_CLAIMS, str(name), namespace=self.namespace)
        told = [
            entry["opaque"]["parameters"]
            for entry in claim["status"]["allocation"]["devices"]["config"]
            if entry["opaque"]["parameters"]["kind"] == "GangMember"
        ]
        devices = tuple(sorted(result["device"] for result in results(claim)))
        return pod["spec"]["nodeName"], devices, told[0]["rank"]

    def holds(self, job: str) -> list[Object]:
        owner = f"gang {self.namespace}/{job}"
        found, _ = self.client.list(kinds.DEVICE_HOLDS, namespace=self.namespace)
        return [hold for hold in found if hold["spec"]["owner"] == owner]

    def held(self, job: str) -> set[int]:
        """Completion indexes of the seats that nobody has."""
        seats = [seat for hold in self.holds(job) for seat in hold["spec"]["seats"] if "until" in seat]
        return {int(seat["name"].rpartition("/")[2]) for seat in seats}


@pytest.fixture
def jobs(client: KubeClient, namespace: str) -> Iterator[Jobs]:
    found = Jobs(client, namespace)
    found.template("half", [request("gpu", names.CLASS_GPU, count=4)])
    yield found
    for name in ("train", "waits"):
        found.end(name)
    eventually(lambda: ends_deleted(client, namespace), "the end of the Jobs' pods")


def test_seats_are_held_through_the_back_off_of_a_job(jobs: Jobs) -> None:
    jobs.job("train", MEMBERS)
    eventually(lambda: len(jobs.running("train")) == MEMBERS, "the start of the gang", timeout=PATIENCE)
    had = {at: jobs.place(pod) for at, pod in jobs.running("train").items()}
    jobs.job("waits", 1)

    pauses = [lose(jobs, had, [1]), lose(jobs, had, [1, 2, 3])]
    assert pauses[0] < LONG <= pauses[1], pauses

    jobs.end("train")
    eventually(
        lambda: ends_deleted(jobs.client, jobs.namespace) or jobs.running("waits"),
        "the other Job's start, once the first is deleted",
        timeout=PATIENCE,
    )
    assert jobs.running("waits")
    eventually(lambda: not jobs.holds("train"), "the end of the DeviceHolds with their Job")


def lose(jobs: Jobs, had: dict[int, Place], lost: list[int]) -> timedelta:
    """Members fail, and are at their places again; how long the Job took to make them."""
    before = jobs.pods("train")
    for at in lost:
        fails(jobs.client, before[at])
    eventually(lambda: jobs.held("train") == set(lost), "the hold of the lost seats")
    hold = jobs.holds("train")[0]
    assert [owner["kind"] for owner in hold["metadata"]["ownerReferences"]] == ["Job"]

    def complete() -> bool:
        assert not jobs.running("waits"), "the other Job got a seat that is held"
        return len(jobs.running("train")) == MEMBERS

    eventually(complete, "the members' replacements", timeout=PATIENCE)
    now = jobs.running("train")
    assert {at: jobs.place(pod) for at, pod in now.items()} == had
    assert {at for at, pod in now.items() if objects.uid(pod) != objects.uid(before[at])} == set(lost)
    eventually(lambda: not jobs.held("train"), "seats that are in use again")
    failed = max(ended(pod) for pod in failed_pods(jobs))
    return min(made(now[at]) for at in lost) - failed


def failed_pods(jobs: Jobs) -> list[Object]:
    found, _ = jobs.client.list(kinds.PODS, namespace=jobs.namespace, label_selector="job=train")
    return [pod for pod in found if objects.status_of(pod).get("phase") == "Failed"]


def ended(pod: Object) -> datetime:
    (status,) = pod["status"]["containerStatuses"]
    return datetime.fromisoformat(status["state"]["terminated"]["finishedAt"])


def made(pod: Object) -> datetime:
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
