"""`koordra explain`: why a claim waits, or why it is where it would be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from koordra.allocator.explain.telling import lines as lines_of
from koordra.allocator.reasons import Reason
from koordra.api import kinds, objects
from koordra.api.objects import Fields, Object
from koordra.cli import options
from koordra.cli.cluster.claims import latest_events
from koordra.cli.cluster.cluster_objects import connect, read_cluster, read_predicates
from koordra.cli.manifest_files import read_objects
from koordra.cli.options import Access, say
from koordra.cli.output import Document, show_document
from koordra.cli.plan import features_option, policy_option
from koordra.controller.cache.changes import tables_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.gangs.annotations import gang_of
from koordra.controller.gangs.dry_run import dry_run_gangs
from koordra.controller.reconcile.dry_run import dry_run_claims, refusals
from koordra.errors import ApiError, InvalidManifest
from koordra.inert import inert
from koordra.kube.client import KubeClient
from koordra.placement import Plan, plan


@click.command("explain")
@click.argument("claims", nargs=-1, metavar="[CLAIM]...")
@options.manifests("YAML or JSON with the objects to plan with, in place of the cluster's")
@options.access
@policy_option
@features_option
@options.output("text", "json")
def explain(
    claims: Sequence[str],
    files: Sequence[str],
    access: Access,
    policy: str,
    features: str | None,
    output: str,
) -> None:
    """Why each claim waits: per node and device the clause that failed, with both figures, and the nearest
    miss.

    CLAIM is a name or namespace/name; without one, every pending claim is explained: of the files, or of the
    cluster. For a cluster the controller's next pass is worked out, without writing: also nodes that are left
    out after a refusal of kube-scheduler, kept free for claims that come first, or barred by ports, spread,
    volumes and affinity between pods. The newest Event of the controller stands beside it.
    """
    client = None if files else connect(access)
    manifests: list[Any] = read_objects(files) if client is None else read_cluster(client)
    entries = [
        entry
        for entry in explained(plan(manifests, policy=policy, features=features, report_errors=True))
        if not claims or _selects(entry, claims)
    ]
    if client is not None:
        events = _events(client)
        _add_forecast(entries, manifests, events, client)
        _add_latest_events(entries, manifests, events)
    _require_known(claims, entries)
    gangs = _waiting_gangs(manifests, client) if not claims else []
    if output == "json":
        show_document(_plain({"claims": entries} | ({"gangs": gangs} if gangs else {})), output)
    else:
        lines = [*(_text(entry) for entry in entries), *(_gang_text(entry) for entry in gangs)]
        say("\n\n".join(lines) or "no claim is waiting for devices")


def _plain(told: Any) -> Any:
    """With the fields of Reasons in their place."""
    if isinstance(told, Reason):
        return told.to_dict()
    if isinstance(told, Mapping):
        return {name: _plain(value) for name, value in told.items()}
    return [_plain(entry) for entry in told] if isinstance(told, list | tuple) else told


def _waiting_gangs(manifests: list[Any], client: KubeClient | None) -> list[Document]:
    """Gangs with waiting members, and how many of each would fit (docs/gangs.md)."""
    if not any(obj.get("kind") == "Pod" and gang_of(obj) is not None for obj in manifests):
        return []
    cluster = tables_of([*manifests, *([] if client is None else read_predicates(client))])
    return dry_run_gangs(cluster)


def _gang_text(entry: Document) -> str:
    least = f", {entry['least']} have to start together" if entry["least"] is not None else ""
    lines = [
        f"gang {entry['gang']}: {entry['stage']}, {entry['members']} members{least}",
        f"  {entry['text']}",
    ]
    for member, reasons in entry["lacking"].items():
        nearest = map(str, reasons[:2])
        more = f" (and {len(reasons) - 2} more reasons)" if len(reasons) > 2 else ""
        lines.append(f"    {member}: {'; '.join(nearest)}{more}")
    return "\n".join(lines)


def explained(found: Plan) -> list[Document]:
    """One entry per claim: namespace, name, status (Fits, DoesNotFit, Undecided), node, level, reasons."""
    entries = []
    for claim in sorted({*found.allocations, *found.unsatisfiable, *found.undecided}):
        namespace, _, name = claim.partition("/")
        outcome = _outcome(
            found.nodes.get(claim),
            found.levels.get(claim),
            found.unsatisfiable.get(claim) or found.undecided.get(claim) or (),
            is_undecided=claim in found.undecided,
        )
        entries.append({"namespace": namespace, "name": name, **outcome})
    return entries


def _outcome(
    node: str | None, level: str | None, reasons: Iterable[Reason], *, is_undecided: bool
) -> Document:
    return {
        "status": "Fits" if node else "Undecided" if is_undecided else "DoesNotFit",
        "node": node,
        "level": level,
        "reasons": tuple(reasons),
    }


def _events(client: KubeClient) -> list[Object]:
    """Nothing where Events may not be read."""
    try:
        return client.list(kinds.EVENTS)[0]
    except ApiError:
        return []


def _add_forecast(
    entries: Iterable[Document], manifests: list[Object], events: Iterable[Object], client: KubeClient
) -> None:
    """What the next pass would decide, in place of what the devices alone allow; claims without a pod wait
    for one."""
    now = datetime.now(UTC)
    cluster = tables_of([*manifests, *read_predicates(client)])
    found = dry_run_claims(cluster, refused=refusals(events, now), now=now)
    users = ClusterCache.of(cluster).pod_index.users
    for entry in entries:
        key = f"{entry['namespace']}/{entry['name']}"
        ahead = found.get(key)
        if ahead is not None:
            reasons = ahead.reasons.get(key, ())
            entry.update(_outcome(ahead.node, ahead.levels.get(key), reasons, is_undecided=ahead.undecided))
        elif not users.get(key):
            entry["waits"] = "no pod uses the claim yet; it is placed together with its pod"
        elif entry["status"] == "Fits":
            pods = ", ".join(sorted(objects.key(pod) for pod in users[key])[:3])
            entry["waits"] = f"pod {pods} cannot be planned yet: see its other claims, or its gang"


def _add_latest_events(
    entries: Iterable[Document], manifests: Iterable[Fields], events: Iterable[Object]
) -> None:
    words = latest_events(events)
    uids = {objects.key(obj): objects.uid(obj) for obj in manifests if obj.get("kind") == "ResourceClaim"}
    for entry in entries:
        said = words.get(uids.get(f"{entry['namespace']}/{entry['name']}", ""))
        if said is not None:
            entry["controller"] = said


def _selects(entry: Document, claims: Sequence[str]) -> bool:
    return entry["name"] in claims or f"{entry['namespace']}/{entry['name']}" in claims


def _require_known(claims: Sequence[str], entries: Sequence[Document]) -> None:
    for claim in claims:
        if not any(_selects(entry, (claim,)) for entry in entries):
            raise InvalidManifest(
                "is not among the pending claims",
                object=f"ResourceClaim {claim}",
                remedy="name a claim that has no allocation, or leave the name out",
            )


def _text(entry: Document) -> str:
    claim = inert(f"{entry['namespace']}/{entry['name']}")
    if entry["status"] == "Fits":
        near = f", GPU and NIC at level {entry['level']}" if entry["level"] else ""
        return "\n".join([f"{claim} fits on {entry['node']}{near}", *_controller_lines(entry)])
    lines = [f"{claim} {'is undecided' if entry['status'] == 'Undecided' else 'does not fit'}"]
    lines += [f"  {line}" for line in lines_of(entry["reasons"])]
    return "\n".join([*lines, *_controller_lines(entry)])


def _controller_lines(entry: Document) -> list[str]:
    lines = [f"  but {entry['waits']}"] if entry.get("waits") else []
    if entry.get("controller"):
        lines.append(f"  the controller said last: {entry['controller']}")
    return lines
