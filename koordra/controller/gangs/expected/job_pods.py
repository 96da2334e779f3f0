"""The pods that a job is to have, by its object: as its operator makes them, with the labels that number
them. Pure.

Some are made only once others have started:

    JobSet            Jobs after those that they depend on (dependsOn; startupPolicy InOrder: all before);
                      pods beside the first of a Job after that (exclusive-topology)
    LeaderWorkerSet   workers after their leader (startupPolicy LeaderReady, or exclusive-topology)
    StatefulSet       one after the other, but with podManagementPolicy Parallel
    MPIJob            the launcher after the workers (launcherCreationPolicy WaitForWorkersReady)
    Volcano Job       tasks after those that they depend on (dependsOn)
    RayCluster, PyTorchJob, TFJob, ...    none
    PodCliqueSet                          none: a clique that starts after others (startsAfter, InOrder) waits
                                          for them in an init container, with its devices

Facts: the operators' sources (LWS 0.9, JobSet of August 2026, training-operator 1.9, mpi-operator 0.8,
KubeRay 1.7, Volcano 1.16, Grove 0.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from koordra.api import objects
from koordra.api.objects import Fields, Object, fields
from koordra.controller.gangs.declared.annotations import whole_number
from koordra.controller.gangs.declared.workload_kind import (
    COMPLETION_INDEX,
    EXCLUSIVE,
    GROVE,
    GROVE_SET,
    JOBSET,
    KUBEFLOW,
    LWS,
    RAY,
    VOLCANO,
    told,
)

MOST_PODS: Final = 10_000
MOST_BEYOND: Final = 1000
"""That are looked at of one job, and beyond the least of its gang: tenants write any number."""
_OF_GROUPS, _OF_JOBS = EXCLUSIVE
_POD_INDEX: Final = "apps.kubernetes.io/pod-index"


class Job(NamedTuple):
    """`claim_templates` of its pods by name; those that cannot be read are left out."""

    obj: Object
    claim_templates: Mapping[str, Object]


class JobPod(NamedTuple):
    """`stage`: it is made once the pods of earlier stages have started."""

    pod: Object
    stage: tuple[int, ...] = (0,)


def pods_of(job: Object, there: Sequence[Object], *, least: int) -> Iterator[JobPod]:
    """`there`: those that have been made, at least one; `least`: how many the gang needs. Fields of the wrong
    type count as left out."""
    make = _MAKERS.get(str(job.get("kind")))
    return islice(make(job, there), min(least + MOST_BEYOND, MOST_PODS)) if make is not None else iter(())


def claim_templates(pod: Fields) -> dict[str, str]:
    """By the names of the pod's claims."""
    return {
        str(one.get("name")): str(one["resourceClaimTemplateName"])
        for one in objects.mappings(objects.spec_of(pod).get("resourceClaims"))
        if one.get("resourceClaimTemplateName")
    }


def _of_jobset(job: Object, there: Sequence[Object]) -> Iterator[JobPod]:
    spec = objects.spec_of(job)
    roles = {str(role.get("name")): role for role in objects.mappings(spec.get("replicatedJobs"))}
    in_order = fields(spec.get("startupPolicy")).get("startupPolicyOrder") == "InOrder"
    depths = _depths({name: _names(role.get("dependsOn")) for name, role in roles.items()})
    is_numbered = any(told(pod, JOBSET + "job-global-index") for pod in there)
    number = 0
    for at, (name, role) in enumerate(roles.items()):
        template = fields(role.get("template"))
        batch = fields(template.get("spec"))
        parallelism = _number(batch.get("parallelism"), 1)
        pods = min(parallelism, _number(batch.get("completions"), parallelism))
        alone = _said_of(_OF_JOBS, template, job)
        for index in range(_number(role.get("replicas"), 1)):
            owner = f"{objects.name(job)}-{name}-{index}"
            numbers = {
                JOBSET + "jobset-name": objects.name(job),
                JOBSET + "replicatedjob-name": name,
                JOBSET + "job-index": str(index),
                **({JOBSET + "job-global-index": str(number)} if is_numbered else {}),
            }
            for completion in range(pods):
                own = (
                    {COMPLETION_INDEX: str(completion)} if batch.get("completionMode") != "NonIndexed" else {}
                )
                pod = _pod(
                    job,
                    batch.get("template"),
                    f"{owner}-{completion}",
                    {**numbers, **own},
                    annotations=alone,
                    owner=owner,
                )
                yield JobPod(pod, (at if in_order else depths[name], int(bool(alone) and completion > 0)))
            number += 1


