"""What the placement of gangs is worth in bus bandwidth: koordra, topology-blind first fit, Koordinator's
algorithm.

The same arrivals for all: jobs of 2 to 16 members with 1, 2 or 4 GPUs and as many NICs each, and between them
pods that want GPUs only, on nodes of a DGX A100 in blocks of eight, until 150 % of the GPUs were asked for;
with every fourth arrival one of the earlier jobs ends, the same one for all (nothing happens where it was not
placed). A job that does not fit is dropped. All members or none, for all.

    first-fit    members one after the other, each on the first node with enough GPUs and NICs; the first free
                 ones of each
    Koordinator  its DeviceShare plugin (LeastAllocated, its default): the node with most left; GPUs by its
                 topology tree (deepest group that fits, groups in use first, lowest number), NICs by
                 preferred PCIe root, round robin. Its gangs know nothing of blocks
    koordra      place_gang, claims with JointAllocation PCIeSwitch, Required, PerDevice

The model of bandwidth is the reference's: 56 GB/s where every GPU has a NIC of its own under its PCIe switch,
25 GB/s where not (two nodes with GB300, all_reduce, one GPU and one NIC of 800 Gb/s each); a job is as fast
as its slowest member. Figures of blocks and rails are counted, no bandwidth is made of them. "Rails per rail
needed" is, for jobs on several nodes, the number of rails used by those that the node with most of them uses
(1: every node on the same rails). "allocated" is the mean part of GPUs in use from 100 % asked for on.

    python -m benchmarks gang_alignment                         the seeds below
    KOORDRA_SEEDS=1,2,3 python -m benchmarks gang_alignment     others

Nothing but the seed is drawn from, and no clock is read: a seed gives the same figures on every machine. A
seed's run of a policy is compared with first fit's run of the same seed; of these ratios and differences the
mean over the seeds is told, with the standard deviation and the least and the most.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx

from benchmarks._results import table, write
from koordra.allocator.devices.inventory import GPU, NIC
from koordra.allocator.request.classes import shipped_classes
from koordra.api import names
from koordra.api.claims import ResourceClaim
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import engine_for, read_inventory
from koordra.placement.gang import GangPlaced, GangRequest, NewMember, place_gang
from koordra.placement.index import CLAIM, ClusterChange
from koordra.placement.manifests import Manifests
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.topology import Level, level_between, presets

Object = dict[str, Any]
NODES, BLOCK = 64, 8
SEEDS = tuple(map(int, (os.environ.get("KOORDRA_SEEDS") or "42,43,44,45,46,47,48,49,50,51").split(",")))
ALIGNED, APART = 56.0, 25.0
ASKED = 1.5
MACHINE = "dgx-a100"

MIX = (((2, 1, True), 12), ((4, 1, True), 12), ((8, 1, True), 8), ((4, 2, True), 12), ((8, 2, True), 8), ((4, 4, True), 6), ((16, 1, True), 4), ((1, 1, False), 45), ((1, 2, False), 10))  # fmt: skip
"""(members, GPUs of each, with NICs) and weight."""


@dataclass(frozen=True)
class Machine:
    """GPUs and NICs by position: names, level of each pair, PCIe root, NUMA node, rail."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    levels: tuple[tuple[int, ...], ...]
    roots: tuple[tuple[str, ...], tuple[str, ...]]
    numa: tuple[int, ...]
    rails: tuple[str, ...]
    slices: tuple[Object, ...] = field(hash=False)


@dataclass(frozen=True)
class Seat:
    node: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...]


@dataclass
class Cluster:
    """Free devices of every node."""

    machine: Machine
    gpus: list[set[int]]
    nics: list[set[int]]

    def take(self, seats: Sequence[Seat]) -> None:
        for seat in seats:
            self.gpus[seat.node] -= set(seat.gpus)
            self.nics[seat.node] -= set(seat.nics)

    def release(self, seats: Sequence[Seat]) -> None:
        for seat in seats:
            self.gpus[seat.node] |= set(seat.gpus)
            self.nics[seat.node] |= set(seat.nics)


Placer = Callable[[Cluster, int, int, bool], list[Seat] | None]


def main() -> None:
    machine = _machine()
    found = [
        _run(machine, name, placer, seed)
        for name, placer in (("first-fit", _first_fit), ("Koordinator", _koordinator), ("koordra", None))
        for seed in SEEDS
    ]
    text = _markdown(found)
    write("gang-alignment", {"seeds": SEEDS, "runs": found}, text)
    print(text)


