"""Bounds of partial choices: never above what a completion costs, and never a reason to choose otherwise.

Small made-up clusters of every sort (uneven trees, shares, MIG slices, NVLink, gates of scopes and
partitions) are planned as they are and without bounds. `make soak` tries more (KOORDRA_EXAMPLES).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from koordra.allocator.offer import Offer
from koordra.allocator.score import POLICIES, Cost
from koordra.allocator.search import search as search_module
from koordra.allocator.search.lower_bound import LowerBound
from koordra.allocator.search.packing import Item, Packing, SubsetSums
from koordra.allocator.search.search import Search
from koordra.allocator.search.solution import CostPair, Outcome
from koordra.api.claims import ResourceClaim
from koordra.placement import Plan, engine_for, plan
from koordra.placement.candidates.cost_bound import CostBound
from koordra.placement.manifests import Manifests
from koordra.placement.policy.expected_waste import ExpectedWaste
from koordra.placement.policy.learned_order import Learned, LearnedOrder
from koordra.placement.policy.workload_table import Block, LearnedTable, PerGpuDemand, SliceDemand
from koordra.placement.request.claim_groups import ClaimGroup
from tests.unit.allocator import machines

Dict = dict[str, Any]

HUNDREDS = max(1, int(os.environ.get("KOORDRA_EXAMPLES") or 0) // 100)
LINKS = ("none", "none", "hopper", "switch", "bridges", "mesh")
SCOPES = ("PCIeSwitch", "PCIeRoot", "NUMANode", "Node")
PARTS = (("4g", 0, 4, 3), ("1g", 0, 1, 1), ("1g", 1, 1, 1), ("2g", 0, 2, 2), ("2g", 2, 2, 1))
NOT_THE_FIRST = 'device.attributes["koordra.io"].uuid != "GPU-0"'
SCORED = tuple(policy for policy in POLICIES if policy != "FirstFit")


def node(draw: random.Random, name: str, most: int) -> list[Dict]:
    per_switch, per_numa = draw.choice((1, 2)), draw.choice((2, 4))
    gpus, nics = draw.randint(1, most), draw.randint(0, most)
    policy = draw.choice((None, None, "Honor", "Prefer"))
    found = machines.machine(
        gpus,
        nics,
        name=name,
        per_switch=per_switch,
        per_numa=per_numa,
        links=draw.choice(LINKS),
        labels={"koordra.io/gpu-partition-policy": policy} if policy else {},
    )
    devices, pool = found[1]["spec"]["devices"], found[1]["spec"]["pool"]
    if draw.random() < 0.25:
        here = machines.place(gpus, per_switch=per_switch, per_numa=per_numa)
        slices, counters = machines.cut_card(gpus, PARTS, slices=4, compute=3, place=here)
        devices += slices
        pool["resourceSliceCount"] = 2
        found.append(machines.counters_of([counters], name=name))
        found[-1]["spec"]["pool"] = pool
    if draw.random() < 0.3:
        for device in devices:
            if draw.random() < 0.3:
                device["attributes"].pop(draw.choice(("numaNode", "pcieSwitch")), None)
            elif draw.random() < 0.2:
                device["attributes"]["pcieSwitch"] = {"string": f"0000:{draw.randint(0, 2):02x}:00.0"}
    return found + held(draw, name, devices)


def held(draw: random.Random, name: str, devices: list[Dict]) -> list[Dict]:
    busy, results = draw.choice((0, 0.3, 0.6)), []
    for device in devices:
        if draw.random() > busy:
            continue
        result = {"request": "r", "driver": "koordra.io", "pool": name, "device": device["name"]}
        if "consumesCounters" not in device:
            amounts = dict.fromkeys(device["capacity"], "0")
            if "memory" in amounts:
                amounts |= {"memory": f"{draw.choice((10, 13, 40, 57, 80))}Gi", "slots": "1"}
            else:
                amounts["share"] = str(draw.choice((10, 25, 50, 70, 100)))
            result |= {"shareID": f"s-{device['name']}", "consumedCapacity": amounts}
        elif any("-mig-" in other["device"] for other in results):
            continue
        results.append(result)
    holder = machines.claim(f"held-{name}", namespace="elsewhere")
    return [machines.allocated(holder, {"devices": {"results": results}})] if results else []


def request(draw: random.Random, name: str) -> Dict:
    sort = draw.random()
    if sort < 0.5:
        amounts = draw.choice(({}, {"memory": "10Gi"}, {"memory": "23Gi"}, {"memory": "40Gi", "cores": "50"}))
        found = machines.request(name, "gpu", draw.choice((1, 1, 2, 3)), capacity=dict(amounts))
    elif sort < 0.9:
        share = draw.choice(("10", "25", "50", None))
        found = machines.request(
            name, "nic", draw.choice((1, 1, 2)), capacity={"share": share} if share else {}
        )
    else:
        found = machines.request(name, "mig", 1, capacity={"memory": draw.choice(("10Gi", "20Gi"))})
    if draw.random() < 0.1:
        body = found["exactly"]
        fewer = {**body, "count": max(1, body["count"] - 1)}
        return {"name": name, "firstAvailable": [{**body, "name": "all"}, {**fewer, "name": "fewer"}]}
    return found


def claims(draw: random.Random, most_requests: int) -> list[Dict]:
    found = []
    for number in range(draw.choice((1, 1, 2))):
        asked = [request(draw, f"r{index}") for index in range(draw.randint(1, most_requests))]
        configs, constraints = [], []
        if draw.random() < 0.5:
            configs.append(
                machines.joint(
                    draw.choice(SCOPES),
                    enforcement=draw.choice(("Required", "Preferred")),
                    pairing=draw.choice(("PerDevice", "PerDevice", "PerGroup", "Together")),
                )
            )
        if draw.random() < 0.15:
            configs.append(machines.config("GpuConfig", partition="Honor"))
        if draw.random() < 0.2:
            kind = draw.choice(("matchAttribute", "distinctAttribute"))
            attribute = draw.choice(("koordra.io/numaNode", "koordra.io/pcieSwitch", "koordra.io/uuid"))
            constraints.append({kind: attribute, "requests": [one["name"] for one in asked[:2]]})
        found.append(machines.claim(f"c{number}", *asked, configs=configs, constraints=constraints))
    if draw.random() < 0.5:
        found.append(machines.pod("pod", *(one["metadata"]["name"] for one in found)))
    return found


def cluster(draw: random.Random, *, nodes: int, most: int = 4, requests: int = 3) -> list[Dict]:
    published = [entry for n in range(nodes) for entry in node(draw, f"node-{n}", most)]
    return [*machines.device_classes(), *published, *claims(draw, requests)]


@contextmanager
def without_bounds() -> Iterator[list[bool]]:
    """Nodes in order of their names, searched as if nothing were known of what remains. What it gives tells
    which of them gave up before the end."""
    gave_up: list[bool] = []
    run = Search.run

    def noted(search: Search) -> Outcome:
        found = run(search)
        gave_up.append(found.exhausted)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "least", lambda *_: CostPair())
        patch.setattr(CostBound, "least", lambda *_: CostPair())
        patch.setattr(LearnedOrder, "least", lambda *_, **__: -(1 << 60))
        patch.setattr(Search, "run", noted)
        patch.setattr(search_module, "REFINEMENT", 4_000)
        yield gave_up


def costs(found: Plan) -> dict[str, int]:
    return {claim: -score for claim, score in found.scores.items()}


def learned(draw: random.Random) -> Learned:
    """What some workload may have taught: holes that any size may leave, NICs, cores, several GPUs, slices
    that are wanted."""
    sizes = [step for step in range(101) if draw.random() < 0.2]
    holes = tuple(10_000 * step if step in sizes else draw.choice((0, 2_000 * step)) for step in range(101))
    parts = (PerGpuDemand(100, draw.choice((0, 600_000))), PerGpuDemand(50, draw.choice((0, 300_000))))
    return Learned(
        LearnedTable(
            holes=(0, *holes[1:]),
            cores=(PerGpuDemand(draw.choice((4_000, 30_000)), 500_000),),
            nics=tuple(one for one in sorted(parts) if one.part),
            blocks=draw.choice(((), (Block(2, 4_000, (), 300_000),))),
            slices=draw.choice(
                ((), (SliceDemand(("4g",), 500, 700_000), SliceDemand(("1g",), 200, 300_000)))
            ),
            pods=100,
        )
    )


@pytest.mark.parametrize("twenty", range(15 * HUNDREDS))
def test_bounds_change_no_decision(twenty: int) -> None:
    """The same node, devices and cost; where the search without bounds gave up, no worse a cost."""
    finished = 0
    for number in range(20 * twenty, 20 * twenty + 20):
        draw = random.Random(number)
        objects = cluster(draw, nodes=draw.choice((1, 2, 3)))
        policy = draw.choice(("koordra", "koordra", *SCORED))
        known = learned(draw) if policy == "koordra" and number % 2 else None
        found = plan(objects, policy=policy, engine=engine_for(policy=policy, learned=known))
        with without_bounds() as gave_up:
            plain = plan(objects, policy=policy, engine=engine_for(policy=policy, learned=known))
        if not any(gave_up):
            finished += 1
            assert found == plain, number
        elif plain.allocations.keys() == found.allocations.keys():
            assert sum(costs(found).values()) <= sum(costs(plain).values()), number
    assert finished >= 12


class Watched:
    """Every bound of a walk that nothing is cut from, by the choice that it was asked for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bounds: dict[tuple[object, ...], CostPair | None] = {}
        self.compared = 0
        cost, run = Cost.__call__, Search.run

        def not_cut(search: Search, position: Any, best: Any) -> bool:
            least = search.least(position.request)
            if search._lower_bound is not None and search._lower_bound.usable:
                self.bounds[self.path(search)] = least
            return False

        def compared(objective: Cost, search: Search) -> CostPair:
            price = cost(objective, search)
            path = self.path(search)
            if search._holds():
                for length in range(1, len(path) + 1):
                    if path[:length] in self.bounds:
                        bound = self.bounds[path[:length]]
                        assert bound is not None, "a choice that can be completed was taken for a dead end"
                        assert bound <= price
                        self.compared += 1
            return price

        def shortly(search: Search) -> Outcome:
            search.budget = 3_000
            return run(search)

        patch.setattr(Search, "run", shortly)
        patch.setattr(search_module, "_PATIENCE", -1)
        patch.setattr(search_module, "REFINEMENT", 1_500)
        patch.setattr(Search, "_is_cut", not_cut)
        patch.setattr(Cost, "__call__", compared)
        value = LearnedOrder.value

        def valued(order: LearnedOrder, resolved: Any, info: Any, cluster: Any) -> int:
            found = value(order, resolved, info, cluster)
            alone = resolved.request_class.reads_any_of(order.index.known.identities)
            assert order.least(resolved, info, alone=alone) <= found
            return found

        patch.setattr(LearnedOrder, "value", valued)

    def path(self, search: Search) -> tuple[object, ...]:
        return (id(search), *((id(one.wanted), one.device) for one in search.placed))


