"""ResourceClaims that the control plane would make from templates, for planning manifests that were never
applied.

kube-controller-manager makes one claim per pod and entry of `spec.resourceClaims` that names a template, and
tells the name in the pod's status. Offline there is neither; here the claims get the name `<pod>-<entry>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordra.api import names, objects
from koordra.api.objects import Fields


def with_template_claims(manifests: Iterable[Fields]) -> list[Fields]:
    """The objects plus the claims their pods' templates would give; pods know them by their status. Nothing
    is changed."""
    given = list(manifests)
    templates = {objects.key(entry): entry for entry in given if entry.get("kind") == "ResourceClaimTemplate"}
    found: list[Fields] = []
    for entry in given:
        claims = _claims_of(entry, templates) if entry.get("kind") == "Pod" else {}
        found += [_with_status(entry, claims) if claims else entry, *claims.values()]
    return found


def applied_uid(obj: Fields) -> str:
    """The object's uid; of one that was never applied a text that stands for it."""
    return objects.uid(obj) or f"{obj.get('kind')}/{objects.key(obj)}"


def _claims_of(pod: Fields, templates: Mapping[str, Fields]) -> dict[str, Fields]:
    """Entry name -> claim, for entries of the pod whose template is there and whose claim is not."""
    known = objects.pod_claim_names(pod)
    made: dict[str, Fields] = {}
    for entry in objects.spec_of(pod).get("resourceClaims") or ():
        template = templates.get(f"{objects.namespace(pod)}/{entry.get('resourceClaimTemplateName')}")
        name = str(entry.get("name"))
        if template is None or known.get(name) is not None:
            continue
        content = objects.spec_of(template)
        made[name] = {
            "apiVersion": template.get("apiVersion"),
            "kind": "ResourceClaim",
            "metadata": {
                **(content.get("metadata") or {}),
                "name": f"{objects.name(pod)}-{name}",
                "namespace": objects.namespace(pod),
                "annotations": {names.POD_CLAIM_NAME: name},
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "name": objects.name(pod),
                        "uid": applied_uid(pod),
                        "controller": True,
                    }
                ],
            },
            "spec": content.get("spec") or {},
        }
    return made


def _with_status(pod: Fields, claims: Mapping[str, Fields]) -> Fields:
    status = objects.status_of(pod)
    made = [{"name": entry, "resourceClaimName": objects.name(claim)} for entry, claim in claims.items()]
    return {
        **pod,
        "status": {**status, "resourceClaimStatuses": [*(status.get("resourceClaimStatuses") or ()), *made]},
    }
