"""The opaque parameters as a JSON schema, made from the decoder's own table of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordra.api.opaque.driver_capabilities import WORDS, DriverCapability
from koordra.api.opaque.parameters import _REQUIRED, API_VERSION, KINDS, FieldType, allowed
from koordra.api.opaque.rdma_fabric import PKEY, RdmaFabric
from koordra.api.opaque.rdma_network import _GUID, _INTERFACE, RdmaNetwork
from koordra.api.opaque.resize import POLICIES, Bounds


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of every kind, for editors and for the documentation."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://{API_VERSION}",
        "oneOf": [_kind_schema(name, fields) for name, (_, fields) in KINDS.items()],
    }


def _kind_schema(name: str, fields: Mapping[str, FieldType]) -> dict[str, Any]:
    properties: dict[str, Any] = {"apiVersion": {"const": API_VERSION}, "kind": {"const": name}}
    for field, entry in fields.items():
        if entry is RdmaNetwork:
            properties[field] = network_schema()
        elif entry is RdmaFabric:
            properties[field] = fabric_schema()
        elif entry is Bounds:
            properties[field] = bounds_schema()
        elif entry is DriverCapability:
            properties[field] = {"type": "array", "items": {"enum": list(WORDS)}, "minItems": 1}
        elif isinstance(entry, list):
            properties[field] = {"type": "array", "items": {"enum": list(allowed(entry[0]))}, "minItems": 1}
        elif words := allowed(entry):
            properties[field] = {"enum": list(words)}
        elif isinstance(entry, range):
            properties[field] = {"type": "integer", "minimum": entry[0], "maximum": entry[-1]}
        else:
            properties[field] = {"type": "boolean"}
    required = ["apiVersion", "kind", *(field for field in fields if field == _REQUIRED.get(name))]
    return {
        "title": name,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def bounds_schema() -> dict[str, Any]:
    """JSON schema of the `resize` object."""
    end = {"x-kubernetes-int-or-string": True}
    span = {
        "type": "object",
        "required": ["min", "max"],
        "properties": {"min": end, "max": end},
    }
    policies = {"type": "array", "maxItems": 2, "items": {"type": "string", "enum": list(POLICIES)}}
    properties = {**dict.fromkeys(("memory", "cores", "priority"), span), "coresPolicy": policies}
    return {"type": "object", "properties": properties}


def network_schema() -> dict[str, Any]:
    """JSON schema of the `network` object."""
    text = {"type": "string"}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "interface": {"type": "string", "pattern": f"^(?:{_INTERFACE.pattern})$"},
            "addresses": {"type": "array", "maxItems": 16, "items": text},
            "pool": text,
            "routes": {
                "type": "array",
                "maxItems": 16,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["destination"],
                    "properties": {"destination": text, "gateway": text},
                },
            },
            "mtu": {"type": "integer", "minimum": 68, "maximum": 65535},
            "vlan": {"type": "integer", "minimum": 1, "maximum": 4094},
            "guid": {"type": "string", "pattern": f"^(?:{_GUID.pattern})$"},
            "pkey": {"type": "string", "pattern": "^0[xX][0-9a-fA-F]{1,4}$"},
            "attachment": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name"],
                "properties": {"name": text, "namespace": text},
            },
        },
    }


def fabric_schema() -> dict[str, Any]:
    """JSON schema of the `fabric` object."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "trafficClass": {"type": "integer", "minimum": 0, "maximum": 255},
            "serviceLevel": {"type": "integer", "minimum": 0, "maximum": 15},
            "addressFamily": {"enum": ["IPv4", "IPv6"]},
            "addressRange": {"type": "string"},
            "pkey": {"type": "string", "pattern": f"^(?:{PKEY.pattern})$"},
        },
    }