@pytest.mark.parametrize("twenty", range(15 * HUNDREDS))
def test_no_completion_costs_less_than_its_bound(twenty: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch)
        for number in range(20 * twenty, 20 * twenty + 20):
            draw = random.Random(f"bound {number}")
            objects = cluster(draw, nodes=1, most=6, requests=4)
            policy = draw.choice(("koordra", "koordra", *SCORED))
            known = learned(draw) if policy == "koordra" and number % 2 else None
            plan(objects, policy=policy, engine=engine_for(policy=policy, learned=known))
    # Of the chapters that `make soak` adds some have few placements that are not settled at once.
    assert watched.compared > (10 if twenty < 15 else 0)


def uneven(draw: random.Random, name: str) -> list[Dict]:
    """A node whose cards differ in memory, some in use, of one capacity more than of the other."""
    sizes, results = [draw.choice((20, 40, 80)) for _ in range(draw.randint(1, 3))], list[Dict]()
    gpus = [
        machines.gpu(at, memory=f"{size}Gi", place=machines.place(at, per_switch=2))
        for at, size in enumerate(sizes)
    ]
    for at, size in enumerate(sizes):
        if draw.random() < 0.6:
            amounts = {
                "memory": f"{draw.randint(1, size)}Gi",
                "cores": f"{draw.randint(0, 9)}0",
                "slots": "1",
            }
            result = {"request": "r", "driver": "koordra.io", "pool": name, "device": f"gpu-{at}"}
            results.append({**result, "shareID": f"s-{at}", "consumedCapacity": amounts})
    holder = machines.claim(f"held-{name}", namespace="elsewhere")
    others = [machines.allocated(holder, {"devices": {"results": results}})] if results else []
    return [machines.node(name), machines.slice_of(gpus, name=name), *others]


