"""GPU beside its NIC: `koordra` and first fit that counts devices, on the same arrivals, placed by the
engine.

    mixed       made-up arrivals until 130 % of the GPUs are asked for: pairs of a whole GPU or a share with
                (part of) a NIC, GPUs without a NIC, several GPUs, a few machines' worth of eight; on nodes of
                a DGX A100 and of a PCIe server with few NICs
    dlrm        the GPU instances of the DLRM trace in their order of time, with departures, on 95 % of the
                GPUs they need

Aligned is PIX or PXB. `best` counts pairs with the best level that was free on their node, found by trying
every pair.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks._results import data, table, write
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement.free_amounts.state import Request
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload import Workload, expected
from koordra.simulation import dlrm
from koordra.simulation.machine_cluster import MachineCluster
from tests.machines import catalogue

NODES = 250
SEEDS = range(42, 45)
MACHINES = ("dgx-a100", "pcie-a100x8-2nic")
POLICIES = {"koordra": "koordra", "first-fit": "FirstFit"}


def main() -> None:
    found: dict[str, Any] = {}
    for machine in MACHINES:
        found[f"mixed, {machine}"] = _mixed(machine)
    folder = data()
    if folder is not None:
        lines = (folder / "dlrm-2025" / "disaggregated_DLRM_trace.csv").read_text().splitlines()
        trace = dlrm.read_trace(lines)
        for machine in MACHINES:
            found[f"DLRM, {machine}"] = _dlrm(machine, trace)
    text = _markdown(found)
    write("scale-alignment", {"cases": found}, text)
    print(text)


def _cluster(machine: str, count: int, policy: str, workload: Workload) -> MachineCluster:
    slices = build_slices(catalogue.machine(machine), node_name="n", node_uid="n", mode="joint", generation=1)
    return MachineCluster(slices, count, policy=POLICIES[policy], learned=Learned(expected(workload, {})))


def _mixed(machine: str) -> list[dict[str, Any]]:
    node = catalogue.machine(machine)
    # As much of the NICs as there is beside the GPUs, so that a careless choice leaves a GPU without one.
    percent = min(100, 100 * len(node.nics) // len(node.gpus))
    mix = (
        (Request(14_000, 90 << 10, 1, 1000, (), 1, percent), 25),
        (Request(9_000, 60 << 10, 1, 550, (), 1, percent // 2), 18),
        (Request(20_000, 60 << 10, 1, 1000), 20),
        (Request(3_000, 40 << 10, 1, 320), 15),
        (Request(4_000, 16 << 10, 1, 190), 12),
        (Request(24_000, 128 << 10, 2, 1000, (), 1, percent), 7),
        (Request(100_000, 512 << 10, 8, 1000, (), min(8, len(node.nics)), percent), 3),
    )
    return [_run(machine, mix, name, seed) for name in POLICIES for seed in SEEDS]


def _run(machine: str, mix: tuple[tuple[Request, int], ...], name: str, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    cluster = _cluster(machine, NODES, name, Workload(mix))
    weights = np.array([weight for _, weight in mix], dtype=float)
    requests: list[Request] = []
    asked = 0
    while asked < 1.3 * cluster.capacity:
        request = mix[int(generator.choice(len(mix), p=weights / weights.sum()))][0]
        requests.append(request)
        asked += request.share
    events = [dlrm.Event(float(at), 1, at) for at in range(len(requests))]
    trace = dlrm.Trace(tuple(requests), tuple(events), 0)
    done = dlrm.replay(cluster, trace, events, clock=time.thread_time_ns)
    return {"policy": name, "seed": seed, **done.to_dict()}


def _dlrm(machine: str, trace: dlrm.Trace) -> list[dict[str, Any]]:
    found = []
    count = round(trace.most / (0.95 * len(catalogue.machine(machine).gpus)))
    for name in POLICIES:
        cluster = _cluster(machine, count, name, Workload.of(trace.requests))
        done = dlrm.replay(cluster, trace, trace.events, clock=time.thread_time_ns)
        found.append({"policy": name, "seed": 42, **done.to_dict()})
    return found


def _markdown(found: dict[str, Any]) -> str:
    rows = []
    for case, runs in found.items():
        for name in dict.fromkeys(run["policy"] for run in runs):
            own = [run for run in runs if run["policy"] == name]
            rows.append(
                (
                    case,
                    name,
                    len(own),
                    f"{_mean(own, 'alloc_pct_max'):.2f}",
                    f"{_mean(own, 'aligned_pct'):.2f}",
                    f"{_mean(own, 'aligned_pct_above_90'):.2f}",
                    f"{_mean(own, 'best_level_pct'):.2f}",
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
