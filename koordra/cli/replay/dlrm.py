"""`koordra replay` on the DLRM trace: GPU and NIC together, on nodes of one machine, with alignment."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

import click

_DEFAULT_MACHINE: Final = "dgx-a100"
_FILL: Final = 0.95


def replay_dlrm(lines: Sequence[str], options: dict[str, Any]) -> None:
    """Beside the policies asked for, topology-blind first fit is run, which is what they are compared with."""
    import numpy as np

    from koordra.cli.machine.machine_sources import of_kind
    from koordra.cli.replay.command import progress, seeds_of
    from koordra.placement.columns.fleet import Fleet
    from koordra.placement.policy.expected_waste import ExpectedLeftover
    from koordra.placement.policy.workload import Workload
    from koordra.placement.policy.workload_learning import Online, capacity_of, expected
    from koordra.simulation import dlrm, first_fit
    from koordra.simulation.first_fit import FirstFit
    from koordra.simulation.replay import shuffled
    from koordra.topology.shapes import shape_of_machine

    if options["policies"] not in {"koordra", first_fit.NAME, f"koordra,{first_fit.NAME}"}:
        raise click.BadParameter("on a DLRM trace policies are koordra and first-fit", param_hint="--policy")
    trace = dlrm.read_trace(lines, source=str(options["pods"]))
    machine = options["machine"] or _DEFAULT_MACHINE
    shape = shape_of_machine(of_kind(machine).machine)
    if not shape.gpus:
        raise click.BadParameter(f"{machine} has no GPU", param_hint="--machine")
    count = options["machines"] or max(1, round(trace.most / (_FILL * shape.gpus)))
    cluster = dlrm.nodes_of(shape, count)
    capacity = capacity_of(cluster.kinds, cluster.nodes)
    workload = Workload.of(trace.requests)
    runs = []
    for name in ("koordra", first_fit.NAME):
        for seed in seeds_of(options["seeds"]):
            generator = np.random.default_rng(seed)
            unknown = options["start"] == "unknown"
            policy = ExpectedLeftover(None if unknown else expected(workload, capacity))
            fleet = Fleet(
                cluster.kinds,
                shuffled(cluster.nodes, generator),
                policy if name == "koordra" else FirstFit(),
            )
            online = Online(policy, capacity)
            listening = {"learn": online.heard} if unknown and name == "koordra" else {}
            with progress(f"{name}, seed {seed}") as told:
                done = dlrm.replay(
                    fleet,
                    trace,
                    _ordered(trace, generator),
                    clock=time.perf_counter_ns,
                    on_progress=told,
                    **listening,
                )
            runs.append({"policy": name, "seed": seed, **done.to_dict()})
    _show(
        {"machine": machine, "nodes": count, "instances_without_gpu": trace.without_gpu, "runs": runs},
        options,
    )


def _ordered(trace: Any, generator: Any) -> list[Any]:
    """Events by time; what came before the start of the trace in random order."""
    first = [event for event in trace.events if event.time <= 0]
    rest = [event for event in trace.events if event.time > 0]
    return [first[int(at)] for at in generator.permutation(len(first))] + rest


def _show(found: dict[str, Any], options: dict[str, Any]) -> None:
    from koordra.cli import columns

    if options["output"] == "json":
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(
        f"{found['nodes']} nodes of {found['machine']}; {found['instances_without_gpu']} instances without a GPU left out"
    )
    header = (
        "POLICY",
        "SEED",
        "ARRIVALS",
        "REFUSED",
        "ALLOC% MAX",
        "ALIGNED%",
        "ALIGNED% ABOVE 90",
        "BEST OF NODE%",
    )
    rows = [
        (
            run["policy"],
            str(run["seed"]),
            str(run["arrivals"]),
            str(run["refused"]),
            str(run["alloc_pct_max"]),
            str(run["aligned_pct"]),
            "-" if run["aligned_pct_above_90"] is None else str(run["aligned_pct_above_90"]),
            str(run["best_level_pct"]),
        )
        for run in found["runs"]
    ]
    columns.show(header, rows)
