"""GPU and NIC together under a learned policy: the best level that is free, whatever the state; what nobody
else wants goes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import engine_for, plan
from koordra.placement.free_amounts.state import FreeAmounts
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload_table import LearnedTable, PerGpuDemand
from koordra.quantity import parse
from koordra.topology.levels import Level
from koordra.topology.machine_shape import MachineShape, pair_level
from tests.fakes.machine_shapes import shape_of_machine
from tests.machines import catalogue
from tests.unit.allocator import machines

Dict = dict[str, Any]
MACHINES = ("dgx-a100", "hgx-h100", "pcie-a100x8-2nic", "two-switches-one-root", "v100x8-sxm2")


class Machine:
    """One node, of which so much is free."""

    def __init__(self, name: str, table: LearnedTable) -> None:
        self.shape: MachineShape = shape_of_machine(catalogue.machine(name))
        self.published = build_slices(
            catalogue.machine(name), node_name="node-1", node_uid="u", mode="joint", generation=1
        )
        devices = [one for entry in self.published for one in entry["spec"].get("devices", ())]
        self.gpus = [one for one in devices if one["attributes"]["koordra.io/type"] == {"string": "gpu"}]
        self.nics = [one for one in devices if one["attributes"]["koordra.io/type"] == {"string": "nic"}]
        self.engine = engine_for(learned=Learned(table))

    def chosen(self, state: FreeAmounts, *asked: Dict) -> tuple[list[int], list[int]] | None:
        """Positions of the GPUs and NICs that a claim gets; None where it fits nowhere."""
        held = [
            self._held(device, capacity, free, whole)
            for devices, capacity, whole, all_free in (
                (self.gpus, "memory", 1000, state.gpus),
                (self.nics, "share", 100, state.nics),
            )
            for device, free in zip(devices, all_free, strict=True)
            if free < whole
        ]
        holder = machines.allocated(machines.claim("held"), {"devices": {"results": held}})
        objects = [machines.node("node-1"), *self.published, *machines.device_classes(), holder]
        found = plan([*objects, machines.claim("asked", *asked)], engine=self.engine)
        if not found.allocations:
            return None
        named = [one["device"] for one in found.allocations["default/asked"]["devices"]["results"]]
        gpus, nics = ([one["name"] for one in devices] for devices in (self.gpus, self.nics))
        return (
            sorted(gpus.index(one) for one in named if one in gpus),
            sorted(nics.index(one) for one in named if one in nics),
        )

    def _held(self, device: Mapping[str, Any], capacity: str, free: int, whole: int) -> Dict:
        of = next(name for name in device["capacity"] if name.rpartition("/")[2] == capacity)
        taken = parse(device["capacity"][of]["value"]) * (whole - free) / whole
        return {
            "request": "r",
            "driver": "koordra.io",
            "pool": "node-1",
            "device": device["name"],
            "shareID": f"s-{device['name']}",
            "consumedCapacity": {of: str(int(taken))},
        }


def _random_state(shape: MachineShape, generator: np.random.Generator) -> FreeAmounts:
    gpus = tuple(int(generator.choice([0, 500, 1000])) for _ in range(shape.gpus))
    nics = tuple(int(generator.choice([0, 25, 50, 100])) for _ in range(shape.nics))
    return FreeAmounts(0, 64_000, 1 << 20, gpus, nics)


@pytest.mark.parametrize("name", MACHINES)
def test_the_best_level_of_the_node_is_taken(name: str) -> None:
    machine, generator = (
        Machine(name, LearnedTable(nics=(PerGpuDemand(50, 500_000),), pods=100)),
        np.random.default_rng(3),
    )
    for _ in range(12):
        state = _random_state(machine.shape, generator)
        for milli, percent in ((1000, 100), (1000, 25), (400, 50)):
            gpu = machines.request("gpu", "gpu", 1, capacity={} if milli == 1000 else {"memory": "10Gi"})
            nic = machines.request("nic", "nic", 1, capacity={"share": str(percent)})
            pairs = [
                pair_level(machine.shape, 1 << gpu, 1 << nic)
                for gpu, free in enumerate(state.gpus)
                if free >= milli
                for nic, left in enumerate(state.nics)
                if left >= percent
            ]
            found = machine.chosen(state, gpu, nic)
            if not pairs:
                assert found is None
                continue
            assert found is not None
            (one,), (other,) = found
            assert pair_level(machine.shape, 1 << one, 1 << other) == min(pairs)


@pytest.mark.parametrize("name", MACHINES)
def test_several_devices_are_as_near_as_any_that_are_free(name: str) -> None:
    machine, generator = Machine(name, LearnedTable(pods=100)), np.random.default_rng(4)
    for _ in range(8):
        state = _random_state(machine.shape, generator)
        for gpus, nics in ((2, 1), (2, 2), (4, 2)):
            asked = (
                machines.request("gpu", "gpu", gpus),
                machines.request("nic", "nic", nics, capacity={"share": "50"}),
            )
            found = machine.chosen(state, *asked)
            free = [at for at, left in enumerate(state.gpus) if left == 1000]
            open_nics = [at for at, left in enumerate(state.nics) if left >= 50]
            if len(free) < gpus or len(open_nics) < nics:
                assert found is None
                continue
            assert found is not None
            steps = {
                (some, others): _steps(machine.shape, some, others)
                for some in combinations(free, gpus)
                for others in combinations(open_nics, nics)
            }
            assert steps[tuple(found[0]), tuple(found[1])] == min(steps.values())


def _steps(shape: MachineShape, gpus: Sequence[int], nics: Sequence[int]) -> int:
    """Of the best pairing, tried one by one; a NIC serves its part of the GPUs."""
    room = -(-len(gpus) // len(nics))
    return min(
        sum(
            int(pair_level(shape, 1 << gpu, 1 << nic) or 0) // 10
            for gpu, nic in zip(gpus, order, strict=True)
        )
        for order in product(nics, repeat=len(gpus))
        if all(order.count(nic) <= room for nic in nics)
    )


def test_gpus_without_a_nic_go_to_who_wants_none() -> None:
    """On two switches, one of which has no NIC left, a request without NIC takes the GPU there."""
    machine = Machine("hgx-h100", LearnedTable(nics=(PerGpuDemand(100, 1_000_000),), pods=100))
    shape = machine.shape
    nics = tuple(
        0 if pair_level(shape, 1, 1 << at) in {Level.PIX, Level.PXB} else 100 for at in range(shape.nics)
    )
    found = machine.chosen(
        FreeAmounts(0, 64_000, 1 << 20, (1000,) * 8, nics), machines.request("gpu", "gpu", 1)
    )
    assert found is not None
    ((gpu,), _) = found
    assert all(nics[at] == 0 for at in range(shape.nics) if pair_level(shape, 1 << gpu, 1 << at) == Level.PIX)
