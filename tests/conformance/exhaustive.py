"""Upstream's search written down once more, as plainly as can be: every choice in order, every rule checked
on the whole choice.

Shares no code with the allocator. `first_fit(objects, features)` returns, per claim, the devices of the first
legal choice in upstream's order as (request label, driver, pool, device), or None when no choice is legal.
Small inputs only: choices are cut off as soon as a device cannot be used, nothing else is clever.

It knows: pools of one generation, node-wide and per-device node names, ExactCount and All, firstAvailable,
matchAttribute, distinctAttribute, lists, taints and taint rules, tolerations, shared devices with request
policies, shared counters, allocated claims. Selectors are those that `tests/property/test_joint_cases.py`
writes: pairs of expression and function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

Dict = dict[str, Any]
Where = tuple[str, str, str]
Choice = list[tuple[int, str, str, Where, Dict]]
"""Claim, request, alternative ("" for an exact request), device, the alternative's fields."""

SUFFIXES = {
    "": 1,
    "k": 1000,
    "M": 10**6,
    "G": 10**9,
    "Ki": 1024,
    "Mi": 1024**2,
    "Gi": 1024**3,
    "m": Fraction(1, 1000),
}


def amount(text: Any) -> Fraction:
    spelled = str(text)
    number = spelled.rstrip("kKMGim")
    return Fraction(number) * SUFFIXES[spelled[len(number) :]]


