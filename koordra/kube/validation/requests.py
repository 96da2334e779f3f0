"""ResourceClaim specs (also inside templates): requests, constraints, configuration.

Limits: 32 requests, constraints and configurations; 8 alternatives in firstAvailable; 32 selectors and 16
tolerations a request. Request names are unique; constraints and configurations refer to requests by `name` or
`name/alternative`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from koordra.api.objects import Object
from koordra.kube.validation import classes, metadata, names
from koordra.kube.validation.classes import CompileCel
from koordra.kube.validation.field_errors import FieldErrors

MAX_REQUESTS: Final = 32
MAX_CONSTRAINTS: Final = 32
MAX_CONFIG: Final = 32
MAX_ALTERNATIVES: Final = 8
MODES: Final = ("All", "ExactCount")


def claim_spec(errors: FieldErrors, spec: Object, path: str, compile_cel: CompileCel) -> None:
    devices = spec.get("devices") or {}
    requests = devices.get("requests") or ()
    if len(requests) > MAX_REQUESTS:
        errors.too_many(f"{path}.devices.requests", len(requests), MAX_REQUESTS)
    known: set[str] = set()
    for index, request in enumerate(requests):
        _request(errors, f"{path}.devices.requests[{index}]", request, compile_cel)
        name = request.get("name", "")
        if name in known:
            errors.duplicate(f"{path}.devices.requests[{index}]", name)
        known.add(name)
    referable = known | {
        f"{request.get('name')}/{alternative.get('name')}"
        for request in requests
        for alternative in request.get("firstAvailable") or ()
    }
    _constraints(errors, f"{path}.devices.constraints", devices.get("constraints") or (), referable)
    config = devices.get("config") or ()
    if len(config) > MAX_CONFIG:
        errors.too_many(f"{path}.devices.config", len(config), MAX_CONFIG)
    for index, configuration in enumerate(config):
        here = f"{path}.devices.config[{index}]"
        _references(errors, f"{here}.requests", configuration.get("requests") or (), referable)
        classes.opaque(errors, here, configuration)


def template(errors: FieldErrors, obj: Object, compile_cel: CompileCel) -> None:
    spec = obj.get("spec") or {}
    metadata.validate_maps(errors, spec.get("metadata") or {}, "spec.metadata")
    claim_spec(errors, spec.get("spec") or {}, "spec.spec", compile_cel)


def _request(errors: FieldErrors, path: str, request: Object, compile_cel: CompileCel) -> None:
    names.request(errors, f"{path}.name", request.get("name"))
    alternatives = request.get("firstAvailable") or ()
    exactly = request.get("exactly")
    if exactly is None and not alternatives:
        errors.required(path, "exactly one of `exactly` or `firstAvailable` is required")
    elif exactly is not None and alternatives:
        errors.invalid(
            path,
            request.get("name"),
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        )
    if exactly is not None:
        _body(errors, f"{path}.exactly", exactly, compile_cel)
    if len(alternatives) > MAX_ALTERNATIVES:
        errors.too_many(f"{path}.firstAvailable", len(alternatives), MAX_ALTERNATIVES)
    seen: set[str] = set()
    for index, alternative in enumerate(alternatives):
        here = f"{path}.firstAvailable[{index}]"
        names.request(errors, f"{here}.name", alternative.get("name"))
        if alternative.get("name") in seen:
            errors.duplicate(f"{here}.name", alternative.get("name"))
        seen.add(alternative.get("name", ""))
        _body(errors, here, alternative, compile_cel)


def _body(errors: FieldErrors, path: str, body: Object, compile_cel: CompileCel) -> None:
    """What `exactly` and an alternative have in common. Mode and count are defaulted before this; names and
    amounts of capacities are anything: 1.36.2 takes them."""
    names.subdomain(errors, f"{path}.deviceClassName", body.get("deviceClassName"))
    classes.selectors(errors, f"{path}.selectors", body.get("selectors") or (), compile_cel)
    mode, count = body.get("allocationMode", "ExactCount"), body.get("count", 0)
    if mode == "ExactCount":
        if count <= 0:
            errors.invalid(f"{path}.count", count, "must be greater than zero")
    elif mode == "All":
        if count != 0:
            errors.invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    else:
        errors.not_supported(f"{path}.allocationMode", mode, MODES)
    classes.tolerations(errors, f"{path}.tolerations", body.get("tolerations") or ())


def _constraints(errors: FieldErrors, path: str, constraints: Sequence[Object], referable: set[str]) -> None:
    if len(constraints) > MAX_CONSTRAINTS:
        errors.too_many(path, len(constraints), MAX_CONSTRAINTS)
    for index, constraint in enumerate(constraints):
        here = f"{path}[{index}]"
        _references(errors, f"{here}.requests", constraint.get("requests") or (), referable)
        kinds = [kind for kind in ("matchAttribute", "distinctAttribute") if constraint.get(kind) is not None]
        if not kinds:
            errors.required(
                here,
                'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set',
            )
        elif len(kinds) > 1:
            errors.invalid(here, kinds, "only one of `matchAttribute` or `distinctAttribute` may be set")
        for kind in kinds:
            names.attribute_name(errors, f"{here}.{kind}", constraint[kind], domain_required=True)


def _references(errors: FieldErrors, path: str, references: Sequence[str], referable: set[str]) -> None:
    if len(references) > MAX_REQUESTS:
        errors.too_many(path, len(references), MAX_REQUESTS)
    seen: set[str] = set()
    for index, reference in enumerate(references):
        here = f"{path}[{index}]"
        if reference in seen:
            errors.duplicate(here, reference)
        seen.add(reference)
        if reference not in referable:
            errors.invalid(
                here,
                reference,
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
            )
