"""OpenAPI v3, built from the field tables: enough for kubectl's validation, `kubectl explain` and strategic
merge.

One document a group version. Every PATCH, POST and PUT lists `fieldValidation` and `dryRun`: that is how
kubectl finds out that the server validates, and stops doing it itself.

OpenAPI v2 is an empty document: kubectl asks for it, as protobuf, when a manifest is a v1 List, and skips
kinds it does not find.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from koordra.api.objects import Object
from koordra_devcluster.apiserver.fields.schema import FieldType, types
from koordra_devcluster.apiserver.resources import GROUPS, SERVED, Served
from koordra_devcluster.apiserver.storage.store import encode

_SCALARS: Final[dict[str, Object]] = {
    "string": {"type": "string"},
    "int": {"type": "integer", "format": "int64"},
    "float": {"type": "number", "format": "double"},
    "bool": {"type": "boolean"},
    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
}
_PACKAGES: Final = {
    "": "core", "coordination.k8s.io": "coordination", "events.k8s.io": "events", "resource.k8s.io": "resource",
    "apps": "apps", "batch": "batch", "policy": "policy", "rbac.authorization.k8s.io": "rbac",
    "admissionregistration.k8s.io": "admissionregistration", "apiextensions.k8s.io": "apiextensions",
    "scheduling.k8s.io": "scheduling", "discovery.k8s.io": "discovery", "flowcontrol.apiserver.k8s.io": "flowcontrol",
}  # fmt: skip
_META: Final = frozenset({"ObjectMeta", "ManagedFieldsEntry", "OwnerReference", "LabelSelector", "LabelSelectorRequirement",
                          "Condition", "DeleteOptions", "Preconditions", "ListMeta"})  # fmt: skip
_LIST_META: Final[Object] = {
    "type": "object",
    "properties": {
        name: {"type": "string"} for name in ("continue", "resourceVersion", "selfLink", "remainingItemCount")
    },
}

V2_PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""Clients ask for `...v2@v1.0...`; the answer has to be a legal media type."""
V2_EMPTY_PROTOBUF: Final = b"\x0a\x032.0"
"""The protobuf message Document with its first field, swagger = "2.0"."""
V2_EMPTY: Final[Object] = {
    "swagger": "2.0",
    "info": {"title": "koordra development cluster: see /openapi/v3", "version": "v1.37.0"},
    "paths": {},
    "definitions": {},
}


