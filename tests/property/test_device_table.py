"""Tables of sets of devices against the search: what a table takes, the search takes at that cost.

The machines are those of the bounds' tests: uneven trees, devices without places, shares in use, MIG cards,
every sort of NVLink. `make soak` tries more (KOORDRA_EXAMPLES).
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.device_table import MachineTerms
from koordra.allocator.devices.inventory import GPU, NIC
from koordra.allocator.score import Cost, policy_of
from koordra.api import names
from koordra.placement import plan
from tests.long import mostly_long
from tests.property.test_lower_bounds import node
from tests.unit.allocator import machines
from tests.unit.allocator.machines import state_of

Dict = dict[str, Any]

HUNDREDS = max(1, int(os.environ.get("KOORDRA_EXAMPLES") or 0) // 100)
CASES = 6
MOST = 20_000


def machine_of(state: AllocationState, cost: Cost) -> MachineTerms:
    def cards(kind: str, sort: str) -> list[int]:
        return [
            at
            for at, one in enumerate(state.devices)
            if one.kind == kind and one.plain.get(names.ATTR_TYPE) == sort
        ]

    gpus, nics = cards(GPU, names.TYPE_GPU), cards(NIC, names.TYPE_NIC)
    bit = {device: 1 << at for at, device in enumerate([*gpus, *nics])}
    whole = [(weight, members) for weight, members in cost.whole if members <= set(gpus)]
    keeps = cost.device.value != "Spread"
    return MachineTerms(cost.selection, gpus=gpus, nics=nics, bit=bit, whole=whole if keeps else [])


@pytest.mark.parametrize("chapter", mostly_long(range(8 * HUNDREDS)))
@pytest.mark.parametrize("name", ["koordra", "Binpack", "Spread"])
def test_the_best_set_of_a_table_is_what_the_search_takes(name: str, chapter: int) -> None:
    draw, policy = random.Random(f"table {name} {chapter}"), policy_of(name)
    assert policy is not None
    compared = 0
    while compared < CASES:
        published = node(draw, "node-1", 6)
        state = state_of(published)
        cost = Cost(state, policy)
        machine = machine_of(state, cost)
        free = [
            device
            for device in [*machine.gpus, *machine.nics]
            if not state.busy[device] and not state.holders[device]
        ]
        k, j = draw.randint(0, 4), draw.randint(0, 3)
        if not k and not j:
            continue
        asked = [machines.request(kind, kind, count) for kind, count in (("gpu", k), ("nic", j)) if count]
        found = plan([*machines.device_classes(), *published, machines.claim("c", *asked)], policy=name)
        sets = every_set(machine, k, j)
        table = machine.table(sets)
        takeable = untouched = machine.mask(free)
        best = table.least(takeable=takeable, untouched=untouched)
        allocation = found.allocations.get("default/c")
        if allocation is None:
            demanded = published[0]["metadata"]["labels"].get("koordra.io/gpu-partition-policy") == "Honor"
            assert demanded or not len(best)
            continue
        named = {one["device"] for one in allocation["devices"]["results"]}
        taken = machine.mask(at for at, one in enumerate(state.devices) if one.id.device in named)
        if published[0]["metadata"]["labels"].get("koordra.io/gpu-partition-policy") != "Honor":
            assert taken in best.tolist(), (named, k, j)
            compared += 1


def every_set(machine: MachineTerms, gpus: int, nics: int) -> Any:
    """Also those that differ in NICs that are alike."""
    masks = range(1 << len(machine.bit))
    of_gpus, of_nics = machine.mask(machine.gpus), machine.mask(machine.nics)
    return np.array(
        [one for one in masks if (one & of_gpus).bit_count() == gpus and (one & of_nics).bit_count() == nics],
        dtype=np.int64,
    )
