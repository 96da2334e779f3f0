"""What koordra reads of other systems, with its own account, on a cluster that has their definitions and not
their operators: the pod groups by which members start together, and the jobs above pods that say whether
anybody makes lost members again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.cache.changes import LOOK_AGAIN, POD_GROUPS
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.controller.gangs.seats import job_owner
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import REPLICA_SETS
from tests.cluster.definitions import defined
from tests.cluster.test_gangs import PATIENCE, pod_spec
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually
from tests.cluster.without_kubelet import ends_deleted, runs

pytestmark = pytest.mark.cluster

NAME: Final = "train"


@dataclass(frozen=True)
class System:
    """How pods of it name the group `train`, and how that says that it needs two."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=lambda: {"minMember": 2})


SYSTEMS: Final = {
    "scheduling.x-k8s.io": System({"scheduling.x-k8s.io/pod-group": NAME}),
    "scheduling.sigs.k8s.io": System({"pod-group.scheduling.sigs.k8s.io": NAME}),
    "scheduling.volcano.sh": System(annotations={"scheduling.k8s.io/group-name": NAME}),
    "scheduling.run.ai": System({"kai.scheduler/queue": "team"}, {"pod-group-name": NAME}),
    "scheduler.grove.io": System(
        {"grove.io/podgang": NAME, "grove.io/podclique": "workers"},
        spec={"podgroups": [{"name": "workers", "minReplicas": 2}]},
    ),
}
GROUPS: Final = {kind.group: kind for kind in POD_GROUPS if kind.group in SYSTEMS}

SUSPENDED: Final[Mapping[str, Any]] = {"spec": {"suspend": True}}
OF_KUBEFLOW: Final[Mapping[str, Any]] = {"spec": {"runPolicy": {"suspend": True}}}
NO_REPLICAS: Final[Mapping[str, Any]] = {"spec": {"replicas": 0}}
JOBS: Final[Mapping[Kind, Mapping[str, Any]]] = {
    job_owner.JOBSETS: SUSPENDED,
    job_owner.RAY_CLUSTERS: SUSPENDED,
    job_owner.LEADER_WORKER_SETS: NO_REPLICAS,
    job_owner.POD_CLIQUE_SETS: NO_REPLICAS,
    job_owner.VOLCANO_JOBS: {"status": {"state": {"phase": "Aborted"}}},
    job_owner.MPI_JOBS: OF_KUBEFLOW,
    **dict.fromkeys(job_owner.KUBEFLOW_JOBS, OF_KUBEFLOW),
}
"""What each says when it makes no pods any more."""
CLIQUES: Final = tuple(
    Kind("grove.io", "v1alpha1", kind.lower() + "s", kind) for kind in ("PodCliqueScalingGroup", "PodClique")
)
"""Between a PodCliqueSet and its pods, from above."""


@pytest.fixture
def workload(client: KubeClient, namespace: str) -> Workload:
    return Workload(client, namespace)


@pytest.fixture(scope="module")
def pod_groups(client: KubeClient) -> Iterator[None]:
    with defined(client, GROUPS.values()):
        yield


@pytest.mark.parametrize("group", GROUPS)
def test_the_pod_group_of_another_system_says_how_many_start_together(
    workload: Workload, pod_groups: None, group: str
) -> None:
    system, client, place = SYSTEMS[group], workload.client, workload.namespace
    body = {**GROUPS[group].type_meta, "metadata": {"name": NAME}, "spec": dict(system.spec)}
    client.create(GROUPS[group], body, namespace=place)
    workload.template("pair", [request("gpu", names.CLASS_GPU, count=2)])

    def member(name: str) -> None:
        meta = {"name": name, "labels": dict(system.labels), "annotations": dict(system.annotations)}
        client.create(kinds.PODS, {"metadata": meta, "spec": pod_spec("pair")}, namespace=place)

    def bound() -> set[str]:
        pods, _ = client.list(kinds.PODS, namespace=place)
        return {objects.name(pod) for pod in pods if objects.spec_of(pod).get("nodeName")}

    try:
        member("w0")
        workload.claim("probe", [request("gpu", names.CLASS_GPU)])
        workload.pod("probe", claim="probe")
        workload.bound("probe")
        assert bound() == {"probe"}
        member("w1")
        eventually(
            lambda: bound() == {"probe", "w0", "w1"}, "the group's start", timeout=PATIENCE + LOOK_AGAIN
        )
    finally:
        client.delete(GROUPS[group], NAME, namespace=place)