@pytest.mark.parametrize("chapter", range(HUNDREDS))
def test_no_node_costs_the_cluster_less_than_its_bound(chapter: int) -> None:
    """A share on cards that are not alike: the bound of each node is below what it costs there, and the node
    is the one that is best by what it costs."""
    placed = 0
    for number in range(80):
        draw = random.Random(f"uneven {chapter} {number}")
        nodes, engine = [uneven(draw, f"n{at}") for at in range(3)], engine_for(learned=learned(draw))
        Manifests.of([*machines.device_classes(), *(one for own in nodes for one in own)]).fill(engine.index)
        amounts = {"memory": f"{draw.randint(1, 40)}Gi", "cores": f"{draw.randint(0, 9)}0"}
        claim = machines.claim("c", machines.request("gpu", capacity=amounts))
        if number % 4 == 0:
            claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [
                {"cel": {"expression": NOT_THE_FIRST}}
            ]
        resolved, costs = (
            engine.resolve(ClaimGroup((ResourceClaim.from_dict(claim),))),
            list[tuple[Any, str]](),
        )
        engine.settle()
        for name, info in engine.index.nodes.items():
            offer = engine.search(
                resolved, info, engine.index.taken, placement=engine.placement_for(resolved)
            ).offer
            if offer is not None:
                cost = engine.value(resolved, name, offer.cost, offer.placed)
                assert engine.order.least(resolved, info, alone=number % 4 == 0) <= cost.cluster, number
                costs.append((cost, name))
        found = engine.decide(resolved)
        assert (found.node if isinstance(found, Offer) else None) == min(costs, default=(None, None))[1], (
            number
        )
        placed += len(costs)
    assert placed > 80


