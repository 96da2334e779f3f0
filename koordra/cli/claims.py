"""`koordra claims`: which claims of a cluster have which devices, for whom, and why the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click

from koordra.api import kinds, objects
from koordra.api.objects import Fields, Object
from koordra.cli import options
from koordra.cli.cluster_objects import connect
from koordra.cli.output import Document, show_document, show_table
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.inert import inert

HEADER = ("NAMESPACE", "NAME", "STATE", "NODE", "DEVICES", "PODS", "AGE")


@click.command("claims")
@options.kubeconfig
@click.option("-n", "--namespace", help="Only claims of this namespace.  [default: all]")
@options.flag("--waiting", "Only claims that have no devices.")
@options.output("table", "wide", "json", "yaml")
def claims(kubeconfig: str | None, namespace: str | None, waiting: bool, output: str) -> None:
    """The claims that concern koordra: their devices, pods and, where they wait, the last word on why.

    `wide` adds the reason; `koordra explain` gives it per node and device.
    """
    client = connect(kubeconfig)
    claims, pods, classes, events = (
        client.list(kind)[0]
        for kind in (kinds.RESOURCE_CLAIMS, kinds.PODS, kinds.DEVICE_CLASSES, kinds.EVENTS)
    )
    shown = [
        row
        for row in claim_rows(claims, pods, classes, events)
        if namespace in (None, row["namespace"]) and not (waiting and row["state"] != "Waiting")
    ]
    if output in ("json", "yaml"):
        show_document({"claims": shown}, output)
    else:
        _show(shown, wide=output == "wide")


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


def latest_events(events: Iterable[Object]) -> dict[str, str]:
    """Object uid -> the newest thing that koordra's controller said about it."""
    newest: dict[str, tuple[str, str]] = {}
    for event in events:
        if (event.get("source") or {}).get("component") != "koordra-controller":
            continue
        uid = str((event.get("involvedObject") or {}).get("uid"))
        said = (
            str(event.get("lastTimestamp") or ""),
            inert(f"{event.get('reason')}: {event.get('message')}"),
        )
        newest[uid] = max(said, newest.get(uid, ("", "")))
    return {uid: text for uid, (_, text) in newest.items()}


def _state(claim: Fields) -> str:
    if objects.is_deleting(claim):
        return "Ending"
    if not claims_of.is_allocated(claim):
        return "Waiting"
    return "InUse" if claims_of.reserved_for(claim) else "Allocated"


def _show(rows: Sequence[Fields], *, wide: bool) -> None:
    now = datetime.now(UTC)
    show_table(
        (*HEADER, *(("REASON",) if wide else ())),
        [
            (
                row["namespace"],
                row["name"],
                row["state"],
                row["node"] or "-",
                [device_text(result) for result in row["devices"]] or "-",
                _shortened(row["pods"]),
                _age(row["created"], now),
                *((row["reason"] or "",) if wide else ()),
            )
            for row in rows
        ],
        empty="no claim concerns koordra",
    )


def device_text(result: Fields) -> str:
    """A result of an allocation: `gpu: gpu-0000-0f-00-0 (cores 30, memory 10Gi)`."""
    consumed = sorted((result.get("consumedCapacity") or {}).items())
    amounts = ", ".join(f"{name} {amount}" for name, amount in consumed)
    return f"{result.get('request')}: {result.get('device')}" + (f" ({amounts})" if amounts else "")


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "-"


def _age(created: str | None, now: datetime) -> str:
    if not created:
        return "-"
    seconds = int((now - datetime.fromisoformat(created)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(0, seconds)}s"
