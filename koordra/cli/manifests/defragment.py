"""`koordra plan --defragment`: which pods to move so that a shape becomes free. Prints; moves nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click


def show(manifests: Sequence[Mapping[str, Any]], wanted: str, output: str) -> None:
    """The answer for the shape `wanted` on these objects."""
    from koordra.placement.defragment.cluster import free, shape_of

    found = free(manifests, shape_of(wanted))
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    elif output == "yaml":
        from koordra.cli.yaml_text import written

        click.echo(written(found), nl=False)
    else:
        click.echo(told(found))


def told(found: Mapping[str, Any]) -> str:
    """For a person."""
    from koordra.cli import columns

    shape = found["shape"]
    wanted = f"{shape['gpus']} GPUs and {shape['nics']} NICs ({shape['scope']})"
    if found["freed"] is None:
        return f"{wanted} cannot be freed by moving pods"
    lines = [f"{wanted}: node {found['freed']['node']}, {', '.join(found['freed']['devices'])}"]
    if not found["moves"]:
        return f"{lines[0]}\nfree already; nothing needs to move"
    lines.append(
        columns.render(("MOVE", "FROM", "TO"), [(m["pod"], m["from"], m["to"]) for m in found["moves"]])
    )
    cost = found["cost"]
    proof = (
        "no fewer moves would do" if found["proven"] else f"at least {cost['atLeastPods']} moves are needed"
    )
    gain = found["gain"]
    lines.append(f"gain: {gain['freeAfter']} such places free at once, {gain['freeBefore']} now")
    lines.append(f"cost: {cost['pods']} pods, {cost['gpus']:g} GPUs move; {proof}")
    return "\n".join(lines)
