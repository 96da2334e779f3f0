"""Claims of NVIDIA's classic driver that lie on the device of another claim of their pod: one claim in v1,
whose constraint says so.

    pod: gpu              GpuClaimParameters big, migEnabled          one claim, called gpu:
         mig-1g, mig-3g   MigDeviceClaimParameters, gpuClaimName big  ──>  requests mig-1g and mig-3g,
                                                                      matchAttribute: they have one parent

`gpuClaimName` is the name of the GPU's parameters object. What the GPU's selector says holds for the GPU of
the instances. The templates of the single claims are left out: they are in the one that takes their place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import objects
from koordra.api.classic import nvidia_parameters
from koordra.api.classic.notes import Notes
from koordra.api.classic.v1alpha2 import V1, Reference, Sources
from koordra.api.kinds import RESOURCE_GROUP
from koordra.api.objects import Object
from koordra.api.pods import at, pods_in, with_containers

_TEMPLATE: Final = "ResourceClaimTemplate"


@dataclass(frozen=True, slots=True)
class Tie:
    """Entries of a pod: `gpu` with the parameters of its claim, and the instances on it with theirs."""

    gpu: str
    parameters: Object
    instances: Mapping[str, Object]
    templates: frozenset[Reference]


def ties_of(entries: Iterable[Any], namespace: str, sources: Sources) -> list[Tie]:
    """`entries` are the pod's resourceClaims, in the classic form or in v1's."""
    known = {}
    for entry in entries:
        if isinstance(entry, Mapping) and (found := _parameters(entry, namespace, sources)):
            known[str(entry.get("name"))] = found
    ties = []
    for name, (template, parameters) in known.items():
        if parameters.get("kind") != "GpuClaimParameters":
            continue
        on_it = {
            other: found
            for other, found in known.items()
            if objects.spec_of(found[1]).get("gpuClaimName") == objects.name(parameters)
        }
        if on_it:
            templates = frozenset((template, *(found[0] for found in on_it.values())))
            ties.append(Tie(name, parameters, {other: found[1] for other, found in on_it.items()}, templates))
    return ties


def tied_templates(found: Sequence[Object], sources: Sources) -> set[Reference]:
    """Of all pods of the input."""
    return {
        reference
        for obj in found
        for path in pods_in(obj)
        for tie in ties_of(_entries(at(obj, (*path, "spec"))), objects.namespace(obj), sources)
        for reference in tie.templates
    }


def _entries(spec: Any) -> Sequence[Any]:
    found = spec.get("resourceClaims") if isinstance(spec, Mapping) else None
    return found if isinstance(found, list) else ()


def _parameters(entry: Any, namespace: str, sources: Sources) -> tuple[Reference, Object] | None:
    """The template of an entry, and its parameters object of NVIDIA's group."""
    source = entry.get("source") if isinstance(entry.get("source"), Mapping) else entry
    template = (RESOURCE_GROUP, _TEMPLATE, namespace, str(source.get("resourceClaimTemplateName")))
    spec = objects.spec_of(sources.claims.get(template) or {}).get("spec")
    ref = spec.get("parametersRef") if isinstance(spec, Mapping) else None
    if not isinstance(ref, Mapping) or ref.get("apiGroup") != nvidia_parameters.GROUP:
        return None
    found = sources.parameters.get(
        (nvidia_parameters.GROUP, str(ref.get("kind")), namespace, str(ref.get("name")))
    )
    return None if found is None else (template, found)


def untied(spec: Object, tie: Tie, obj: Object, *, target: str, notes: Notes) -> tuple[Object, Object]:
    """The pod's spec and the template of its one claim. Raises Refused or InvalidManifest."""
    devices = nvidia_parameters.instances_of(tie.parameters, tie.instances, target=target, notes=notes)
    digest = hashlib.sha256(json.dumps(devices, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{objects.name(tie.parameters)}-{digest}"
    place = {"namespace": objects.namespace(obj)} if objects.metadata(obj).get("namespace") else {}
    template = {
        "apiVersion": V1,
        "kind": _TEMPLATE,
        "metadata": {"name": name, **place},
        "spec": {"spec": {"devices": devices}},
    }
    entries = [
        {"name": tie.gpu, "resourceClaimTemplateName": name} if entry.get("name") == tie.gpu else entry
        for entry in spec["resourceClaims"]
        if entry.get("name") not in tie.instances
    ]
    changed = with_containers({**spec, "resourceClaims": entries}, lambda raw: _container(raw, tie))
    notes.warn(
        "spec.resourceClaims",
        f"{', '.join(tie.instances)} and {tie.gpu} are one claim in v1, {tie.gpu}, with a request for each instance",
        f"its template is {name}",
    )
    return changed, template


def _container(raw: Object, tie: Tie) -> Object:
    resources = raw.get("resources")
    if not isinstance(resources, Mapping) or not isinstance(claims := resources.get("claims"), list):
        return raw
    used = list(_uses(claims, tie))
    return {**raw, "resources": {**resources, "claims": used}}


def _uses(claims: Sequence[Any], tie: Tie) -> Iterator[Any]:
    instances = [claim for claim in claims if claim.get("name") in tie.instances]
    for claim in claims:
        if claim in instances:
            yield {"name": tie.gpu, "request": claim["name"]}
        elif claim.get("name") != tie.gpu or not instances:
            yield claim
