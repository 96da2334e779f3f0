"""`koordra plan`: what-if. Which devices would these manifests get, if they were applied to these objects?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from koordra.allocator import Reason
from koordra.cli.manifests.files import read_objects, with_workload_pods
from koordra.cli.output import as_text, render_table
from koordra.placement import Plan, plan
from koordra.placement.defragment.cluster import free, shape_of

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
    help="YAML or JSON (or JSON lines) with Nodes, ResourceSlices, DeviceClasses, claims, pods ... ('-' is stdin). Repeatable.",
)
@click.option("--policy", default="koordra", show_default=True, help="koordra, Binpack, Spread, FirstFit ...")
@click.option(
    "--features", metavar="GATES", help="Feature gates that are on, joined by '+'. Default: those of 1.37."
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)
@click.option(
    "--defragment",
    metavar="SHAPE",
    help="Instead of planning: the fewest pods whose move frees a shape, e.g. gpus=8,nics=8,scope=Node. Moves nothing.",
)
def command(
    files: Sequence[str], policy: str, features: str | None, output: str, defragment: str | None
) -> None:
    """What-if, offline: plan the claims in the files against the nodes and slices in the files.

    Claims that have an allocation count as taken. Of a Deployment, Job ... in a file one pod is planned. Nothing is written
    anywhere.
    """
    manifests = read_objects(files)
    if defragment is not None:
        click.echo(_freed(manifests, defragment, output), nl=False)
        return
    manifests, notes = with_workload_pods(manifests)
    for line in notes:
        click.echo(line, err=True)
    click.echo(
        _rendered(plan(manifests, policy=policy, features=features, report_errors=True), output), nl=False
    )


def _rendered(found: Plan, output: str) -> str:
    return as_text(found.to_dict(), output) if output in ("json", "yaml") else _table(found)


def _table(found: Plan) -> str:
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
        parts.append(render_table(("CLAIM", "NODE", "LEVEL", "SCORE", "DEVICES"), rows))
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


def _freed(manifests: Sequence[Mapping[str, Any]], wanted: str, output: str) -> str:
    """Which pods to move so that the shape `wanted` becomes free; nothing is moved."""
    found = free(manifests, shape_of(wanted))
    return as_text(found, output) if output in ("json", "yaml") else _moves(found) + "\n"


def _moves(found: Mapping[str, Any]) -> str:
    shape = found["shape"]
    wanted = f"{shape['gpus']} GPUs and {shape['nics']} NICs ({shape['scope']})"
    if found["freed"] is None:
        return f"{wanted} cannot be freed by moving pods"
    lines = [f"{wanted}: node {found['freed']['node']}, {', '.join(found['freed']['devices'])}"]
    if not found["moves"]:
        return f"{lines[0]}\nfree already; nothing needs to move"
    lines.append(
        render_table(("MOVE", "FROM", "TO"), [(m["pod"], m["from"], m["to"]) for m in found["moves"]])
    )
    cost = found["cost"]
    proof = (
        "no fewer moves would do" if found["proven"] else f"at least {cost['atLeastPods']} moves are needed"
    )
    gain = found["gain"]
    lines.append(f"gain: {gain['freeAfter']} such places free at once, {gain['freeBefore']} now")
    lines.append(f"cost: {cost['pods']} pods, {cost['gpus']:g} GPUs move; {proof}")
    return "\n".join(lines)
