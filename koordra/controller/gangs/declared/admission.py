"""Which pods the gate goes on because of their gang, and what is refused of those that are created. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordra.api import objects
from koordra.controller.gangs.declared.annotations import GANG, OWN
from koordra.controller.gangs.declared.gang_ref import Source, group_of
from koordra.controller.gangs.declared.terms import terms_of
from koordra.errors import InvalidManifest


def problems_of(pod: Mapping[str, Any]) -> list[str]:
    """What is wrong with koordra's annotations on one pod, as far as the pod alone can tell."""
    ref = group_of(pod)
    if ref is None:
        stray = [name for name in OWN[1:] if name in objects.annotations_of(pod)]
        return [f"{stray[0]} without {GANG}: name the gang"] if stray else []
    found = terms_of(ref, [dict(pod)], {}, labelled=False)
    return [] if found is None else list(found.problems)


def must_be_held(pod: Mapping[str, Any], *, has_ours: bool, has_unknown: bool) -> bool:
    """Whether the gate goes on the pod because it is in a gang. `has_unknown`: it names claims that do not
    exist yet.

    A pod by koordra's own annotation is held whether it has claims or not; a member of somebody else's pod
    group only if it has claims of koordra's, or claims that are not known yet: its scheduler knows the gate,
    and nothing else of the group is koordra's business.
    """
    ref = group_of(pod)
    return ref is not None and (ref.source is Source.KOORDRA or has_ours or has_unknown)


def refusals(pod: Mapping[str, Any]) -> tuple[InvalidManifest, ...]:
    """What is wrong with koordra's annotations on the pod, for who creates it. A ValidatingAdmissionPolicy
    (deploy/kustomize/gangs) refuses what comes past the webhook without the gate."""
    name = objects.name(pod) or str(objects.metadata(pod).get("generateName") or "")
    where = f"Pod {objects.namespace(pod)}/{name}"
    return tuple(
        InvalidManifest(problem, object=where, field="metadata.annotations") for problem in problems_of(pod)
    )