def gpus_and_nics(draw: random.Random) -> Dict:
    """A claim for both, of which selectors and constraints rule some out that are near each other."""
    count, share = draw.choice((1, 1, 2)), draw.choice(("10", "25", "50", None))
    half = {"memory": "40Gi"} if count == 1 and draw.random() < 0.5 else {}
    gpu = machines.request("gpu", "gpu", count, capacity=half)
    nic = machines.request(
        "nic", "nic", draw.choice((count, 1, 2)), capacity={"share": share} if share else {}
    )
    configs, constraints = [], []
    if draw.random() < 0.5:
        other = f'device.attributes["koordra.io"].ibDevice != "mlx5_{draw.randint(0, 2)}"'
        nic["exactly"]["selectors"] = [{"cel": {"expression": other}}]
    if draw.random() < 0.3:
        kind = draw.choice(("matchAttribute", "distinctAttribute"))
        attribute = draw.choice(("koordra.io/numaNode", "koordra.io/pcieSwitch"))
        constraints.append({kind: attribute, "requests": ["gpu", "nic"]})
    if draw.random() < 0.3:
        enforcement = draw.choice(("Required", "Preferred"))
        configs.append(machines.joint(draw.choice(SCOPES), enforcement=enforcement))
    return machines.claim("c", gpu, nic, configs=configs, constraints=constraints)


