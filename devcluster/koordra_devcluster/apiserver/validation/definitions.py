"""CustomResourceDefinitions: what is filled in, and the rules that a hand-written one breaks most often."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from koordra.api.objects import Object
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver.fields.schema import format_time


def default_definition(definition: Object) -> None:
    """What a definition may leave out."""
    spec = definition.setdefault("spec", {})
    names = spec.setdefault("names", {})
    names.setdefault("singular", str(names.get("kind", "")).lower())
    names.setdefault("listKind", f"{names.get('kind', '')}List")
    spec.setdefault("conversion", {"strategy": "None"})


def accepted(definition: Object, now: datetime) -> None:
    """The status of a new definition: the conditions that clients wait for."""
    names, told = definition["spec"]["names"], format_time(now)
    definition["status"] = {
        "acceptedNames": dict(names),
        "storedVersions": [one["name"] for one in definition["spec"].get("versions") or () if one.get("storage")],
        "conditions": [
            {
                "type": "NamesAccepted", "status": "True", "reason": "NoConflicts",
                "message": "no conflicts found", "lastTransitionTime": told,
            },
            {
                "type": "Established", "status": "True", "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted", "lastTransitionTime": told,
            },
        ],
    }  # fmt: skip


def check_definition(errors: FieldErrors, definition: Object) -> None:
    """The rules that a hand-written definition breaks most often."""
    spec: Mapping[str, Any] = definition.get("spec") or {}
    names: Mapping[str, Any] = spec.get("names") or {}
    name, wanted = definition["metadata"].get("name", ""), f"{names.get('plural')}.{spec.get('group')}"
    if name != wanted:
        errors.invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    annotation = "api-approved.kubernetes.io"
    approved = str((definition["metadata"].get("annotations") or {}).get(annotation, ""))
    # x-k8s.io, for what is no part of Kubernetes, is not protected.
    if f".{spec.get('group', '')}".endswith((".k8s.io", ".kubernetes.io")) and not approved.startswith(
        ("https://", "http://", "unapproved")
    ):
        errors.required(f'metadata.annotations["{annotation}"]', "protected groups must have approval")
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        errors.not_supported("spec.scope", spec.get("scope"), ("Cluster", "Namespaced"))
    versions = spec.get("versions") or ()
    if sum(bool(one.get("storage")) for one in versions) != 1:
        errors.invalid("spec.versions", "", "must have exactly one version marked as storage version")
    for index, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        if schema is None:
            errors.required(path, "schemas are required")
        else:
            _check_schema(errors, schema, path)


def check_webhooks(errors: FieldErrors, configuration: Object) -> None:
    """Webhook configurations: names with dots, and one way to call each."""
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        if str(webhook.get("name", "")).count(".") < 2:
            detail = "should be a domain with at least three segments separated by dots"
            errors.invalid(f"webhooks[{index}].name", webhook.get("name", ""), detail)
        called = webhook.get("clientConfig") or {}
        if ("url" in called) == ("service" in called):
            errors.required(f"webhooks[{index}].clientConfig", "exactly one of url or service is required")


def _check_schema(errors: FieldErrors, schema: Any, path: str) -> None:
    """Structural: every value has a type, unless it keeps unknown fields or is an int-or-string."""
    if not isinstance(schema, dict):
        errors.invalid(path, schema, "must be an object")
        return
    free = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
    if not schema.get("type") and not free:
        errors.required(f"{path}.type", "must not be empty for specified object fields")
    for name, inner in (schema.get("properties") or {}).items():
        _check_schema(errors, inner, f"{path}.properties[{name}]")
    if isinstance(schema.get("items"), dict):
        _check_schema(errors, schema["items"], f"{path}.items")
