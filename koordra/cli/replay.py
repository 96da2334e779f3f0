"""`koordra replay`: how much of a cluster can be given out? The FGD experiment, with any policy, on OpenB or
DLRM traces."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

import click
import numpy as np
from click.core import ParameterSource

from koordra.api.names import DEFAULT_POLICY
from koordra.cli.machine.machine_view import of_kind
from koordra.cli.manifest_files import read_text
from koordra.cli.options import FILE, output, say
from koordra.cli.output import show_document, show_table
from koordra.cli.progress import progress
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload import Workload, expected
from koordra.placement.policy.workload_table import LearnedTable
from koordra.simulation import dlrm, plot, report
from koordra.simulation.learning import replayed
from koordra.simulation.machine_cluster import MachineCluster
from koordra.simulation.openb import read_nodes, read_pods
from koordra.simulation.replay import NAMES, Cluster, Experiment, cluster_of
from koordra.simulation.report import Reported

_LEARNING_SEEDS = 200
"""Streams to learn from use seeds from here on, which no replay should be given."""


@click.command()
@click.option("--nodes", type=FILE, help="CSV of nodes (OpenB columns).")
@click.option(
    "--pods",
    type=FILE,
    required=True,
    help="CSV of pods (OpenB or DLRM).",
)
@click.option(
    "--policy",
    "policies",
    default=DEFAULT_POLICY,
    metavar="NAME[,NAME]",
    help="random, best-fit, dot-product, gpu-packing, gpu-clustering, fgd, koordra; 'all' for every one.",
)
@click.option("--seeds", default="42", metavar="42-51", help="Seeds: 42-51, or 42,45.")
@click.option("--tune-ratio", default=1.3, help="GPU request of all arrivals per capacity.")
@click.option("--scale", default=1, help="Copies of nodes and pods.")
@click.option(
    "--start",
    type=click.Choice(["learned", "unknown"]),
    default="learned",
    help="Policy koordra: knows the workload from the list of pods, or nothing and learns from what arrives.",
)
@click.option("--table", type=FILE, help="Start koordra from this table.")
@click.option("--save-table", type=FILE, help="Write what koordra learned.")
@click.option(
    "--machine",
    default="dgx-a100",
    metavar="NAME",
    help="DLRM: nodes of this machine (see koordra topology), with GPU and NIC alignment.",
)
@click.option(
    "--machines",
    default=0,
    show_default=False,
    metavar="N",
    help="DLRM: how many nodes.  [default: as many as make 95 % of the GPUs]",
)
@output("table", "json")
@click.option("--plot", type=FILE, help="Draw allocation over arrivals (SVG).")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Replay a trace: pods arrive in random order at an empty cluster until it is more than full; each is
    tried once.

    Reported are the GPUs given out (percent of all) when 100 and 130 percent of the capacity have been asked
    for, FGD's fragmentation, and what decisions cost. Learning and loading are not part of the times.
    """
    lines = read_text(options["pods"]).splitlines()
    if lines and "rdma_request" in lines[0].split(","):
        _refuse_given(ctx, _OF_OPENB, "of a list of DLRM pods")
        replay_dlrm(lines, options)
        return
    _refuse_given(ctx, _OF_DLRM, "of a list of OpenB pods")
    if options["nodes"] is None:
        raise click.UsageError("--nodes is needed for a list of OpenB pods")
    _replay_openb(lines, options)


_OF_OPENB: Final = ("nodes", "tune_ratio", "scale", "table", "save_table", "plot")
_OF_DLRM: Final = ("machine", "machines")


def _refuse_given(ctx: click.Context, names: Sequence[str], of: str) -> None:
    """What would be without effect."""
    for name in names:
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} says nothing {of}")


def _replay_openb(lines: Sequence[str], options: dict[str, Any]) -> None:
    nodes = read_nodes(read_text(options["nodes"]).splitlines(), source=str(options["nodes"]))
    pods = read_pods(lines, source=str(options["pods"]))
    cluster = cluster_of(nodes, scale=options["scale"])
    if not cluster.capacity:
        raise click.UsageError(f"{options['nodes']} has no GPUs")
    workload = Workload.of(pod.request for pod in pods)
    names = policy_names(options["policies"])
    learns = DEFAULT_POLICY in names and options["start"] == "learned" and options["table"] is None
    if options["save_table"] is not None and not learns:
        raise click.UsageError(
            "--save-table writes what policy koordra learns before the replay; here it learns nothing: "
            "replay koordra with --start learned, and without --table"
        )
    experiment = Experiment(
        cluster,
        pods,
        workload,
        table=_table(options, workload, cluster_of(nodes)) if DEFAULT_POLICY in names else None,
        unknown=options["start"] == "unknown",
        tune_ratio=options["tune_ratio"],
        scale=options["scale"],
    )
    reports = []
    for name in names:
        for seed in seeds_of(options["seeds"]):
            with progress(f"{name}, seed {seed}", silent=options["output"] == "json") as told:
                done = experiment.replay(
                    name, np.random.default_rng(seed), clock=time.perf_counter_ns, on_progress=told.far
                )
            reports.append(Reported(name, seed, cluster.capacity, done))
    _show(reports, options)


