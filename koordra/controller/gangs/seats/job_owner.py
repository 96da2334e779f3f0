"""Whom a gang's record belongs to: the object at the top of what makes its pods.

    pod ─controller─▶ Job ─controller─▶ JobSet        (also where a TrainJob made it: it suspends this one)
    pod ─controller─▶ StatefulSet ─controller─▶ pod (leader) ─controller─▶ StatefulSet ─▶ LeaderWorkerSet
    pod ─controller─▶ RayCluster                      (also where a RayJob made it: it suspends this one)
    pod ─controller─▶ PodClique ─controller─▶ PodCliqueScalingGroup ─controller─▶ PodCliqueSet

A JobSet that restarts makes its Jobs anew, a LeaderWorkerSet the pods that own the workers, Grove the
PodCliques of a gang that it ends: what belonged to one of those would be gone with it. What stands above is
read of the kinds below alone; of any other the first that is met is the top.

A job that has ended, or is suspended (by Kueue, or by its user), makes no pods: nothing is held for it. Its
pods are deleted as it is suspended, so what they had is free at once; what was held before is given up within
LOOK_AGAIN seconds.

    spec.suspend              Job, JobSet, RayCluster
    spec.runPolicy.suspend    MPIJob, PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob
    spec.replicas 0           StatefulSet, LeaderWorkerSet, ReplicaSet, PodCliqueSet
    status.state.phase        Volcano's Job: Aborted, Completed, Failed or Terminated

Facts: the sources of JobSet (August 2026), KubeRay 1.7, training-operator 1.9, mpi-operator 0.8, LWS 0.9,
Volcano 1.16 and Grove 0.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from koordra.api import objects
from koordra.api.kinds import TRAINING_JOBS, Kind
from koordra.api.objects import Fields, Object
from koordra.api.tables import BoundedCache
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.gangs.membership import Gang
from koordra.controller.gangs.seats.recorded import controller_of

LOOK_AGAIN: Final = 15.0
"""Seconds between two looks at the owner of what is held."""

JOBSETS: Final = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
LEADER_WORKER_SETS: Final = Kind("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
RAY_CLUSTERS: Final = Kind("ray.io", "v1", "rayclusters", "RayCluster")
VOLCANO_JOBS: Final = Kind("batch.volcano.sh", "v1alpha1", "jobs", "Job")
MPI_JOBS: Final = Kind("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
KUBEFLOW_JOBS: Final = tuple(
    Kind("kubeflow.org", "v1", f"{kind.lower()}s", kind)
    for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")
)
POD_CLIQUE_SETS: Final = Kind("grove.io", "v1alpha1", "podcliquesets", "PodCliqueSet")
JOBS: Final = Kind("batch", "v1", "jobs", "Job")
STATEFUL_SETS: Final = Kind("apps", "v1", "statefulsets", "StatefulSet")

_TOPS: Final = {
    (kind.group, kind.kind): kind
    for kind in (
        JOBSETS,
        LEADER_WORKER_SETS,
        RAY_CLUSTERS,
        VOLCANO_JOBS,
        MPI_JOBS,
        *KUBEFLOW_JOBS,
        POD_CLIQUE_SETS,
        TRAINING_JOBS,
    )
}
"""Kinds that say whether they go on, and that whoever made them suspends."""
_BETWEEN: Final = {
    (kind.group, kind.kind): kind
    for kind in (
        JOBS,
        STATEFUL_SETS,
        Kind("apps", "v1", "replicasets", "ReplicaSet"),
        Kind("grove.io", "v1alpha1", "podcliques", "PodClique"),
        Kind("grove.io", "v1alpha1", "podcliquescalinggroups", "PodCliqueScalingGroup"),
    )
}
"""Kinds that others make for their own purposes. The controller may read all of these."""
_MOST: Final = 8
"""Steps up; nobody's workloads are that deep."""

