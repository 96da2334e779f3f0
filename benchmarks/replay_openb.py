"""Allocation on the OpenB lists: every published policy against its published numbers, and `koordra` against
FGD.

    default         all policies, 10 seeds (42..51)
    other lists     fgd and koordra 10 seeds; the others 2
    unknown start   koordra without any knowledge of the workload, 10 seeds on default, 2 elsewhere

`KOORDRA_BENCH_SEEDS=3` makes the ten seeds three. Each list's rows are written as soon as they are there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._results import data, table, write
from koordra.placement.policy.workload import Workload
from koordra.simulation.learning import replayed
from koordra.simulation.openb import read_nodes, read_pods
from koordra.simulation.replay import NAMES, Experiment, cluster_of
from koordra.simulation.report import Reported, document

PUBLISHED_NAMES = {
    "random": "01-Random",
    "dot-product": "02-DotProd",
    "gpu-clustering": "03-GpuClustering",
    "gpu-packing": "04-GpuPacking",
    "best-fit": "05-BestFit",
    "fgd": "06-FGD",
}
UNKNOWN = "koordra, unknown start"


def main() -> None:
    folder = data()
    if folder is None:
        print("no traces (set KOORDRA_DATA); skipped")
        return
    lists = sorted(
        path.stem.removeprefix("openb_pod_list_") for path in (folder / "openb").glob("openb_pod*")
    )
    lists.sort(key=lambda name: name != "default")
    published = json.loads((folder / "openb" / "fgd-published.json").read_text())["workloads"]
    found: dict[str, Any] = {}
    for name in lists:
        found[name] = _of_list(folder / "openb", name, published[name])
        write("replay-openb", {"lists": found}, _markdown(found))
        print(table(HEADER, _rows(name, found[name])))


def _of_list(folder: Path, name: str, published: dict[str, Any]) -> dict[str, Any]:
    seeds = range(42, 42 + int(os.environ.get("KOORDRA_BENCH_SEEDS", "10")))
    few = seeds if name == "default" else seeds[:2]
    nodes = read_nodes((folder / "openb_node_list_gpu_node.csv").read_text().splitlines())
    pods = read_pods((folder / f"openb_pod_list_{name}.csv").read_text().splitlines())
    cluster, workload = cluster_of(nodes), Workload.of(pod.request for pod in pods)
    began = time.perf_counter()
    learned = replayed(
        workload, cluster.kinds, cluster.nodes, generators=lambda at: np.random.default_rng(200 + at)
    )
    learning = time.perf_counter() - began
    known = Experiment(cluster, pods, workload, table=learned)
    reports = []
    for policy in NAMES:
        chosen = seeds if policy in {"fgd", "koordra"} else few
        reports += [_report(known, policy, policy, seed) for seed in chosen]
    unknown = Experiment(cluster, pods, workload, unknown=True)
    reports += [_report(unknown, UNKNOWN, "koordra", seed) for seed in few]
    told = document(reports)
    for one in told["summary"]:
        theirs = PUBLISHED_NAMES.get(one["policy"])
        if theirs is not None:
            one["published"] = {at: published[theirs]["alloc_pct"][at] for at in ("100", "130")}
    return {**told, "learning_s": round(learning, 1)}


def _report(experiment: Experiment, label: str, policy: str, seed: int) -> Reported:
    done = experiment.replay(policy, np.random.default_rng(seed), clock=time.perf_counter_ns)
    return Reported(label, seed, experiment.cluster.capacity, done)


HEADER = (
    "list",
    "policy",
    "seeds",
    "@130",
    "±",
    "@100",
    "idle GPUs",
    "F % @100",
    "published @130 (@100)",
    "s",
)


def _rows(name: str, found: dict[str, Any]) -> list[Sequence[Any]]:
    rows = []
    for one in found["summary"]:
        theirs = one.get("published")
        rows.append(
            (
                name,
                one["policy"],
                sum(run["policy"] == one["policy"] for run in found["runs"]),
                f"{one['alloc_pct_130_mean']:.2f}",
                f"{one['alloc_pct_130_std']:.2f}",
                f"{one['alloc_pct_100_mean']:.2f}",
                f"{one['unallocated_gpus_130_mean']:.0f}",
                f"{one['frag_pct_100_mean']:.2f}",
                f"{theirs['130']['mean']:.2f} ({theirs['100']['mean']:.2f})" if theirs else "",
                f"{one['elapsed_s_mean']:.2f}",
            )
        )
    return rows


def _markdown(found: dict[str, Any]) -> str:
    rows = [row for name in found for row in _rows(name, found[name])]
    return "\n".join(
        [
            "# OpenB: GPUs given out, percent of all",
            "One try per pod, no migration; @100 and @130: when so many percent of the capacity have been asked for.",
            "`koordra` learned its table from the list with seeds 200..203, which no replay uses.",
            "`unknown start` knew nothing. Seconds are decisions only, as busy as the machine was.",
            "",
            table(HEADER, rows),
        ]
    )
