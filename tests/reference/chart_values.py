"""docs/reference/chart-values.md: the values of deploy/helm/koordra, from values.yaml and its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.fakes.chart import CHART
from tests.reference.docstrings import sentence, table

ABOVE = """\
# Values of the chart

`deploy/helm/koordra`; `values.schema.json` beside them refuses what there is not. What the components are: [install.md](../install.md).

"""


def page() -> str:
    schema = json.loads((CHART / "values.schema.json").read_text())
    rows = [
        (f"`{path}`", _type(schema, path.split(".")), f"`{json.dumps(value)}`", f"{words}.")
        for path, value, words in _leaves()
    ]
    return ABOVE + table(("value", "type", "default", "meaning"), rows)


def _leaves() -> Iterator[tuple[str, Any, str]]:
    """Path, default, and the comment above it."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    above: list[str] = []
    comment: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            comment.append(text.lstrip("# "))
        elif not text:
            comment = []
        else:
            depth = (len(line) - len(line.lstrip())) // 2
            above = [*above[:depth], text.partition(":")[0]]
            value = values
            for key in above:
                value = value[key]
            if not isinstance(value, dict) or not value:
                yield ".".join(above), value, sentence(" ".join(comment))
            comment = []


def _type(schema: dict[str, Any], path: list[str]) -> str:
    for key in path:
        while "$ref" in schema:
            schema = {**ROOT_DEFINITIONS[schema["$ref"].rpartition("/")[2]]}
        schema = schema["properties"][key]
    while "$ref" in schema:
        schema = ROOT_DEFINITIONS[schema["$ref"].rpartition("/")[2]]
    if "enum" in schema:
        return " ".join(f"`{word or json.dumps(word)}`" for word in schema["enum"])
    inner = schema.get("items", {})
    if inner.get("enum"):
        return "list of components"
    return str(schema.get("type", "any")) + (f" of {inner['type']}s" if "type" in inner else "")


ROOT_DEFINITIONS: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text()).get(
    "definitions", {}
)
