"""GPU beside its NIC: `koordra`, first fit that counts devices, and `koordra` blind to topology, on the same arrivals.

    mixed       made-up arrivals until 130 % of the GPUs are asked for: pairs of a whole GPU or a share with (part of) a NIC, GPUs
                without a NIC, several GPUs, a few machines' worth of eight; on nodes of a DGX A100 and of a PCIe server with few NICs
    dlrm        the GPU instances of the DLRM trace in their order of time, with departures, on 95 % of the GPUs they need

Aligned is PIX or PXB. `best` counts pairs with the best level that was free on their node, found by trying every pair. What is
given up for alignment is the difference of allocation between `koordra` and `koordra` on the same machines drawn flat.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks._results import data, table, write
from koordra.placement.columns.fleet import Fleet
from koordra.placement.columns.state import Request
from koordra.placement.policy.expected_waste import ExpectedWaste
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_learning import capacity_of, expected
from koordra.simulation import dlrm
from koordra.simulation.baseline_policies import FirstFit
from koordra.simulation.replay import Cluster, shuffled
from koordra.topology.machine_shape import NEAR, Group, MachineShape, shape_of_machine
from tests.machines import catalogue

NODES = 250
SEEDS = range(42, 45)
MACHINES = ("dgx-a100", "pcie-a100x8-2nic")
BLIND, FLAT = "first-fit", "koordra, flat"


def flat(shape: MachineShape) -> MachineShape:
    """The same machine with everything near everything: what a placement blind to topology sees."""
    every = Group((1 << shape.gpus) - 1, (1 << shape.nics) - 1)
    return MachineShape(shape.gpus, shape.nics, tuple((every,) for _ in NEAR), shape.nvlinks)


def main() -> None:
    found: dict[str, Any] = {}
    for machine in MACHINES:
        shape = shape_of_machine(catalogue.machine(machine))
        found[f"mixed, {machine}"] = _mixed(shape)
    folder = data()
    if folder is not None:
        lines = (folder / "dlrm-2025" / "disaggregated_DLRM_trace.csv").read_text().splitlines()
        trace = dlrm.read_trace(lines)
        for machine in MACHINES:
            found[f"DLRM, {machine}"] = _dlrm(shape_of_machine(catalogue.machine(machine)), trace)
    text = _markdown(found)
    write("scale-alignment", {"cases": found}, text)
    print(text)


def _mixed(shape: MachineShape) -> list[dict[str, Any]]:
    # As much of the NICs as there is beside the GPUs, so that a careless choice leaves a GPU without one.
    percent = min(100, 100 * shape.nics // shape.gpus)
    mix = (
        (Request(14_000, 90 << 10, 1, 1000, (), 1, percent), 25),
        (Request(9_000, 60 << 10, 1, 550, (), 1, percent // 2), 18),
        (Request(20_000, 60 << 10, 1, 1000), 20),
        (Request(3_000, 40 << 10, 1, 320), 15),
        (Request(4_000, 16 << 10, 1, 190), 12),
        (Request(24_000, 128 << 10, 2, 1000, (), 1, percent), 7),
        (Request(100_000, 512 << 10, 8, 1000, (), min(8, shape.nics), percent), 3),
    )
    return [_run(shape, mix, name, seed) for name in ("koordra", FLAT, BLIND) for seed in SEEDS]


def _run(shape: MachineShape, mix: tuple[tuple[Request, int], ...], name: str, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    cluster = dlrm.nodes_of(flat(shape) if name == FLAT else shape, NODES)
    weights = np.array([weight for _, weight in mix], dtype=float)
    requests: list[Request] = []
    asked = 0
    while asked < 1.3 * cluster.capacity:
        request = mix[int(generator.choice(len(mix), p=weights / weights.sum()))][0]
        requests.append(request)
        asked += request.share
    events = [dlrm.Event(float(at), 1, at) for at in range(len(requests))]
    trace = dlrm.Trace(tuple(requests), tuple(events), 0)
    fleet = Fleet(cluster.kinds, cluster.nodes, _policy(name, Workload(mix), cluster))
    done = dlrm.replay(fleet, trace, events, clock=time.thread_time_ns)
    return {"policy": name, "seed": seed, **done.to_dict()}


def _policy(name: str, workload: Workload, cluster: Cluster) -> Any:
    if name == BLIND:
        return FirstFit()
    return ExpectedWaste(expected(workload, capacity_of(cluster.kinds, cluster.nodes)))


def _dlrm(shape: MachineShape, trace: dlrm.Trace) -> list[dict[str, Any]]:
    found = []
    for name in ("koordra", FLAT, BLIND):
        generator = np.random.default_rng(42)
        count = round(trace.most / (0.95 * shape.gpus))
        cluster = dlrm.nodes_of(flat(shape) if name == FLAT else shape, count)
        policy = _policy(name, Workload.of(trace.requests), cluster)
        fleet = Fleet(cluster.kinds, shuffled(cluster.nodes, generator), policy)
        done = dlrm.replay(fleet, trace, trace.events, clock=time.thread_time_ns)
        found.append({"policy": name, "seed": 42, **done.to_dict()})
    return found


def _markdown(found: dict[str, Any]) -> str:
    rows = []
    for case, runs in found.items():
        for name in dict.fromkeys(run["policy"] for run in runs):
            own = [run for run in runs if run["policy"] == name]
            levels = name != FLAT
            rows.append(
                (
                    case,
                    name,
                    len(own),
                    f"{_mean(own, 'alloc_pct_max'):.2f}",
                    f"{_mean(own, 'aligned_pct'):.2f}" if levels else "",
                    f"{_mean(own, 'aligned_pct_above_90'):.2f}" if levels else "",
                    f"{_mean(own, 'best_level_pct'):.2f}" if levels else "",
                )
            )
    header = (
        "case",
        "policy",
        "seeds",
        "GPUs given out %",
        "aligned %",
        "aligned % above 90",
        "best of node %",
    )
    return "\n".join(
        [
            "# GPU beside its NIC",
            f"{NODES} nodes for mixed arrivals; DLRM on 95 % of the GPUs it needs.",
            "",
            table(header, rows),
        ]
    )


def _mean(runs: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([run[key] for run in runs if run[key] is not None] or [float("nan")]))
