"""What a leader does about templates, decided from what it sees. Pure.

again      a pod that has not finished, of which a claim is still to be made, refers to a template of ours that is not there
planted    ... that is there and has other content: nothing is made; reported on the pod
delete     a template that the webhook made, that no unfinished pod refers to, unused for the whole grace
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import objects
from koordra.api.elastic import elastic_pods
from koordra.api.objects import Object
from koordra.compat import original_request
from koordra.compat.quota_charges import dialect_of
from koordra.compat.settings import Settings
from koordra.controller.legacy.templates import OTHER_CONTENT, is_ours, keeps_promise, last_used
from koordra.controller.legacy.translation import in_native_form
from koordra.controller.legacy.usage import legacy_templates


@dataclass(frozen=True, slots=True)
class Lost:
    """A pod whose template is not there, or is not what its name promises. `template` is None where it cannot be made again."""

    pod: Object
    name: str
    template: Object | None
    why: str = ""


def lost(
    pods: Sequence[Object], templates: Mapping[str, Object], classes: Mapping[str, Object], settings: Settings
) -> Iterator[Lost]:
    """`templates` by namespace/name. What is there is compared with its name once; what is not is worked out again from the
    first pod that can."""
    compared: dict[str, bool] = {}
    made: set[str] = set()
    for pod in pods:
        if objects.pod_is_finished(pod) or objects.is_deleting(pod):
            continue
        for entry, name in _waiting_for(pod):
            key = f"{objects.namespace(pod)}/{name}"
            there = templates.get(key)
            if there is not None:
                if key not in compared:
                    compared[key] = keeps_promise(there)
                if not compared[key]:
                    yield Lost(pod, name, None, OTHER_CONTENT.format(key))
            elif key not in made:
                found = _again(pod, entry, name, classes, settings)
                if found is not None:
                    made.add(key)
                yield Lost(pod, name, found, "" if found else _why(pod, entry, name))


def _waiting_for(pod: Object) -> Iterator[tuple[str, str]]:
    """(entry, template) of claims that are still to be made from templates of ours."""
    made = {str(one.get("name")) for one in objects.status_of(pod).get("resourceClaimStatuses") or ()}
    ours = set(legacy_templates(pod))
    for one in objects.spec_of(pod).get("resourceClaims") or ():
        name = str(one.get("resourceClaimTemplateName") or "")
        if name in ours and str(one.get("name")) not in made:
            yield str(one["name"]), name


def _again(
    pod: Object, entry: str, name: str, classes: Mapping[str, Object], settings: Settings
) -> Object | None:
    """The template of that very name, worked out from what the pod carries."""
    try:
        found = original_request.rewritten_again(elastic_pods.without_annotations(pod), entry, settings)
    except _MALFORMED:
        return None
    if found is None or found.template is None:
        return None
    for template in (found.template, in_native_form(found, classes)[0].template):
        if template is not None and objects.name(template) == name:
            return template
    return None


_MALFORMED: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Users can write what they like into the annotation: one pod must not end the upkeep of all others."""


def _why(pod: Object, entry: str, name: str) -> str:
    if entry not in original_request.entries(pod):
        return f"ResourceClaimTemplate {name} is not there, and the pod does not carry what it asked for"
    return (
        f"ResourceClaimTemplate {name} is not there, and what the pod asked for gives another one now "
        "(settings or annotations have changed); delete the pod, and its owner makes it anew"
    )


def unused(
    pods: Sequence[Object], templates: Sequence[Object], *, now: float, grace: float
) -> Iterator[Object]:
    needed = {
        f"{objects.namespace(pod)}/{name}"
        for pod in pods
        if not objects.pod_is_finished(pod)
        for name in legacy_templates(pod)
    }
    for template in templates:
        if (
            is_ours(template)
            and dialect_of(objects.name(template))
            and not objects.is_deleting(template)
            and objects.key(template) not in needed
            and now - last_used(template) >= grace
        ):
            yield template
