"""How large a part of a card is: from counters and cores that are published, in thousandths."""

from __future__ import annotations

from decimal import Decimal

import pytest

from koordra.allocator.devices.partitionable_gpu import size_of
from koordra.api.devices import Capacity, Device

QUARTERS = {f"memory-slice-{at}": 1 for at in range(4)}


@pytest.mark.parametrize(
    ("takes", "has", "cores", "size"),
    [
        ({"memory-slice-0": 1}, QUARTERS, None, 250),
        ({"memory-slice-0": 1}, QUARTERS, {"cores": 75}, 500),
        ({"memory-slice-0": 1}, QUARTERS, {"koordra.io/cores": 35, "memory": 10}, 300),
        ({"memory-slice-0": 1, "engine-1": 2}, QUARTERS | {"engine-0": 1, "engine-1": 3}, None, 375),
        ({"memory-slice-0": 1}, {"memory-slice-0": 1, "memory-slice-1": 0}, {"cores": 30}, 300),
        ({"memory": 20, "copies": 1}, {"memory": 80, "copies": 10}, None, 250),
        ({"memory": 20, "copies": 3}, {"memory": 80, "copies": 0}, None, 250),
        ({"memory": 20}, {}, None, 1000),
        ({}, {"memory": 1}, {"cores": 0}, 1),
        ({}, {"memory": 1}, {"cores": 150}, 1000),
    ],
)
def test_a_part_is_the_mean_of_its_numbered_counters_and_cores_or_its_largest_part_of_a_counter(
    takes: dict[str, int], has: dict[str, int], cores: dict[str, int] | None, size: int
) -> None:
    amounts = (cores or {}).items()
    device = Device("part", capacity={name: Capacity(Decimal(one), str(one)) for name, one in amounts})
    given = {name: Decimal(amount) for name, amount in takes.items()}
    assert size_of(device, given, {name: Decimal(amount) for name, amount in has.items()}) == size
