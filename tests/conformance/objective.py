"""The written objective of the policy `koordra`, computed from objects and allocations alone, and the best
there is.

`cost()` follows the table in koordra/allocator/score.py word by word; `best()` tries every choice of devices
for small machines of koordra's device model and returns the least cost, None when nothing is legal. Shares no
code with the allocator.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from tests.conformance import checker

Dict = dict[str, Any]

SCOPES = ("PCIeSwitch", "PCIeRoot", "NUMANode", "Socket", "Node")
ATTRIBUTES = {
    "PCIeSwitch": "pcieSwitch",
    "PCIeRoot": "resource.kubernetes.io/pcieRoot",
    "NUMANode": "numaNode",
    "Socket": "socket",
}


class Machine:
    """One node's devices by name, with what earlier allocations took."""

    def __init__(self, objects: list[Dict]) -> None:
        specs = [o["spec"] for o in objects if o["kind"] == "ResourceSlice"]
        self.pool = specs[0]["pool"]["name"]
        self.devices = {device["name"]: device for spec in specs for device in spec.get("devices", [])}
        self.counters = {
            counters["name"]: {
                name: checker.amount(one["value"]) for name, one in counters["counters"].items()
            }
            for spec in specs
            for counters in spec.get("sharedCounters", [])
        }
        self.claims = [o for o in objects if o["kind"] == "ResourceClaim" and "status" not in o]
        self.pods = [o for o in objects if o["kind"] == "Pod"]
        self.before: dict[str, dict[str, Fraction]] = {name: {} for name in self.devices}
        self.touched: set[str] = set()
        for held in (o for o in objects if o["kind"] == "ResourceClaim" and "status" in o):
            for result in held["status"]["allocation"]["devices"]["results"]:
                self.touched.add(result["device"])
                add(self.before[result["device"]], result.get("consumedCapacity", {}))

    def attribute(self, name: str, attribute: str) -> Any:
        return next(iter(self.devices[name]["attributes"].get(attribute, {}).values()), None)

    def is_gpu(self, name: str) -> bool:
        return self.attribute(name, "type") in ("gpu", "mig")

    def is_card(self, name: str) -> bool:
        return bool(self.attribute(name, "type") == "gpu")

    def takes(self, name: str) -> dict[str, dict[str, Fraction]]:
        """Counters that the device takes, by set."""
        return {
            entry["counterSet"]: {
                one: checker.amount(each["value"]) for one, each in entry["counters"].items()
            }
            for entry in self.devices[name].get("consumesCounters", [])
        }


def add(used: dict[str, Fraction], amounts: Dict) -> None:
    for name, value in amounts.items():
        used[name] = used.get(name, Fraction(0)) + checker.amount(value)


def cost(objects: list[Dict], allocations: dict[str, Dict]) -> int:
    """The cost of a group's allocations on the one node of `objects`."""
    machine = Machine(objects)
    results = [r for allocation in allocations.values() for r in allocation["devices"]["results"]]
    held = sorted({r["device"] for r in results})
    gpus = [name for name in held if machine.is_gpu(name)]
    nics = [name for name in held if not machine.is_gpu(name)]
    used = {name: dict(amounts) for name, amounts in machine.before.items()}
    for result in results:
        add(used[result["device"]], result.get("consumedCapacity", {}))
    parts = {r["device"] for r in results if "shareID" not in r}
    total = 10**6 * nearness(machine, gpus, nics)
    total += 5 * 10**4 * nvlink(machine, set(gpus))
    total += 10**4 * compactness(machine, gpus) + 10 * broken(machine, set(gpus)) + destroyed(machine, parts)
    for name in {r["device"] for r in results} - parts:
        total += int(1000 * (1 - share(machine, name, used[name])))
    every = [name for name in machine.devices if machine.is_gpu(name)]
    taken = parts | {name for name in machine.touched if machine.takes(name)}
    shares = [Fraction(1) if name in taken else share(machine, name, used[name]) for name in every]
    part = sum(shares, Fraction(0)) / max(len(every), 1)
    return total + int(1000 * (1 - part)) + 10**11 * relaxation_levels(machine, allocations)


def share(machine: Machine, name: str, used: dict[str, Fraction]) -> Fraction:
    parts = [
        used.get(capacity, Fraction(0)) / checker.amount(entry["value"])
        for capacity, entry in machine.devices[name]["capacity"].items()
        if capacity != "slots"
    ]
    return max(parts)


