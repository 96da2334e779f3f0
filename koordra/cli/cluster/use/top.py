"""`koordra top`: what claims and pods of a cluster were granted of its GPUs and NICs and what they use, now,
whoever allocated: koordra's controller, kube-scheduler, or Koordinator's scheduler by its annotation.

Counters become rates by two readings. An allocated claim that nobody runs yet is there with what it was
granted; what is not known shows as `-`, which is not 0.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import click

from koordra.api import kinds, names, objects
from koordra.api.objects import Fields, Object
from koordra.cli import options
from koordra.cli.cluster.cluster_objects import connect, namespace_of
from koordra.cli.cluster.use.plugin_readings import PluginReadings, read_plugins
from koordra.cli.cluster.use.prometheus import Prometheus, prometheus
from koordra.cli.cluster.use.readings import COUNTERS, GAUGES, Holder, Reading, Use, rates, uses
from koordra.cli.options import Access, Scope, say
from koordra.cli.output import Document, show_document, show_table
from koordra.cli.progress import progress
from koordra.controller import claims as claims_of
from koordra.kube.client import KubeClient

HEADER: Final = ("NAMESPACE", "POD", "CLAIM", "NODE", "GPUS", "USED", "MEMORY", "USED", "RECEIVED", "SENT")
WIDE: Final = ("ALLOCATED BY", "GPU")
ALLOCATORS: Final = {"koordra-controller": "koordra", "kube-scheduler": "kube-scheduler"}
KOORDINATOR: Final = "Koordinator"
RATE: Final = "2m"
"""Over which Prometheus rates."""
Moment = tuple[Sequence[Reading], Sequence[Reading]]
"""Gauges, and counters as rates."""


@click.command("top")
@options.access
@options.scope
@options.prometheus
@options.watch
@click.option(
    "--interval",
    type=click.FloatRange(1, 600),
    default=10.0,
    help="Seconds between two readings of the nodes, which sample every 5 s.",
)
@options.output("table", "wide", "json", "yaml")
def top(access: Access, scope: Scope, named: str, watch: bool, interval: float, output: str) -> None:
    """GPUs, GPU memory and RDMA of claims and pods: what they were granted, and what they use.

    USED of GPUS are GPUs whose kernels ran: 0.40 is one that was busy 40% of the time.
    """
    client, namespace = connect(access), namespace_of(access, scope)
    server = prometheus(client, named)
    moments = _kept(server, interval) if server else _live(client, interval)
    for number, (readings, rated) in enumerate(moments):
        claims, _ = client.list(kinds.RESOURCE_CLAIMS, namespace=namespace, label_selector=scope.selector)
        if number and output == "yaml":
            say("---")
        _show(use_rows(claims, readings, rated, namespace=namespace), output, again=watch)
        if not watch:
            return


def _live(client: KubeClient, interval: float) -> Iterator[Moment]:
    wanted = (*GAUGES, *COUNTERS)
    with progress(f"measuring for {interval:g} s", line=False):
        before, at = _read(client, wanted), time.monotonic()
        time.sleep(interval)
    for node, why in sorted(before.silent.items()):
        say(f"koordra: node {node} is not known: {why}", err=True)
    while True:
        found, now = _read(client, wanted), time.monotonic()
        yield found.readings, rates(before.readings, found.readings, seconds=now - at)
        before, at = found, now
        time.sleep(interval)


def _read(client: KubeClient, wanted: Sequence[str]) -> PluginReadings:
    return read_plugins(client, wanted)


def _kept(server: Prometheus, interval: float) -> Iterator[Moment]:
    every = "|".join(GAUGES)
    while True:
        gauges = server.query(f'{{__name__=~"{every}"}}')
        rated = [
            one._replace(name=name)
            for name in COUNTERS
            for one in server.query(f'rate({name}{{pod!=""}}[{RATE}])')
        ]
        yield gauges, rated
        time.sleep(interval)


def use_rows(
    claims: Sequence[Object],
    readings: Sequence[Reading],
    rated: Sequence[Reading],
    *,
    namespace: str | None = None,
) -> list[Document]:
    """One for each pod and claim, by name: of these claims, and of pods that have devices without one."""
    ours = {
        (objects.namespace(claim), objects.name(claim)): claim
        for claim in claims
        if claims_of.is_allocated(claim) and claims_of.holds_koordra_devices(claim)
    }
    nics = {key: frozenset(_nics(claim)) for key, claim in ours.items()}
    found = {
        holder: use
        for holder, use in uses(readings, rated, nics).items()
        if (holder.claim and (holder.namespace, holder.claim) in ours)
        or (not holder.claim and namespace in (None, holder.namespace))
    }
    running = {(holder.namespace, holder.claim) for holder in found}
    for place, name in ours.keys() - running:
        found[Holder(place, "", name)] = Use()
    return [
        _row(holder, use, ours.get((holder.namespace, holder.claim), {}))
        for holder, use in sorted(found.items(), key=lambda item: item[0])
    ]


def _nics(claim: Fields) -> Iterator[str]:
    for result in claims_of.results(claim):
        if result.get("driver") == names.DRIVER:
            yield str(result.get("device"))


def _row(holder: Holder, use: Use, claim: Fields) -> Document:
    return {
        "namespace": holder.namespace,
        "pod": holder.pod,
        "claim": holder.claim,
        "node": (claims_of.node_of(claim) if claim else None) or use.node,
        "allocatedBy": allocator(claim) if claim else KOORDINATOR,
        "gpus": {"granted": round(use.gpus, 3) if use.devices else None, "used": _rounded(use.gpus_used, 3)},
        "memoryBytes": {
            "granted": int(use.memory) if use.devices else None,
            "used": _rounded(use.memory_used, 0),
        },
        "receivedBytesPerSecond": _rounded(use.received, 0),
        "transmittedBytesPerSecond": _rounded(use.transmitted, 0),
        "devices": [
            {"UUID": device.uuid, **({"GPU_I_ID": device.instance} if device.instance else {})}
            for device in sorted(use.devices)
        ],
    }


def _rounded(value: float | None, places: int) -> float | None:
    return None if value is None else round(value, places)


def allocator(claim: Fields) -> str:
    """Who wrote the allocation, by the fields that the API server keeps of each writer."""
    for entry in objects.metadata(claim).get("managedFields") or ():
        status = (entry.get("fieldsV1") or {}).get("f:status") or {}
        if "f:allocation" in status:
            manager = str(entry.get("manager"))
            return ALLOCATORS.get(manager, manager)
    return ""


def _show(rows: Sequence[Document], output: str, *, again: bool) -> None:
    if output in ("json", "yaml"):
        show_document({"at": datetime.now(UTC).isoformat(timespec="seconds"), "top": rows}, output)
        return
    if again and sys.stdout.isatty():
        click.clear()
    wide = output == "wide"
    show_table(
        (*HEADER, *(WIDE if wide else ())),
        [_cells(row, wide=wide) for row in rows],
        empty="no claim or pod has devices of koordra's",
        wide=wide,
    )


def _cells(row: Mapping[str, object], *, wide: bool) -> Sequence[str | Sequence[str]]:
    gpus, memory = _amounts(row["gpus"]), _amounts(row["memoryBytes"])
    uuids = [f"{one['UUID']} {one.get('GPU_I_ID', '')}".strip() for one in row["devices"]]  # type: ignore[attr-defined]
    return (
        str(row["namespace"]),
        str(row["pod"] or "-"),
        str(row["claim"] or "-"),
        str(row["node"] or "-"),
        *("-" if one is None else f"{one:.2f}" for one in gpus),
        *("-" if one is None else _binary(one) for one in memory),
        *(
            "-" if (rate := row[name]) is None else f"{_decimal(float(str(rate)))}/s"
            for name in ("receivedBytesPerSecond", "transmittedBytesPerSecond")
        ),
        *((str(row["allocatedBy"] or "-"), uuids or "-") if wide else ()),
    )


def _amounts(of: object) -> tuple[float | None, float | None]:
    assert isinstance(of, dict)
    return of["granted"], of["used"]


def _binary(amount: float) -> str:
    return f"{amount / (1 << 30):.1f}Gi" if amount >= 1 << 30 else f"{-(-int(amount) // (1 << 20))}Mi"


def _decimal(amount: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= size:
            return f"{amount / size:.1f}{unit}"
    return f"{amount:.0f}B"
