"""Objects of jobs, as people write them, whose pods are those of `workload_pods`."""

from __future__ import annotations

from typing import Any

from koordra.api.objects import Object

GPU = "one"


def template(claim: str = GPU, **annotations: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "busybox"}]}
    if claim:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": claim}]
    return {"metadata": {"annotations": annotations}, "spec": spec}


def job(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> Object:
    return {
        "kind": kind,
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", **metadata},
        "spec": spec,
    }


def replicated(name: str, replicas: int, pods: int, **more: Any) -> dict[str, Any]:
    batch = {"parallelism": pods, "completions": pods, "template": template()}
    return {"name": name, "replicas": replicas, "template": {"spec": batch}, **more}


def roles(**replicas: int) -> dict[str, Any]:
    return {name: {"replicas": number, "template": template()} for name, number in replicas.items()}


def clique(name: str, replicas: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "spec": {"replicas": replicas, "podSpec": template()["spec"], **more}}


JOB_SET = job(
    "JobSet", "train", {"replicatedJobs": [replicated("driver", 1, 1), replicated("workers", 2, 2)]}
)
JOBS: dict[str, Object] = {
    "JobSet, Indexed": JOB_SET,
    "LeaderWorkerSet": job(
        "LeaderWorkerSet",
        "serve",
        {"replicas": 12, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template()}},
    ),
    "StatefulSet": job("StatefulSet", "db", {"replicas": 11, "template": template()}),
    "PyTorchJob": job("PyTorchJob", "train", {"pytorchReplicaSpecs": roles(Master=1, Worker=11)}),
    "TFJob": job("TFJob", "train", {"tfReplicaSpecs": roles(Chief=1, PS=1, Worker=2, Evaluator=1)}),
    "MPIJob": job(
        "MPIJob",
        "train",
        {"mpiReplicaSpecs": {**roles(Worker=2), "Launcher": {"replicas": 1, "template": template("")}}},
    ),
    "MPIJob whose launcher works": job(
        "MPIJob", "train", {"mpiReplicaSpecs": roles(Launcher=1, Worker=2), "runLauncherAsWorker": True}
    ),
    "RayCluster": job(
        "RayCluster",
        "sim",
        {
            "headGroupSpec": {"template": template()},
            "workerGroupSpecs": [
                {"groupName": "a", "replicas": 2, "template": template()},
                {"groupName": "b", "replicas": 1, "template": template()},
            ],
        },
    ),
    "RayCluster of several hosts": job(
        "RayCluster",
        "sim",
        {
            "headGroupSpec": {"template": template()},
            "workerGroupSpecs": [{"groupName": "tp", "replicas": 2, "numOfHosts": 2, "template": template()}],
        },
    ),
    "Volcano Job": job(
        "Job",
        "train",
        {
            "tasks": [
                {"name": "master", "replicas": 1, "template": template()},
                {"name": "worker", "replicas": 11, "template": template()},
            ]
        },
    ),
    "PodCliqueSet": job(
        "PodCliqueSet",
        "serve",
        {
            "replicas": 2,
            "template": {
                "cliques": [
                    clique("prefill", 1),
                    clique("decode", 2, startsAfter=["prefill"]),
                    clique("router", 1),
                ],
                "podCliqueScalingGroups": [{"name": "sg", "replicas": 2, "cliqueNames": ["router"]}],
            },
        },
    ),
}
"""By the names of `workload_pods.KINDS`."""
