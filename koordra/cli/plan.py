"""`koordra plan`: what-if. Which devices would these manifests get, if they were applied to these objects?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from koordra.allocator.explain.telling import lines as lines_of
from koordra.allocator.reasons import Reason
from koordra.allocator.request.templates import with_template_claims
from koordra.api.objects import Fields
from koordra.cli import options
from koordra.cli.cluster.device_text import device_text, isolation_lines
from koordra.cli.manifest_files import read_objects
from koordra.cli.options import say
from koordra.cli.output import as_text, columns, render_table
from koordra.cli.progress import progress
from koordra.cli.what_if.machines import machine_nodes
from koordra.cli.what_if.manifests import Assumed, what_if
from koordra.cli.what_if.node_groups import node_groups
from koordra.cli.what_if.scale_up_text import scale_up_document, scale_up_text
from koordra.controller.cache.fabrics import written_levels
from koordra.errors import InvalidInput
from koordra.inert import inert
from koordra.placement import Plan
from koordra.placement.candidates.node_scoring import written_strategy
from koordra.placement.defragment.cluster import free, shape_of

MOST_LINES = 8
"""Lines of reasons shown per waiting claim in a table; `koordra explain` shows more."""


@click.command("plan")
@options.manifests(
    "YAML or JSON (or JSON lines) with Nodes, ResourceSlices, DeviceClasses, claims, pods ...", required=True
)
@options.machines
@options.autoscale
@options.policy
@options.features
@options.topology_levels
@options.scoring_strategy
@options.output("table", "json", "yaml")
@options.flag(
    "--together", "Claims that no pod uses go to one node, as if one pod in each namespace used them."
)
@options.flag(
    "--fail-if-waiting", "Exit with 1 where a claim gets nothing, new nodes of --autoscale included."
)
@click.option(
    "--defragment",
    metavar="SHAPE",
    help="Instead of planning: the fewest pods whose move frees a shape, e.g. gpus=8,nics=8,scope=Node. Moves nothing.",
)
def plan_command(
    files: Sequence[str],
    machines: Sequence[str],
    autoscale: Sequence[str],
    policy: str,
    features: str | None,
    topology_levels: str,
    scoring_strategy: str,
    output: str,
    together: bool,
    fail_if_waiting: bool,
    defragment: str | None,
) -> None:
    """What-if, offline: what koordra's controller would do with the objects in the files.

    It decides as it does in a cluster: gangs are placed as a whole or not at all, nodes in native mode are
    kube-scheduler's, quotas bound legacy pods, and what its webhook would refuse is told. Claims that have an
    allocation count as taken. A Deployment, Job ... that no cluster has stored stands for its pods, and a
    claim that no pod uses for a pod of its own. Nothing is written anywhere.

    With --autoscale it is said besides with how many new nodes of which groups the most of what waits would
    fit, and why the rest would not: as few nodes as will do, of the groups that are named first.
    """
    if autoscale and defragment is not None:
        fields = "--autoscale and --defragment"
        raise InvalidInput("exclude each other", object="plan", field=fields, remedy="give one of them")
    silent = output != "table"
    with progress("reading the files", silent=silent):
        manifests = [*read_objects(files), *machine_nodes(machines)]
        groups = node_groups(autoscale)
    if defragment is not None:
        with progress("looking for the fewest moves", silent=silent):
            freed = free(with_template_claims(manifests), shape_of(defragment))
        say(_moves(freed) + "\n" if output == "table" else as_text(freed, output), nl=False)
        return
    with progress("planning", silent=silent):
        levels = written_levels(topology_levels) if topology_levels else None
        scoring = written_strategy(scoring_strategy) if scoring_strategy else None
        assumed = Assumed(policy, features, together, levels, scoring, groups)
        asked = what_if(manifests, assumed, datetime.now(UTC))
        found = asked.plan()
        grown = asked.scale_up(groups) if groups else None
    for line in asked.notes:
        say(line, err=True)
    if output == "table":
        told = [_table(found), scale_up_text(grown, groups) if grown else ""]
        say("\n".join(filter(None, told)), nl=grown is not None)
    else:
        more = {"autoscale": scale_up_document(grown, groups)} if grown else {}
        say(as_text({**found.to_dict(), **more}, output), nl=False)
    waits = {*found.unsatisfiable, *found.undecided} - (grown.fits.keys() if grown else set())
    if fail_if_waiting and waits:
        raise click.exceptions.Exit(1)


def _table(found: Plan) -> str:
    parts = []
    if found.allocations:
        rows = [
            (
                claim,
                found.nodes[claim],
                found.levels[claim] or "-",
                str(found.scores.get(claim, "-")),
                [
                    *(device_text(entry) for entry in allocation["devices"].get("results", ())),
                    *isolation_lines(allocation["devices"]),
                ],
            )
            for claim, allocation in sorted(found.allocations.items())
        ]
        parts.append(render_table(("CLAIM", "NODE", "LEVEL", "SCORE", "DEVICES"), rows, width=columns()))
    for title, table in (("Does not fit", found.unsatisfiable), ("Undecided", found.undecided)):
        parts += [_waiting(title, claim, reasons) for claim, reasons in sorted(table.items())]
    return "\n\n".join(parts or ["no claim is waiting for devices"]) + "\n"


def _waiting(title: str, claim: str, reasons: Sequence[Reason]) -> str:
    told = lines_of(reasons, most=MOST_LINES)
    return "\n".join([f"{title}: {inert(claim)}", *(f"  {line}" for line in told)])


def _moves(found: Fields) -> str:
    shape = found["shape"]
    wanted = f"{shape['gpus']} GPUs and {shape['nics']} NICs ({shape['scope']})"
    if found["freed"] is None:
        return f"{wanted} cannot be freed by moving pods"
    place = f"{wanted}: node {found['freed']['node']}, {', '.join(found['freed']['devices'])}"
    if not found["moves"]:
        return f"{place}\nfree already; nothing needs to move"
    cost, gain = found["cost"], found["gain"]
    proof = (
        "no fewer moves would do" if found["proven"] else f"at least {cost['atLeastPods']} moves are needed"
    )
    moves = [(move["pod"], move["from"], move["to"]) for move in found["moves"]]
    return "\n".join(
        [
            place,
            render_table(("MOVE", "FROM", "TO"), moves, width=columns()),
            f"gain: {gain['freeAfter']} such places free at once, {gain['freeBefore']} now",
            f"cost: {cost['pods']} pods, {cost['gpus']:g} GPUs move; {proof}",
        ]
    )
