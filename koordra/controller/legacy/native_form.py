"""A legacy pod's claim for native nodes: in standard terms, under a name of its own. Pure.

The claim webhook translates claims of native namespaces (webhook/native.py), also the template that is made for a legacy pod; so
it is translated before it is named, and what is stored is what the name promises. Where a request was split, containers use all
of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from koordra.api import objects
from koordra.api.objects import Object
from koordra.compat.rewrite import Rewritten, template_name
from koordra.controller.webhook import native
from koordra.controller.webhook.claims import devices_of, request_names
from koordra.errors import InvalidInput


def in_native_form(
    found: Rewritten, classes: Mapping[str, Object]
) -> tuple[Rewritten, tuple[InvalidInput, ...]]:
    """The rewriting with another template, and what cannot be said in native mode."""
    assert found.template is not None
    translated = native.translate(found.template, classes)
    if translated.problems:
        return found, translated.problems
    spec = translated.object["spec"]["spec"]
    name = template_name(found.dialect, spec)
    if name == objects.name(found.template):
        return found, ()
    template = {**translated.object, "metadata": {**found.template["metadata"], "name": name}}
    _, devices = devices_of(template)
    known = sorted(request_names(devices))
    return replace(found, template=template, pod=_renamed(found.pod, found.entry, name, known)), ()


def _renamed(pod: Object, entry: str, template: str, known: list[str]) -> Object:
    spec = dict(pod["spec"])
    spec["resourceClaims"] = [
        {**one, "resourceClaimTemplateName": template} if one.get("name") == entry else one
        for one in spec["resourceClaims"]
    ]
    for group in ("initContainers", "containers"):
        if isinstance(spec.get(group), list):
            spec[group] = [_container(raw, entry, known) for raw in spec[group]]
    return {**pod, "spec": spec}


def _container(raw: Object, entry: str, known: list[str]) -> Object:
    resources = raw.get("resources") or {}
    if not resources.get("claims"):
        return raw
    claims = []
    for one in resources["claims"]:
        if one.get("name") != entry or one.get("request") in known:
            claims.append(one)
        else:
            claims += [
                {**one, "request": part} for part in known if part.rpartition("-")[0] == one["request"]
            ]
    return {**raw, "resources": {**resources, "claims": claims}}
