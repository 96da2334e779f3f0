"""Changes of metadata."""

from __future__ import annotations

from koordra.api.objects import Object
from koordra.kube.validation.field_errors import FieldErrors
from koordra.kube.validation.metadata import validate


def validate_update(errors: FieldErrors, new: Object, old: Object) -> None:
    """What may never change, and that a deleting object gets no new finalizers."""
    validate(errors, new)
    for field in ("name", "namespace", "uid", "creationTimestamp"):
        if new.get(field) != old.get(field):
            errors.invalid(f"metadata.{field}", new.get(field), "field is immutable")
    if old.get("deletionTimestamp"):
        added = sorted(set(new.get("finalizers") or ()) - set(old.get("finalizers") or ()))
        if added:
            listed = ", ".join(f'"{one}"' for one in added)
            errors.forbidden(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted,"
                f" found new finalizers []string{{{listed}}}",
            )