class Makers(Workload):
    """Gangs of one pod, and the jobs that made them."""

    def job(self, kind: Kind, *, made_by: Object | None = None, **fields: Any) -> Object:
        meta: Object = {"name": kind.kind.lower()}
        if made_by is not None:
            meta["ownerReferences"] = [self.controller(made_by)]
        return self.client.create(
            kind, {**kind.type_meta, "metadata": meta, **fields}, namespace=self.namespace
        )

    def controller(self, owner: Object) -> Object:
        meta = owner["metadata"]
        return {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
        }

    def gang(self, name: str, made_by: Object) -> None:
        body = self.member(name)
        body["metadata"] |= {"name": name, "ownerReferences": [self.controller(made_by)]}
        self.client.create(kinds.PODS, body, namespace=self.namespace)

    def member(self, gang: str) -> Object:
        return {"metadata": {"annotations": {GANG: gang, GANG_MIN: "1"}}, "spec": pod_spec("one")}

    def running(self) -> set[str]:
        """The gangs whose pods are bound, which run from then on."""
        pods, _ = self.client.list(kinds.PODS, namespace=self.namespace)
        bound = [pod for pod in pods if objects.spec_of(pod).get("nodeName") and not objects.is_deleting(pod)]
        for pod in bound:
            if objects.status_of(pod).get("phase") == "Pending":
                runs(self.client, pod)
        return {objects.annotations_of(pod)[GANG] for pod in bound}

    def holds(self) -> dict[str, Object]:
        """The gangs' records, by gang."""
        found, _ = self.client.list(kinds.DEVICE_HOLDS, namespace=self.namespace)
        return {str(hold["spec"]["owner"]).rpartition("/")[2]: hold for hold in found}

    def held(self) -> set[str]:
        """The gangs for which what a lost member had is kept."""
        return {
            gang
            for gang, hold in self.holds().items()
            if any("until" in one for one in hold["spec"]["seats"])
        }


@pytest.fixture
def makers(client: KubeClient, namespace: str) -> Iterator[Makers]:
    with defined(client, [*JOBS, *CLIQUES]):
        found = Makers(client, namespace)
        found.template("one", [request("gpu", names.CLASS_GPU)])
        yield found
        for kind in (*JOBS, *CLIQUES):
            with suppress(NotFound):
                client.delete(kind, kind.kind.lower(), namespace=namespace)


def test_nothing_is_held_for_a_job_that_makes_no_pods_any_more(makers: Makers) -> None:
    """A gang of one for each kind, whose pod is lost: held, until its job is suspended."""
    jobs: dict[str, tuple[Kind, Object]] = {}
    for kind in JOBS:
        above = makers.job(kind)
        jobs[objects.name(above)] = kind, above
        if kind is job_owner.POD_CLIQUE_SETS:
            for between in CLIQUES:
                above = makers.job(between, made_by=above)
        makers.gang(kind.kind.lower(), above)
    eventually(lambda: makers.running() == set(jobs), "the gangs' start", timeout=PATIENCE)
    owners = {
        gang: [(owner["kind"], owner["uid"]) for owner in hold["metadata"]["ownerReferences"]]
        for gang, hold in makers.holds().items()
    }
    assert owners == {gang: [(kind.kind, objects.uid(job))] for gang, (kind, job) in jobs.items()}
    for gang in jobs:
        makers.client.delete(kinds.PODS, gang, namespace=makers.namespace, grace_period=0)
    eventually(lambda: makers.held() == set(jobs), "the hold of the lost seats", timeout=PATIENCE)
    for gang, (kind, _) in jobs.items():
        makers.client.patch(kind, gang, dict(JOBS[kind]), namespace=makers.namespace)
    eventually(lambda: not makers.held(), "the end of what is held", timeout=PATIENCE)


def test_a_replica_set_that_is_scaled_to_nothing_has_nothing_held(makers: Makers) -> None:
    chosen = {"app": "served"}
    pod = makers.member("served")
    pod["metadata"]["labels"] = chosen
    pod["spec"]["restartPolicy"] = "Always"
    made = makers.job(
        REPLICA_SETS, spec={"replicas": 1, "selector": {"matchLabels": chosen}, "template": pod}
    )
    name = objects.name(made)
    try:
        eventually(lambda: makers.running() == {"served"}, "the gang's start", timeout=PATIENCE)
        owners = makers.holds()["served"]["metadata"]["ownerReferences"]
        assert [owner["uid"] for owner in owners] == [objects.uid(made)]
        makers.client.patch(REPLICA_SETS, name, dict(NO_REPLICAS), namespace=makers.namespace)

        def free() -> bool:
            ends_deleted(makers.client, makers.namespace)
            return not makers.held() and not makers.running()

        eventually(free, "its seats free", timeout=PATIENCE)
    finally:
        makers.client.delete(REPLICA_SETS, name, namespace=makers.namespace)
