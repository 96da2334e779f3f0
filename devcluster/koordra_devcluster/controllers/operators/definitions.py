"""The CustomResourceDefinitions of the operators' kinds: the fields that their users write, with pod
templates taken as they are."""

from __future__ import annotations

from typing import Final

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra_devcluster.controllers.operators import OPERATORS

JOB_SETS: Final = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
PYTORCH_JOBS: Final = Kind("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
MPI_JOBS: Final = Kind("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
VOLCANO_JOBS: Final = Kind("batch.volcano.sh", "v1alpha1", "jobs", "Job")
VOLCANO_POD_GROUPS: Final = Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
NETWORKS: Final = Kind(
    "k8s.cni.cncf.io", "v1", "network-attachment-definitions", "NetworkAttachmentDefinition"
)

_TEXT: Final[Object] = {"type": "string"}
_NUMBER: Final[Object] = {"type": "integer"}
_SWITCH: Final[Object] = {"type": "boolean"}
_ANY: Final[Object] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_WORDS: Final[Object] = {"type": "array", "items": _TEXT}
_REPLICAS: Final[Object] = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "properties": {"replicas": _NUMBER, "restartPolicy": _TEXT, "template": _ANY},
    },
}


def _object(required: tuple[str, ...] = (), **fields: Object) -> Object:
    return {"type": "object", "properties": fields, **({"required": list(required)} if required else {})}


def _list(of: Object) -> Object:
    return {"type": "array", "items": of}


_SPECS: Final[dict[Kind, Object]] = {
    JOB_SETS: _object(
        ("replicatedJobs",),
        suspend=_SWITCH,
        managedBy=_TEXT,
        ttlSecondsAfterFinished=_NUMBER,
        network=_object(enableDNSHostnames=_SWITCH, publishNotReadyAddresses=_SWITCH, subdomain=_TEXT),
        failurePolicy=_ANY,
        successPolicy=_ANY,
        startupPolicy=_ANY,
        coordinator=_ANY,
        replicatedJobs=_list(
            _object(("name", "template"), name=_TEXT, groupName=_TEXT, replicas=_NUMBER, template=_ANY)
        ),
    ),
    PYTORCH_JOBS: _object(
        ("pytorchReplicaSpecs",),
        nprocPerNode=_TEXT,
        elasticPolicy=_ANY,
        runPolicy=_ANY,
        pytorchReplicaSpecs=_REPLICAS,
    ),
    MPI_JOBS: _object(
        ("mpiReplicaSpecs",),
        slotsPerWorker=_NUMBER,
        runLauncherAsWorker=_SWITCH,
        launcherCreationPolicy=_TEXT,
        mpiImplementation=_TEXT,
        sshAuthMountPath=_TEXT,
        runPolicy=_ANY,
        mpiReplicaSpecs=_REPLICAS,
    ),
    VOLCANO_JOBS: _object(
        ("tasks",),
        schedulerName=_TEXT,
        minAvailable=_NUMBER,
        queue=_TEXT,
        maxRetry=_NUMBER,
        priorityClassName=_TEXT,
        ttlSecondsAfterFinished=_NUMBER,
        plugins={"type": "object", "additionalProperties": _WORDS},
        policies=_list(_ANY),
        volumes=_list(_ANY),
        networkTopology=_ANY,
        tasks=_list(
            _object(
                ("template",),
                name=_TEXT,
                replicas=_NUMBER,
                minAvailable=_NUMBER,
                maxRetry=_NUMBER,
                policies=_list(_ANY),
                dependsOn=_ANY,
                template=_ANY,
            )
        ),
    ),
    VOLCANO_POD_GROUPS: _object(minMember=_NUMBER, queue=_TEXT, priorityClassName=_TEXT, minResources=_ANY),
    NETWORKS: _object(config=_TEXT),
}


def kinds_of(operator: str) -> list[Kind]:
    """The kinds that are an operator's."""
    return [kind for kind in _SPECS if (kind.api_version, kind.kind) in OPERATORS[operator]]


def definitions(operator: str) -> list[Object]:
    """The CustomResourceDefinitions that an operator installs."""
    return [_definition(kind, _SPECS[kind]) for kind in kinds_of(operator)]


def _definition(kind: Kind, spec: Object) -> Object:
    name = f"{kind.plural}.{kind.group}"
    schema = _object(spec=spec, status=_ANY)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"plural": kind.plural, "kind": kind.kind, "singular": kind.kind.lower()},
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
