"""The fast ways of placing gangs against the plain ones: tables of whole devices, tables of one class,
counting before packing.

The plain way is the one that was there first, and is still what is taken where the fast ones cannot tell:
each kind of node is searched for each count (`NodeSearch`), tables are convolved shift by shift, and every
set of rails is packed. Made-up clusters of nodes with holes in them are answered both ways. The answers have
to be equal to the last device.

`make soak` tries more (KOORDRA_EXAMPLES).
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from koordra.placement.gang import GangAnswer, GangPlaced, GangRequest, NewMember, node_fit, place_gang
from koordra.placement.gang.topology.cost_tables import Costs, SharedTables
from koordra.placement.gang.topology.rail_minimization import RailBound
from tests.fakes.gang_engine import gang_engine, member, order_of
from tests.long import mostly_long
from tests.unit.allocator.machines import (
    allocated,
    claim,
    device_classes,
    gpu,
    joint,
    nic,
    node,
    nvlink,
    pod,
    request,
    slice_of,
)

HUNDREDS = max(1, int(os.environ.get("KOORDRA_EXAMPLES") or 0) // 100)


def shift_by_shift(tables: SharedTables, left: Costs, right: Costs) -> Costs:
    sizes = zip(left.shape, right.shape, tables.want, strict=True)
    found = np.full([min(a + b - 1, most + 1) for a, b, most in sizes], tables.infeasible, left.dtype)
    for one in itertools.product(*map(range, left.shape)):
        for other in itertools.product(*map(range, right.shape)):
            both = tuple(a + b for a, b in zip(one, other, strict=True))
            if all(a < b for a, b in zip(both, found.shape, strict=True)):
                found[both] = min(found[both], left[one] + right[other])
    return found


@contextmanager
def plainly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_fit, "table_of", lambda *_, **__: None)
        patch.setattr(SharedTables, "convolved", shift_by_shift)
        patch.setattr(RailBound, "suffices", lambda *_: True)
        yield


def sort_of_machine(draw: random.Random) -> list[dict[str, Any]]:
    """Devices of a sort of machine: cards on switches and roots, NICs beside some of them, linked in some
    way."""
    count = draw.choice((2, 4, 4, 6, 8))
    per_root, per_numa = draw.choice((1, 1, 2)), draw.choice((2, 4))
    links = draw.choice(("", "switch", "hopper", "bridges", "mesh"))
    tainted = draw.choice((0.0, 0.0, 0.1))
    taint = [{"key": "koordra.io/link-down", "effect": "NoSchedule"}]

    def spot(number: int) -> dict[str, Any]:
        switch = number // per_root
        return {
            "numaNode": number // per_numa,
            "socket": number // per_numa,
            "pcieSwitch": f"0000:{number:02x}:00.0",
            "resource.kubernetes.io/pcieRoot": f"pci0000:{switch:02x}",
        }

    devices = [
        gpu(
            at,
            place={**spot(at), **nvlink(links, at, count)},
            taints=taint if draw.random() < tainted else (),
        )
        for at in range(count)
    ]
    beside = [at for at in range(count) for _ in range(draw.choice((0, 1, 1, 1, 2)))]
    if draw.random() < 0.3:
        draw.shuffle(beside)
    return devices + [
        nic(
            number,
            place=spot(at),
            taints=taint if draw.random() < tainted else (),
            **({"rail": draw.choice((at, at, number))} if draw.random() < 0.9 else {}),
        )
        for number, at in enumerate(beside)
    ]


def cluster(draw: random.Random) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    sorts = [sort_of_machine(draw) for _ in range(draw.choice((1, 1, 2)))]
    for number in range(draw.randint(1, 7)):
        name, devices = f"n{number}", draw.choice(sorts)
        labels = {
            "fabric.koordra.io/block": draw.choice("abc"),
            "fabric.koordra.io/spine": draw.choice("xxy"),
        }
        found += [node(name, labels=labels, allocatable={"cpu": draw.choice(("12", "64"))})]
        found += [slice_of(devices, name=name)]
        busy = draw.choice((0.0, 0.0, 0.3, 0.6))
        held = [_held(draw, name, device) for device in devices if draw.random() < busy]
        if held:
            found.append(allocated(claim(f"held-{name}", request("r")), {"devices": {"results": held}}))
    return found


def _held(draw: random.Random, name: str, device: dict[str, Any]) -> dict[str, Any]:
    """In use as a whole, or in part."""
    found: dict[str, Any] = {"request": "r", "driver": "koordra.io", "pool": name, "device": device["name"]}
    if draw.random() < 0.5:
        amounts = {"memory": "10Gi", "slots": "1"} if device["name"].startswith("gpu") else {"share": "30"}
        number = int(device["name"].partition("-")[2])
        found |= {"shareID": f"00000000-0000-4000-8000-{number:012}", "consumedCapacity": amounts}
    return found


def members_of(draw: random.Random) -> list[NewMember]:
    gpus, nics = draw.choice(((1, 1), (1, 1), (2, 2), (1, 0), (2, 0), (4, 4), (1, 2), (2, 1), (0, 1)))
    asked = [request("gpu", "gpu", gpus)] if gpus else []
    asked += [request("nic", "nic", nics)] if nics else []
    if draw.random() < 0.2:
        asked.reverse()
    config = []
    if draw.random() < 0.8:
        scope = draw.choice(("PCIeSwitch", "PCIeRoot", "PCIeRoot", "NUMANode", "Node"))
        pairing = draw.choice(("PerDevice", "PerDevice", "PerGroup", "Together"))
        enforcement = draw.choice(("Required", "Required", "Preferred"))
        config = [joint(scope, pairing=pairing, enforcement=enforcement)]
    found = []
    for index in range(draw.randint(1, 8)):
        name = f"m{index}"
        requests = {"cpu": "2"} if draw.random() < 0.8 else {"cpu": "5"}
        found.append(
            member(
                f"default/{name}",
                [pod(name, name, requests=requests)],
                [claim(name, *asked, configs=config)],
                index=index,
            )
        )
    if draw.random() < 0.2:
        found.append(member("default/launcher", [pod("launcher", requests={"cpu": "1"})]))
    return found


@pytest.mark.parametrize("twenty", mostly_long(range(5 * HUNDREDS), fast=0))
def test_the_fast_way_gives_the_answer_of_the_plain_one(twenty: int) -> None:
    by_table = 0
    for number in range(20):
        draw = random.Random(20 * twenty + number)
        objects = [*device_classes(), *cluster(draw)]
        members = members_of(draw)
        gang = GangRequest(
            "g",
            members,
            draw.randint(1, len(members)),
            required=draw.choice((None, None, None, "block")),
        )
        policy = draw.choice(("koordra", "koordra", "Binpack", "Spread", "TopologyAware"))
        engine = gang_engine(objects, policy=policy)
        fast = place_gang(gang, engine)
        again = place_gang(gang, engine)
        with plainly():
            plain = place_gang(gang, gang_engine(objects, policy=policy))
        by_table += any(
            table is not None
            for asked in members
            for table in engine.resolve(asked.group).request_class.kept.get("tables", {}).values()
        )
        same(fast, again)  # who remembers answers may go on where the first gave up
        if isinstance(plain, GangPlaced) and not plain.proven:
            same(plain, fast)
        else:
            assert fast == plain, (twenty, number)
    assert by_table > 12


def same(one: GangAnswer, other: GangAnswer) -> None:
    """The other is the same answer; or as good at least, where the one gave up before it was proven best."""
    if isinstance(one, GangPlaced) and not one.proven:
        assert isinstance(other, GangPlaced)
        assert order_of(other.score) <= order_of(one.score)
    else:
        assert one == other