def index(custom: Sequence[Served] = ()) -> Object:
    """/openapi/v3."""
    paths = {}
    places = dict.fromkeys((*GROUPS, *((one.kind.group, one.kind.version) for one in custom)))
    for group, version in places:
        place = f"apis/{group}/{version}" if group else f"api/{version}"
        known = (group, version) in GROUPS
        found = document(group, version) if known else custom_document(group, version, custom)
        digest = hashlib.sha256(encode(found)).hexdigest()[:32]
        paths[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
    return {"paths": paths}


@cache
def document(group: str, version: str) -> Object:
    """/openapi/v3/apis/<group>/<version>."""
    served = [one for one in SERVED if (one.kind.group, one.kind.version) == (group, version)]
    schemas: dict[str, Any] = {}
    for one in served:
        _collect(schemas, one.type_name, group)
        _list_schema(schemas, one)
    paths: dict[str, Any] = {}
    for one in served:
        paths |= _paths(one)
    schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"] = _LIST_META
    return {
        "openapi": "3.0.0",
        "info": {"title": "koordra development cluster", "version": "v1.37.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def custom_document(group: str, version: str, custom: Sequence[Served]) -> Object | None:
    """The document of a group version that CustomResourceDefinitions make: their schemas as they are."""
    served = [one for one in custom if (one.kind.group, one.kind.version) == (group, version)]
    if not served:
        return None
    prefix = ".".join(reversed(group.split(".")))
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for one in served:
        name = f"{prefix}.{version}.{one.kind.kind}"
        schemas[name] = {**(one.schema or {}), "x-kubernetes-group-version-kind": [_gvk(one)]}
        body = {"$ref": f"#/components/schemas/{name}"}
        operation = _operation(one, "patch", body, writes=True)
        paths[one.kind.path(namespace="{namespace}", name="{name}")] = {
            "get": _operation(one, "get", body),
            "put": operation,
            "patch": operation,
        }
        paths[one.kind.path(namespace="{namespace}")] = {"post": _operation(one, "post", body, writes=True)}
    return {
        "openapi": "3.0.0",
        "info": {"title": "koordra development cluster", "version": "v1.37.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schema_name(type_name: str, group: str) -> str:
    if type_name in _META:
        return f"io.k8s.apimachinery.pkg.apis.meta.v1.{type_name}"
    return f"io.k8s.api.{_PACKAGES[group]}.v1.{'Event' if type_name == 'EventsEvent' else type_name}"


def _reference(type_name: str, group: str) -> Object:
    return {"$ref": f"#/components/schemas/{_schema_name(type_name, group)}"}


def _collect(schemas: dict[str, Any], type_name: str, group: str) -> None:
    name = _schema_name(type_name, group)
    if name in schemas:
        return
    fields = types()[type_name]
    schema: Object = {"type": "object", "properties": {}}
    schemas[name] = schema
    for field, known in fields.items():
        schema["properties"][field] = _field(known, group)
        if known.base in types():
            _collect(schemas, known.base, group)
    required = [field for field, known in fields.items() if known.required]
    if required:
        schema["required"] = required
    top = next((one for one in SERVED if one.type_name == type_name and one.kind.group == group), None)
    if top is not None:
        schema["x-kubernetes-group-version-kind"] = [_gvk(top)]


def _field(known: FieldType, group: str) -> Object:
    inner = _SCALARS[known.base] if known.base in _SCALARS else _reference(known.base, group)
    if known.shape == "{}":
        return {"type": "object", "additionalProperties": inner}
    if known.shape != "[]":
        return dict(inner) if "$ref" not in inner else {"allOf": [inner], "default": {}}
    schema: Object = {"type": "array", "items": inner}
    if known.list_keys:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(known.list_keys)}
    if known.merge_key is not None:
        schema["x-kubernetes-patch-strategy"] = "merge"
        if known.merge_key:
            schema["x-kubernetes-patch-merge-key"] = known.merge_key
    return schema


def _list_schema(schemas: dict[str, Any], served: Served) -> None:
    gvk = _gvk(served)
    schemas[f"io.k8s.api.{_PACKAGES[served.kind.group]}.v1.{served.kind.kind}List"] = {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "items": {"type": "array", "items": _reference(served.type_name, served.kind.group)},
            "metadata": {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"},
        },
        "x-kubernetes-group-version-kind": [gvk | {"kind": gvk["kind"] + "List"}],
    }


def _gvk(served: Served) -> Object:
    return {"group": served.kind.group, "version": served.kind.version, "kind": served.kind.kind}


def _paths(served: Served) -> dict[str, Any]:
    kind = served.kind
    collection = kind.path(namespace="{namespace}")
    single = kind.path(namespace="{namespace}", name="{name}")
    paths = {
        collection: {
            "get": _operation(served, "list", _list_reference(served)),
            "post": _operation(served, "post", _reference(served.type_name, kind.group), writes=True),
            "delete": _operation(served, "deletecollection", None),
        },
        single: _single(served),
    }
    if kind.namespaced:
        paths[kind.path()] = {"get": _operation(served, "list", _list_reference(served))}
    if any(name == "status" for name, _, _ in served.subresources):
        paths[f"{single}/status"] = {
            verb: operation for verb, operation in _single(served).items() if verb != "delete"
        }
    return paths


def _list_reference(served: Served) -> Object:
    return _reference(f"{served.kind.kind}List", served.kind.group)


def _single(served: Served) -> dict[str, Any]:
    body = _reference(served.type_name, served.kind.group)
    return {
        "get": _operation(served, "get", body),
        "put": _operation(served, "put", body, writes=True),
        "patch": _operation(served, "patch", body, writes=True),
        "delete": _operation(served, "delete", None),
    }


def _operation(served: Served, action: str, body: Object | None, *, writes: bool = False) -> Object:
    kind = served.kind
    operation: Object = {
        "operationId": f"{action}{_PACKAGES.get(kind.group, kind.group).title()}V1{kind.kind}",
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _gvk(served),
        "responses": {
            "200": {
                "description": "OK",
                "content": {"application/json": {"schema": body or {"type": "object"}}},
            }
        },
    }
    if writes:
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in ("dryRun", "fieldManager", "fieldValidation")
        ]
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return operation
