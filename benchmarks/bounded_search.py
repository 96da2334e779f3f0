"""Claims that no shortcut serves: many different shares at once, on nodes that are all different.

1. Four GPU shares and four NIC shares of eight sizes, a NIC beside each GPU, on busy nodes of eight GPUs and
   eight NICs. What is compared is a node's answer with bounds and without them (`allocator.lower_bound`), in
   the same process; without them the search of each node ends when its allowance does, and its answer is not
   always the best.
2. The same over 40 and over 1,000 nodes, as `plan()` asks them under a policy that has every node asked.
3. 24 shares that fill eight cards to the last byte.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from koordra.allocator.group_search import GroupSearch, NodeAnswer
from koordra.allocator.search.search import Search
from koordra.allocator.search.solution import CostPair
from koordra.placement import Plan, plan
from tests.unit.allocator import machines

Dict = dict[str, Any]

POLICY = "TopologyAware"
GPU_SHARES = ("11Gi", "17Gi", "23Gi", "29Gi")
NIC_SHARES = ("13", "19", "29", "37")


def busy(draw: random.Random, name: str) -> list[Dict]:
    """A node of which every device is used in part, each in another."""
    node = machines.machine(8, 8, name=name)
    results = []
    for device in node[1]["spec"]["devices"]:
        amounts = dict.fromkeys(device["capacity"], "0")
        if "memory" in amounts:
            amounts |= {"memory": f"{draw.randint(5, 70)}Gi", "slots": "1"}
        else:
            amounts["share"] = str(draw.randint(5, 80))
        results.append(
            {
                "request": "r",
                "driver": "koordra.io",
                "pool": name,
                "device": device["name"],
                "shareID": f"s-{device['name']}",
                "consumedCapacity": amounts,
            }
        )
    holder = machines.claim(f"held-{name}", namespace="elsewhere")
    return [*node, machines.allocated(holder, {"devices": {"results": results}})]


def pairs() -> Dict:
    gpus = [machines.request(f"g{n}", capacity={"memory": size}) for n, size in enumerate(GPU_SHARES)]
    nics = [machines.request(f"n{n}", "nic", capacity={"share": size}) for n, size in enumerate(NIC_SHARES)]
    return machines.claim("pairs", *gpus, *nics, configs=[machines.joint("PCIeSwitch")])


def packed(draw: random.Random) -> list[Dict]:
    sizes = []
    for _ in range(8):
        first, second = sorted(draw.sample(range(1, 80), 2))
        sizes += [first, second - first, 80 - second]
    draw.shuffle(sizes)
    asked = [machines.request(f"g{n}", capacity={"memory": f"{size}Gi"}) for n, size in enumerate(sizes)]
    return [*machines.device_classes(), *machines.machine(8, 0), machines.claim("packed", *asked)]


def asked(nodes: int) -> tuple[float, int, Plan]:
    """Milliseconds that the nodes took to answer, how many answers were worked out, and the plan."""
    draw = random.Random(5)
    objects = [entry for number in range(nodes) for entry in busy(draw, f"node-{number:04}")]
    spent, on_node = [0.0, 0], GroupSearch.on_node

    def timed(*given: Any, **options: Any) -> NodeAnswer:
        start = time.process_time()
        found = on_node(*given, **options)
        spent[0] += 1000 * (time.process_time() - start)
        spent[1] += found.bound is None
        return found

    with patch.object(GroupSearch, "on_node", timed):
        found = plan([*machines.device_classes(), *objects, pairs()], policy=POLICY)
    return spent[0], int(spent[1]), found


def milliseconds(run: Callable[[], Plan]) -> tuple[float, Plan]:
    start = time.process_time()
    found = run()
    return 1000 * (time.process_time() - start), found


def main() -> None:
    with patch.object(Search, "least", lambda *_: CostPair()):
        plain, _, first = asked(4)
    bounded, _, second = asked(4)
    costs = [-found.scores["default/pairs"] for found in (first, second)]
    print(
        f"  4 + 4 shares, 4 nodes: without bounds {plain / 4:.0f} ms a node, with {bounded / 4:.1f} ms: x{plain / bounded:.0f}"
    )
    print(f"    cost of the best: {costs[0]} without, {costs[1]} with")
    for nodes in (40, 1000):
        spent, answers, _ = asked(nodes)
        print(
            f"  4 + 4 shares, {nodes} nodes: {spent / nodes:.1f} ms a node, {spent:.0f} ms in all, {answers} worked out"
        )
    for seed in range(6):
        objects = packed(random.Random(seed))
        spent, found = milliseconds(lambda: plan(objects))  # noqa: B023
        print(f"  24 shares in 8 cards: {spent:.0f} ms, {'found' if found.allocations else 'NOT FOUND'}")
