"""Which object says what pods a job is to have. Pure.

    JobSet, LeaderWorkerSet, RayCluster, Volcano Job,   named by a label of the pods
    PodCliqueSet
    StatefulSet, MPIJob, PyTorchJob, TFJob, ...         the pods' owner

An Indexed Job is none: all its pods ask the same, and are made together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from koordra.api import objects
from koordra.api.kinds import Kind
from koordra.controller.gangs.declared.workload_kind import (
    GROVE_SET,
    JOBSET,
    LWS,
    RAY,
    VOLCANO,
    kind_of,
    told,
)
from koordra.controller.gangs.seats.job_owner import (
    JOBSETS,
    KUBEFLOW_JOBS,
    LEADER_WORKER_SETS,
    MPI_JOBS,
    POD_CLIQUE_SETS,
    RAY_CLUSTERS,
    STATEFUL_SETS,
    VOLCANO_JOBS,
)
from koordra.controller.gangs.seats.recorded import controller_of

_BY_LABEL: Final = {
    "JobSet": (JOBSETS, JOBSET + "jobset-name"),
    "LeaderWorkerSet": (LEADER_WORKER_SETS, LWS + "name"),
    "RayCluster": (RAY_CLUSTERS, RAY + "cluster"),
    "Volcano Job": (VOLCANO_JOBS, VOLCANO + "job-name"),
    "PodCliqueSet": (POD_CLIQUE_SETS, GROVE_SET),
}
"""By the kind's name (`workload_kind`)."""
_BY_OWNER: Final = {(kind.api_version, kind.kind): kind for kind in (STATEFUL_SETS, MPI_JOBS, *KUBEFLOW_JOBS)}


class JobRef(NamedTuple):
    """`maker`: uid of the owner of the pod that tells: another one where a job of the same name was made
    anew."""

    kind: Kind
    namespace: str
    name: str
    maker: str = ""


def job_ref(pods: Iterable[Mapping[str, Any]]) -> JobRef | None:
    """Of the first pod that tells; a pod names objects of its own namespace alone."""
    return next((found for pod in pods if (found := _ref(pod)) is not None), None)


def _ref(pod: Mapping[str, Any]) -> JobRef | None:
    kind, namespace = kind_of(pod), objects.namespace(pod)
    owner = controller_of(pod) or {}
    maker = str(owner.get("uid") or "")
    if kind is not None and kind.name in _BY_LABEL:
        job, label = _BY_LABEL[kind.name]
        return JobRef(job, namespace, told(pod, label), maker) if told(pod, label) else None
    owned_by = _BY_OWNER.get((str(owner.get("apiVersion")), str(owner.get("kind"))))
    return None if owned_by is None else JobRef(owned_by, namespace, str(owner.get("name")), maker)
