"""`koordra leftover-table`: what the policy `koordra` has learned of a workload, as a person reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from koordra.allocator.fleet.table import Demand, Table


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(file: Path, output: str) -> None:
    """Show a learned table (koordra replay --save-table, or the controller's).

    Which free shares of a GPU get filled and which stay empty, what is asked for with each GPU, and which models are reserved.
    """
    from koordra.allocator.fleet.table import Table
    from koordra.errors import InvalidManifest

    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidManifest(f"cannot be read: {error}", object=str(file)) from error
    if not isinstance(document, dict):
        raise InvalidManifest(
            "is no table", object=str(file), remedy="give a file of koordra replay --save-table"
        )
    table = Table.from_document(document)
    click.echo(json.dumps(table.to_document(), indent=1) if output == "json" else _told(table))


def _told(table: Table) -> str:
    from koordra.cli import columns

    parts = [f"learned from {table.pods} pods"]
    holes = [
        (str(10 * step), f"{hole / 1000:.0f}", "#" * round(hole / 10_000), _verdict(10 * step, hole))
        for step, hole in enumerate(table.holes)
        if hole
    ]
    parts.append(
        columns.render(("FREE", "STAYS EMPTY", "", ""), holes) if holes else "no holes known: best fit"
    )
    for title, unit, demands in (
        ("CORES PER GPU", 1000, table.cores),
        ("GIB PER GPU", 1024, table.memory),
        ("NIC PERCENT PER GPU", 1, table.nics),
    ):
        if demands:
            parts.append(columns.render((title, "OF THE GPU DEMAND"), _demanded(demands, unit)))
    if table.blocks:
        rows = [
            (
                str(one.gpus),
                f"{one.cpu / 1000:g}",
                "|".join(one.models) or "any",
                f"{one.part / 10_000:.2f} %",
            )
            for one in table.blocks
        ]
        parts.append(columns.render(("GPUS", "CORES", "MODELS", "OF THE PODS"), rows))
    if table.reserved:
        kept = [(model, f"{part / 10:.0f} %") for model, part in sorted(table.reserved.items())]
        parts.append(columns.render(("MODEL", "WANTED BY PODS THAT MAY RUN NOWHERE ELSE"), kept))
    return "\n\n".join(parts)


def _verdict(free: int, hole: int) -> str:
    """A word for the extremes, so that the eye finds them."""
    part = hole / (10 * free) if free else 0
    return "practically lost" if part >= 80 else "gets filled" if part <= 15 else ""


def _demanded(demands: tuple[Demand, ...], unit: int) -> list[tuple[str, str]]:
    return [(f"{one.per_gpu / unit:g}", f"{one.part / 10_000:.2f} %") for one in demands]
