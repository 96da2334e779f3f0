"""`koordra explain`: why a claim waits, or why it is where it would be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from koordra.allocator import Plan, Reason
    from koordra.kube import KubeClient


@click.command()
@click.argument("claims", nargs=-1, metavar="[CLAIM]...")
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE",
    help="YAML or JSON with the objects to plan with ('-' is stdin). Repeatable.  [default: the cluster]",
)
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    help="The cluster to look at without FILE.  [default: in-cluster, or KUBECONFIG]",
)
@click.option("--policy", default="koordra", show_default=True, help="The placement policy to explain.")
@click.option(
    "--features", metavar="GATES", help="Feature gates that are on, joined by '+'. Default: those of 1.37."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    claims: Sequence[str],
    files: Sequence[str],
    kubeconfig: str | None,
    policy: str,
    features: str | None,
    output: str,
) -> None:
    """Why each claim waits: per node and device the clause that failed, with both figures, and the nearest miss.

    CLAIM is a name or namespace/name; without one, every pending claim is explained: of the files, or of the cluster.
    For a cluster it also says what the controller said last: it knows of nodes that are left out after a refusal, kept free
    for others, or barred by ports, spread and affinity between pods, which are not worked out here.
    """
    from koordra.allocator import plan
    from koordra.cli.cluster_objects import connect, read_cluster
    from koordra.cli.manifests import read_objects

    client = None if files else connect(kubeconfig)
    manifests = read_objects(files) if client is None else read_cluster(client)
    found = plan(manifests, policy=policy, features=features, report_errors=True)
    told = [entry for entry in explained(found) if not claims or _is_meant(entry, claims)]
    if client is not None:
        _add_last_words(told, manifests, client)
    _complain_about_unknown(claims, told)
    if output == "json":
        click.echo(json.dumps({"claims": told}, indent=2))
    else:
        click.echo("\n\n".join(_text(entry) for entry in told) or "no claim is waiting for devices")


def explained(found: Plan) -> list[dict[str, Any]]:
    """One entry per claim: namespace, name, status (Fits, DoesNotFit, Undecided), node, level, reasons."""
    entries = []
    for claim in sorted({*found.allocations, *found.unsatisfiable, *found.undecided}):
        namespace, _, name = claim.partition("/")
        reasons: Sequence[Reason] = found.unsatisfiable.get(claim) or found.undecided.get(claim) or ()
        status = (
            "Fits"
            if claim in found.allocations
            else "Undecided"
            if claim in found.undecided
            else "DoesNotFit"
        )
        entries.append(
            {
                "namespace": namespace,
                "name": name,
                "status": status,
                "node": found.nodes.get(claim),
                "level": found.levels.get(claim),
                "reasons": [reason.to_dict() for reason in reasons],
            }
        )
    return entries


def _add_last_words(
    told: Iterable[dict[str, Any]], manifests: Iterable[Mapping[str, Any]], client: KubeClient
) -> None:
    """What the controller's newest Event says of each claim; nothing where Events may not be read."""
    from koordra.api import kinds, objects
    from koordra.cli.claims import last_words
    from koordra.errors import ApiError

    try:
        words = last_words(client.list(kinds.EVENTS)[0])
    except ApiError:
        return
    uids = {objects.key(obj): objects.uid(obj) for obj in manifests if obj.get("kind") == "ResourceClaim"}
    for entry in told:
        said = words.get(uids.get(f"{entry['namespace']}/{entry['name']}", ""))
        if said is not None:
            entry["controller"] = said


def _is_meant(entry: dict[str, Any], claims: Sequence[str]) -> bool:
    return entry["name"] in claims or f"{entry['namespace']}/{entry['name']}" in claims


def _complain_about_unknown(claims: Sequence[str], told: Sequence[dict[str, Any]]) -> None:
    from koordra.errors import InvalidManifest

    for claim in claims:
        if not any(_is_meant(entry, (claim,)) for entry in told):
            raise InvalidManifest(
                "is not among the pending claims",
                object=f"ResourceClaim {claim}",
                remedy="name a claim that has no allocation, or leave the name out",
            )


def _text(entry: dict[str, Any]) -> str:
    claim = f"{entry['namespace']}/{entry['name']}"
    if entry["status"] == "Fits":
        near = f", GPU and NIC at level {entry['level']}" if entry["level"] else ""
        return "\n".join([f"{claim} fits on {entry['node']}{near}", *_last_word(entry)])
    lines = [f"{claim} {'is undecided' if entry['status'] == 'Undecided' else 'does not fit'}"]
    node: str | None = ""
    for reason in entry["reasons"]:
        if reason["node"] != node:
            node = reason["node"]
            lines.append(f"  {node or 'everywhere'}")
        where = f"{reason['device']}: " if reason["device"] else ""
        asked = f" (request {reason['request']})" if reason["request"] else ""
        lines.append(f"    {where}{reason['reason']}: {reason['detail']}{asked}")
    return "\n".join([*lines, *_last_word(entry)])


def _last_word(entry: dict[str, Any]) -> list[str]:
    return [f"  the controller said last: {entry['controller']}"] if entry.get("controller") else []
