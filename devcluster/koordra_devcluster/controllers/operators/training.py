"""PyTorchJob and MPIJob: the pods of their replicas, named and labelled as the Training Operator and
mpi-operator do it."""

from __future__ import annotations

from koordra.api import kinds
from koordra.api.objects import Object, name, spec_of
from koordra_devcluster.apiserver.resources import JOBS
from koordra_devcluster.controllers.operators.making import Making, numbered_pod

_PREFIX = "training.kubeflow.org/"
_PORT = "23456"


def sync_pytorch(making: Making, job: Object) -> None:
    """Each replica is a pod and a headless Service; the first is the master. Ranks count the master first."""
    replicas = spec_of(job)["pytorchReplicaSpecs"]
    ordered = [
        (kind, replicas[kind], index)
        for kind in ("Master", "Worker")
        if kind in replicas
        for index in range(int(replicas[kind].get("replicas", 1)))
    ]
    first = ordered[0][0].lower()
    for rank, (kind, replica, index) in enumerate(ordered):
        role = kind.lower()
        labels = {
            f"{_PREFIX}job-name": name(job),
            f"{_PREFIX}operator-name": "pytorchjob-controller",
            f"{_PREFIX}replica-type": role,
            f"{_PREFIX}replica-index": str(index),
            **({f"{_PREFIX}job-role": "master"} if role == "master" else {}),
        }
        env = {
            "PYTHONUNBUFFERED": "1",
            "MASTER_ADDR": f"{name(job)}-{first}-0",
            "MASTER_PORT": _PORT,
            "WORLD_SIZE": str(len(ordered)),
            "RANK": str(rank),
        }
        pod = numbered_pod(
            replica["template"],
            job,
            f"{name(job)}-{role}-{index}",
            labels=labels,
            env=env.items(),
            restartPolicy=_policy(replica),
        )
        making.make(kinds.PODS, job, pod)
        making.service(job, f"{name(job)}-{role}-{index}", labels)


def sync_mpi(making: Making, job: Object) -> None:
    """Workers are pods; the launcher is a Job."""
    replicas = spec_of(job)["mpiReplicaSpecs"]
    common = {f"{_PREFIX}job-name": name(job), f"{_PREFIX}operator-name": "mpi-operator"}
    making.service(job, name(job), common)
    workers = replicas.get("Worker") or {}
    for index in range(int(workers.get("replicas", 1 if workers else 0))):
        labels = {
            **common,
            f"{_PREFIX}job-role": "worker",
            f"{_PREFIX}replica-type": "worker",
            f"{_PREFIX}replica-index": str(index),
        }
        pod = numbered_pod(
            workers["template"],
            job,
            f"{name(job)}-worker-{index}",
            labels=labels,
            subdomain=name(job),
            restartPolicy=_policy(workers),
        )
        making.make(kinds.PODS, job, pod)
    launcher = replicas["Launcher"]
    template = numbered_pod(
        launcher["template"],
        job,
        f"{name(job)}-launcher",
        labels={**common, f"{_PREFIX}job-role": "launcher"},
    )
    own = {key: template["metadata"][key] for key in ("labels", "annotations")}
    pods = {"metadata": own, "spec": {**template["spec"], "restartPolicy": _policy(launcher)}}
    making.make(JOBS, job, {"metadata": {"name": f"{name(job)}-launcher"}, "spec": {"template": pods}})


def _policy(replica: Object) -> str:
    """ExitCode is the operators' own word: they look at the code, and the kubelet starts nothing again."""
    told = str(replica.get("restartPolicy") or spec_of(replica["template"]).get("restartPolicy") or "Never")
    return "Never" if told == "ExitCode" else told