@pytest.mark.parametrize("chapter", range(HUNDREDS))
def test_no_choice_of_gpus_and_nics_costs_the_cluster_less_than_its_bound(chapter: int) -> None:
    """None that is complete, whatever it is worth to its claim."""
    compared = 0
    for number in range(150):
        draw, prices = random.Random(f"both {chapter} {number}"), list[CostPair]()
        engine = engine_for(learned=learned(draw))
        Manifests.of([*machines.device_classes(), *node(draw, "n", 5)]).fill(engine.index)
        resolved = engine.resolve(ClaimGroup((ResourceClaim.from_dict(gpus_and_nics(draw)),)))
        engine.settle()
        info = engine.index.nodes["n"]
        if not engine.goes_by_waste(resolved):
            continue
        with every_completion(prices):
            engine.search(resolved, info, engine.index.taken, placement=engine.placement_for(resolved, 3_000))
        for price in prices:
            found = engine.order.value(resolved, info, price.cluster)
            assert engine.order.least(resolved, info, alone=True) <= found, number
            compared += 1
    assert compared > 300


@contextmanager
def every_completion(prices: list[CostPair]) -> Iterator[None]:
    """Nothing is cut from a search, and all that it completes is noted."""
    cost = Cost.__call__

    def noted(objective: Cost, search: Search) -> CostPair:
        price = cost(objective, search)
        if search._holds():
            prices.append(price)
        return price

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "_PATIENCE", -1)
        patch.setattr(search_module, "REFINEMENT", 1_500)
        patch.setattr(Search, "_is_cut", lambda *_: False)
        patch.setattr(Cost, "__call__", noted)
        yield


@pytest.mark.parametrize("policy", [one for one in SCORED if one != "FragmentationAware"])
@pytest.mark.parametrize("chapter", range(HUNDREDS))
def test_no_placement_costs_less_than_what_is_said_of_its_node(policy: str, chapter: int) -> None:
    """Of shares on cards that are not alike, one or several, before a search."""
    compared = 0
    for number in range(60):
        draw = random.Random(f"before {chapter} {number}")
        engine, nodes = engine_for(policy=policy), [uneven(draw, f"n{at}") for at in range(2)]
        Manifests.of([*machines.device_classes(), *(one for own in nodes for one in own)]).fill(engine.index)
        asked = []
        for at in range(draw.choice((1, 1, 2))):
            amounts = {"memory": f"{draw.randint(1, 30)}Gi", "cores": f"{draw.randint(0, 6)}0"}
            asked.append(machines.request(f"r{at}", "gpu", draw.choice((1, 1, 2)), capacity=amounts))
        resolved = engine.resolve(ClaimGroup((ResourceClaim.from_dict(machines.claim("c", *asked)),)))
        engine.settle()
        for info in engine.index.nodes.values():
            offer = engine.search(resolved, info, engine.index.taken).offer
            least = resolved.request_class.bound.least(info, engine.index.taken)
            if offer is None:
                continue
            assert least is not None, number
            assert least.claim <= offer.cost.claim, number
            assert least.cluster[-1] <= offer.cost.cluster[-1], number
            compared += 1
    assert compared > 30


def decide_sixty() -> None:
    for twenty in range(3):
        test_bounds_change_no_decision(twenty)


def complete_three_hundred() -> None:
    for twenty in range(15):
        test_no_completion_costs_less_than_its_bound(twenty)


