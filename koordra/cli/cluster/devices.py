"""`koordra devices`: the GPUs, MIG placements and NICs of a cluster, what is free of each, and who has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import click

from koordra.allocator.reasons import amount_text
from koordra.api import kinds, names
from koordra.api.objects import Fields
from koordra.cli import options
from koordra.cli.cluster.cluster_objects import DEVICES, Listed, Source, connect, followed, listed_once
from koordra.cli.cluster.device_text import amount_shown
from koordra.cli.options import Access
from koordra.cli.output import Cell, Document, show_rows
from koordra.controller.explain.device_rows import device_rows
from koordra.quantity import parse

HEADER: Final = ("NODE", "DEVICE", "MODEL", "STATE", "FREE", "NUMA")
WIDE: Final = ("TYPE", "SWITCH", "HOLDERS", "TAINTS")


@click.command("devices")
@options.access
@click.option("--node", help="Only devices of this node.  [default: all]")
@options.selector
@click.option("--type", "type_", type=click.Choice(["gpu", "mig", "nic", "vf"]), help="Only this type.")
@options.flag("--free", "Only devices of which something can still be had.")
@options.watch
@options.output("table", "wide", "json", "yaml")
def devices(
    access: Access, node: str | None, selector: str, type_: str | None, free: bool, watch: bool, output: str
) -> None:
    """koordra's devices on every node: what is free of them, and which claims hold the rest.

    Free: nobody has it. Shared: a part is free. Taken: nothing is. Blocked: parts of the same card that are
    in use leave no room. Tainted: kept from new claims. -l goes by the labels of the nodes.
    """

    def rows(found: Listed) -> list[Document]:
        return [
            row
            for row in device_rows(one for objects in found.values() for one in objects)
            if node in (None, row.get("node"))
            and type_ in (None, row.get("type"))
            and not (free and row["state"] not in ("Free", "Shared"))
        ]

    sources = (Source(kinds.NODES, selector=selector), *DEVICES)
    wide = output == "wide"
    show_rows(
        (rows(found) for found in (followed if watch else listed_once)(connect(access), sources)),
        name="devices",
        output=output,
        header=(*HEADER, *(WIDE if wide else ())),
        cells=partial(_cells, wide=wide),
        empty="no device of koordra's",
    )


def _cells(row: Fields, *, wide: bool) -> Sequence[Cell]:
    return (
        row["node"] or "-",
        row["name"] or f"pool {row['pool']}",
        row["model"] or "-",
        row["state"],
        row["reason"] or _free(row["capacity"], wide=wide),
        "-" if row["numaNode"] is None else str(row["numaNode"]),
        *((row["type"] or "-", row["pcieSwitch"] or "-") if wide else ()),
        *((row["holders"] or "-", row["taints"] or "-") if wide else ()),
    )


def _free(capacity: Mapping[str, Mapping[str, str]], *, wide: bool) -> str:
    """In one line of 80 columns: of how much, and how many more claims may have a share (slots), is for wide
    tables, but that no claim may."""
    if not wide:
        order = sorted(capacity, key=lambda name: name == names.CAPACITY_BANDWIDTH)
        return (
            ", ".join([_shortly(name, capacity[name]["free"]) for name in order if _matters(name, capacity)])
            or "-"
        )
    texts = [
        amount_shown(name, entry["free"])
        if entry["free"] == entry["total"]
        else f"{amount_shown(name, entry['free'])} of {amount_text(name, parse(entry['total']))}"
        for name, entry in capacity.items()
    ]
    return ", ".join(texts) or "-"


def _matters(name: str, capacity: Mapping[str, Mapping[str, str]]) -> bool:
    return name != names.CAPACITY_SLOTS or capacity[name]["free"] == "0"


def _shortly(name: str, free: str) -> str:
    """Bandwidth is known by its unit."""
    return amount_shown(name, free).removeprefix(f"{names.CAPACITY_BANDWIDTH} ")
