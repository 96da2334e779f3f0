"""How the objects that koordra makes for Elastic GPU are recognised: labels, annotations, finalizers, names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.elastic.elastic_gpu import RETAIN
from koordra.api.resource_class import MANAGED_BY

CLAIM_LABEL: Final = names.DOMAIN + "elastic-claim"
"""On a ResourceClaim: uid of the ElasticGPUClaim it was made for."""
SPEC: Final = names.DOMAIN + "elastic-spec"
"""On a ResourceClaim: digest of the spec it was made with."""
POLICY: Final = names.DOMAIN + "elastic-reclaim-policy"
CLASS: Final = names.DOMAIN + "elastic-class"
BINDING: Final = names.DOMAIN + "elastic-binding-mode"
UNIT: Final = names.DOMAIN + "elastic-memory-unit"
"""On a ResourceClaim: what its class said when it was made; a class that changes later changes new claims only."""
CARD: Final = "koordra.io/elastic-gpu"
"""Finalizer of an ElasticGPU whose deletion frees its devices."""


def managed(obj: Mapping[str, Any]) -> bool:
    """Whether koordra made the ElasticGPU or GPU: by its label, or, where somebody took that off, by its finalizer."""
    return objects.labels_of(obj).get(MANAGED_BY) == names.FIELD_COMPONENT or CARD in finalizers(obj)


def claim_uid(resource_claim: Mapping[str, Any]) -> str:
    """The ElasticGPUClaim that a ResourceClaim was made for, empty where it is none of ours."""
    return objects.labels_of(resource_claim).get(CLAIM_LABEL, "")


def is_retained(resource_claim: Mapping[str, Any]) -> bool:
    return objects.annotations_of(resource_claim).get(POLICY) == RETAIN


def is_held(resource_claim: Mapping[str, Any]) -> bool:
    return names.RETAIN_FINALIZER in finalizers(resource_claim)


def finalizers(obj: Mapping[str, Any]) -> list[str]:
    return [str(entry) for entry in objects.metadata(obj).get("finalizers") or ()]


def binding_name(resource_claim: Mapping[str, Any]) -> str:
    """The ElasticGPU of a ResourceClaim, as a PersistentVolume is named after its claim's uid."""
    return f"egpu-{objects.uid(resource_claim)}"
