"""Pods that name ElasticGPUClaims: the annotation becomes what the kubelet and the scheduler understand.
Pure.

    metadata.annotations["egpuc.elasticgpu.io/<container>"]: <claim>
        ──> spec.resourceClaims: {name: egpuc-<claim>, resourceClaimName: <claim>}
        ──> the container's resources.claims: {name: egpuc-<claim>}

The ResourceClaim has the ElasticGPUClaim's name and namespace, so nothing has to be looked up, and the claim
may come later than the pod. Two containers that name one claim share its devices. A lone annotation whose
suffix matches no container of a pod with one container is meant for that one (so it stands in Elastic GPU's
README), which is a warning. The annotations stay; a pod that has it all already is the very same object, so
that a second pass changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from koordra.api import objects, pods
from koordra.api.elastic.elastic_gpu import DOMAINS, QGPU
from koordra.api.objects import Fields, Object
from koordra.api.reader import Reader
from koordra.errors import InvalidInput

PREFIX: Final = "egpuc.elasticgpu.io/"
ENTRY: Final = "egpuc-"
_NAME: Final = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")


@dataclass(frozen=True, slots=True)
class PodWithClaims:
    """`pod` is the very same one where nothing had to change, or where there are problems."""

    pod: Object
    warnings: tuple[str, ...] = ()
    problems: tuple[InvalidInput, ...] = ()


def names_claims(pod: Fields) -> bool:
    return any(key.startswith(PREFIX) for key in objects.annotations_of(pod))


def without_annotations(pod: Object) -> Object:
    if not names_claims(pod):
        return pod
    kept = {key: value for key, value in objects.annotations_of(pod).items() if not key.startswith(PREFIX)}
    return {**pod, "metadata": {**objects.metadata(pod), "annotations": kept}}


def with_annotations(pod: Object, original: Object) -> Object:
    """A pod with the annotations that `without_annotations` took from the original; the original itself where
    it only lacks those."""
    taken = {key: value for key, value in objects.annotations_of(original).items() if key.startswith(PREFIX)}
    if not taken:
        return pod
    back = {
        **pod,
        "metadata": {**objects.metadata(pod), "annotations": {**objects.annotations_of(pod), **taken}},
    }
    return original if back == original else back


def with_claims(pod: Object) -> PodWithClaims:
    """The pod with the claims that its annotations name."""
    named = {
        key: str(value)
        for key, value in sorted(objects.annotations_of(pod).items())
        if key.startswith(PREFIX)
    }
    if not named:
        return PodWithClaims(pod)
    warnings: list[str] = []
    problems: list[InvalidInput] = []
    wanted: dict[str, str] = {}
    for key, claim in named.items():
        try:
            wanted[_container(pod, key, claim, warnings, lone=len(named) == 1)] = claim
        except InvalidInput as error:
            problems.append(error)
    return PodWithClaims(pod if problems else _with_claims(pod, wanted), tuple(warnings), tuple(problems))


def entry_name(claim: str) -> str:
    """The pod's entry for a claim: a DNS label, which a claim's name need not be."""
    name = ENTRY + claim.replace(".", "-")
    if "." not in claim and len(name) <= 63:
        return name
    return f"{name[:54].rstrip('-')}-{hashlib.sha256(claim.encode()).hexdigest()[:8]}"


def _container(pod: Object, key: str, claim: str, warnings: list[str], *, lone: bool) -> str:
    """The container that an annotation means. Raises InvalidManifest."""
    field = f"metadata.annotations[{key}]"
    read = Reader(pod, object=objects.describe({"kind": "Pod", **pod}), field=field)
    if not _NAME.match(claim) or len(claim) > 253:
        raise read.wrong(f"{claim!r} is no name of an ElasticGPUClaim", "write the claim's name")
    name = key.removeprefix(PREFIX)
    containers = {str(container.get("name")): container for container in pods.containers(pod)}
    apps = [str(entry.get("name")) for entry in objects.spec_of(pod).get("containers") or ()]
    if name not in containers:
        if not lone or len(apps) != 1:
            known = ", ".join(containers) or "none"
            raise read.wrong(f"there is no container {name}", f"the pod's containers are {known}")
        warnings.append(f"{field}: there is no container {name}; taken for the only one, {apps[0]}")
        name = apps[0]
    own = sorted(filter(_is_elastic, pods.resource_names(containers[name])))
    if own:
        problem = f"container {name} names a claim and asks for {own[0]} itself"
        raise read.wrong(problem, "leave one of the two out")
    return name


def _is_elastic(name: str) -> bool:
    domain, _, what = name.partition("/")
    return (domain in DOMAINS and what in ("gpu-core", "gpu-memory")) or (
        domain == QGPU and what.startswith("qgpu-")
    )


def _with_claims(pod: Object, wanted: Mapping[str, str]) -> Object:
    spec = objects.spec_of(pod)
    entries = list(spec.get("resourceClaims") or [])
    by_claim = {
        str(entry.get("resourceClaimName")): str(entry.get("name"))
        for entry in entries
        if isinstance(entry, Mapping) and entry.get("resourceClaimName")
    }
    for claim in dict.fromkeys(wanted.values()):
        if claim not in by_claim:
            by_claim[claim] = entry_name(claim)
            entries.append({"name": by_claim[claim], "resourceClaimName": claim})
    spec = pods.with_containers(spec, lambda container: _using(container, wanted, by_claim))
    changed = {**pod, "spec": {**spec, "resourceClaims": entries}}
    return pod if changed == pod else changed


def _using(container: Object, wanted: Mapping[str, str], by_claim: Mapping[str, str]) -> Object:
    claim = wanted.get(str(container.get("name")))
    if claim is None:
        return container
    resources = container.get("resources") or {}
    claims = list(resources.get("claims") or [])
    if any(entry.get("name") == by_claim[claim] for entry in claims):
        return container
    return {**container, "resources": {**resources, "claims": [*claims, {"name": by_claim[claim]}]}}
