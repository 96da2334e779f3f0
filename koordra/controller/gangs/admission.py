"""Pods of gangs as they are created: held from the start, and refused where their terms cannot be meant. Pure.

Every tenant may make gangs of the pods in his own namespace. A pod by koordra's own annotation is held whether it has claims or
not; a member of somebody else's pod group only if it has claims of koordra's, or claims that are not known yet: its scheduler knows
the gate, and nothing else of the group is koordra's business. A ValidatingAdmissionPolicy (deploy/kustomize/gangs) refuses
what comes past the webhook without the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordra.api import objects
from koordra.controller.gangs.annotations import Source, gang_of, problems_of
from koordra.errors import InvalidManifest


def must_be_held(pod: Mapping[str, Any], *, has_ours: bool, has_unknown: bool) -> bool:
    """Whether the gate goes on the pod because it is in a gang. `has_unknown`: it names claims that do not exist yet."""
    ref = gang_of(pod)
    if ref is None:
        return False
    return ref.source is Source.KOORDRA or has_ours or has_unknown


def refusals(pod: Mapping[str, Any]) -> tuple[InvalidManifest, ...]:
    """What is wrong with koordra's annotations on the pod."""
    name = objects.name(pod) or str(objects.metadata(pod).get("generateName") or "")
    where = f"Pod {objects.namespace(pod)}/{name}"
    return tuple(
        InvalidManifest(problem, object=where, field="metadata.annotations") for problem in problems_of(pod)
    )
