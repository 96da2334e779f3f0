"""metadata of every object: names, labels, annotations, owners, finalizers."""

from __future__ import annotations

from typing import Final

from koordra.api.objects import Object
from koordra.kube.validation import names
from koordra.kube.validation.field_errors import FieldErrors

MAX_ANNOTATIONS: Final = 256 * 1024
_BUILTIN_FINALIZERS: Final = frozenset({"orphan", "foregroundDeletion", "kubernetes"})


def validate(errors: FieldErrors, metadata: Object, *, label_names: bool = False) -> None:
    """New metadata; `label_names`: the kind's names are DNS labels (namespaces) instead of subdomains."""
    name = metadata.get("name", "")
    check = names.label if label_names else names.subdomain
    if not name:
        errors.required("metadata.name", "name or generateName is required")
    else:
        check(errors, "metadata.name", name)
    validate_maps(errors, metadata, "metadata")
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        path = f"metadata.finalizers[{index}]"
        names.qualified_key(errors, path, finalizer)
        if "/" not in finalizer and finalizer not in _BUILTIN_FINALIZERS:
            errors.invalid(
                path, finalizer, "name is neither a standard finalizer name nor is it fully qualified"
            )
    controllers = 0
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                errors.invalid(f"metadata.ownerReferences[{index}].{field}", "", "must not be empty")
        controllers += owner.get("controller") is True
    if controllers > 1:
        errors.invalid(
            "metadata.ownerReferences", controllers, "Only one reference can have Controller set to true"
        )


def validate_maps(errors: FieldErrors, metadata: Object, path: str) -> None:
    """Labels and annotations, also of a template's metadata."""
    for key, value in (metadata.get("labels") or {}).items():
        names.qualified_key(errors, f"{path}.labels", key)
        names.label_value(errors, f"{path}.labels", value)
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        names.qualified_key(errors, f"{path}.annotations", key.lower())
    if sum(len(key) + len(value) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        errors.too_long(f"{path}.annotations", MAX_ANNOTATIONS)
