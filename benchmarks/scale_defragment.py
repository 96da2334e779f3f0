"""`plan --defragment` on clusters at 90 % after departures: moves for 8 GPUs with 8 NICs, the bound, and the
time.

A cluster is filled in order of its nodes until nothing of the mix fits, then pods leave at random until 90 %
of the GPUs are given out. Pods are shares, whole GPUs, pairs of GPU and NIC and some of several GPUs; one in
twenty must not be moved. Each answer is carried out, so that it is seen to be right.

    moves        pods that move
    at least     what no answer can be below: every smaller number of moves was excluded, or the emptiest
                 site's pods
    proven       of the answers, how many are the fewest possible for sure
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks._results import table, write
from koordra.placement.defragment.emptying import Pod, Shape, without
from koordra.placement.defragment.moves import defragment
from koordra.placement.free_amounts.state import FreeAmounts, MachineType, Request
from koordra.topology.levels import Level
from tests.fakes.defragmented import carried_out, empty, filled
from tests.fakes.machine_shapes import shape_of_machine
from tests.machines import catalogue

SIZES = (8, 50, 200, 1000)
MACHINES = ("dgx-a100", "hgx-h100")
SEEDS = range(42, 47)
WANTED = Shape(gpus=8, nics=8, scope=Level.SYS)
MIX = (
    (Request(4_000, 16 << 10, 1, 300), 20),
    (Request(6_000, 32 << 10, 1, 550, (), 1, 25), 20),
    (Request(8_000, 64 << 10, 1, 1000, (), 1, 50), 25),
    (Request(8_000, 64 << 10, 1, 1000), 15),
    (Request(16_000, 128 << 10, 2, 1000, (), 2, 50), 12),
    (Request(32_000, 256 << 10, 4, 1000, (), 4, 50), 8),
)


def main() -> None:
    found = [_measured(machine, count) for machine in MACHINES for count in SIZES]
    text = _markdown(found)
    write("scale-defragment", {"clusters": found}, text)
    print(text)


def cluster_at_90(
    machine: str, count: int, seed: int
) -> tuple[tuple[MachineType, ...], list[FreeAmounts], list[Pod]]:
    """Kinds, nodes and pods of a cluster from which pods have left."""
    shape = shape_of_machine(catalogue.machine(machine))
    generator = np.random.default_rng(seed)
    nodes = [empty(shape)] * count
    weights = np.array([weight for _, weight in MIX], dtype=float)
    pods: list[Pod] = []
    refused = 0
    while refused < 200:
        for at in generator.choice(len(MIX), size=64, p=weights / weights.sum()):
            placed = filled(nodes, MIX[int(at)][0], f"p{len(pods)}")
            refused += placed is None
            if placed is not None:
                pods.append(placed)
    given = sum(one.request.share for one in pods)
    while given > 900 * shape.gpus * count:
        leaving = pods.pop(int(generator.integers(len(pods))))
        given -= leaving.request.share
        nodes[leaving.node] = without(nodes[leaving.node], leaving)
    return (
        (MachineType("", shape.gpus, shape),),
        nodes,
        [pod for number, pod in enumerate(pods) if number % 20],
    )


def _measured(machine: str, count: int) -> dict[str, Any]:
    runs = []
    for seed in SEEDS:
        kinds, nodes, pods = cluster_at_90(machine, count, seed)
        began = time.thread_time()
        found = defragment(kinds, nodes, pods, WANTED)
        spent = time.thread_time() - began
        if found is not None:
            carried_out(nodes, found)
        runs.append(
            {
                "seed": seed,
                "pods": len(pods),
                "moves": None if found is None else len(found.moves),
                "at_least": None if found is None else found.at_least,
                "seconds": round(spent, 2),
            }
        )
    return {"machine": machine, "nodes": count, "runs": runs}


def _markdown(found: list[dict[str, Any]]) -> str:
    rows = []
    for one in found:
        freed = [run for run in one["runs"] if run["moves"] is not None]
        rows.append(
            (
                one["machine"],
                one["nodes"],
                round(float(np.mean([run["pods"] for run in one["runs"]]))),
                f"{len(freed)} of {len(one['runs'])}",
                f"{np.mean([run['moves'] for run in freed]):.1f}" if freed else "",
                f"{np.mean([run['at_least'] for run in freed]):.1f}" if freed else "",
                max((run["moves"] - run["at_least"] for run in freed), default=""),
                sum(run["moves"] == run["at_least"] for run in freed),
                f"{max(run['seconds'] for run in one['runs']):.2f}",
            )
        )
    header = (
        "machine",
        "nodes",
        "pods",
        "freed",
        "moves",
        "at least",
        "most above the bound",
        "proven",
        "s at most",
    )
    return "\n".join(
        [
            "# Defragmentation",
            f"8 GPUs with 8 NICs on one node of a cluster at 90 % after departures; seeds {SEEDS[0]}..{SEEDS[-1]}.",
            "",
            table(header, rows),
        ]
    )
