"""Speed of replays: against the plain numpy FGD, at 1,000 and 10,000 nodes.

ratio       one replay of the default OpenB list, koordra and fgd, per decision against the plain FGD on the
            same arrivals (whose every thirtieth decision is timed, on the state that it has then: it is that
            slow)
nodes       p99 of a decision with the OpenB mix at 1,213 and 9,704 nodes
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._plain_fgd import PlainFgd
from benchmarks._results import data, table, write
from koordra.placement.policy.workload import Workload, expected
from koordra.simulation.fleet import Fleet
from koordra.simulation.learning import FleetExpectedWaste, capacity_of
from koordra.simulation.openb import read_nodes, read_pods
from koordra.simulation.replay import arrivals, cluster_of, policy_named, run, shuffled

_EVERY = 30


def main() -> None:
    found: dict[str, Any] = {}
    folder = data()
    if folder is None:
        print("no traces (set KOORDRA_DATA)")
        return
    found["ratio"] = _ratio(folder / "openb")
    found["nodes"] = [_openb(folder / "openb", scale) for scale in (1, 8)]
    text = _markdown(found)
    write("scale-fleet", found, text)
    print(text)


def _ratio(folder: Path) -> dict[str, Any]:
    nodes, pods = _lists(folder)
    cluster, workload = cluster_of(nodes), Workload.of(pod.request for pod in pods)
    generator = np.random.default_rng(42)
    requests = arrivals(pods, cluster.capacity, generator=generator)
    order = shuffled(cluster.nodes, generator)
    learned = expected(workload, capacity_of(cluster.kinds, cluster.nodes))
    found: dict[str, Any] = {}
    for name in ("koordra", "fgd"):
        times = []
        for _ in range(3):
            fleet = Fleet(cluster.kinds, order, policy_named(name, cluster.kinds, workload, learned))
            done = run(fleet, requests, cluster.capacity, clock=time.thread_time_ns)
            times.append(sum(done.decisions) / 1e9)
        found[name] = min(times)
    plain = PlainFgd(
        [(s.cpu, s.memory, len(s.gpus), cluster.kinds[s.kind].model) for s in order],
        [
            (p.request.cpu, p.request.milli, p.request.gpus, p.request.models, p.part)
            for p in workload.popular()
        ],
    )
    fleet = Fleet(cluster.kinds, order, policy_named("fgd", cluster.kinds, workload))
    spent, timed, differing = 0.0, 0, 0
    for number, request in enumerate(requests):
        placement = fleet.place(request)
        chosen = (placement.node, placement.gpus) if placement else None
        if number % _EVERY:
            if chosen is not None:
                plain.take(*chosen, request.cpu, request.memory, request.milli)
            continue
        began = time.thread_time()
        theirs = plain.place(request.cpu, request.memory, request.gpus, request.milli, request.models)
        spent += time.thread_time() - began
        timed += 1
        differing += theirs != chosen
    plain_run = spent / timed * len(requests)
    return {
        "arrivals": len(requests),
        "plain_fgd_s": round(plain_run, 2),
        "plain_fgd_timed_decisions": timed,
        "plain_fgd_differing": differing,
        "koordra_s": round(found["koordra"], 3),
        "fgd_s": round(found["fgd"], 3),
        "koordra_times_faster": round(plain_run / found["koordra"], 1),
        "fgd_times_faster": round(plain_run / found["fgd"], 1),
    }


def _openb(folder: Path, scale: int) -> dict[str, Any]:
    nodes, pods = _lists(folder)
    cluster, workload = cluster_of(nodes, scale=scale), Workload.of(pod.request for pod in pods)
    generator = np.random.default_rng(42)
    requests = arrivals(pods, cluster.capacity, generator=generator, scale=scale)
    learned = expected(workload, capacity_of(cluster.kinds, cluster.nodes))
    fleet = Fleet(
        cluster.kinds, shuffled(cluster.nodes, generator), FleetExpectedWaste(cluster.kinds, learned)
    )
    done = run(fleet, requests, cluster.capacity, clock=time.thread_time_ns)
    return {
        "nodes": len(cluster.nodes),
        "gpus": cluster.capacity // 1000,
        **_percentiles(done.decisions),
        "alloc_pct_130": done.curve.percent_allocated(130),
    }


def _percentiles(spent: list[int]) -> dict[str, Any]:
    values = np.array(spent) / 1000
    return {
        "per_s": round(1e6 / float(values.mean())),
        "p50_us": round(float(np.percentile(values, 50)), 1),
        "p99_us": round(float(np.percentile(values, 99)), 1),
        "max_us": round(float(values.max()), 1),
    }


def _lists(folder: Path) -> tuple[Any, Any]:
    nodes = read_nodes((folder / "openb_node_list_gpu_node.csv").read_text().splitlines())
    return nodes, read_pods((folder / "openb_pod_list_default.csv").read_text().splitlines())


def _markdown(found: dict[str, Any]) -> str:
    ratio = found["ratio"]
    return "\n".join(
        [
            "# Speed of replays",
            f"\nOne replay of the default list ({ratio['arrivals']} arrivals), best of three:\n",
            table(
                ("", "seconds", "times the plain FGD"),
                [
                    ("plain numpy FGD", ratio["plain_fgd_s"], 1),
                    ("fgd", ratio["fgd_s"], ratio["fgd_times_faster"]),
                    ("koordra", ratio["koordra_s"], ratio["koordra_times_faster"]),
                ],
            ),
            f"\nPlain FGD and `fgd` differ in {ratio['plain_fgd_differing']} of {ratio['plain_fgd_timed_decisions']} decisions.\n",
            table(
                ("", "decisions/s", "p50 µs", "p99 µs", "max µs"),
                [
                    (
                        f"OpenB, {one['nodes']} nodes",
                        one["per_s"],
                        one["p50_us"],
                        one["p99_us"],
                        one["max_us"],
                    )
                    for one in found["nodes"]
                ],
            ),
        ]
    )
