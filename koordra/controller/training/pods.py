"""The Service and the pods of a TrainingJob, as they are created. Pure.

    train                 Service without an address of its own: the pods' names in DNS
    train-000-0           replica 0, made for the first time; its host is train-000.train
    train-003m-0          replica 3 where it moved to. Hosts sort as text as replicas do: c10d ranks by that
    train-launcher-1      the launcher, made for the second time

A pod is its template, and besides: labels, gang annotations, the gate, restartPolicy Never, its host's name,
and for every container what its launcher reads of the environment, where the template does not say it.

    PyTorch          PET_... (the defaults of torchrun's options), and MASTER_ADDR, MASTER_PORT, RANK,
                     WORLD_SIZE for programs without a launcher (one process in each pod)
    ElasticPyTorch   PET_...: c10d, at the stable name of replica 0, which holds the store, and never moves
    ElasticHorovod   /run/gang in the launcher: hosts, running, env, and discover.sh
    MPI              /run/gang in the launcher: hosts, env; named as the hostfile of Open MPI, MPICH and
                     Intel MPI
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.kinds import PODS, SERVICES, TRAINING_JOBS
from koordra.api.objects import Fields, Object
from koordra.api.resource_class import MANAGED_BY
from koordra.controller.gangs.declared.annotations import (
    GANG,
    GANG_MIN,
    LIVE_ENV,
    LIVE_HOSTS,
    LIVE_RUNNING,
)
from koordra.controller.training.decisions import NewPod
from koordra.controller.training.rendezvous import translated
from koordra.controller.training.training_job import (
    JOB_LABEL,
    LAUNCHER,
    LAUNCHER_SLOT,
    MOST_REPLICAS,
    REPLACES,
    REPLICA_LABEL,
    ROLE_LABEL,
    UNTIL,
    WORKER,
    Framework,
    TrainingJob,
    text_of,
)

GANG_FILES: Final = "/run/gang"
RENDEZVOUS_PORT: Final = 29400
MASTER_PORT: Final = 29500
DISCOVER: Final = "koordra.io/training-discover"
"""Annotation of a launcher: its discovery script, which /run/gang shows."""
_SCRIPT: Final = f"#!/bin/sh\nexec cat {GANG_FILES}/running\n"
GATE_DOMAIN: Final = "gate.koordra.io/"
_VOLUME: Final = "koordra-gang"
_HOSTFILES: Final = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
_WHOLE_NAMES: Final = ("OMPI_MCA_orte_keep_fqdn_hostnames", "PRTE_MCA_prte_keep_fqdn_hostnames")
"""Open MPI calls `train-000.train` by its first part else, which is no name in a cluster's DNS."""


def service(job: TrainingJob) -> Object:
    return {
        **SERVICES.type_meta,
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": {MANAGED_BY: names.FIELD_COMPONENT, JOB_LABEL: job.name},
            "ownerReferences": [_owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: job.name},
        },
    }


def pod(job: TrainingJob, new: NewPod) -> Object:
    is_launcher = new.slot == LAUNCHER_SLOT
    template = job.launcher if is_launcher and job.launcher is not None else job.template
    metadata, spec = objects.metadata(template), dict(objects.spec_of(template))
    host = host_name(job, new.slot, moved=new.moved)
    number = 0 if is_launcher else new.slot + MOST_REPLICAS * new.moved
    annotations = {
        **_without_gates(objects.annotations_of({"metadata": metadata})),
        **job.gang,
        GANG: job.name,
        GANG_MIN: str(job.gang_min),
    }
    labels = {
        **objects.labels_of({"metadata": metadata}),
        JOB_LABEL: job.name,
        ROLE_LABEL: LAUNCHER if is_launcher else WORKER,
        REPLICA_LABEL: str(number),
    }
    if new.replaces:
        annotations[REPLACES] = new.replaces
    if new.until is not None:
        annotations[UNTIL] = text_of(new.until)
    if is_launcher:
        annotations[DISCOVER] = _SCRIPT
        spec["volumes"] = [*objects.mappings(spec.get("volumes")), _gang_volume(job.framework)]
    gates = [
        gate for gate in objects.mappings(spec.get("schedulingGates")) if gate.get("name") != names.JOINT_GATE
    ]
    spec |= {
        "restartPolicy": "Never",
        "hostname": host,
        "subdomain": job.name,
        "schedulingGates": [*gates, {"name": names.JOINT_GATE}],
        "containers": [
            _container(job, one, new.slot, is_launcher) for one in objects.mappings(spec.get("containers"))
        ],
    }
    if new.keep_off or new.keep_to:
        spec["affinity"] = with_nodes(objects.fields(spec.get("affinity")), new)
    return {
        **PODS.type_meta,
        "metadata": {
            "name": f"{host}-{new.attempt}",
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [_owner(job)],
        },
        "spec": spec,
    }


