"""An inventory that is told what changes plans as one that is read afresh."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest

from koordra.allocator.devices.inventory import Inventory
from koordra.allocator.devices.pools import kept_with_pools
from koordra.placement import PlanError, engine_for, plan, read_inventory
from tests.unit.allocator.machines import (
    claim,
    counters_of,
    cut_card,
    device_classes,
    gpu,
    machine,
    node,
    place,
    request,
    slice_of,
)

Dict = dict[str, Any]


def rule(name: str, **selector: str) -> Dict:
    taint = {"key": "example.com/broken", "effect": "NoSchedule"}
    return {
        "kind": "DeviceTaintRule",
        "metadata": {"name": name},
        "spec": {"deviceSelector": selector, "taint": taint},
    }


def network(generation: int, *, devices: int, parts: int = 1) -> list[Dict]:
    """A pool of another driver that every node sees, in so many slices."""
    pool = {"name": "fabric", "generation": generation, "resourceSliceCount": parts}
    return [
        {
            "kind": "ResourceSlice",
            "metadata": {"name": f"fabric-{part}"},
            "spec": {
                "driver": "net.example.com",
                "allNodes": True,
                "pool": pool,
                "devices": [{"name": f"link-{part}-{number}"} for number in range(devices)],
            },
        }
        for part in range(parts)
    ]


def local(name: str, *, gpus: int, generation: int = 1) -> Dict:
    found = slice_of([gpu(number, place=place(number)) for number in range(gpus)], name=name)
    found["spec"]["pool"]["generation"] = generation
    return found


def unreadable(name: str) -> Dict:
    found = local(name, gpus=1)
    found["spec"]["devices"][0]["capacity"]["memory"]["value"] = "many"
    return found


NETWORK_CLASS: Dict = {
    "kind": "DeviceClass",
    "metadata": {"name": "link"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "net.example.com"'}}]},
}
NODES = [machine(0, 0, name=f"node-{number}")[0] for number in range(3)]
WANTED = [
    *device_classes(),
    NETWORK_CLASS,
    *NODES,
    claim("a", request("gpu", count=2)),
    claim("b", {"name": "link", "exactly": {"deviceClassName": "link", "count": 2}}),
]


def changes(draw: random.Random) -> Dict:
    node = f"node-{draw.randrange(3)}"
    return draw.choice(
        [
            local(node, gpus=draw.randrange(4), generation=draw.randrange(1, 3)),
            unreadable(node),
            rule("rule", pool=node),
            rule("rule", device="gpu-0"),
            *network(draw.randrange(1, 3), devices=draw.randrange(1, 3)),
            network(1, devices=1, parts=2)[draw.randrange(2)],
        ]
    )


@pytest.mark.parametrize("seed", range(12))
def test_what_is_told_bit_by_bit_is_known_as_if_read_at_once(seed: int) -> None:
    draw = random.Random(seed)
    kept, known = engine_for(), dict[tuple[str, str], Dict]()
    for _ in range(25):
        changed = changes(draw)
        key = (changed["kind"], changed["metadata"]["name"])
        if draw.randrange(4):
            known[key] = copy.deepcopy(changed)
        else:
            known.pop(key, None)
        told = plan([*WANTED, *known.values()], engine=kept, report_errors=True)
        assert told == plan([*WANTED, *known.values()], report_errors=True)


def test_a_pool_is_gathered_again_only_where_it_changed() -> None:
    inventory = read_inventory([local(f"node-{number}", gpus=1) for number in range(3)])
    before = [inventory.pools(node)[0] for node in NODES]
    changed = local("node-1", gpus=2)
    inventory.put_slices(changed["metadata"]["name"], [changed])
    after = [inventory.pools(node)[0] for node in NODES]
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]
    inventory.put_rule("rule", rule("rule", device="gpu-0"))
    assert all(pool.devices[0].taints for node in NODES for pool in inventory.pools(node))
    inventory.put_rule("rule", None)
    assert not any(pool.devices[0].taints for node in NODES for pool in inventory.pools(node))


def test_a_node_that_moves_sees_other_devices() -> None:
    """Labels decide which network devices a node sees; what was gathered under the old ones does not
    count."""
    links = network(1, devices=2)[0]
    del links["spec"]["allNodes"]
    wanted = {"key": "zone", "operator": "In", "values": ["here"]}
    links["spec"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    inventory = read_inventory([links])
    node = copy.deepcopy(NODES[0])
    assert inventory.pools(node) == []
    node["metadata"]["labels"]["zone"] = "here"
    assert len(inventory.pools(node)) == 1


def test_an_inventory_is_about_slices_and_rules_alone() -> None:
    broken = {"kind": "DeviceTaintRule", "metadata": {"name": "rule"}, "spec": {"taint": 1}}
    inventory: Inventory = read_inventory([{"kind": "Node", "metadata": {"name": "n"}}])
    assert (inventory.by_pool, inventory.rules) == ({}, {})
    inventory.put_rule("rule", rule("rule", device="gpu-0"))
    with pytest.raises(PlanError, match="DeviceTaintRule rule"):
        inventory.put_rule("rule", broken)
    assert list(inventory.rules) == ["rule"]


def cut(name: str) -> list[Dict]:
    """A node with a card in MIG mode: devices in one slice of its pool, counters in the other."""
    devices, counters = cut_card(0, (("3g.40gb", 0, 4, 3),), slices=8, compute=7, place=place(0))
    found = [node(name), slice_of(devices, name=name), counters_of([counters], name=name)]
    for entry in found[1:]:
        entry["spec"]["pool"]["resourceSliceCount"] = 2
    return found


def test_counters_of_another_nodes_pool_leave_a_node_alone() -> None:
    engine = engine_for()
    plan([*device_classes(), *cut("n1"), *cut("n2"), claim("a", request("gpu"))], engine=engine)
    nodes = engine.index.nodes
    assert {name: [pool.id[1] for pool in info.pools] for name, info in nodes.items()} == {
        "n1": ["n1"],
        "n2": ["n2"],
    }
    assert nodes["n1"].state is nodes["n2"].state, "nodes that publish the same share what is found out"


def test_what_is_made_of_pools_is_made_anew_for_other_pools() -> None:
    """A gang shows a node without some of its NICs: nothing that was made of the whole pool counts for that
    one."""
    inventory = read_inventory([local("node-1", gpus=3)])
    (pool,) = pools = inventory.pools(NODES[1])
    kept = kept_with_pools(lambda pools: [one.id.device for pool in pools for one in pool.devices])
    assert kept(pools) is kept(tuple(pools))
    assert kept([replace(pool, devices=pool.devices[1:])]) == kept(pools)[1:]
    assert kept(pools) == ["gpu-0", "gpu-1", "gpu-2"]