class Exhaustive:
    def __init__(
        self, objects: list[Dict], selectors: Mapping[str, Callable[[Dict], bool]], *, lists: bool = False
    ) -> None:
        of = lambda kind: [o for o in objects if o["kind"] == kind]  # noqa: E731
        self.lists, self.selectors = lists, selectors
        self.node = of("Node")[0]["metadata"]["name"]
        self.classes = {
            o["metadata"]["name"]: [s["cel"]["expression"] for s in o["spec"].get("selectors", [])]
            for o in of("DeviceClass")
        }
        self.rules = [o["spec"] for o in of("DeviceTaintRule")]
        self.claims = [o for o in of("ResourceClaim") if "allocation" not in o.get("status", {})]
        self.devices: dict[Where, Dict] = {}
        self.counters: dict[tuple[str, str, str, str], Fraction] = {}
        for entry in sorted(
            of("ResourceSlice"),
            key=lambda o: (o["spec"]["driver"], o["spec"]["pool"]["name"], o["metadata"]["name"]),
        ):
            self._read(entry["spec"])
        self.taken: list[tuple[Where, Dict]] = [
            ((r["driver"], r["pool"], r["device"]), r)
            for o in of("ResourceClaim")
            for r in o.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
            if not r.get("adminAccess")
        ]

    def _read(self, spec: Dict) -> None:
        pool = spec["driver"], spec["pool"]["name"]
        for counter_set in spec.get("sharedCounters", []):
            for name, counter in counter_set["counters"].items():
                self.counters[(*pool, counter_set["name"], name)] = amount(counter["value"])
        for device in spec.get("devices", []):
            here = spec.get("nodeName") or device.get("nodeName") or self.node
            self.devices[(*pool, device["name"])] = {**device, "here": here == self.node, "driver": pool[0]}

    # --- choices in upstream's order ------------------------------------------------------------------------

    def first(self) -> list[list[tuple[str, str, str, str]]] | None:
        for choice in self._choices(0, 0, []):
            return [
                [
                    (f"{name}/{sub}" if sub else name, *where)
                    for c, name, sub, where, _ in choice
                    if c == claim
                ]
                for claim in range(len(self.claims))
            ]
        return None

    def _choices(self, claim: int, request: int, chosen: Choice) -> Iterator[Choice]:
        if claim == len(self.claims):
            yield chosen
            return
        requests = self.claims[claim]["spec"]["devices"]["requests"]
        if request == len(requests):
            yield from self._choices(claim + 1, 0, chosen)
            return
        entry = requests[request]
        subs = (
            [(s["name"], s) for s in entry["firstAvailable"]]
            if "firstAvailable" in entry
            else [("", entry["exactly"])]
        )
        for sub, body in subs:
            for devices in self._sets(body):
                more: Choice = [*chosen, *((claim, entry["name"], sub, where, body) for where in devices)]
                if self.legal(more):
                    yield from self._choices(claim, request + 1, more)

    def _sets(self, body: Dict) -> Iterator[tuple[Where, ...]]:
        """All devices that match and are large enough; or so many of them, earlier ones first."""
        fitting = [where for where in self.devices if self._fits(body, where)]
        if body.get("allocationMode") == "All":
            if fitting:
                yield tuple(fitting)
            return
        yield from itertools.combinations(fitting, body.get("count", 1))

    def _fits(self, body: Dict, where: Where) -> bool:
        device = self.devices[where]
        expressions = [
            *self.classes[body["deviceClassName"]],
            *(s["cel"]["expression"] for s in body.get("selectors", [])),
        ]
        if not device["here"] or not all(self.selectors[text](device) for text in expressions):
            return False
        demand = self.demand(body, device)
        return demand is not None and all(
            taken <= amount(device["capacity"][name]["value"]) for name, taken in demand.items()
        )

    def accepts(self, allocations: Mapping[str, Dict]) -> bool:
        """Whether the allocations are one of the choices, whichever."""
        choice: Choice = []
        for number, claim in enumerate(self.claims):
            results = allocations[f"default/{claim['metadata']['name']}"]["devices"]["results"]
            for entry in claim["spec"]["devices"]["requests"]:
                mine = [r for r in results if r["request"].partition("/")[0] == entry["name"]]
                sub = mine[0]["request"].partition("/")[2] if mine else ""
                body = next(
                    (b for b in entry.get("firstAvailable", ()) if b["name"] == sub), entry.get("exactly")
                )
                devices = tuple((r["driver"], r["pool"], r["device"]) for r in mine)
                if not body or sorted(devices) not in [sorted(found) for found in self._sets(body)]:
                    return False
                for result, where in zip(mine, devices, strict=True):
                    demand, told = self.demand(body, self.devices[where]), result.get("consumedCapacity", {})
                    shared = self.devices[where].get("allowMultipleAllocations")
                    if {name: amount(value) for name, value in told.items()} != (demand if shared else {}):
                        return False
                choice += [(number, entry["name"], sub, where, body) for where in devices]
        return self.legal(choice)

    # --- rules ----------------------------------------------------------------------------------------------

    def legal(self, choice: Choice) -> bool:
        return (
            all(self._untainted(where, body) for *_, where, body in choice)
            and all(len([c for c in choice if c[0] == claim]) <= 32 for claim in range(len(self.claims)))
            and self._room(choice)
            and self._enough_counters(choice)
            and self._constrained(choice)
        )

    def _untainted(self, where: Where, body: Dict) -> bool:
        taints = list(self.devices[where].get("taints", []))
        taints += [
            rule["taint"]
            for rule in self.rules
            if all(
                rule["deviceSelector"].get(field, value) == value
                for field, value in zip(("driver", "pool", "device"), where, strict=True)
            )
        ]
        return all(
            taint["effect"] not in ("NoSchedule", "NoExecute")
            or any(
                toleration.get("key", taint["key"]) == taint["key"]
                and toleration.get("effect", taint["effect"]) == taint["effect"]
                and (
                    toleration.get("operator") == "Exists"
                    or toleration.get("value", "") == taint.get("value", "")
                )
                for toleration in body.get("tolerations", [])
            )
            for taint in taints
        )

    def demand(self, body: Dict, device: Dict) -> dict[str, Fraction] | None:
        """What the request takes of the device, None where it can never have it."""
        asked = {
            name: amount(value) for name, value in (body.get("capacity") or {}).get("requests", {}).items()
        }
        capacity = device.get("capacity", {})
        if not asked.keys() <= capacity.keys():
            return None
        found = {}
        for name, entry in capacity.items():
            policy = entry.get("requestPolicy") or {}
            whole, default = amount(entry["value"]), policy.get("default")
            if name not in asked:
                found[name] = whole if default is None else amount(default)
                continue
            wanted = asked[name]
            values = sorted(amount(value) for value in policy.get("validValues", []))
            bounds = policy.get("validRange")
            if values:
                larger = [value for value in values if value >= wanted]
                if not larger:
                    return None
                wanted = larger[0]
            elif bounds:
                least = amount(bounds["min"])
                wanted = max(wanted, least)
                if "step" in bounds:
                    step = amount(bounds["step"])
                    wanted = least + -(-(wanted - least) // step) * step
                if "max" in bounds and wanted > amount(bounds["max"]):
                    return None
            found[name] = wanted
        return found

    def _room(self, choice: Choice) -> bool:
        held = {where for where, result in self.taken if not result.get("shareID")}
        used: dict[tuple[Where, str], Fraction] = {}
        for where, result in self.taken:
            for name, value in result.get("consumedCapacity", {}).items():
                used[where, name] = used.get((where, name), Fraction(0)) + amount(value)
        for number, (*_, where, body) in enumerate(choice):
            device = self.devices[where]
            if where in held or (
                not device.get("allowMultipleAllocations")
                and any(other[3] == where for other in choice[:number])
            ):
                return False
            if device.get("allowMultipleAllocations"):
                for name, taken in (self.demand(body, device) or {}).items():
                    used[where, name] = used.get((where, name), Fraction(0)) + taken
        return all(
            value <= amount(self.devices[where]["capacity"][name]["value"])
            for (where, name), value in used.items()
            if where in self.devices
        )

    def _enough_counters(self, choice: Choice) -> bool:
        before = {where for where, _ in self.taken}
        paid = {
            (where[0], where[1], entry["counterSet"])
            for *_, where, _ in choice
            if where not in before
            for entry in self.devices[where].get("consumesCounters", [])
        }
        left = dict(self.counters)
        for where in before | {c[3] for c in choice}:
            for entry in self.devices.get(where, {}).get("consumesCounters", []):
                for name, counter in entry["counters"].items():
                    left[where[0], where[1], entry["counterSet"], name] -= amount(counter["value"])
        # What was given out before may be too much; that is nothing to those who take nothing of it.
        return all(value >= 0 for counter, value in left.items() if counter[:3] in paid)

    def _constrained(self, choice: Choice) -> bool:
        for number, claim in enumerate(self.claims):
            for constraint in claim["spec"]["devices"].get("constraints", []):
                named = constraint.get("requests", [])
                name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
                values = [
                    self._values(where, name)
                    for c, request, sub, where, _ in choice
                    if c == number and (not named or request in named or f"{request}/{sub}" in named)
                ]
                if not all(values):
                    return False
                if "matchAttribute" in constraint and values and not frozenset.intersection(*values):
                    return False
                if "distinctAttribute" in constraint and any(
                    a & b for a, b in itertools.combinations(values, 2)
                ):
                    return False
        return True

    def _values(self, where: Where, name: str) -> frozenset[Any]:
        domain, _, identifier = name.partition("/")
        attributes = self.devices[where].get("attributes", {})
        found = attributes.get(name) or (attributes.get(identifier) if domain == where[0] else None) or {}
        for kind, value in found.items():
            if not isinstance(value, list):
                return frozenset({(kind, value)})
            return (
                frozenset((kind.removesuffix("s"), entry) for entry in value) if self.lists else frozenset()
            )
        return frozenset()
