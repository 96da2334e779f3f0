"""`koordra plan`: what-if. Which devices would these manifests get, if they were applied to these objects?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from koordra.allocator import Reason
    from koordra.placement import Plan

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
    from koordra.cli.manifests.files import read_objects
    from koordra.cli.manifests.workload_pods import with_workload_pods
    from koordra.placement import plan

    manifests = read_objects(files)
    if defragment is not None:
        from koordra.cli.manifests.defragment import show

        show(manifests, defragment, output)
        return
    manifests, told = with_workload_pods(manifests)
    for line in told:
        click.echo(line, err=True)
    found = plan(manifests, policy=policy, features=features, report_errors=True)
    click.echo(_rendered(found, output), nl=False)


def _rendered(found: Plan, output: str) -> str:
    if output == "json":
        import json

        return json.dumps(found.to_dict(), indent=2) + "\n"
    if output == "yaml":
        from koordra.cli.yaml_text import written

        return written(found.to_dict())
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