_ENDED: Final = frozenset(
    {"Complete", "Completed", "Succeeded", "Failed", "SuccessCriteriaMet", "FailureTarget"}
)
"""Conditions of Jobs, JobSets and the jobs of Kubeflow."""
_ENDED_PHASES: Final = frozenset({"Aborted", "Completed", "Failed", "Terminated"})
"""Of Volcano's Jobs; from Aborted a command resumes them."""

Read = Callable[[Kind, str, str], Object | None]
"""(kind, name, namespace)."""


def is_over(owner: Fields, namespace: str, *, read: Read) -> bool:
    """Whether the job makes no pods any more: it has ended, or is suspended. Of kinds that are not read
    nobody knows. Raises as `read` does."""
    kind = _TOPS.get(_kind(owner)) or _BETWEEN.get(_kind(owner))
    job = None if kind is None else read(kind, str(owner.get("name")), namespace)
    if job is None or objects.uid(job) != owner.get("uid"):
        return False
    spec, status = objects.spec_of(job), objects.status_of(job)
    conditions = status.get("conditions") or ()
    ended = any(one.get("type") in _ENDED and one.get("status") == "True" for one in conditions)
    ended = ended or objects.fields(status.get("state")).get("phase") in _ENDED_PHASES
    suspended = (spec.get("suspend"), objects.fields(spec.get("runPolicy")).get("suspend"))
    return ended or any(one is True for one in suspended) or spec.get("replicas") == 0


def _kind(owner: Fields) -> tuple[str, str]:
    return str(owner.get("apiVersion")).rpartition("/")[0], str(owner.get("kind"))


def job_of(pod: Object, *, read: Read, pod_of: Callable[[str], Object | None]) -> Fields | None:
    """The owner reference to it, None where nobody makes the pod. `pod_of` by uid. Raises as `read` does."""
    found, here = controller_of(pod), objects.namespace(pod)
    for _ in range(_MOST):
        if found is None:
            return None
        kind, name = _BETWEEN.get(_kind(found)), str(found.get("name"))
        if found.get("kind") == "Pod":
            above = pod_of(str(found.get("uid")))
        else:
            above = None if kind is None else read(kind, name, here)
        if above is None or objects.uid(above) != found.get("uid"):
            break
        higher = controller_of(above)
        if higher is None:
            break
        found = higher
    return {
        name: found[name]
        for name in ("apiVersion", "kind", "name", "uid")
        if found is not None and name in found
    }


class JobOwners:
    """Of the gangs that have seats. Not thread-safe."""

    def __init__(self, context: PassContext) -> None:
        self._context = context
        self._jobs = BoundedCache[str, Fields | None](4096)
        """By uid of a pod's controller."""
        self._look_at: dict[str, float] = {}
        """By gang for which something is held: when its owner is looked at again."""

    def forget(self, gang: str) -> None:
        self._look_at.pop(gang, None)

    def look_at(self, gang: str) -> float:
        """When its owner is to be looked at again."""
        return self._look_at[gang]

    def make_no_pods(self, gang: str, hold: Fields, *, look: bool) -> bool:
        """Whether nobody makes lost members again; looked at now and then, and if it is `look`, now. Raises
        ApiUnreachable."""
        clock = self._context.clock()
        if not look and clock < self._look_at.get(gang, 0.0):
            return False
        self._look_at[gang] = clock + LOOK_AGAIN
        owners = objects.metadata(hold).get("ownerReferences") or ()
        read, namespace = self._context.writer.find, objects.namespace(hold)
        return any(is_over(owner, namespace, read=read) for owner in owners)

    def job_of(self, gang: Gang) -> Fields | None:
        """Whom the gang's record belongs to, None where nobody makes its pods. Raises ApiUnreachable."""
        entries = self._context.cache.pod_index.entries
        for member in gang.members:
            maker = controller_of(member.pod)
            if maker is not None:
                uid = str(maker.get("uid"))
                if uid not in self._jobs:
                    self._jobs[uid] = job_of(
                        member.pod,
                        read=self._context.writer.find,
                        pod_of=lambda one: entries[one].pod if one in entries else None,
                    )
                return self._jobs[uid]
        return None
