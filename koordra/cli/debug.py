"""`koordra debug`: what to attach to a bug report, and what the policy `koordra` has learned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from koordra import __version__
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli import options
from koordra.cli.cluster.cluster_objects import connect
from koordra.cli.manifest_files import read_text
from koordra.cli.options import say
from koordra.cli.output import render_table
from koordra.cli.progress import progress
from koordra.controller.allocation.learned.leftover_store import NAME, learned_of
from koordra.errors import InvalidManifest
from koordra.kubelet_plugin.discovery.reading import discover_with_driver
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
from koordra.kubelet_plugin.settings import NodePaths
from koordra.kubelet_plugin.status.dump import dump
from koordra.placement.policy.workload_table import LearnedTable


@click.group("debug")
def command() -> None:
    """Look into what runs: a node's driver, the controller's table."""


@command.command("dump")
@options.machine_root
@options.plugin_state
@options.cdi_folder
def dump_command(root: Path, state_dir: Path, cdi_dir: Path) -> None:
    """Print, as JSON, what this node's driver knows: machine, prepared claims, files. It holds no secrets."""
    paths = NodePaths(root=root.absolute(), state=state_dir.absolute(), cdi=cdi_dir.absolute())
    with progress("looking at the node", line=False):
        found = dump(paths, discover_with_driver(paths.root, HomeSource.of(paths.root)), version=__version__)
    say(json.dumps(found, indent=1))


@command.command("leftover-table")
@click.argument("file", required=False, type=options.FILE)
@options.access
@click.option("-n", "--namespace", default="koordra-system", help="Where the controller runs.")
@options.output("table", "json")
def leftover_table(file: Path | None, access: options.Access, namespace: str, output: str) -> None:
    """Show a learned table: FILE (koordra replay --save-table), or without one what the cluster's controller
    has learned.

    Which free shares of a GPU get filled and which stay empty, what is asked for with each GPU, and which
    models are reserved.
    """
    if file is not None:
        table = _of_file(file)
    else:
        data = connect(access).get(CONFIG_MAPS, NAME, namespace=namespace).get("data")
        learned = learned_of(data or {})
        table = LearnedTable() if learned is None else learned.table
    say(json.dumps(table.to_document(), indent=1) if output == "json" else _table_text(table))


def _of_file(file: Path) -> LearnedTable:
    try:
        document = json.loads(read_text(file))
    except ValueError as error:
        raise InvalidManifest(f"is not JSON: {error}", object=str(file)) from error
    if not isinstance(document, dict):
        raise InvalidManifest(
            "is no table", object=str(file), remedy="give a file of koordra replay --save-table"
        )
    return LearnedTable.from_document(document)


def _table_text(table: LearnedTable) -> str:
    parts = [f"learned from {table.pods} pods"]
    holes = [
        (str(10 * step), f"{hole / 1000:.0f}", "#" * round(hole / 10_000), _verdict(10 * step, hole))
        for step, hole in enumerate(table.holes)
        if hole
    ]
    parts.append(
        render_table(("FREE", "STAYS EMPTY", "", ""), holes) if holes else "no holes known: best fit"
    )
    demands = (
        ("CORES PER GPU", 1000, table.cores),
        ("GIB PER GPU", 1024, table.memory),
        ("NIC PERCENT PER GPU", 1, table.nics),
    )
    sections: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = [
        *(
            ((title, "OF THE GPU DEMAND"), [(f"{one.per_gpu / unit:g}", _percent(one.part)) for one in found])
            for title, unit, found in demands
        ),
        (
            ("GPUS", "CORES", "MODELS", "OF THE PODS"),
            [
                (str(one.gpus), f"{one.cpu / 1000:g}", "|".join(one.models) or "any", _percent(one.part))
                for one in table.blocks
            ],
        ),
        (
            ("SLICE", "OF ITS CARD", "OF THE SLICES"),
            [
                (" or ".join(one.profiles), f"{one.milli / 10:g} %", _percent(one.part))
                for one in table.slices
            ],
        ),
        (
            ("MODEL", "WANTED BY PODS THAT MAY RUN NOWHERE ELSE"),
            [(model, f"{part / 10:.0f} %") for model, part in sorted(table.reserved.items())],
        ),
    ]
    return "\n\n".join([*parts, *(render_table(header, rows) for header, rows in sections if rows)])


def _percent(millionths: int) -> str:
    return f"{millionths / 10_000:.2f} %"


def _verdict(free: int, hole: int) -> str:
    """A word for the extremes, so that the eye finds them."""
    part = hole / (10 * free) if free else 0
    return "practically lost" if part >= 80 else "gets filled" if part <= 15 else ""