def _without_gates(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """What only the controller may say is nobody's to have it say (the CRD refuses it, too)."""
    return {name: value for name, value in annotations.items() if not name.startswith(GATE_DOMAIN)}


def host_name(job: TrainingJob, slot: int, *, moved: bool = False) -> str:
    if slot == LAUNCHER_SLOT:
        return f"{job.name}-{LAUNCHER}"
    return f"{job.name}-{slot:03d}{'m' if moved else ''}"


def _owner(job: TrainingJob) -> Object:
    return {**TRAINING_JOBS.type_meta, "name": job.name, "uid": job.uid, "controller": True}


def _container(job: TrainingJob, container: Fields, slot: int, is_launcher: bool) -> Object:
    found = {**container}
    if job.framework is Framework.ELASTIC_PYTORCH:
        found = translated(found, endpoint=_endpoint(job))
    said = {str(one.get("name")) for one in objects.mappings(found.get("env"))}
    told = _launcher_environment(job) if is_launcher else _environment(job, slot)
    added = [{"name": name, "value": value} for name, value in told.items() if name not in said]
    if added:
        found["env"] = [*objects.mappings(found.get("env")), *added]
    mounts = objects.mappings(found.get("volumeMounts"))
    if is_launcher and not any(one.get("mountPath") == GANG_FILES for one in mounts):
        found["volumeMounts"] = [*mounts, {"name": _VOLUME, "mountPath": GANG_FILES}]
    return found


def _leader(job: TrainingJob) -> str:
    return f"{host_name(job, 0)}.{job.name}"


def _endpoint(job: TrainingJob) -> str:
    return f"{_leader(job)}:{RENDEZVOUS_PORT}"


def _environment(job: TrainingJob, slot: int) -> Mapping[str, str]:
    if job.framework is Framework.PYTORCH:
        leader, port, rank, size = _leader(job), str(MASTER_PORT), str(slot), str(job.most)
        return {
            "PET_NNODES": size,
            "PET_NODE_RANK": rank,
            "PET_MASTER_ADDR": leader,
            "PET_MASTER_PORT": port,
            "MASTER_ADDR": leader,
            "MASTER_PORT": port,
            "RANK": rank,
            "WORLD_SIZE": size,
        }
    if job.framework is Framework.ELASTIC_PYTORCH:
        return {
            "PET_NNODES": f"{job.least}:{job.most}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": _endpoint(job),
            "PET_RDZV_ID": job.uid,
            # Else torchrun compares the endpoint with its own host's name, which is the first part of it.
            "PET_RDZV_CONF": f"is_host={int(slot == 0)}",
        }
    return {}


def _launcher_environment(job: TrainingJob) -> Mapping[str, str]:
    if job.framework is Framework.MPI:
        hosts = dict.fromkeys(_HOSTFILES, f"{GANG_FILES}/hosts")
        return hosts | dict.fromkeys(_WHOLE_NAMES, "true")
    return {}


def _gang_volume(framework: Framework) -> Object:
    files = {"hosts": LIVE_HOSTS, "env": LIVE_ENV}
    if framework is Framework.ELASTIC_HOROVOD:
        files |= {"running": LIVE_RUNNING, "discover.sh": DISCOVER}
    items = [
        {
            "path": path,
            "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"},
            **({"mode": 0o755} if path == "discover.sh" else {}),
        }
        for path, annotation in files.items()
    ]
    return {"name": _VOLUME, "downwardAPI": {"items": items}}


def with_nodes(affinity: Fields, new: NewPod) -> Object:
    """The affinity with the nodes, which every one of its terms has to have."""
    nodes = objects.fields(affinity.get("nodeAffinity"))
    required = objects.fields(nodes.get(_REQUIRED))
    terms = objects.mappings(required.get("nodeSelectorTerms")) or [{}]
    expressions: list[Any] = []
    if new.keep_off:
        expressions.append({"key": _HOSTNAME, "operator": "NotIn", "values": list(new.keep_off)})
    if new.keep_to:
        expressions.append({"key": _HOSTNAME, "operator": "In", "values": list(new.keep_to)})
    changed = [
        {**term, "matchExpressions": [*objects.mappings(term.get("matchExpressions")), *expressions]}
        for term in terms
    ]
    return {**affinity, "nodeAffinity": {**nodes, _REQUIRED: {**required, "nodeSelectorTerms": changed}}}


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_HOSTNAME: Final = "kubernetes.io/hostname"
