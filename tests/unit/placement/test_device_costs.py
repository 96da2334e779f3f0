"""The table of costs by part and form: the answer of the joint search for each pair, whichever of the two comes first."""

from __future__ import annotations

import random

import pytest

from koordra.placement.columns.arrays import Classes
from koordra.placement.columns.state import Devices, Kind, Request
from koordra.placement.policy import joint_devices as joint
from koordra.placement.policy.device_costs import KEY_BITS, OFFSET, DeviceCosts
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_learning import expected
from koordra.topology.machine_shape import MachineShape, shape_of_machine
from tests.machines import catalogue

SIZES = (1, 10, 99, 100, 250, 333, 500, 777, 999, 1000)


def _devices(draw: random.Random, shape: MachineShape) -> Devices:
    gpus = [draw.choice((0, 0, 250, 500, 1000, 1000, draw.randint(0, 1000))) for _ in range(shape.gpus)]
    return Devices(
        0,
        tuple(gpus),
        tuple(draw.choice((0, 25, 50, 100, 100, draw.randint(0, 100))) for _ in range(shape.nics)),
    )


def _workload(draw: random.Random) -> Workload:
    paired = [
        (Request(0, 0, 1, draw.choice(SIZES), (), draw.choice((0, 1)), draw.choice((25, 50, 100))), 100)
        for _ in range(8)
    ]
    return Workload([*dict(paired).items(), (Request(0, 0, 4, 1000), 50)])


@pytest.mark.parametrize("name", ["dgx-a100", "hgx-h100", "pcie-a100x8-2nic", "t4x4-1nic", "gpu16-nic16"])
def test_the_answer_is_that_of_the_pairs(name: str) -> None:
    draw = random.Random(name)
    shape = shape_of_machine(catalogue.machine(name))
    kind = Kind("A", shape.gpus, shape)
    classes = Classes((kind,))
    for milli in SIZES:
        classes.add(Request(0, 0, 1, milli))
    costs = DeviceCosts(expected(_workload(draw), {"A": 100}), classes, lone=draw.choice((0, 30_000)))
    parts: dict[int, Devices] = {}
    for number in range(40):
        if number == 30:
            # A size that comes late is made for all states, an early one with each state.
            classes.add(Request(0, 0, 1, 321))
        devices = _devices(draw, shape)
        parts[costs.part(devices)] = devices
    for part, devices in parts.items():
        keys, unused, extra = costs.of_part(part)
        assert extra is not None
        for at, form in enumerate(classes.forms):
            found = joint.best(costs._worth(devices), form)
            if found is None:
                assert int(keys[at]) >> KEY_BITS >= 2 * OFFSET
                continue
            assert int(keys[at]) == (OFFSET + found.holes << KEY_BITS | found.left)
            assert int(extra[at]) == found.extra
            chosen = sum(devices.gpus[gpu] == 1000 for gpu in found.choice.gpus)
            assert int(unused[at]) == devices.gpus.count(1000) - chosen
