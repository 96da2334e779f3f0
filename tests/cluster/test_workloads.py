"""Workload controllers on a cluster: what Deployments, ReplicaSets, StatefulSets and Jobs do with their pods.

The same on the double and on a real kube-controller-manager: this suite is how the double's loops were taken
from the real ones. No node is needed: the pods ask for a node that is not there, and the tests say in their
place that they run or have ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from koordra.api import kinds, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import (
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    JOBS,
    REPLICA_SETS,
    STATEFUL_SETS,
)
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.cluster
PLACE = "koordra-test-workloads"


class Cluster:
    """One namespace, and what the tests do in it."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client

    def create(self, kind: Kind, name: str, spec: Object) -> Object:
        head = {"name": name, "namespace": PLACE}
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": head, "spec": spec}
        return self.client.create(kind, body)

    def get(self, kind: Kind, name: str) -> Object:
        return self.client.get(kind, name, namespace=PLACE)

    def status(self, kind: Kind, name: str) -> Object:
        return self.get(kind, name).get("status") or {}

    def mine(self, kind: Kind, **labels: str) -> list[Object]:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        return self.client.list(kind, namespace=PLACE, label_selector=selector)[0]

    def pods(self, app: str) -> list[Object]:
        found = [pod for pod in self.mine(kinds.PODS, app=app) if not objects.is_deleting(pod)]
        return sorted(found, key=objects.name)

    def patch(self, kind: Kind, name: str, body: Object) -> Object:
        return self.client.patch(kind, name, body, namespace=PLACE)

    def tell(self, pod: Object, phase: str) -> None:
        """What the pod's kubelet would report."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = "True" if phase == "Running" else "False"
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": now}
        others = [one for one in objects.status_of(pod).get("conditions") or () if one["type"] != "Ready"]
        status = {"phase": phase, "conditions": [*others, condition]}
        self.client.patch(
            kinds.PODS, objects.name(pod), {"status": status}, namespace=PLACE, subresource="status"
        )

    def all_run(self, app: str) -> None:
        for pod in self.pods(app):
            if objects.status_of(pod).get("phase") != "Running":
                self.tell(pod, "Running")

    def scale(self, kind: Kind, name: str, replicas: int) -> Object:
        return self.client.patch(
            kind, name, {"spec": {"replicas": replicas}}, namespace=PLACE, subresource="scale"
        )


@pytest.fixture
def cluster(client: KubeClient) -> Iterator[Cluster]:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}}

    def made() -> bool:
        try:
            client.create(kinds.NAMESPACES, body)
        except Conflict:
            return not objects.is_deleting(client.get(kinds.NAMESPACES, PLACE))
        return True

    eventually(made, "the namespace")
    eventually(
        lambda: [
            one for one in client.list(kinds.SERVICE_ACCOUNTS, namespace=PLACE)[0]
            if objects.name(one) == "default"
        ],
        "the default ServiceAccount",
    )  # fmt: skip
    yield Cluster(client)
    owners = (DEPLOYMENTS, STATEFUL_SETS, JOBS, REPLICA_SETS)

    def empty() -> bool:
        left = False
        for kind in (*owners, kinds.PODS):
            for obj in client.list(kind, namespace=PLACE)[0]:
                left = True
                try:
                    client.delete(
                        kind, objects.name(obj), namespace=PLACE, grace_period=0, propagation="Background"
                    )
                except NotFound:
                    continue
        return not left

    eventually(empty, "an empty namespace")


def template(app: str, *, image: str = "image:1", restart: str = "Always") -> Object:
    spec = {
        "restartPolicy": restart,
        "nodeSelector": {"koordra.io/no-such-node": "true"},
        "containers": [{"name": "main", "image": image}],
    }
    return {"metadata": {"labels": {"app": app}}, "spec": spec}


def workload(app: str, replicas: int, **spec: Any) -> Object:
    return {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": app}},
        "template": template(app),
        **spec,
    }


def condition(status: Object, type_: str) -> Object:
    return next((one for one in status.get("conditions") or () if one["type"] == type_), {})


def images(pods: list[Object]) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in pods)


def settled(cluster: Cluster, app: str, count: int) -> list[Object]:
    return eventually(lambda: found if len(found := cluster.pods(app)) == count else None, f"{count} pods")


def test_a_replica_set_keeps_its_number(cluster: Cluster) -> None:
    cluster.create(REPLICA_SETS, "keep", workload("keep", 3))
    pods = settled(cluster, "keep", 3)
    owner = objects.metadata(pods[0])["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"], owner["blockOwnerDeletion"]) == (
        "ReplicaSet", "keep", True, True
    )  # fmt: skip
    cluster.tell(pods[0], "Failed")
    eventually(
        lambda: len([pod for pod in cluster.pods("keep") if pod["status"]["phase"] == "Pending"]) == 3,
        "a pod in place of the failed one",
    )
    cluster.tell(pods[1], "Running")
    eventually(lambda: cluster.status(REPLICA_SETS, "keep").get("readyReplicas") == 1, "one ready")
    assert cluster.scale(REPLICA_SETS, "keep", 1)["spec"] == {"replicas": 1}
    eventually(
        lambda: [
            objects.name(pod) for pod in cluster.pods("keep") if pod["status"]["phase"] != "Failed"
        ] == [objects.name(pods[1])],
        "the ready pod alone",
    )  # fmt: skip
    eventually(lambda: cluster.status(REPLICA_SETS, "keep").get("replicas") == 1, "the status")


def test_a_pod_that_fits_is_adopted(cluster: Cluster) -> None:
    bare = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bare", "namespace": PLACE, "labels": {"app": "adopt"}},
        "spec": template("adopt")["spec"],
    }
    cluster.client.create(kinds.PODS, bare)
    cluster.create(REPLICA_SETS, "adopt", workload("adopt", 2))
    eventually(lambda: objects.metadata(cluster.get(kinds.PODS, "bare")).get("ownerReferences"), "adoption")
    assert "bare" in [objects.name(pod) for pod in settled(cluster, "adopt", 2)]


def test_a_rolling_update_never_has_fewer_than_it_may(cluster: Cluster) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    cluster.create(DEPLOYMENTS, "roll", workload("roll", 2, strategy=strategy))
    settled(cluster, "roll", 2)
    cluster.all_run("roll")
    eventually(
        lambda: (
            condition(cluster.status(DEPLOYMENTS, "roll"), "Progressing").get("reason")
            == "NewReplicaSetAvailable"
        ),
        "the first rollout",
    )
    assert condition(cluster.status(DEPLOYMENTS, "roll"), "Available")["status"] == "True"
    cluster.patch(DEPLOYMENTS, "roll", {"spec": {"template": template("roll", image="image:2")}})
    for step in (["image:1", "image:1", "image:2"], ["image:1", "image:2", "image:2"]):
        eventually(lambda step=step: images(cluster.pods("roll")) == step, f"{step}")
        cluster.all_run("roll")
    eventually(lambda: images(cluster.pods("roll")) == ["image:2"] * 2, "only new pods")
    eventually(lambda: cluster.status(DEPLOYMENTS, "roll").get("updatedReplicas") == 2, "the status")
    sets = {
        one["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: one
        for one in cluster.mine(REPLICA_SETS, app="roll")
    }
    assert {number: one["spec"]["replicas"] for number, one in sets.items()} == {"1": 0, "2": 2}

    cluster.patch(DEPLOYMENTS, "roll", {"spec": {"template": template("roll")}})
    first = objects.name(sets["1"])
    eventually(
        lambda: (
            objects.annotations_of(cluster.get(REPLICA_SETS, first))["deployment.kubernetes.io/revision"]
            == "3"
        ),
        "the old set with a new revision",
    )
    assert len(cluster.mine(REPLICA_SETS, app="roll")) == 2


def test_recreate_waits_for_the_old_pods(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, "anew", workload("anew", 2, strategy={"type": "Recreate"}))
    for pod in settled(cluster, "anew", 2):
        cluster.patch(kinds.PODS, objects.name(pod), {"metadata": {"finalizers": ["koordra.io/test"]}})
    cluster.patch(DEPLOYMENTS, "anew", {"spec": {"template": template("anew", image="image:2")}})
    eventually(lambda: not cluster.pods("anew"), "the old pods' deletion")
    going = cluster.mine(kinds.PODS, app="anew")
    assert images(going) == ["image:1"] * 2
    for pod in going:
        cluster.patch(kinds.PODS, objects.name(pod), {"metadata": {"finalizers": None}})
    eventually(lambda: images(cluster.pods("anew")) == ["image:2"] * 2, "the new pods")


def test_scaling_is_seen_and_bad_workloads_are_refused(cluster: Cluster) -> None:
    cluster.create(DEPLOYMENTS, "size", workload("size", 1))
    settled(cluster, "size", 1)
    assert cluster.scale(DEPLOYMENTS, "size", 4)["kind"] == "Scale"
    settled(cluster, "size", 4)
    (only,) = cluster.mine(REPLICA_SETS, app="size")
    assert only["metadata"]["annotations"]["deployment.kubernetes.io/desired-replicas"] == "4"
    with pytest.raises(Invalid, match="`selector` does not match template `labels`"):
        cluster.create(DEPLOYMENTS, "wrong", workload("wrong", 1, template=template("other")))
    with pytest.raises(Invalid, match="field is immutable"):
        cluster.patch(DEPLOYMENTS, "size", {"spec": {"selector": {"matchLabels": {"tier": "x"}},
                      "template": {"metadata": {"labels": {"tier": "x"}}}}})  # fmt: skip
    with pytest.raises(Invalid, match="must be greater than or equal to 0"):
        cluster.scale(DEPLOYMENTS, "size", -1)
    never = workload("never", 1, template=template("never", restart="Never"))
    with pytest.raises(Invalid, match=r'Unsupported value: "Never": supported values: "Always"'):
        cluster.create(DEPLOYMENTS, "never", never)


def test_an_indexed_job_makes_each_index_once(cluster: Cluster) -> None:
    spec = {"completions": 3, "parallelism": 2, "completionMode": "Indexed"}
    cluster.create(JOBS, "each", {**spec, "template": template("each", restart="Never")})
    pods = settled(cluster, "each", 2)
    for index, pod in enumerate(pods):
        assert pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == str(index)
        assert pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == str(index)
        assert pod["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
        assert pod["spec"]["hostname"] == f"each-{index}"
        assert [one["name"] for one in pod["spec"]["containers"][0]["env"]] == ["JOB_COMPLETION_INDEX"]
    eventually(lambda: cluster.status(JOBS, "each").get("active") == 2, "two active")
    cluster.tell(pods[1], "Succeeded")
    eventually(lambda: cluster.status(JOBS, "each").get("completedIndexes") == "1", "index 1 done")
    eventually(
        lambda: [pod for pod in cluster.pods("each") if pod["spec"]["hostname"] == "each-2"], "index 2"
    )
    for pod in cluster.pods("each"):
        if pod["status"]["phase"] == "Pending":
            cluster.tell(pod, "Succeeded")
    status = eventually(
        lambda: found if condition(found := cluster.status(JOBS, "each"), "Complete") else None, "Complete"
    )
    assert (status["succeeded"], status["completedIndexes"]) == (3, "0-2")
    assert status["completionTime"]
    assert condition(status, "SuccessCriteriaMet")["reason"] == "CompletionsReached"
    assert not status.get("active")
    assert all(not pod["metadata"].get("finalizers") for pod in cluster.pods("each"))


def test_a_job_gives_up_after_its_backoff_limit(cluster: Cluster) -> None:
    spec = {"parallelism": 2, "completions": 2, "backoffLimit": 0}
    cluster.create(JOBS, "fails", {**spec, "template": template("fails", restart="Never")})
    pods = settled(cluster, "fails", 2)
    cluster.tell(pods[0], "Failed")
    status = eventually(
        lambda: found if condition(found := cluster.status(JOBS, "fails"), "Failed") else None, "Failed"
    )
    assert condition(status, "Failed")["reason"] == "BackoffLimitExceeded"
    assert condition(status, "FailureTarget")["status"] == "True"
    assert [objects.name(pod) for pod in cluster.pods("fails")] == [objects.name(pods[0])]
    assert status["failed"] == 2


def test_a_job_replaces_a_deleted_pod_and_a_suspended_one_has_none(cluster: Cluster) -> None:
    cluster.create(JOBS, "again", {"template": template("again", restart="Never")})
    (first,) = settled(cluster, "again", 1)
    cluster.patch(JOBS, "again", {"spec": {"suspend": True}})
    eventually(lambda: not cluster.mine(kinds.PODS, app="again"), "no pods")
    eventually(
        lambda: condition(cluster.status(JOBS, "again"), "Suspended").get("status") == "True", "Suspended"
    )
    assert "startTime" not in cluster.status(JOBS, "again")
    cluster.patch(JOBS, "again", {"spec": {"suspend": False}})
    (second,) = settled(cluster, "again", 1)
    assert objects.uid(second) != objects.uid(first)
    with pytest.raises(Invalid, match="field is immutable"):
        cluster.patch(JOBS, "again", {"spec": {"template": {"metadata": {"labels": {"new": "one"}}}}})


def test_a_stateful_set_goes_in_order(cluster: Cluster) -> None:
    cluster.create(STATEFUL_SETS, "row", workload("row", 3, serviceName="row"))
    for ordinal in range(3):
        pods = settled(cluster, "row", ordinal + 1)
        assert [objects.name(pod) for pod in pods] == [f"row-{number}" for number in range(ordinal + 1)]
        cluster.all_run("row")
    (last,) = [pod for pod in pods if objects.name(pod) == "row-2"]
    assert last["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "2"
    assert (last["spec"]["hostname"], last["spec"]["subdomain"]) == ("row-2", "row")
    eventually(lambda: cluster.status(STATEFUL_SETS, "row").get("availableReplicas") == 3, "all available")
    before = cluster.status(STATEFUL_SETS, "row")
    assert before["currentRevision"] == before["updateRevision"]

    cluster.patch(STATEFUL_SETS, "row", {"spec": {"template": template("row", image="image:2")}})
    for ordinal in (2, 1, 0):
        eventually(
            lambda name=f"row-{ordinal}": [
                pod
                for pod in cluster.pods("row")
                if objects.name(pod) == name and images([pod]) == ["image:2"]
            ],
            f"row-{ordinal} with the new image",
        )
        others = [pod for pod in cluster.pods("row") if int(objects.name(pod)[-1]) < ordinal]
        assert images(others) == ["image:1"] * ordinal
        cluster.all_run("row")
    eventually(
        lambda: (now := cluster.status(STATEFUL_SETS, "row"))["currentRevision"] == now["updateRevision"],
        "the rollout's end",
    )
    assert len(cluster.mine(CONTROLLER_REVISIONS, app="row")) == 2
    cluster.scale(STATEFUL_SETS, "row", 1)
    eventually(lambda: [objects.name(pod) for pod in cluster.pods("row")] == ["row-0"], "row-0 alone")


@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
def test_deletion_takes_what_is_owned(cluster: Cluster, propagation: str) -> None:
    made = cluster.create(DEPLOYMENTS, "go", workload("go", 2))
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "go", "uid": objects.uid(made)}
    service = cluster.create(kinds.SERVICES, "go", {"clusterIP": "None"})
    cluster.patch(kinds.SERVICES, "go", {"metadata": {"ownerReferences": [owner]}})
    settled(cluster, "go", 2)
    cluster.client.delete(DEPLOYMENTS, "go", namespace=PLACE, propagation=propagation)
    eventually(lambda: not cluster.mine(DEPLOYMENTS), "the Deployment's end")
    if propagation == "Orphan":
        kept = cluster.get(kinds.SERVICES, "go")
        assert objects.uid(kept) == objects.uid(service)
        assert not kept["metadata"].get("ownerReferences")
        cluster.client.delete(kinds.SERVICES, "go", namespace=PLACE)
        (left,) = cluster.mine(REPLICA_SETS, app="go")
        assert not left["metadata"].get("ownerReferences")
        assert len(cluster.pods("go")) == 2
        return
    if propagation == "Foreground":
        assert not cluster.mine(REPLICA_SETS, app="go")
        assert not cluster.mine(kinds.PODS, app="go")
    eventually(lambda: not cluster.mine(REPLICA_SETS, app="go"), "the ReplicaSet's end")
    eventually(lambda: not cluster.mine(kinds.PODS, app="go"), "the pods' end")
    eventually(lambda: not cluster.mine(kinds.SERVICES), "the Service's end")


def test_a_deleted_job_takes_its_pods(cluster: Cluster) -> None:
    """Its pods carry a finalizer that only the Job's loop takes away."""
    cluster.create(JOBS, "gone", {"template": template("gone", restart="Never")})
    settled(cluster, "gone", 1)
    cluster.client.delete(JOBS, "gone", namespace=PLACE, propagation="Background")
    eventually(lambda: not cluster.mine(kinds.PODS, app="gone"), "the pods' end")


def _where_the_class_is_known(cluster: Cluster, spec: Object) -> Object | None:
    """Admission reads priority classes from a watch of its own."""
    with suppress(Forbidden):
        return cluster.create(kinds.PODS, "named", spec)
    return None


def test_priority_classes_set_the_number(cluster: Cluster, client: KubeClient) -> None:
    body = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "koordra-test-high"},
        "value": 1000,
    }
    kind = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
    with suppress(Conflict):
        client.create(kind, body)
    try:
        spec = template("prior")["spec"]
        named = {**spec, "priorityClassName": "koordra-test-high"}
        made = eventually(lambda: _where_the_class_is_known(cluster, named), "the class in admission")
        assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (1000, "PreemptLowerPriority")
        for wrong, text in (
            ({**spec, "priorityClassName": "no-such"}, "no PriorityClass with name no-such was found"),
            ({**spec, "priority": 5}, "must not be provided in pod spec"),
        ):
            with pytest.raises(ApiError, match=text):
                cluster.create(kinds.PODS, "wrong", wrong)
        with pytest.raises(Invalid, match="value: Forbidden: may not be changed in an update"):
            client.patch(kind, "koordra-test-high", {"value": 2000})
    finally:
        client.delete(kind, "koordra-test-high")