def _table(options: dict[str, Any], workload: Workload, cluster: Cluster) -> LearnedTable | None:
    """What koordra knows before the first pod."""
    if options["table"] is not None:
        return LearnedTable.from_document(json.loads(read_text(options["table"])))
    if options["start"] == "unknown":
        return None
    with progress("learning the workload", silent=options["output"] == "json") as told:
        found = replayed(
            workload,
            cluster.kinds,
            cluster.nodes,
            generators=lambda number: np.random.default_rng(_LEARNING_SEEDS + number),
            progress=told.far,
        )
    if options["save_table"] is not None:
        options["save_table"].write_text(json.dumps(found.to_document(), indent=1) + "\n", encoding="utf-8")
    return found


def _show(reports: Sequence[Reported], options: dict[str, Any]) -> None:
    found = report.document(reports)
    if options["plot"] is not None:
        text = plot.svg(
            [(one.policy, one.run.curve) for one in reports], title=f"{options['pods'].name}: GPUs given out"
        )
        options["plot"].write_text(text, encoding="utf-8")
    if options["output"] == "json":
        show_document(found, "json")
    else:
        show_table(report.COLUMNS, report.rows(found))


# --- what both kinds of trace need --------------------------------------------------------------------------


def policy_names(text: str) -> list[str]:
    """Names of policies, each once, in the order given. Raises click.BadParameter for an unknown one."""
    names = list(NAMES) if text == "all" else [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise click.BadParameter(
            f"{unknown[0] if unknown else text!r} is not a policy; policies are {', '.join(NAMES)}",
            param_hint="--policy",
        )
    return list(dict.fromkeys(names))


def seeds_of(text: str) -> list[int]:
    """`42-51,60` as numbers. Raises click.BadParameter."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.strip().partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is no list of seeds; write 42-51 or 42,45", param_hint="--seeds"
        ) from error
    if not found:
        raise click.BadParameter(f"{text!r} has no seed", param_hint="--seeds")
    return found


FIRST_FIT: Final = "first-fit"
"""Blind to topology: the first node with enough of everything, its first GPUs and NICs."""

_FILL: Final = 0.95
_ALIGNMENT: Final = {
    "POLICY": "policy",
    "SEED": "seed",
    "ARRIVALS": "arrivals",
    "REFUSED": "refused",
    "ALLOC% MAX": "alloc_pct_max",
    "ALIGNED%": "aligned_pct",
    "ALIGNED% ABOVE 90": "aligned_pct_above_90",
    "BEST OF NODE%": "best_level_pct",
}
"""Column -> figure of a run."""


def replay_dlrm(lines: Sequence[str], options: dict[str, Any]) -> None:
    """Beside the policies asked for, topology-blind first fit is run, to compare them with."""
    if options["policies"] not in {DEFAULT_POLICY, FIRST_FIT, f"{DEFAULT_POLICY},{FIRST_FIT}"}:
        raise click.BadParameter("on a DLRM trace policies are koordra and first-fit", param_hint="--policy")
    trace = dlrm.read_trace(lines, source=str(options["pods"]))
    machine = options["machine"]
    node = of_kind(machine).machine
    if not node.gpus:
        raise click.BadParameter(f"{machine} has no GPU", param_hint="--machine")
    count = options["machines"] or max(1, round(trace.most / (_FILL * len(node.gpus))))
    slices = build_slices(node, node_name="node", node_uid="node", mode="joint", generation=1)
    learned = None if options["start"] == "unknown" else Learned(expected(Workload.of(trace.requests), {}))
    runs = []
    for name, policy in ((DEFAULT_POLICY, DEFAULT_POLICY), (FIRST_FIT, "FirstFit")):
        for seed in seeds_of(options["seeds"]):
            events = _ordered(trace, np.random.default_rng(seed))
            cluster = MachineCluster(slices, count, policy=policy, learned=learned)
            with progress(f"{name}, seed {seed}", silent=options["output"] == "json") as told:
                done = dlrm.replay(cluster, trace, events, clock=time.perf_counter_ns, on_progress=told.far)
            runs.append({"policy": name, "seed": seed, **done.to_dict()})
    _show_alignment(
        {"machine": machine, "nodes": count, "instances_without_gpu": trace.without_gpu, "runs": runs},
        options,
    )


def _ordered(trace: Any, generator: Any) -> list[Any]:
    """Events by time; what came before the start of the trace in random order."""
    first = [event for event in trace.events if event.time <= 0]
    rest = [event for event in trace.events if event.time > 0]
    return [first[int(at)] for at in generator.permutation(len(first))] + rest


def _show_alignment(found: dict[str, Any], options: dict[str, Any]) -> None:
    if options["output"] == "json":
        show_document(found, "json")
        return
    say(
        f"{found['nodes']} nodes of {found['machine']}; {found['instances_without_gpu']} instances without a GPU left out"
    )
    rows = [
        ["-" if run[key] is None else str(run[key]) for key in _ALIGNMENT.values()] for run in found["runs"]
    ]
    show_table(tuple(_ALIGNMENT), rows)
