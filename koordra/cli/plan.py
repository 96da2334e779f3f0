"""`koordra plan`: what-if. Which devices would these manifests get, if they were applied to these objects?"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from koordra.allocator import Plan, Reason

MOST_REASONS = 6
"""Lines of reasons shown per waiting claim in a table; `koordra explain` shows all."""


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="YAML or JSON with Nodes, ResourceSlices, DeviceClasses, claims, pods ... ('-' is stdin). Repeatable.",
)
@click.option("--policy", default="koordra", show_default=True, help="koordra, Binpack, Spread, FirstFit ...")
@click.option(
    "--features", metavar="GATES", help="Feature gates that are on, joined by '+'. Default: those of 1.37."
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)
def command(files: Sequence[str], policy: str, features: str | None, output: str) -> None:
    """What-if, offline: plan the claims in the files against the nodes and slices in the files.

    Claims that have an allocation count as taken. Nothing is written anywhere.
    """
    from koordra.allocator import plan

    manifests = read_objects(files)
    found = plan(manifests, policy=policy, features=features, report_errors=True)
    click.echo(_rendered(found, output), nl=False)


def read_objects(files: Sequence[str]) -> list[Mapping[str, Any]]:
    """Every object of the files, Lists taken apart, claims made from templates, koordra's classes added where missing.

    Raises InvalidManifest naming file and place.
    """
    from koordra.allocator.templates import with_template_claims

    found = [entry for name in files for entry in _read(name)]
    return [*with_template_claims(found), *_missing_classes(found)]


def _read(name: str) -> list[Mapping[str, Any]]:
    import yaml

    from koordra.errors import InvalidManifest

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
    except OSError as error:
        raise InvalidManifest(f"cannot be read: {error.strerror}", object=name) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidManifest(f"is not YAML: {' '.join(str(error).split())}", object=name) from error
    found: list[Mapping[str, Any]] = []
    for number, document in enumerate(documents, start=1):
        if document is not None:
            found += _objects(document, where=f"{name} document {number}")
    return found


def _objects(document: object, *, where: str) -> list[Mapping[str, Any]]:
    from koordra.errors import InvalidManifest

    if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
        raise InvalidManifest(
            "is not a Kubernetes object", object=where, remedy="write apiVersion, kind and metadata"
        )
    items = document.get("items")
    if document["kind"].endswith("List") and isinstance(items, list):
        # kubectl leaves kind out of the items of typed lists.
        kind = document["kind"].removesuffix("List")
        return [
            entry
            for number, item in enumerate(items)
            for entry in _objects(
                {"kind": kind, **item} if kind and isinstance(item, Mapping) else item,
                where=f"{where} items[{number}]",
            )
        ]
    if not isinstance(document.get("metadata"), Mapping):
        raise InvalidManifest("has no metadata", object=where, field="metadata", remedy="give it a name")
    return [document]


def _missing_classes(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """koordra's DeviceClasses that the objects ask for and do not bring along: those of every cluster with koordra."""
    from koordra.allocator.classes import shipped_classes

    there = {entry["metadata"].get("name") for entry in found if entry["kind"] == "DeviceClass"}
    return [entry for entry in shipped_classes() if entry["metadata"]["name"] not in there]


def _rendered(found: Plan, output: str) -> str:
    if output == "json":
        import json

        return json.dumps(found.to_dict(), indent=2) + "\n"
    if output == "yaml":
        import yaml

        return str(yaml.safe_dump(found.to_dict(), sort_keys=False))
    return _table(found)


def _table(found: Plan) -> str:
    from koordra.cli import columns

    parts = []
    if found.allocations:
        rows = [
            (
                claim,
                found.nodes[claim],
                found.levels[claim] or "-",
                str(found.scores[claim]),
                "\n".join(_device(entry) for entry in allocation["devices"].get("results", ())),
            )
            for claim, allocation in sorted(found.allocations.items())
        ]
        parts.append(columns.render(("CLAIM", "NODE", "LEVEL", "SCORE", "DEVICES"), rows))
    for title, table in (("Does not fit", found.unsatisfiable), ("Undecided", found.undecided)):
        parts += [_waiting(title, claim, reasons) for claim, reasons in sorted(table.items())]
    return "\n\n".join(parts or ["no claim is waiting for devices"]) + "\n"


def _device(entry: Mapping[str, Any]) -> str:
    amounts = ", ".join(
        f"{name} {amount}" for name, amount in sorted(entry.get("consumedCapacity", {}).items())
    )
    return f"{entry['request']}: {entry['device']}" + (f" ({amounts})" if amounts else "")


def _waiting(title: str, claim: str, reasons: Sequence[Reason]) -> str:
    lines = [f"{title}: {claim}", *(f"  {reason}" for reason in reasons[:MOST_REASONS])]
    if len(reasons) > MOST_REASONS:
        lines.append(f"  ... and {len(reasons) - MOST_REASONS} more (koordra explain)")
    return "\n".join(lines)
