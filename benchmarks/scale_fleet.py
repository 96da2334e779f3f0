"""Speed and size of the fleet: against the plain numpy FGD, at 1,000 and 10,000 nodes, with joint GPU+NIC requests.

ratio       one replay of the default OpenB list, koordra and fgd, per decision against the plain FGD on the same arrivals
            (whose every thirtieth decision is timed, on the state that it has then: it is that slow)
nodes       p99 of a decision with the OpenB mix at 1,213 and 9,704 nodes
joint       80,000 GPUs in 10,000 nodes of two machines, five classes of GPU+NIC requests, arrivals and departures
memory      of the fleet's arrays and the process, per node
"""

from __future__ import annotations

import resource
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._plain_fgd import PlainFgd
from benchmarks._results import data, table, write
from koordra.placement.columns.fleet import Fleet, Placement
from koordra.placement.columns.state import Request
from koordra.placement.policy.expected_waste import ExpectedWaste
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_learning import capacity_of, expected
from koordra.simulation.dlrm import nodes_of
from koordra.simulation.openb import read_nodes, read_pods
from koordra.simulation.policies import policy_named
from koordra.simulation.replay import Cluster, arrivals, cluster_of, run, shuffled
from koordra.topology import presets
from koordra.topology.machine_shape import shape_of_machine


def bytes_used(fleet: Fleet) -> int:
    """Of the arrays that grow with nodes and classes."""
    kept = sum(column.nbytes for column in fleet._kept.values())
    return int(fleet._keys.nbytes + fleet.slot_of_node.nbytes + fleet.slots.gpus.nbytes + kept)


_EVERY = 30


def main() -> None:
    found: dict[str, Any] = {}
    folder = data()
    if folder is not None:
        found["ratio"] = _ratio(folder / "openb")
        found["nodes"] = [_openb(folder / "openb", scale) for scale in (1, 8)]
    else:
        print("no traces (set KOORDRA_DATA); only the made-up cluster is measured")
    found["joint"] = _joint()
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
            fleet = Fleet(cluster.kinds, order, policy_named(name, workload, learned))
            fleet.expect(request for request, _ in workload.ordered())
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
    fleet = Fleet(cluster.kinds, order, policy_named("fgd", workload))
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
    fleet = Fleet(cluster.kinds, shuffled(cluster.nodes, generator), ExpectedWaste(learned))
    fleet.expect(request for request, _ in workload.ordered())
    done = run(fleet, requests, cluster.capacity, clock=time.thread_time_ns)
    return {
        "nodes": len(cluster.nodes),
        "gpus": cluster.capacity // 1000,
        **_percentiles(done.decisions),
        "alloc_pct_130": done.curve.percent_allocated(130),
        "slots": fleet.slots.used,
        "bytes_per_node": bytes_used(fleet) // len(cluster.nodes),
    }


MIX = (
    (Request(8_000, 64 << 10, 1, 1000, (), 1, 100), 40),
    (Request(8_000, 64 << 10, 1, 1000, (), 1, 50), 20),
    (Request(4_000, 32 << 10, 1, 500, (), 1, 25), 20),
    (Request(16_000, 128 << 10, 2, 1000, (), 2, 100), 12),
    (Request(64_000, 512 << 10, 8, 1000, (), 8, 100), 8),
)
"""Joint request classes and how often they come."""


def joint_cluster(count: int) -> Cluster:
    """Half the nodes of each of two machines with eight GPUs and eight NICs or more."""
    parts = [
        nodes_of(shape_of_machine(presets.load(name).machine(serial="a")), count // 2)
        for name in ("hgx-h100", "dgx-a100")
    ]
    kinds = tuple(part.kinds[0]._replace(model=str(at)) for at, part in enumerate(parts))
    states = tuple(state._replace(kind=at) for at, part in enumerate(parts) for state in part.nodes)
    return Cluster(kinds, states)


def _joint(count: int = 10_000) -> dict[str, Any]:
    cluster = joint_cluster(count)
    generator = np.random.default_rng(7)
    workload = Workload(MIX)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.thread_time()
    policy = ExpectedWaste(expected(workload, capacity_of(cluster.kinds, cluster.nodes)))
    fleet = Fleet(cluster.kinds, shuffled(cluster.nodes, generator), policy)
    started = time.thread_time() - began
    parts = np.array([weight for _, weight in MIX], dtype=float)
    draws = generator.choice(len(MIX), size=200_000, p=parts / parts.sum()).tolist()
    filling: list[int] = []
    held: deque[Placement] = deque()
    allocated, at, enough = 0, 0, 0.9 * cluster.capacity
    while allocated < enough:
        began_ns = time.thread_time_ns()
        placement = fleet.place(MIX[draws[at]][0])
        filling.append(time.thread_time_ns() - began_ns)
        at += 1
        if placement is not None:
            allocated += placement.request.share
            held.append(placement)
    churning: list[int] = []
    released: list[int] = []
    order = generator.integers(0, len(held), size=30_000).tolist()
    levels: dict[int, int] = {}
    for swap in order:
        leaving = held[swap % len(held)]
        began_ns = time.thread_time_ns()
        fleet.release(leaving)
        released.append(time.thread_time_ns() - began_ns)
        began_ns = time.thread_time_ns()
        placement = fleet.place(MIX[draws[at]][0])
        churning.append(time.thread_time_ns() - began_ns)
        at += 1
        if placement is None:
            fleet.take(leaving)
            continue
        held[swap % len(held)] = placement
        if placement.request.gpus == 1:
            levels[placement.level] = levels.get(placement.level, 0) + 1
    near = sum(count for level, count in levels.items() if level <= 20)
    return {
        "nodes": count,
        "gpus": cluster.capacity // 1000,
        "start_s": round(started, 3),
        "filling": {**_percentiles(filling), "decisions": len(filling)},
        "at_90_pct": {**_percentiles(churning), "decisions": len(churning)},
        "release_us_p50": round(float(np.percentile(released, 50)) / 1000, 1),
        "aligned_pct_at_90": round(100 * near / max(sum(levels.values()), 1), 2),
        "slots": fleet.slots.used,
        "fleet_bytes_per_node": bytes_used(fleet) // count,
        "process_growth_bytes_per_node": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        * 1024
        // count,
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
    parts = ["# Speed and size of the fleet"]
    if "ratio" in found:
        ratio = found["ratio"]
        parts += [
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
        ]
    rows = [(f"OpenB, {one['nodes']} nodes", one) for one in found.get("nodes", ())]
    joint = found["joint"]
    rows += [
        (f"joint, {joint['nodes']} nodes, filling", joint["filling"]),
        (f"joint, {joint['nodes']} nodes, at 90 %", joint["at_90_pct"]),
    ]
    parts += [
        table(
            ("", "decisions/s", "p50 µs", "p99 µs", "max µs"),
            [(name, one["per_s"], one["p50_us"], one["p99_us"], one["max_us"]) for name, one in rows],
        ),
        f"\nJoint cluster: {joint['gpus']} GPUs, started in {joint['start_s']} s;",
        f"{joint['fleet_bytes_per_node']} bytes per node in arrays, {joint['process_growth_bytes_per_node']} of process growth;",
        f"at 90 % {joint['aligned_pct_at_90']} % of the pairs are aligned (PIX or PXB).",
    ]
    return "\n".join(parts)
