"""What a file of manifests needs of a cluster, seen from the kinds and names that stand in it. Pure.

pods under other stacks' names       the webhook, and the controller with --legacy-pods
ElasticGPUClass, ElasticGPUClaim     deploy/kustomize/elastic, and --elastic-gpu
TrainingJob                          deploy/kustomize/training, and --training-jobs
ResourceClass, Reservation           koordra's CustomResourceDefinitions
JobSet, PyTorchJob, Volcano's Job    the double of the operator that makes their pods
Workload, PodGroup of Kubernetes     the feature gate that serves them
networks of Multus                   the name by which the kubelet plugin tells Multus of its functions
gangs                                as many nodes as the largest has members
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from koordra.api import objects
from koordra.api.elastic.elastic_gpu import GROUP as ELASTIC_GROUP
from koordra.api.kinds import RESERVATIONS, TRAINING_JOBS
from koordra.api.objects import Object
from koordra.api.pods import at, pods_in
from koordra.api.resource_class import CLASS_PARAMETERS, RESOURCE_CLASSES
from koordra.compat.detection import asks_by_annotation
from koordra.compat.rewrite import names_devices
from koordra.compat.settings import Settings
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN, whole_number
from koordra_devcluster.apiserver.resources import GENERIC_WORKLOAD, WORKLOADS
from koordra_devcluster.controllers.operators import OPERATORS, QUEUE

LEAST_NODES: Final = 2
MOST_NODES: Final = 16
CNI_RESOURCE: Final = "k8s.v1.cni.cncf.io/resourceName"


@dataclass(frozen=True, slots=True)
class Needs:
    """`operators`: whose pods come from an operator; `cni_resources`: names that Multus networks have;
    `commands`: containers' commands are to be run, which no manifest can ask for."""

    legacy: bool = False
    elastic: bool = False
    training: bool = False
    resource_classes: bool = False
    reservations: bool = False
    operators: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    cni_resources: tuple[str, ...] = ()
    commands: bool = False
    nodes: int = LEAST_NODES

    @classmethod
    def of(cls, documents: Iterable[Object]) -> Needs:
        known = list(documents)
        versions = {str(one.get("apiVersion")) for one in known}
        groups = {version.partition("/")[0] for version in versions}
        own = {one.get("kind") for one in known if one.get("apiVersion") == RESERVATIONS.api_version}
        pods = [pod for one in known for path in pods_in(one) if isinstance(pod := at(one, path), Mapping)]
        return cls(
            legacy=any(_is_legacy(pod) for pod in pods),
            elastic=ELASTIC_GROUP in groups,
            training=TRAINING_JOBS.kind in own,
            resource_classes=bool({RESOURCE_CLASSES.kind, CLASS_PARAMETERS.kind} & own),
            reservations=RESERVATIONS.kind in own,
            operators=tuple(sorted({name for one in known if (name := operator_of(one))})),
            gates=(GENERIC_WORKLOAD,) if WORKLOADS.api_version in versions else (),
            cni_resources=tuple(
                sorted(
                    {str(name) for one in known if (name := objects.annotations_of(one).get(CNI_RESOURCE))}
                )
            ),
            nodes=min(MOST_NODES, max(LEAST_NODES, sum(_gangs(pods).values()))),
        )

    @property
    def webhook(self) -> bool:
        """Whether koordra's webhook has to be there, and with it what deploy/kustomize/base installs."""
        own = self.resource_classes or self.reservations or self.training
        return self.legacy or self.elastic or own

    @property
    def components(self) -> tuple[str, ...]:
        """Folders of deploy/kustomize besides base."""
        wanted = (("legacy", self.webhook), ("elastic", self.elastic), ("training", self.training))
        return tuple(name for name, is_wanted in wanted if is_wanted)


def operator_of(manifest: Object) -> str | None:
    """Who makes the pods of this object, or lets it start."""
    if QUEUE in objects.labels_of(manifest):
        return "kueue"
    told = str(manifest.get("apiVersion")), str(manifest.get("kind"))
    return next((name for name, known in OPERATORS.items() if told in known), None)


def _is_legacy(pod: Mapping[str, object]) -> bool:
    return names_devices(pod, Settings()) or asks_by_annotation(objects.annotations_of(pod))


def _gangs(pods: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """Gang -> the members that it needs to start."""
    marked = {str(objects.annotations_of(pod).get(GANG, "")): pod for pod in pods}
    return {
        name: whole_number(str(objects.annotations_of(pod).get(GANG_MIN, ""))) or 0
        for name, pod in marked.items()
        if name
    }
