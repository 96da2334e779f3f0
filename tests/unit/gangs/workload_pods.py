"""Pods of one gang as the operators of each kind make them: their labels, annotations and owners, in the
order in which the workload counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordra.api.objects import Object

JOBSET, LWS, RAY = "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/", "ray.io/"
KUBEFLOW, VOLCANO, GROVE = "training.kubeflow.org/", "volcano.sh/", "grove.io/"
COMPLETION = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


def pod(
    name: str,
    labels: Mapping[str, str],
    *,
    owner: str = "",
    annotations: Mapping[str, str] | None = None,
    claims: bool = True,
) -> Object:
    owners = [{"kind": "Owner", "name": owner, "uid": f"uid-{owner}", "controller": True}] if owner else []
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "busybox"}]}
    if claims:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "labels": dict(labels),
        "annotations": dict(annotations or {}),
        "ownerReferences": owners,
    }
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {}}


def job(index: int, *, name: str = "train", extra: Mapping[str, str] | None = None) -> Object:
    """Names are random: the position says nothing of them."""
    numbers = {COMPLETION: str(index), JOB_NAME: name}
    return pod(
        f"{name}-{index}-{'xzyab'[index % 5]}",
        {**numbers, **(extra or {})},
        annotations={COMPLETION: str(index)},
        owner=name,
    )


def job_set_job(role: str, index: int, number: int, *, completion: int | None, old: bool = False) -> Object:
    told = {
        f"{JOBSET}jobset-name": "train",
        f"{JOBSET}replicatedjob-name": role,
        f"{JOBSET}job-index": str(index),
        f"{JOBSET}job-key": f"sha-{role}-{index}",
        f"{JOBSET}restart-attempt": "0",
        **({} if old else {f"{JOBSET}job-global-index": str(number)}),
    }
    if completion is not None:
        return job(completion, name=f"train-{role}-{index}", extra=told)
    return pod(f"train-{role}-{index}-xyz", told, annotations=told, owner=f"train-{role}-{index}")


def lws(group: int, worker: int, *, name: str = "serve") -> Object:
    called = f"{name}-{group}" if worker == 0 else f"{name}-{group}-{worker}"
    labels = {
        f"{LWS}name": name,
        f"{LWS}group-index": str(group),
        f"{LWS}worker-index": str(worker),
        f"{LWS}group-key": f"sha-{name}-{group}",
        POD_INDEX: str(worker or group),
    }
    annotations = {f"{LWS}size": "2", **({f"{LWS}leader-name": f"{name}-{group}"} if worker else {})}
    return pod(called, labels, annotations=annotations, owner=name if worker == 0 else f"{name}-{group}")


def kubeflow(role: str, index: int, *, operator: str = "pytorchjob-controller") -> Object:
    labels = {
        f"{KUBEFLOW}job-name": "train",
        f"{KUBEFLOW}operator-name": operator,
        f"{KUBEFLOW}replica-type": role,
        f"{KUBEFLOW}replica-index": str(index),
        **({f"{KUBEFLOW}job-role": "master"} if role == "master" else {}),
    }
    return pod(f"train-{role}-{index}", labels, owner="train")


def mpi(role: str, index: int | None, *, claims: bool) -> Object:
    """mpi-operator writes no replica-type."""
    labels = {
        f"{KUBEFLOW}job-name": "train",
        f"{KUBEFLOW}operator-name": "mpi-operator",
        f"{KUBEFLOW}job-role": role,
        **({} if index is None else {f"{KUBEFLOW}replica-index": str(index)}),
    }
    launcher = role == "launcher"
    name = "train-launcher-x7k2p" if launcher else f"train-worker-{index}"
    return pod(name, labels, owner="train-launcher" if launcher else "train", claims=claims)


def ray(group: str, replica: int | None = None, host: int | None = None, *, suffix: str = "x") -> Object:
    head = replica is None and group == "headgroup"
    labels = {
        f"{RAY}cluster": "sim",
        f"{RAY}node-type": "head" if head else "worker",
        f"{RAY}group": group,
        **({} if replica is None else {f"{RAY}worker-group-replica-index": str(replica)}),
    }
    if host is not None:
        labels |= {
            f"{RAY}worker-group-replica-name": f"{group}-{suffix}{replica}",
            f"{RAY}replica-host-index": str(host),
        }
    return pod(f"sim-{group}-{suffix}{replica}{host}", labels, owner="sim")


def volcano(task: str, index: int, *, partition: int | None = None) -> Object:
    told = {
        f"{VOLCANO}job-name": "train",
        f"{VOLCANO}job-namespace": "team",
        f"{VOLCANO}task-spec": task,
        f"{VOLCANO}task-index": str(index),
    }
    labels = {**told, **({} if partition is None else {f"{VOLCANO}partition-id": str(partition)})}
    group = {"scheduling.k8s.io/group-name": "train-uid"}
    return pod(f"train-{task}-{index}", labels, annotations={**told, **group}, owner="train")


def grove(clique: str, index: int) -> Object:
    labels = {
        f"{GROVE}podgang": "serve-0",
        f"{GROVE}podclique": f"serve-0-{clique}",
        f"{GROVE}podclique-pod-index": str(index),
        f"{GROVE}podcliqueset-replica-index": "0",
        "app.kubernetes.io/part-of": "serve",
    }
    return pod(f"serve-0-{clique}-{'qwert'[index]}", labels, owner=f"serve-0-{clique}")


KINDS: dict[str, list[Object]] = {
    "Indexed Job": [job(index) for index in (0, 1, 2, 10)],
    "two Jobs": [job(0, name="a"), job(1, name="a"), job(0, name="b"), job(1, name="b")],
    "JobSet, Indexed": [
        job_set_job("driver", 0, 0, completion=0),
        job_set_job("workers", 0, 1, completion=0),
        job_set_job("workers", 0, 1, completion=1),
        job_set_job("workers", 1, 2, completion=0),
        job_set_job("workers", 1, 2, completion=1),
    ],
    "JobSet, not Indexed": [job_set_job("workers", index, index, completion=None) for index in range(3)],
    "JobSet without global indexes": [
        job_set_job("a", 0, 0, completion=0, old=True),
        job_set_job("a", 1, 1, completion=0, old=True),
        job_set_job("b", 0, 2, completion=0, old=True),
    ],
    "TrainJob with a launcher": [
        job_set_job("node", 0, 1, completion=0),
        job_set_job("node", 0, 1, completion=1),
    ],
    "LeaderWorkerSet": [lws(group, worker) for group in (0, 1, 11) for worker in (0, 1, 2)],
    "StatefulSet": [pod(f"db-{index}", {POD_INDEX: str(index)}, owner="db") for index in (0, 2, 10)],
    "PyTorchJob": [kubeflow("master", 0), *(kubeflow("worker", index) for index in (0, 1, 2, 10))],
    "elastic PyTorchJob": [kubeflow("worker", index) for index in range(3)],
    "TFJob": [
        kubeflow("chief", 0, operator="tfjob-controller"),
        kubeflow("ps", 0, operator="tfjob-controller"),
        kubeflow("worker", 0, operator="tfjob-controller"),
        kubeflow("worker", 1, operator="tfjob-controller"),
        kubeflow("evaluator", 0, operator="tfjob-controller"),
    ],
    "MPIJob": [
        mpi("worker", 0, claims=True),
        mpi("worker", 1, claims=True),
        mpi("launcher", None, claims=False),
    ],
    "MPIJob whose launcher works": [
        mpi("launcher", 0, claims=True),
        mpi("worker", 0, claims=True),
        mpi("worker", 1, claims=True),
    ],
    "RayCluster": [ray("headgroup"), ray("a", 0), ray("a", 1), ray("b", 0)],
    "RayCluster of several hosts": [
        ray("headgroup"),
        *(ray("tp", replica, host) for replica in (0, 1) for host in (0, 1)),
    ],
    "Volcano Job": [volcano("master", 0), volcano("worker", 0), volcano("worker", 1), volcano("worker", 10)],
    "PodCliqueSet": [grove("decode", 0), grove("decode", 1), grove("prefill", 0)],
    "Kueue": [pod(f"p-{index}", {"kueue.x-k8s.io/pod-group-pod-index": str(index)}) for index in (0, 1, 12)],
    "Koordinator": [
        pod(
            f"p-{index}",
            {},
            annotations={"gang.scheduling.koordinator.sh/network-topology-index": str(index)},
        )
        for index in (0, 1, 12)
    ],
}
