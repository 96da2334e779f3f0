"""`koordra claims`: which claims of a cluster have which devices, for whom, and why the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

import click

from koordra.api import kinds, objects
from koordra.api.objects import Fields, Object
from koordra.cli import options
from koordra.cli.cluster.cluster_objects import (
    Listed,
    Source,
    connect,
    followed,
    latest_events,
    listed_once,
    namespace_of,
)
from koordra.cli.cluster.device_text import device_lines
from koordra.cli.options import Access, Scope
from koordra.cli.output import Cell, Document, show_rows
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache

HEADER = ("NAMESPACE", "NAME", "STATE", "NODE", "DEVICES", "PODS", "AGE")


@click.command("claims")
@options.access
@options.scope
@options.flag("--waiting", "Only claims that have no devices.")
@options.watch
@options.output("table", "wide", "json", "yaml")
def claims(access: Access, scope: Scope, waiting: bool, watch: bool, output: str) -> None:
    """The claims that concern koordra: their devices, pods and, where they wait, the last word on why.

    `wide` adds the reason; `koordra explain` gives it per node and device.
    """
    client, namespace = connect(access), namespace_of(access, scope)
    sources = (
        Source(kinds.RESOURCE_CLAIMS, namespace, scope.selector),
        Source(kinds.PODS, namespace),
        Source(kinds.DEVICE_CLASSES, optional=True),
        Source(kinds.EVENTS, namespace, optional=True),
    )

    def rows(found: Listed) -> list[Document]:
        shown = claim_rows(*(found[one.kind] for one in sources))
        return [row for row in shown if not waiting or row["state"] == "Waiting"]

    where = "" if namespace is None else f" in namespace {namespace}; -A shows those of all"
    wide = output == "wide"
    show_rows(
        (rows(found) for found in (followed if watch else listed_once)(client, sources)),
        name="claims",
        output=output,
        header=(*HEADER, *(("REASON",) if wide else ())),
        cells=partial(_cells, wide=wide),
        empty=f"no claim concerns koordra{where}",
    )


def claim_rows(
    claims: Iterable[Object], pods: Iterable[Object], classes: Iterable[Object], events: Iterable[Object]
) -> list[Document]:
    """One entry per claim of koordra's, by namespace and name."""
    by_name = {objects.name(entry): entry for entry in classes}
    users = ClusterCache.of({kinds.PODS: {objects.key(pod): pod for pod in pods}}).pod_index.users
    reasons = latest_events(events)
    found = []
    for claim in sorted(claims, key=objects.key):
        if claims_of.is_allocated(claim):
            ours = claims_of.holds_koordra_devices(claim)
        else:
            ours = claims_of.owner(claim, by_name) is not claims_of.Owner.FOREIGN
        if not ours:
            continue
        state = _state(claim)
        found.append(
            {
                "namespace": objects.namespace(claim),
                "name": objects.name(claim),
                "state": state,
                "node": claims_of.node_of(claim),
                "devices": [dict(result) for result in claims_of.results(claim)],
                "pods": sorted(objects.name(pod) for pod in users.get(objects.key(claim), [])),
                "created": objects.metadata(claim).get("creationTimestamp"),
                "reason": reasons.get(objects.uid(claim)) if state == "Waiting" else None,
            }
        )
    return found


def _state(claim: Fields) -> str:
    if objects.is_deleting(claim):
        return "Ending"
    if not claims_of.is_allocated(claim):
        return "Waiting"
    return "InUse" if claims_of.reserved_for(claim) else "Allocated"


def _cells(row: Fields, *, wide: bool) -> Sequence[Cell]:
    return (
        row["namespace"],
        row["name"],
        row["state"],
        row["node"] or "-",
        device_lines(row["devices"], wide=wide) or "-",
        row["pods"] if wide else _shortened(row["pods"]),
        age(row["created"], datetime.now(UTC)),
        *((row["reason"] or "",) if wide else ()),
    )


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "-"


def age(created: str | None, now: datetime) -> str:
    if not created:
        return "-"
    seconds = int((now - datetime.fromisoformat(created)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(0, seconds)}s"