def level(machine: Machine, gpu: str, nic: str) -> int:
    """PIX 1, PXB 2, PHB 3, NODE 4, SYS 5; the made-up machines have no nested switches."""
    for steps, attribute in ((1, "pcieSwitch"), (3, "resource.kubernetes.io/pcieRoot"), (4, "numaNode")):
        value = machine.attribute(gpu, attribute)
        if value is not None and value == machine.attribute(nic, attribute):
            return steps
    return 5


def nearness(machine: Machine, gpus: list[str], nics: list[str]) -> int:
    if not gpus or not nics:
        return 0
    room = -(-len(gpus) // len(nics))

    @functools.cache
    def least(index: int, seats: tuple[int, ...]) -> int:
        if index == len(gpus):
            return 0
        return min(
            level(machine, gpus[index], nics[at])
            + least(index + 1, (*seats[:at], seats[at] - 1, *seats[at + 1 :]))
            for at in range(len(nics))
            if seats[at]
        )

    return least(0, (room,) * len(nics))


def compactness(machine: Machine, gpus: list[str]) -> int:
    total = 0
    for attribute, weight in (("pcieSwitch", 1), ("resource.kubernetes.io/pcieRoot", 1), ("numaNode", 2)):
        groups = {machine.attribute(gpu, attribute) for gpu in gpus} - {None}
        total += weight * max(0, len(groups) - 1)
    return total if len(gpus) > 1 else 0


def broken(machine: Machine, held: set[str]) -> int:
    total = 0
    for attributes, weight in ((("pcieSwitch", "resource.kubernetes.io/pcieRoot"), 4), (("numaNode",), 1)):
        groups: dict[Any, set[str]] = {}
        for name in filter(machine.is_card, machine.devices):
            values = [(kind, machine.attribute(name, kind)) for kind in attributes]
            key = next((pair for pair in values if pair[1] is not None), None)
            if key is not None:
                groups.setdefault(key, set()).add(name)
        for members in groups.values():
            total += weight * broken_members(machine, members, held)
    for members in partitions(machine):
        total += {2: 4, 4: 1}.get(len(members), 0) * broken_members(machine, members, held)
    return total


def destroyed(machine: Machine, chosen: set[str]) -> int:
    """Per card of which a part is chosen: thousandths of its parts, by the square of their size, that could
    be taken before and no longer can."""
    total = 0
    for name in {name for device in chosen for name in machine.takes(device)}:
        parts = {
            device: machine.takes(device)[name] for device in machine.devices if name in machine.takes(device)
        }
        before = machine.touched & set(parts)
        lost = possible(machine, name, parts, before) - possible(machine, name, parts, before | chosen)
        every = sum(size(machine, name, device, takes) ** 2 for device, takes in parts.items())
        total += 1000 * lost // every
    return total


def possible(machine: Machine, name: str, parts: dict[str, dict[str, Fraction]], taken: set[str]) -> int:
    left = dict(machine.counters[name])
    for device in taken & set(parts):
        for counter, amount in parts[device].items():
            left[counter] -= amount
    return sum(
        size(machine, name, device, takes) ** 2
        for device, takes in parts.items()
        if device not in taken and all(left[counter] >= amount for counter, amount in takes.items())
    )


def size(machine: Machine, name: str, device: str, takes: dict[str, Fraction]) -> int:
    """Thousandths of the card: the mean of its part of the memory slices and its percent of the cores."""
    slices = [counter for counter in machine.counters[name] if counter.startswith("memory-slice-")]
    part = sum((takes.get(counter, Fraction(0)) for counter in slices), Fraction(0)) / len(slices)
    cores = checker.amount(machine.devices[device]["capacity"]["cores"]["value"]) / 100
    return int(1000 * (part + cores) / 2)


def broken_members(machine: Machine, members: set[str], held: set[str]) -> int:
    """Free members left, if the group was whole and no longer is."""
    return len(members - held) if not members & machine.touched and members & held else 0


def nvlink(machine: Machine, held: set[str]) -> int:
    """In halves of 10^5: ten per pair without links, one per link less than the widest pair, ten for no
    partition."""
    cards = sorted(name for name in machine.devices if machine.is_gpu(name))
    widest = max((links(machine, a, b) for a, b in itertools.combinations(cards, 2)), default=0)
    if not widest or len(held) < 2:
        return 0
    found = [links(machine, a, b) for a, b in itertools.combinations(sorted(held), 2)]
    table = partitions(machine)
    odd = held not in table and any(len(members) == len(held) for members in table)
    return sum(widest - count if count else 10 for count in found) + 10 * odd


def links(machine: Machine, a: str, b: str) -> int:
    return checker.nvlinks(machine.devices[a], machine.devices[b])


def partitions(machine: Machine) -> list[set[str]]:
    return checker.hopper_partitions(
        {name: device for name, device in machine.devices.items() if machine.is_gpu(name)}
    )


def relaxation_levels(machine: Machine, allocations: dict[str, Dict]) -> int:
    """By how many levels the Preferred JointAllocations are relaxed, in all."""
    total = 0
    for claim in machine.claims:
        for entry in claim["spec"]["devices"].get("config", []):
            parameters = entry["opaque"]["parameters"]
            if parameters["kind"] == "JointAllocation" and parameters["enforcement"] == "Preferred":
                key = checker._key(claim)
                scopes = SCOPES[SCOPES.index(parameters["scope"]) :]
                held = [
                    holds(machine, key, allocations, scope=scope, pairing=parameters["pairing"])
                    for scope in scopes
                ]
                total += held.index(True) if True in held else len(scopes)
    return total


def holds(machine: Machine, key: str, allocations: dict[str, Dict], *, scope: str, pairing: str) -> bool:
    def places(claims: list[str], gpu: bool) -> list[Any]:
        held = {r["device"] for claim in claims for r in allocations[claim]["devices"]["results"]}
        return [
            "node" if scope == "Node" else machine.attribute(name, ATTRIBUTES[scope])
            for name in held
            if machine.is_gpu(name) == gpu
        ]

    others = [other for other in allocations if other != key] if machine.pods else []
    gpus, nics = places([key], True), places([key], False)
    if not gpus:
        gpus = places(others, True)
    elif not nics:
        nics = places(others, False)
    return checker._paired(gpus, nics, pairing if gpus and nics else "Together")


def best(objects: list[Dict]) -> int | None:
    """The least cost over every choice of devices for the pending claims."""
    machine = Machine(objects)
    # Legality is dearer to tell than cost, so the cheapest are asked first.
    priced = sorted(
        ((cost(objects, allocations), number) for number, allocations in enumerate(choices(machine)))
    )
    everything = list(choices(machine))
    return next(
        (price for price, number in priced if not checker.violations(objects, everything[number])), None
    )


def how_many(objects: list[Dict]) -> int:
    """The number of choices that best() would try."""
    machine = Machine(objects)
    total = 1
    for claim in machine.claims:
        for request in claim["spec"]["devices"]["requests"]:
            body = request["exactly"]
            fitting = large_enough(machine, body)
            total *= math.comb(len(fitting), body.get("count", 1))
    return total


def large_enough(machine: Machine, body: Dict) -> list[str]:
    """Devices of the right kind; parts of cards that have what is asked for (of others the judge looks at
    what is left)."""
    kind = body["deviceClassName"].partition(".")[0]
    wanted = body.get("capacity", {}).get("requests", {})
    return [
        name
        for name, device in machine.devices.items()
        if machine.attribute(name, "type") == kind
        and not (
            machine.takes(name)
            and any(
                checker.amount(amount) > checker.amount(device["capacity"][one]["value"])
                for one, amount in wanted.items()
            )
        )
    ]


def choices(machine: Machine) -> Iterator[dict[str, Dict]]:
    """Every assignment of devices of the right kind to the requests of the claims, legal or not."""
    per_request = []
    for claim in machine.claims:
        for request in claim["spec"]["devices"]["requests"]:
            body = request["exactly"]
            fitting = large_enough(machine, body)
            per_request.append(
                [(claim, request, chosen) for chosen in itertools.combinations(fitting, body.get("count", 1))]
            )
    for combination in itertools.product(*per_request):
        found: dict[str, Dict] = {}
        for claim, request, chosen in combination:
            allocation = found.setdefault(
                checker._key(claim), {"devices": {"results": []}, "nodeSelector": node_selector(machine.pool)}
            )
            allocation["devices"]["results"] += [
                result(machine, request, name, number) for number, name in enumerate(chosen)
            ]
        yield found


def result(machine: Machine, request: Dict, name: str, number: int) -> Dict:
    if machine.takes(name):
        return {
            "request": request["name"],
            "driver": "koordra.io",
            "pool": machine.pool,
            "device": name,
        }
    wanted = request["exactly"].get("capacity", {}).get("requests", {})
    consumed = {
        capacity: wanted.get(capacity, entry["requestPolicy"]["default"])
        for capacity, entry in machine.devices[name]["capacity"].items()
    }
    return {
        "request": request["name"],
        "driver": "koordra.io",
        "pool": machine.pool,
        "device": name,
        "shareID": f"{request['name']}-{number}",
        "consumedCapacity": consumed,
    }


def node_selector(node: str) -> Dict:
    return {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    }
