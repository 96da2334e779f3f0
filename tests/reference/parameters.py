"""docs/reference/parameters.md: koordra's opaque parameters, every kind and field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

from koordra.api.opaque.authority import CLAIMS_MAY_SAY
from koordra.api.opaque.parameters import API_VERSION, KINDS, NO_EFFECT
from koordra.api.opaque.rdma_fabric import RdmaFabric
from koordra.api.opaque.rdma_network import RdmaNetwork
from koordra.api.opaque.resize import Bounds
from koordra.api.reader import snake_case
from tests.reference.docstrings import documented, first_sentence, table
from tests.unit.api.parameter_schema import schema

NESTED: Mapping[str, type] = {"network": RdmaNetwork, "fabric": RdmaFabric, "resize": Bounds}
_OTHERWISE = {"coresPolicy": "policies"}
"""Of Bounds."""
ABOVE = f"""\
# Parameters

What a claim or class can say that Kubernetes' own fields cannot: opaque parameters of `{API_VERSION}`, in `devices.config[].opaque.parameters`,
one kind in each entry. A field that is misspelt, or that nobody knows, is an error that names it. *Says it*: `claim` where a tenant may,
`class` where it is the operator's alone, in a DeviceClass or ResourceClass ([isolation.md](../isolation.md#what-a-claim-may-say)).
"""


def page() -> str:
    return ABOVE + "".join(_kind(kind, cast("type", build)) for kind, (build, _) in KINDS.items())


def _kind(kind: str, of: type) -> Iterator[str] | str:
    known = {one["title"]: one for one in schema()["oneOf"]}[kind]
    fields = {name: one for name, one in known["properties"].items() if name not in ("apiVersion", "kind")}
    text = f"\n## {kind}\n\n{first_sentence(of)}.\n\n{_table(kind, of, fields, set(known['required']))}"
    for name in fields:
        if name in NESTED:
            inner = fields[name]["properties"]
            text += f"\n### {kind}.{name}\n\n{_table(f'{kind}.{name}', NESTED[name], inner, set())}"
    return text


def _table(where: str, of: type, fields: Mapping[str, Any], required: set[str]) -> str:
    words, defaults = documented(of), {one.name: one.default for one in dataclasses.fields(of)}
    rows = []
    for name, one in fields.items():
        attribute = _OTHERWISE.get(name, snake_case(name)) if of is Bounds else snake_case(name)
        default = "required" if name in required else _written(defaults[attribute])
        note = " It " + NO_EFFECT[name] + "." if where == "GpuConfig" and name in NO_EFFECT else ""
        rows.append(
            (f"`{name}`", _type(one, where, name), default, _who(where, name), f"{words[attribute]}.{note}")
        )
    return table(("field", "values", "default", "says it", "meaning"), rows)


def _who(where: str, name: str) -> str:
    if where in CLAIMS_MAY_SAY:
        return "claim" if name in CLAIMS_MAY_SAY[where] else "class"
    return "class"


def _written(default: object) -> str:
    if default in (None, ()) or default is dataclasses.MISSING:
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _type(one: Mapping[str, Any], where: str, name: str) -> str:
    if "enum" in one:
        return " ".join(f"`{word}`" for word in one["enum"])
    if one.get("type") == "integer":
        return f"{one['minimum']} to {one['maximum']}"
    if one.get("type") == "array":
        words = _type(one["items"], where, name)
        return f"list of {words}" if words != "text" else "list"
    if one.get("type") == "boolean":
        return "`true` `false`"
    if name in NESTED:
        return f"[object](#{where}{name})".lower()
    if one.get("type") == "object":
        return "object: " + ", ".join(f"`{inner}`" for inner in one.get("properties", ()))
    return "text"
