"""By which labels the operators of jobs number their pods. Pure; one table.

    kind              told by                       apart, then numbers, outermost first
    ----------------  ----------------------------  ----------------------------------------------------------
    PodCliqueSet      grove.io/podclique            the clique; podclique-pod-index
    JobSet, TrainJob  jobset-name                   job-global-index (of old ones: replicatedjob-name,
                                                    job-index), completion index
    LeaderWorkerSet   worker-index                  the set; group-index, worker-index
    RayCluster        ray.io/node-type              the worker group; replica-index, host-index
    PyTorchJob, MPIJob,                             replica-type, or job-role; replica-index
    ... of Kubeflow   training.kubeflow.org/
                      job-name
    TrainingJob       koordra.io/training-job       the job, its role; training-replica
    Volcano Job       volcano.sh/task-index         task-spec; task-index
    Indexed Job       job-completion-index          the Job; completion index
    StatefulSet       pod-index                     the owner; pod-index
    Kueue pod group   pod-group-pod-index           that
    Koordinator       network-topology-index        that

The first row that a pod tells counts: pods of a JobSet are an Indexed Job's too, those of a LeaderWorkerSet
a StatefulSet's. Numbers that a pod does not carry are 0: the head of a RayCluster has none, nor have the pods
of a Job that is not Indexed. Facts: the operators' sources (LWS 0.9, JobSet of August 2026, Trainer 2.3,
training-operator 1.9, mpi-operator 0.8, KubeRay 1.7, Volcano 1.16, Grove 0.1, Kueue 0.19).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import objects

JOBSET: Final = "jobset.sigs.k8s.io/"
JOBSET_UID: Final = JOBSET + "jobset-uid"
LWS: Final = "leaderworkerset.sigs.k8s.io/"
RAY: Final = "ray.io/"
GROVE: Final = "grove.io/"
GROVE_SET: Final = "app.kubernetes.io/part-of"
"""Label by which pods of a PodClique name their PodCliqueSet."""
KUBEFLOW: Final = "training.kubeflow.org/"
VOLCANO: Final = "volcano.sh/"
TRAINING: Final = "koordra.io/training-"
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
EXCLUSIVE: Final = {
    LWS + "exclusive-topology": (LWS + "name", LWS + "group-index"),
    "alpha." + JOBSET + "exclusive-topology": (JOBSET + "replicatedjob-name", JOBSET + "job-index"),
}
"""Annotations that name a node label, and the labels of pods that tell apart those who have a domain of it
for themselves."""
OWNER: Final = "owner"
"""In `apart`: the name of the pod's controller."""

_INITIALIZERS: Final = frozenset({"dataset-initializer", "model-initializer"})
"""Of a TrainJob: what its runtimes call the Jobs that fetch data and models."""

_FIRST: Final = "koordra.io/gang-start: LeaderFirst lets those go first that are there"
_JOBSET_LATE: Final = f"Jobs that depend on others (dependsOn, InOrder) are made after them: {_FIRST}"


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """`told_by`: labels (or annotations) all of which the kind's pods carry. `role`: the first of these that
    a pod has says what it does; `apart`: whose texts tell apart pods of one number; `indexes`: numbers,
    outermost first. `leads`: number 0 is the leader of the others. `ahead`: roles that have ended before the
    others are made. `late`: why some of its pods may be made only after others have started, and what to do;
    of all kinds that share the labels, this concerns pods that say `late_if`.

    `replica`: labels by whose texts its replicas are gangs of their own, of pods that have `replica_if`, and
    need no more members than `replica_size` says, if given (gang_by)."""

    name: str
    told_by: tuple[str, ...]
    indexes: tuple[str, ...]
    role: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    leads: bool = False
    ahead: frozenset[str] = frozenset()
    late: str = ""
    late_if: tuple[str, str] | None = None
    replica: tuple[str, ...] = ()
    replica_if: str = ""
    replica_size: str = ""