def test_a_bound_that_is_too_high_is_noticed() -> None:
    """The two tests above can fail: a bound that counts one device more than is needed is found by both."""
    further = LowerBound._further

    def one_more(bound: LowerBound, *asked: Any) -> int | None:
        found = further(bound, *asked)
        return None if found is None else found + 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LowerBound, "_further", one_more)
        with pytest.raises(AssertionError, match="Plan"):
            decide_sixty()
        with pytest.raises(AssertionError):
            test_no_completion_costs_less_than_its_bound(0)


@pytest.mark.parametrize("of", ["least_cost", "least"])
def test_a_bound_of_the_expected_waste_that_is_too_high_is_noticed(of: str) -> None:
    """Of the devices that the open requests take, and of a node."""
    least = getattr(ExpectedWaste, of)

    def more(waste: ExpectedWaste, *asked: Any) -> int:
        found: int = least(waste, *asked)
        return found + abs(found) // 2 + 10**6

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExpectedWaste, of, more)
        with pytest.raises(AssertionError):
            complete_three_hundred()


@pytest.mark.parametrize("hundred", range(2 * HUNDREDS))
def test_usable_room_is_what_a_subset_can_fill(hundred: int) -> None:
    draw = random.Random(hundred)
    for _ in range(100):
        items = tuple(
            (tuple(sorted({draw.randint(1, 30) for _ in range(draw.randint(1, 2))})),)
            for _ in range(draw.randint(1, 6))
        )
        suffixes = SubsetSums.suffixes(items)
        for at, sums in enumerate(suffixes):
            made = {0}
            for (options,) in items[at:]:
                made |= {total + amount for total in made for amount in options}
            room = draw.randint(0, 60)
            assert sums.usable(room) == max(total for total in made if total <= room)


def test_sums_in_coarse_units_are_never_too_small() -> None:
    draw = random.Random(1)
    for _ in range(100):
        items = tuple(((draw.randint(1, 10**9),),) for _ in range(6))
        (sums, *_) = SubsetSums.suffixes(items)
        made = {0}
        for ((amount,),) in items:
            made |= {total + amount for total in made}
        room = draw.randint(1, 3 * 10**9)
        assert max(total for total in made if total <= room) <= sums.usable(room) <= room


@pytest.mark.parametrize("hundred", range(HUNDREDS))
def test_packing_finds_a_way_exactly_where_there_is_one(hundred: int) -> None:
    """Against every assignment; some items serve on some devices only, some belong to one request."""
    for number in range(100):
        draw = random.Random(f"{hundred} {number}")
        rooms = {device: (draw.randint(3, 12), draw.randint(3, 12)) for device in range(draw.randint(1, 3))}
        items = []
        for index in range(draw.randint(1, 5)):
            amounts = draw.randint(1, 6), draw.randint(0, 6)
            serving = [device for device in rooms if draw.random() < 0.8] or [0]
            item = Item(index, dict.fromkeys(serving, amounts))
            items += [item] * draw.choice((1, 1, 2))

        def fits(at: int, left: dict[int, tuple[int, int]], held: frozenset[tuple[object, int]]) -> bool:
            if at == len(items):  # noqa: B023
                return True
            item = items[at]  # noqa: B023
            for device, (first, second) in item.takes.items():
                rest = left[device][0] - first, left[device][1] - second
                if (
                    min(rest) >= 0
                    and (item.request, device) not in held
                    and fits(at + 1, {**left, device: rest}, held | {(item.request, device)})
                ):
                    return True
            return False

        found = Packing(items, rooms, budget=10_000).solve()
        assert (found is not None) == fits(0, dict(rooms), frozenset()), (hundred, number)
        if found is not None:
            for device, room in rooms.items():
                given = [item.takes[device] for item, at in found if at == device]
                for capacity, left in enumerate(room):
                    assert sum(amounts[capacity] for amounts in given) <= left
            assert len({(item.request, at) for item, at in found}) == len(items)
