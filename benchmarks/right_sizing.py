"""What the learned table is worth when claims begin to ask for what they used: jobs that come again with the
shares that were recommended (koordra.io/apply-recommendation).

OpenB's pods, of which those with a share of a GPU ask for the part that they used; the rest as before. No
trace tells use and shares of the same pods, so use is drawn: of each task (pods that ask for the same) one
part, between a tenth and all, of beta(2, 3). `koordra` places the same arrivals, by five tables:

    asked      learned from what the pods asked for before, and kept
    going on   the same at the start, and learning from what arrives, as a controller does
    flag       going on, as a controller does with --learn-from-profiles: the same counts, those of shares
               moved by what pods that asked for so much will ask for (workload.foreseen)
    used       learned from what was used, class by class: more than profiles by share can tell
    unknown    nothing at the start, learning from what arrives
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks._results import data, table, write
from koordra.placement.free_amounts.state import WHOLE
from koordra.placement.policy.workload import Online, Workload, expected
from koordra.placement.policy.workload_table import LearnedTable
from koordra.simulation.fleet import Fleet
from koordra.simulation.learning import FleetExpectedWaste, capacity_of
from koordra.simulation.openb import TracePod, read_nodes, read_pods
from koordra.simulation.replay import Cluster, arrivals, cluster_of, shuffled

LISTS: Final = ("default", "gpushare60", "gpushare100")
TABLES: Final = ("asked", "going on", "flag", "used", "unknown")
LEAST: Final = 10
"""Thousandths of a GPU."""


def right_sized(pods: Sequence[TracePod], generator: np.random.Generator) -> list[TracePod]:
    """The pods as they come again."""
    tasks = sorted({pod.request for pod in pods if pod.request.gpus and pod.request.milli < WHOLE})
    parts = 0.1 + 0.9 * generator.beta(2, 3, size=len(tasks))
    used = {
        task: max(LEAST, -(-int(task.milli * part) // LEAST) * LEAST)
        for task, part in zip(tasks, parts, strict=True)
    }
    return [
        TracePod(pod.name, pod.request._replace(milli=used.get(pod.request, pod.request.milli)))
        for pod in pods
    ]


def moves_of(before: Sequence[TracePod], after: Sequence[TracePod]) -> dict[int, Counter[int]]:
    """What profiles say of them: by what was asked, what will be."""
    found = dict[int, Counter[int]]()
    for one, again in zip(before, after, strict=True):
        if one.request.gpus == 1 and one.request.milli < WHOLE:
            found.setdefault(one.request.milli, Counter())[again.request.milli] += 1
    return found


def main() -> None:
    folder = data()
    if folder is None:
        print("no traces (set KOORDRA_DATA); skipped")
        return
    seeds = range(42, 42 + int(os.environ.get("KOORDRA_BENCH_SEEDS", "10")))
    found = {name: _of_list(folder / "openb", name, seeds) for name in LISTS}
    write("right-sizing", {"lists": found}, _markdown(found, len(seeds)))
    print(table(HEADER, _rows(found)))


def _of_list(folder: Path, name: str, seeds: Sequence[int]) -> dict[str, Any]:
    cluster = cluster_of(read_nodes((folder / "openb_node_list_gpu_node.csv").read_text().splitlines()))
    before = read_pods((folder / f"openb_pod_list_{name}.csv").read_text().splitlines())
    reached: dict[str, list[float]] = {which: [] for which in TABLES}
    for seed in seeds:
        after = right_sized(before, np.random.default_rng(1000 + seed))
        for which in TABLES:
            reached[which].append(_replay(cluster, before, after, which, seed))
    gains = [one - other for one, other in zip(reached["flag"], reached["going on"], strict=True)]
    return {"reached": reached, "gain": statistics.fmean(gains), "gain_error": _error(gains)}


def _replay(
    cluster: Cluster, before: Sequence[TracePod], after: Sequence[TracePod], which: str, seed: int
) -> float:
    """GPU given out, in percent of all, when 130 % were asked for."""
    generator, capacity = np.random.default_rng(seed), capacity_of(cluster.kinds, cluster.nodes)
    learned = Workload.of(pod.request for pod in (after if which == "used" else before))
    moves = moves_of(before, after) if which == "flag" else {}
    online = Online(capacity)
    if which in ("going on", "flag"):
        online.resume({"": learned})
        online.moves = {"": moves}
        learned = online.workload
    policy = FleetExpectedWaste(
        cluster.kinds, LearnedTable() if which == "unknown" else expected(learned, capacity)
    )
    requests = arrivals(after, cluster.capacity, generator=generator)
    fleet = Fleet(cluster.kinds, shuffled(cluster.nodes, generator), policy)
    given = 0
    for request in requests:
        if moves and request.gpus:  # who comes again with what he used is seen to use it
            moves.setdefault(request.milli, Counter())[request.milli] += 1
        found = online.observe(request) if which in ("going on", "flag", "unknown") else None
        if found is not None:
            policy.learn(found)
            fleet.policy_changed()
        given += request.share if fleet.place(request) is not None else 0
    return 100 * given / cluster.capacity


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


HEADER: Final = ("list", *TABLES, "flag over going on", "±")


def _rows(found: dict[str, Any]) -> list[Sequence[Any]]:
    return [
        (
            name,
            *(f"{statistics.fmean(one['reached'][which]):.2f}" for which in TABLES),
            f"{one['gain']:+.3f}",
            f"{one['gain_error']:.3f}",
        )
        for name, one in found.items()
    ]


def _markdown(found: dict[str, Any], seeds: int) -> str:
    return "\n".join(
        [
            "# Right-sizing: what the learned table brings when jobs come again with what they used",
            f"OpenB's lists, {seeds} seeds; GPU given out in percent of all once 130 % were asked for. What was used is drawn, see",
            "`benchmarks/right_sizing.py`; the same arrivals for every table.",
            "",
            table(HEADER, _rows(found)),
            "",
            "A controller that goes on from what was asked keeps old counts for some 32,768 arrivals. Knowing what each class uses gains over it where",
            "GPUs are short (`default`: `used`), as does knowing nothing. What the flag knows, how many of those that asked for a share use which, is",
            "too little: it gains nothing beyond the error. Where shares have become so small that processors are short (`gpushare100`), it costs.",
        ]
    )