def _of_leader_worker_set(job: Object, there: Sequence[Object]) -> Iterator[JobPod]:
    """Of the groups that have their leader: leaders are all made at once."""
    spec = objects.spec_of(job)
    template = fields(spec.get("leaderWorkerTemplate"))
    size = _number(template.get("size"), 1)
    alone = _said_of(_OF_GROUPS, job)
    waits = spec.get("startupPolicy") == "LeaderReady" or bool(alone)
    for group in sorted({told(pod, LWS + "group-index") for pod in there} - {""}):
        for worker in range(size):
            asked = (not worker and template.get("leaderTemplate")) or template.get("workerTemplate")
            numbers = {
                LWS + "name": objects.name(job),
                LWS + "group-index": group,
                LWS + "worker-index": str(worker),
            }
            name = f"{objects.name(job)}-{group}" + (f"-{worker}" if worker else "")
            pod = _pod(job, asked, name, numbers, annotations={LWS + "size": str(size), **alone})
            yield JobPod(pod, (int(waits and worker > 0),))


def _of_stateful_set(job: Object, _there: Sequence[Object]) -> Iterator[JobPod]:
    spec = objects.spec_of(job)
    first = _number(fields(spec.get("ordinals")).get("start"), 0)
    together = spec.get("podManagementPolicy") == "Parallel"
    for index in range(first, first + _number(spec.get("replicas"), 1)):
        name = f"{objects.name(job)}-{index}"
        yield JobPod(
            _pod(job, spec.get("template"), name, {_POD_INDEX: str(index)}), (0 if together else index,)
        )


def _of_mpi_job(job: Object, there: Sequence[Object]) -> Iterator[JobPod]:
    spec = objects.spec_of(job)
    late = int(spec.get("launcherCreationPolicy") == "WaitForWorkersReady")
    counted = any(told(pod, KUBEFLOW + "job-role") == "worker" and _is_zero(pod) for pod in there)
    works = int(spec.get("runLauncherAsWorker") is True)
    for at, pod in _of_roles(
        job, spec.get("mpiReplicaSpecs"), there, role_label="job-role", works=works, first=works - counted
    ):
        yield JobPod(pod, (late if at == "launcher" else 0,))


def _of_training_job(job: Object, there: Sequence[Object]) -> Iterator[JobPod]:
    spec = objects.spec_of(job)
    roles = next((spec[name] for name in sorted(spec) if name.endswith("ReplicaSpecs")), None)
    for _, pod in _of_roles(job, roles, there, role_label="replica-type"):
        yield JobPod(pod)


def _of_roles(
    job: Object,
    roles: object,
    there: Sequence[Object],
    *,
    role_label: str,
    works: int = 0,
    first: int = 0,
) -> Iterator[tuple[str, Object]]:
    """Role and pod. `works`: whether the launcher is a worker too; `first`: the number of the first other
    one, after the launcher's where the operator counts them in one row."""
    operator = next(filter(None, (told(pod, KUBEFLOW + "operator-name") for pod in there)), "")
    for called, role in fields(roles).items():
        word = str(called).lower()
        aside = word == "launcher" and not works
        for index in range(_number(fields(role).get("replicas"), 1)):
            number = index + (max(0, first) if word == "worker" else 0)
            numbers = {
                KUBEFLOW + "job-name": objects.name(job),
                KUBEFLOW + "operator-name": operator,
                KUBEFLOW + role_label: word,
                **({} if aside else {KUBEFLOW + "replica-index": str(number)}),
                **({KUBEFLOW + "job-role": word} if word == "master" else {}),
            }
            name = f"{objects.name(job)}-{word}-{index}"
            yield word, _pod(job, fields(role).get("template"), name, numbers)


def _of_ray_cluster(job: Object, _there: Sequence[Object]) -> Iterator[JobPod]:
    spec, name = objects.spec_of(job), objects.name(job)
    head = {RAY + "cluster": name, RAY + "node-type": "head", RAY + "group": "headgroup"}
    yield JobPod(_pod(job, fields(spec.get("headGroupSpec")).get("template"), f"{name}-head", head))
    for group in objects.mappings(spec.get("workerGroupSpecs")):
        called, hosts = str(group.get("groupName")), _number(group.get("numOfHosts"), 1)
        for replica in range(_number(group.get("replicas"), _number(group.get("minReplicas"), 0))):
            for host in range(hosts):
                numbers = {
                    RAY + "cluster": name,
                    RAY + "node-type": "worker",
                    RAY + "group": called,
                    RAY + "worker-group-replica-index": str(replica),
                    **({RAY + "replica-host-index": str(host)} if hosts > 1 else {}),
                }
                yield JobPod(_pod(job, group.get("template"), f"{name}-{called}-{replica}-{host}", numbers))


