"""Small clusters and streams that the tests of the fleet share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from koordra.kubelet_plugin.publish.offering import WITHOUT_POLICY
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import read_inventory
from koordra.placement.free_amounts.node_devices import devices_of_pools
from koordra.placement.free_amounts.state import FreeAmounts, MachineType, Request
from koordra.placement.mig.layout import Layout
from koordra.placement.policy.workload import Workload, expected
from koordra.placement.policy.workload_table import LearnedTable
from koordra.simulation.fleet import Fleet
from koordra.topology import presets
from koordra.topology.presets.mig import mig_profiles


def drifted(fleet: Fleet) -> list[Request]:
    """Requests whose kept keys differ from those computed afresh; empty unless there is a bug."""
    fresh = Fleet(fleet.kinds, fleet.nodes, fleet.policy)
    fresh.tags[:] = fleet.tags
    return [request for request in list(fleet._rows) if (fresh.keys(request) != fleet.keys(request)).any()]


def mig_layout(card: str) -> Layout:
    """A card as koordra's kubelet plugin publishes it when it makes instances on demand, read as the fleet
    reads it."""
    machine = presets.load("dgx-a100").machine(serial="a")
    gpu = replace(machine.gpus[0], mig_enabled=True, mig_profiles=mig_profiles({"mig_profiles": card}))
    slices = build_slices(
        replace(machine, gpus=(gpu,), nics=()),
        node_name="n",
        node_uid="n",
        mode="joint",
        generation=1,
        offering=replace(WITHOUT_POLICY, mig=True, mig_on_demand=True),
    )
    (found,) = devices_of_pools(read_inventory(slices).pools({"metadata": {"name": "n"}})).kind.layouts
    assert found is not None
    return found


KINDS = (MachineType("T4", 2), MachineType("G2", 8), MachineType("V100", 4))


def nodes(count: int = 12) -> list[FreeAmounts]:
    made = []
    for number in range(count):
        kind = number % len(KINDS)
        gpus = KINDS[kind].gpus
        made.append(FreeAmounts(kind, 12_000 * gpus, 64_000 * gpus, (1000,) * gpus))
    return made


def stream(count: int, *, seed: int = 1) -> list[Request]:
    """Shares, whole GPUs, several, none; some for one model only."""
    generator = np.random.default_rng(seed)
    shares = (190, 320, 470, 500, 810)
    made = []
    for _ in range(count):
        sort = int(generator.integers(10))
        cpu, memory = int(generator.integers(1, 17)) * 1000, int(generator.integers(1, 65)) * 1024
        models: tuple[str, ...] = ("T4",) if int(generator.integers(8)) == 0 else ()
        if sort == 0:
            made.append(Request(cpu, memory, 0, 0))
        elif sort == 1:
            made.append(Request(cpu, memory, int(generator.integers(2, 5)), 1000, ()))
        elif sort < 5:
            made.append(Request(cpu, memory, 1, 1000, models))
        else:
            made.append(Request(cpu, memory, 1, shares[int(generator.integers(len(shares)))], models))
    return made


def table(requests: list[Request]) -> LearnedTable:
    return expected(Workload.of(requests), {"T4": 8, "G2": 32, "V100": 16})
