"""From the body of a write to an object of the stored version: kind and version checked, unknown fields dealt
with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.kube.validation.field_errors import FieldErrors
from koordra_devcluster.apiserver import status
from koordra_devcluster.apiserver.fields import structural
from koordra_devcluster.apiserver.fields.schema import Decoder, Undecodable
from koordra_devcluster.apiserver.resources import EVENTS_V1, Served
from koordra_devcluster.apiserver.serving.users import ADMINISTRATOR, User
from koordra_devcluster.apiserver.storage import events


@dataclass(slots=True)
class WriteOptions:
    """Query parameters of a write; `warnings` collects what becomes Warning headers."""

    dry_run: bool = False
    field_validation: str = "Warn"
    warnings: list[str] = field(default_factory=list)
    user: User = ADMINISTRATOR
    verb: str = "update"


def decode(served: Served, body: Any, options: WriteOptions, *, patched: bool = False) -> Object:
    """Raises Refusal 400 for what is not an object of this kind, and, with fieldValidation=Strict, for
    unknown fields.

    `patched`: the body is the result of a patch, where unknown fields are a 422.
    """
    kind = served.kind
    if not isinstance(body, dict):
        raise status.bad_request("the body of the request is not a JSON object")
    for name, expected in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        if body.get(name) not in (None, "", expected):
            raise status.bad_request(
                f"the {name} in the data ({body[name]}) does not match the expected {name} ({expected})"
            )
    decoder = Decoder(kind.kind)
    try:
        if served.schema is None:
            decoded = decoder.decode(served.type_name, body)
        else:
            decoded = structural.prune(served.schema, body, unknown=decoder.unknown)
            decoded["metadata"] = decoder.decode("ObjectMeta", body.get("metadata") or {})
    except Undecodable as error:
        raise _not_a(kind, error.problem) from error
    if decoder.unknown:
        _unknown_fields(
            kind, [f'unknown field "{path}"' for path in decoder.unknown], options, patched=patched
        )
    decoded |= {"apiVersion": kind.api_version, "kind": kind.kind}
    return events.to_core(decoded) if kind == EVENTS_V1 else decoded


def _unknown_fields(kind: Kind, found: list[str], options: WriteOptions, *, patched: bool) -> None:
    """Ignored, warned about or refused, as fieldValidation says; in every case they are dropped."""
    if options.field_validation == "Warn":
        options.warnings.extend(found)
    elif options.field_validation == "Strict":
        problem = f"strict decoding error: {', '.join(found)}"
        if not patched:
            raise _not_a(kind, problem)
        errors = FieldErrors()
        errors.invalid("patch", "", problem)
        raise status.invalid(kind, "", errors.found)


def _not_a(kind: Kind, problem: str) -> status.Refusal:
    return status.bad_request(
        f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {problem}'
    )
