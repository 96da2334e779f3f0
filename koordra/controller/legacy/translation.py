"""A legacy pod's rewriting as it is stored in a cluster. Pure.

In native mode the claim is in standard terms, under a name of its own: the claim webhook translates claims of native namespaces
(webhook/native.py), also the template that is made for a legacy pod; so it is translated before it is named, and what is stored
is what the name promises. Where a request was split, containers use all of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from koordra.api import objects
from koordra.api.classic.notes import Notes
from koordra.api.objects import Object
from koordra.api.pods import with_containers
from koordra.compat.original_request import with_original_request
from koordra.compat.rewrite import DIALECT_LABEL, Rewritten, rewrite, template_name
from koordra.compat.settings import Settings
from koordra.controller.webhook import native
from koordra.controller.webhook.claims import devices_of, request_names
from koordra.errors import InvalidInput

DEFAULT_SCHEDULER: Final = "default-scheduler"


def translated(
    pod: Object, settings: Settings, notes: Notes, *, classes: Mapping[str, Object] | None
) -> tuple[Rewritten, tuple[InvalidInput, ...]]:
    """The pod as it is to be stored but for its gate: with what was asked, the dialect, and a scheduler in place of one that is
    gone. With `classes` in native form; then also what cannot be said in native mode. Raises Refused, and InvalidInput."""
    found = rewrite(pod, settings, notes, namespace=objects.namespace(pod))
    if found.template is None:
        return found, ()
    if classes is not None:
        found, problems = in_native_form(found, classes)
        if problems:
            return found, problems
    stored = with_original_request(pod, found)
    stored["metadata"]["annotations"][DIALECT_LABEL] = found.dialect
    if pod["spec"].get("schedulerName"):
        stored["spec"] = {"schedulerName": DEFAULT_SCHEDULER, **stored["spec"]}
    return replace(found, pod=stored), ()


def in_native_form(
    found: Rewritten, classes: Mapping[str, Object]
) -> tuple[Rewritten, tuple[InvalidInput, ...]]:
    """The rewriting with another template, and what cannot be said in native mode."""
    assert found.template is not None
    changed, problems, _ = native.translate(found.template, classes)
    if problems:
        return found, problems
    name = template_name(found.dialect, changed["spec"]["spec"])
    if name == objects.name(found.template):
        return found, ()
    template = {**changed, "metadata": {**found.template["metadata"], "name": name}}
    known = sorted(request_names(devices_of(template)[1]))

    def container(raw: Object) -> Object:
        resources = raw.get("resources") or {}
        if not resources.get("claims"):
            return raw
        claims: list[Object] = []
        for use in resources["claims"]:
            if use.get("name") != found.entry or use.get("request") in known:
                claims.append(use)
            else:
                parts = (part for part in known if part.rpartition("-")[0] == use["request"])
                claims += ({**use, "request": part} for part in parts)
        return {**raw, "resources": {**resources, "claims": claims}}

    spec = with_containers(found.pod["spec"], container)
    spec["resourceClaims"] = [
        {**entry, "resourceClaimTemplateName": name} if entry.get("name") == found.entry else entry
        for entry in spec["resourceClaims"]
    ]
    return replace(found, template=template, pod={**found.pod, "spec": spec}), ()