def _of_volcano_job(job: Object, _there: Sequence[Object]) -> Iterator[JobPod]:
    tasks = {str(task.get("name")): task for task in objects.mappings(objects.spec_of(job).get("tasks"))}
    depths = _depths(
        {name: objects.texts(fields(task.get("dependsOn")).get("name")) for name, task in tasks.items()}
    )
    for name, task in tasks.items():
        size = _number(fields(task.get("partitionPolicy")).get("partitionSize"), 0)
        for index in range(_number(task.get("replicas"), 1)):
            numbers = {
                VOLCANO + "job-name": objects.name(job),
                VOLCANO + "task-spec": name,
                VOLCANO + "task-index": str(index),
                **({VOLCANO + "partition-id": str(index // size)} if size else {}),
            }
            pod = _pod(job, task.get("template"), f"{objects.name(job)}-{name}-{index}", numbers)
            yield JobPod(pod, (depths[name],))


def _of_pod_clique_set(job: Object, there: Sequence[Object]) -> Iterator[JobPod]:
    """Of the replicas of which there are pods. A clique of a scaling group is there once in each replica of
    that."""
    template = fields(objects.spec_of(job).get("template"))
    scaled = {
        clique: group
        for group in objects.mappings(template.get("podCliqueScalingGroups"))
        for clique in objects.texts(group.get("cliqueNames"))
    }
    for replica in sorted({told(pod, GROVE + "podcliqueset-replica-index") for pod in there} - {""}):
        whole = f"{objects.name(job)}-{replica}"
        for clique in objects.mappings(template.get("cliques")):
            asked, owners = fields(clique.get("spec")), [whole]
            if (group := scaled.get(str(clique.get("name")))) is not None:
                owners = [
                    f"{whole}-{group.get('name')}-{at}" for at in range(_number(group.get("replicas"), 1))
                ]
            pods = {"metadata": {"annotations": objects.fields(clique.get("annotations"))}}
            for owner in (f"{one}-{clique.get('name')}" for one in owners):
                for index in range(_number(asked.get("replicas"), 1)):
                    numbers = {
                        GROVE_SET: objects.name(job),
                        GROVE + "podcliqueset-replica-index": replica,
                        GROVE + "podclique": owner,
                        GROVE + "podclique-pod-index": str(index),
                    }
                    made = {**pods, "spec": asked.get("podSpec")}
                    yield JobPod(_pod(job, made, f"{owner}-{index}", numbers, owner=owner))


_MAKERS: Final[dict[str, Callable[[Object, Sequence[Object]], Iterator[JobPod]]]] = {
    "JobSet": _of_jobset,
    "LeaderWorkerSet": _of_leader_worker_set,
    "StatefulSet": _of_stateful_set,
    "MPIJob": _of_mpi_job,
    "RayCluster": _of_ray_cluster,
    "Job": _of_volcano_job,
    "PodCliqueSet": _of_pod_clique_set,
    **dict.fromkeys(("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"), _of_training_job),
}
"""By kind. The only `Job` that is read is Volcano's."""


def _said_of(name: str, *objs: Fields) -> dict[str, str]:
    """The annotation of the first that has it, as the operator hands it on to the pods."""
    return next(({name: text} for one in objs if (text := objects.annotations_of(one).get(name))), {})


def _pod(
    job: Object,
    template: object,
    name: str,
    labels: Mapping[str, str],
    *,
    annotations: Mapping[str, str] | None = None,
    owner: str = "",
) -> Object:
    said = fields(template)
    owners = {"kind": job.get("kind"), "name": owner or objects.name(job), "controller": True}
    metadata = {
        "namespace": objects.namespace(job),
        "name": name,
        "uid": f"{name} of {objects.uid(job)}, to come",
        "labels": {**objects.labels_of(said), **labels},
        "annotations": {**objects.annotations_of(said), **(annotations or {})},
        "ownerReferences": [{**owners, "uid": objects.uid(job)}],
    }
    return {"kind": "Pod", "metadata": metadata, "spec": fields(said.get("spec")), "status": {}}


def _is_zero(pod: Object) -> bool:
    return told(pod, KUBEFLOW + "replica-index") == "0"


def _depths(after: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Of each, how many stand in the longest row before it; those that depend on each other come last."""
    missing = {name: len({one for one in before if one in after}) for name, before in after.items()}
    followers: dict[str, list[str]] = {}
    for name, before in after.items():
        for one in set(before):
            followers.setdefault(one, []).append(name)
    depths = dict.fromkeys(after, len(after))
    free = [name for name, number in missing.items() if not number]
    depths.update(dict.fromkeys(free, 0))
    for name in free:  # which grows
        for follower in followers.get(name, ()):
            missing[follower] -= 1
            if not missing[follower]:
                depths[follower] = depths[name] + 1
                free.append(follower)
    return depths


def _names(value: object) -> list[str]:
    return [str(one.get("name")) for one in objects.mappings(value)]


def _number(value: object, default: int) -> int:
    """As Kubernetes writes numbers of pods; 0 where it is below."""
    number = whole_number(str(value)) if isinstance(value, int) and not isinstance(value, bool) else None
    return default if number is None else number