def _run(machine: Machine, name: str, placer: Placer | None, seed: int) -> Object:
    place = placer or Koordra(machine)
    draw = random.Random(seed)
    cluster = Cluster(
        machine,
        [set(range(len(machine.gpus))) for _ in range(NODES)],
        [set(range(len(machine.nics))) for _ in range(NODES)],
    )
    total = NODES * len(machine.gpus)
    asked, number = 0, 0
    running: dict[int, tuple[list[Seat], int]] = {}
    speeds: list[float] = []
    blocks: list[int] = []
    rails: list[float] = []
    alone: list[bool] = []
    allocated: list[float] = []
    dropped = 0
    while asked < ASKED * total:
        members, gpus, nics = draw.choices([mix for mix, _ in MIX], [weight for _, weight in MIX])[0]
        ends = draw.randrange(number) if number and number % 4 == 0 else None
        if ends in running:
            cluster.release(running.pop(ends)[0])
        asked += members * gpus
        seats = place(cluster, members, gpus, nics)
        if seats is None:
            dropped += 1
        else:
            cluster.take(seats)
            running[number] = (seats, members * gpus)
            if nics:
                speeds.append(_speed(machine, seats))
                blocks.append(len({seat.node // BLOCK for seat in seats}))
                by_node: dict[int, set[str]] = {}
                for seat in seats:
                    by_node.setdefault(seat.node, set()).update(machine.rails[nic] for nic in seat.nics)
                alone.append(len(by_node) == 1)
                if len(by_node) > 1:
                    rails.append(len(set().union(*by_node.values())) / max(map(len, by_node.values())))
        if asked > total:
            allocated.append(sum(size for _, size in running.values()) / total)
        number += 1
    return {
        "policy": name,
        "seed": seed,
        "busbw": sum(speeds) / len(speeds),
        "aligned": sum(speed == ALIGNED for speed in speeds) / len(speeds),
        "allocated": sum(allocated) / len(allocated),
        "blocks": sum(blocks) / len(blocks),
        "rails": sum(rails) / max(len(rails), 1),
        "one_node": sum(alone) / len(alone),
        "jobs": len(speeds),
        "dropped": dropped,
    }


def _speed(machine: Machine, seats: Sequence[Seat]) -> float:
    return min(ALIGNED if _paired(machine, seat) else APART for seat in seats)


def _paired(machine: Machine, seat: Seat) -> bool:
    """Whether each GPU has a NIC of its own under its switch."""
    graph = nx.Graph()
    left = [("gpu", gpu) for gpu in seat.gpus]
    graph.add_nodes_from(left)
    graph.add_edges_from(
        (("gpu", gpu), ("nic", nic))
        for gpu in seat.gpus
        for nic in seat.nics
        if machine.levels[gpu][nic] <= Level.PXB
    )
    return len(nx.bipartite.maximum_matching(graph, left)) // 2 == len(seat.gpus)


# --- peers --------------------------------------------------------------------------------------------------


def _first_fit(cluster: Cluster, members: int, gpus: int, nics: bool) -> list[Seat] | None:
    seats: list[Seat] = []
    for _ in range(members):
        node = next((at for at in range(NODES) if _has(cluster, at, gpus, nics)), None)
        if node is None:
            cluster.release(seats)
            return None
        seat = Seat(
            node, tuple(sorted(cluster.gpus[node])[:gpus]), tuple(sorted(cluster.nics[node])[: gpus * nics])
        )
        cluster.take([seat])
        seats.append(seat)
    cluster.release(seats)
    return seats


def _has(cluster: Cluster, node: int, gpus: int, nics: bool) -> bool:
    return len(cluster.gpus[node]) >= gpus and len(cluster.nics[node]) >= gpus * nics


def _koordinator(cluster: Cluster, members: int, gpus: int, nics: bool) -> list[Seat] | None:
    seats: list[Seat] = []
    for _ in range(members):
        nodes = [at for at in range(NODES) if _has(cluster, at, gpus, nics)]
        if not nodes:
            cluster.release(seats)
            return None
        node = max(nodes, key=lambda at: (len(cluster.gpus[at]) + len(cluster.nics[at]) * nics, -at))
        seat = _by_tree(cluster, node, gpus, nics)
        cluster.take([seat])
        seats.append(seat)
    cluster.release(seats)
    return seats


def _by_tree(cluster: Cluster, node: int, gpus: int, nics: bool) -> Seat:
    """Koordinator's choice on one node: the deepest group of GPUs that fits, then NICs of their PCIe roots in
    turn."""
    machine, free = cluster.machine, cluster.gpus[node]
    gpu_roots, nic_roots = machine.roots
    every = range(len(machine.gpus))
    depths = (
        [[gpu for gpu in every if gpu_roots[gpu] == root] for root in sorted(set(gpu_roots))],
        [[gpu for gpu in every if machine.numa[gpu] == numa] for numa in sorted(set(machine.numa))],
        [list(every)],
    )
    for groups in depths:
        fitting = [group for group in groups if len(free & set(group)) >= gpus]
        if fitting:
            used = [sum(bool(set(wider) - free) for depth in depths for wider in depth if set(group) <= set(wider)) for group in fitting]  # fmt: skip
            group = fitting[max(range(len(fitting)), key=lambda at: (used[at], -at))]
            chosen = sorted(free & set(group))[:gpus]
            break
    preferred = [
        [nic for nic in sorted(cluster.nics[node]) if nic_roots[nic] == root]
        for root in dict.fromkeys(gpu_roots[gpu] for gpu in chosen)
    ]
    order = [nic for turn in itertools.zip_longest(*preferred) for nic in turn if nic is not None]
    order += [nic for nic in sorted(cluster.nics[node]) if nic not in order]
    return Seat(node, tuple(chosen), tuple(order[: gpus * nics]))


# --- koordra ------------------------------------------------------------------------------------------------


class Koordra:
    """`place_gang` over the same cluster, on an engine that is told of what changes, as the controller's
    is."""

    def __init__(self, machine: Machine) -> None:
        self.engine = engine_for()
        objects = [*shipped_classes(), *(one for node in range(NODES) for one in self._node(machine, node))]
        Manifests.of(objects).fill(self.engine.index)
        self.held: dict[int, Object | None] = {}
        self.jobs = 0

    def __call__(self, cluster: Cluster, members: int, gpus: int, nics: bool) -> list[Seat] | None:
        machine = cluster.machine
        self.jobs += 1
        for node in range(NODES):
            self._hold(cluster, node)
        gang = GangRequest(
            "job",
            [_member(f"job-{self.jobs}-{index}", index, gpus, nics) for index in range(members)],
            members,
        )
        answer = place_gang(gang, self.engine)
        if not isinstance(answer, GangPlaced):
            return None
        seats = []
        for one in answer.members:
            devices = [
                result["device"]
                for allocation in one.allocations.values()
                for result in allocation["devices"]["results"]
            ]
            seats.append(
                Seat(
                    int(one.node.rpartition("-")[2]),
                    tuple(machine.gpus.index(device) for device in devices if device in machine.gpus),
                    tuple(machine.nics.index(device) for device in devices if device in machine.nics),
                )
            )
        return seats

    def _hold(self, cluster: Cluster, node: int) -> None:
        """What is in use on the node."""
        machine, name = cluster.machine, _name(node)
        held = [machine.gpus[at] for at in range(len(machine.gpus)) if at not in cluster.gpus[node]]
        held += [machine.nics[at] for at in range(len(machine.nics)) if at not in cluster.nics[node]]
        results = [
            {"request": "r", "driver": names.DRIVER, "pool": name, "device": device} for device in held
        ]
        holder = {
            "kind": "ResourceClaim",
            "metadata": {"name": f"held-{name}", "namespace": "d", "uid": name},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        now = holder if held else None
        if self.held.get(node) != now:
            self.held[node] = now
            self.engine.index.apply(ClusterChange(CLAIM, f"d/held-{name}", now))

    def _node(self, machine: Machine, node: int) -> list[Object]:
        name = _name(node)
        labels = {"network.topology.nvidia.com/block": f"block-{node // BLOCK}"}
        found: list[Object] = [{"kind": "Node", "metadata": {"name": name, "labels": labels}}]
        for index, entry in enumerate(machine.slices):
            spec = {**entry["spec"], "nodeName": name, "pool": {**entry["spec"]["pool"], "name": name}}
            found.append({"kind": "ResourceSlice", "metadata": {"name": f"{name}-{index}"}, "spec": spec})
        return found


def _name(node: int) -> str:
    return f"node-{node:03}"


def _member(name: str, index: int, gpus: int, nics: bool) -> NewMember:
    requests: list[Object] = [{"name": "gpu", "exactly": {"deviceClassName": names.CLASS_GPU, "count": gpus}}]
    config: list[Object] = []
    if nics:
        requests.append({"name": "nic", "exactly": {"deviceClassName": names.CLASS_NIC, "count": gpus}})
        parameters = {
            "apiVersion": "koordra.io/v1alpha1",
            "kind": "JointAllocation",
            "scope": "PCIeSwitch",
        }
        config.append({"opaque": {"driver": names.DRIVER, "parameters": parameters}})
    claim = {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "d", "uid": name},
        "spec": {"devices": {"requests": requests, "config": config}},
    }
    pod = {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "d", "uid": f"pod-{name}"},
        "spec": {"containers": [], "resourceClaims": [{"name": "x", "resourceClaimName": name}]},
    }
    return NewMember(f"d/{name}", ClaimGroup((ResourceClaim.from_dict(claim),), (pod,)), index=index)


def _machine() -> Machine:
    with tempfile.TemporaryDirectory() as folder:
        presets.write_machine(presets.load(MACHINE), Path(folder), serial="bench")
        found = discover(Path(folder)).machine
    slices = build_slices(found, node_name="n", node_uid="0", mode=names.MODE_JOINT, generation=1)
    inventory = read_inventory(slices)
    devices = [offered for pool in inventory.pools({"metadata": {"name": "n"}}) for offered in pool.devices]
    gpus = [one for one in devices if one.kind == GPU and one.plain[names.ATTR_TYPE] == names.TYPE_GPU]
    nics = [one for one in devices if one.kind == NIC and one.plain[names.ATTR_TYPE] == names.TYPE_NIC]
    return Machine(
        tuple(one.id.device for one in gpus),
        tuple(one.id.device for one in nics),
        tuple(tuple(int(level_between(gpu.plain, nic.plain)) for nic in nics) for gpu in gpus),
        (
            tuple(str(one.plain.get(names.STANDARD_PCIE_ROOT)) for one in gpus),
            tuple(str(one.plain.get(names.STANDARD_PCIE_ROOT)) for one in nics),
        ),
        tuple(int(one.plain.get(names.ATTR_NUMA_NODE) or 0) for one in gpus),
        tuple(str(one.plain.get(names.ATTR_RAIL)) for one in nics),
        tuple(slices),
    )


def _markdown(found: Sequence[Object]) -> str:
    rows = []
    means = {
        name: {
            key: sum(run[key] for run in found if run["policy"] == name) / len(SEEDS)
            for key in ("busbw", "aligned", "allocated", "blocks", "one_node", "rails", "jobs", "dropped")
        }
        for name in dict.fromkeys(run["policy"] for run in found)
    }
    runs = {(run["policy"], run["seed"]): run for run in found}
    for name, mean in means.items():
        times = [runs[name, seed]["busbw"] / runs["first-fit", seed]["busbw"] for seed in SEEDS]
        points = [
            100 * (runs[name, seed]["allocated"] - runs["first-fit", seed]["allocated"]) for seed in SEEDS
        ]
        rows.append(
            (
                name,
                f"{mean['busbw']:.1f}",
                _spread(times, "{:.2f}"),
                f"{100 * mean['aligned']:.1f}",
                f"{100 * mean['allocated']:.2f}",
                _spread(points, "{:+.2f}"),
                f"{mean['blocks']:.2f}",
                f"{100 * mean['one_node']:.0f}",
                f"{mean['rails']:.2f}",
                f"{mean['jobs']:.0f}",
                f"{mean['dropped']:.0f}",
            )
        )
    header = (
        "policy",
        "busbw, GB/s",
        "times first-fit",
        "jobs all aligned %",
        "GPUs allocated %",
        "points more than first-fit",
        "blocks per job",
        "jobs on one node %",
        "rails per rail needed",
        "jobs with NICs placed",
        "dropped",
    )
    return "\n".join(
        [
            "# What aligned gangs are worth",
            f"{NODES} nodes ({MACHINE}) in blocks of {BLOCK}; modelled: {ALIGNED:.0f} GB/s aligned, {APART:.0f} not.",
            f"Seeds {', '.join(map(str, SEEDS))}: mean ± standard deviation (least … most), seed by seed against first fit.",
            "",
            table(header, rows),
        ]
    )


def _spread(values: Sequence[float], form: str) -> str:
    """Mean, standard deviation, least and most."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    least, most = form.format(min(values)), form.format(max(values))
    return f"{form.format(statistics.mean(values))} ± {deviation:.2f} ({least} … {most})"