KINDS: Final = (
    WorkloadKind(
        "PodCliqueSet",
        (GROVE + "podclique",),
        (GROVE + "podclique-pod-index",),
        role=(GROVE + "podclique",),
        apart=(GROVE + "podclique",),
    ),
    WorkloadKind(
        "JobSet",
        (JOBSET + "jobset-name", JOBSET + "job-global-index"),
        (JOBSET + "job-global-index", COMPLETION_INDEX),
        role=(JOBSET + "replicatedjob-name",),
        ahead=_INITIALIZERS,
        late=_JOBSET_LATE,
    ),
    WorkloadKind(
        "JobSet",
        (JOBSET + "jobset-name",),
        (JOBSET + "job-index", COMPLETION_INDEX),
        role=(JOBSET + "replicatedjob-name",),
        apart=(JOBSET + "replicatedjob-name",),
        ahead=_INITIALIZERS,
        late=_JOBSET_LATE,
    ),
    WorkloadKind(
        "LeaderWorkerSet",
        (LWS + "worker-index",),
        (LWS + "group-index", LWS + "worker-index"),
        apart=(LWS + "name",),
        leads=True,
        replica=(LWS + "group-index",),
        replica_if=LWS + "group-index",
        replica_size=LWS + "size",
    ),
    WorkloadKind(
        "RayCluster",
        (RAY + "node-type",),
        (RAY + "worker-group-replica-index", RAY + "replica-host-index"),
        role=(RAY + "node-type",),
        apart=(RAY + "node-type", RAY + "group"),
        replica=(RAY + "group", RAY + "worker-group-replica-index"),
        replica_if=RAY + "replica-host-index",
    ),
    WorkloadKind(
        "Kubeflow job",
        (KUBEFLOW + "job-name",),
        (KUBEFLOW + "replica-index",),
        role=(KUBEFLOW + "replica-type", KUBEFLOW + "job-role"),
        apart=(KUBEFLOW + "job-name", KUBEFLOW + "replica-type", KUBEFLOW + "job-role"),
        late="the launcher of an MPIJob with launcherCreationPolicy WaitForWorkersReady is made after the "
        "workers run: koordra.io/gang-min is the number of workers then",
        late_if=(KUBEFLOW + "job-role", "worker"),
    ),
    WorkloadKind(
        "TrainingJob",
        (TRAINING + "job",),
        (TRAINING + "replica",),
        role=(TRAINING + "role",),
        apart=(TRAINING + "job", TRAINING + "role"),
    ),
    WorkloadKind(
        "Volcano Job",
        (VOLCANO + "task-index",),
        (VOLCANO + "task-index",),
        role=(VOLCANO + "task-spec",),
        apart=(VOLCANO + "job-name", VOLCANO + "task-spec"),
    ),
    WorkloadKind("Job", (COMPLETION_INDEX,), (COMPLETION_INDEX,), apart=(OWNER,)),
    WorkloadKind(
        "StatefulSet",
        ("apps.kubernetes.io/pod-index",),
        ("apps.kubernetes.io/pod-index",),
        apart=(OWNER,),
        late="a StatefulSet makes its pods one after the other unless its podManagementPolicy is Parallel; "
        f"or {_FIRST}",
    ),
    WorkloadKind(
        "Kueue pod group", ("kueue.x-k8s.io/pod-group-pod-index",), ("kueue.x-k8s.io/pod-group-pod-index",)
    ),
    WorkloadKind(
        "Koordinator",
        ("gang.scheduling.koordinator.sh/network-topology-index",),
        ("gang.scheduling.koordinator.sh/network-topology-index",),
    ),
)


def kind_of(pod: Mapping[str, Any]) -> WorkloadKind | None:
    """None where nobody numbered the pod."""
    return next((kind for kind in KINDS if all(told(pod, name) for name in kind.told_by)), None)


def role_of(pod: Mapping[str, Any], kind: WorkloadKind) -> str:
    """In lower case; empty where the kind has no roles."""
    return next(filter(None, (told(pod, name).lower() for name in kind.role)), "")


def late_words(pod: Mapping[str, Any]) -> str:
    """Why others of its job may wait for this pod to start, and what to do; empty where nobody does."""
    kind = kind_of(pod)
    if kind is None or (kind.late_if is not None and told(pod, kind.late_if[0]) != kind.late_if[1]):
        return ""
    return kind.late


def is_ahead(pod: Mapping[str, Any]) -> bool:
    """Whether the pod will have ended before the others of its job are made."""
    kind = kind_of(pod)
    return kind is not None and role_of(pod, kind) in kind.ahead


def told(pod: Mapping[str, Any], name: str) -> str:
    """What the pod's label, or else its annotation, says; empty where it has neither."""
    if name == OWNER:
        return _owner(pod)
    return objects.labels_of(pod).get(name) or objects.annotations_of(pod).get(name) or ""


def _owner(pod: Mapping[str, Any]) -> str:
    owners = objects.metadata(pod).get("ownerReferences") or ()
    return next((str(entry.get("name")) for entry in owners if entry.get("controller")), "")
