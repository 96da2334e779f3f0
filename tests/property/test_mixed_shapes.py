"""Small nodes on which all shapes of devices and claims meet, held against every assignment that there is.

What the other tests keep apart comes together here: devices of several drivers, pools and counter sets beside
each other (also shared ones that take of counters), parts of the tree that are missing or cross, NVLink,
amounts with request policies, taints, devices in use; and claims with alternatives, `All`, admin access,
constraints and JointAllocations. Whether an assignment is legal is told here, plainly, of the complete
assignment; only what a request takes of a device by itself, and the cost, are the allocator's own. FirstFit
has to give the first one in upstream's order, every other policy one of the least cost. `make soak` tries
more (KOORDRA_EXAMPLES).
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.devices.inventory import GPU
from koordra.allocator.features import DEFAULT_ON, LIST_ATTRIBUTES, Features
from koordra.allocator.joint_allocation import Rule, rules_of
from koordra.allocator.request.requests import RequestAlternative
from koordra.allocator.score import POLICIES, RELAXATION, Cost, effective_policy, policy_of
from koordra.allocator.search.partial_choice import Clauses, PartialChoice
from koordra.allocator.search.solution import CostPair, Placed
from koordra.api import names
from koordra.api.claims import Constraint
from koordra.api.opaque.parameters import Pairing
from koordra.errors import PlanError
from koordra.placement import plan
from koordra.placement.decide import Engine
from koordra.placement.manifests import Manifests
from koordra.placement.request.claim_groups import groups_of
from koordra.topology.levels import scope_key
from tests.conformance import checker
from tests.long import mostly_long
from tests.unit.allocator import machines

Dict = dict[str, Any]
Choice = tuple[tuple[RequestAlternative, tuple[int, ...]], ...]
"""Per request, in the order of claims and requests, the alternative and its devices."""

HUNDREDS = max(1, int(os.environ.get("KOORDRA_EXAMPLES") or 0) // 100)
MOST = 4_000
"""Assignments that are gone through; machines with more are left out."""

OTHER = "parts.example.com"
NUMA, SWITCH, ROOT, BUS = (
    "numaNode",
    "pcieSwitch",
    "resource.kubernetes.io/pcieRoot",
    "resource.kubernetes.io/pciBusID",
)
CONSTRAINED = (f"koordra.io/{NUMA}", f"koordra.io/{SWITCH}", ROOT, BUS, "koordra.io/model", "koordra.io/uuid")
SCOPES = ("PCIeSwitch", "PCIeRoot", "NUMANode", "Socket", "Node")
BROKEN = {"key": "broken", "value": "a", "effect": "NoSchedule"}


class Maker:
    """One random node and its claims. Everything is drawn from `self.draw`.

    `tight`: many parts that look alike and share few counters, so that much hangs on which of them is taken.
    `bare`: they have no place but a NUMA node. `crossed`: places are missing, or do not nest.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(f"mixed {seed}")
        self.lists = self.maybe(0.1)
        self.tight = self.maybe(0.5)
        self.sets = self.draw.choice([2, 3, 4] if self.tight else [0, 0, 1, 2, 3])
        self.crossed = self.maybe(0.3)
        self.bare = self.tight and self.maybe(0.5)
        self.names: list[str] = []

    def maybe(self, chance: float) -> bool:
        return self.draw.random() < chance

    # --- devices --------------------------------------------------------------------------------------------

    def place(self, number: int) -> Dict:
        if self.bare:
            return {NUMA: number // 4}
        per_switch, per_numa = self.shape
        found: Dict = machines.place(number, per_switch=per_switch, per_numa=per_numa)
        if self.crossed:
            if self.maybe(0.3):
                found[self.draw.choice([NUMA, SWITCH, ROOT, "socket"])] = None
            if self.maybe(0.2):
                found[SWITCH] = f"0000:{self.draw.randint(0, 1):02x}:00.0"
        if self.maybe(0.1 if self.tight else 0.3):
            found[BUS] = f"0000:{self.draw.randint(1, 3):02x}:00.{self.draw.randint(0, 1)}"
        return found

    def device(self, kind: str, number: int) -> Dict:
        place, model = self.place(number), self.draw.choice(["H100", "H100", "A30"])
        if kind in ("nic", "vf"):
            found = machines.nic(number, place=place, model=model)
        else:
            links = machines.nvlink(self.links, number, self.cards) if kind == "gpu" else {}
            found = machines.gpu(number, place=place, **{**links, "model": model})
        if kind in ("mig", "vf"):
            found["name"] = f"{kind}-{number}"
            found["attributes"]["type"] = {"string": kind}
            for capacity in found["capacity"].values():
                del capacity["requestPolicy"]
            if kind == "mig":
                size = 1 if self.tight else self.draw.choice([1, 2])
                found["capacity"]["memory"]["value"] = f"{10 * size}Gi"
                found["capacity"]["cores"]["value"] = str(25 * size)
                del found["capacity"]["slots"]
        if kind in ("mig", "vf") or self.maybe(0.15):
            del found["allowMultipleAllocations"]
        elif self.maybe(0.15):
            main = found["capacity"]["memory" if kind == "gpu" else "share"]
            main["value"] = {"80Gi": "40Gi", "100": "50"}[main["value"]]
            main["requestPolicy"]["default"] = main["value"]
            main["requestPolicy"]["validRange"].pop("max", None)
        if self.lists and self.maybe(0.4):
            some = self.draw.sample(["pci0000:00", "pci0000:01"], self.draw.randint(1, 2))
            found["attributes"][ROOT] = {"strings": some}
        return self.dressed(found, 0.9 if kind in ("mig", "vf") else 0.3)

    def other(self, number: int) -> Dict:
        """A device of another driver."""
        place = {name: value for name, value in self.place(number).items() if "/" in name}
        found: Dict = {
            "name": f"part-{number}",
            "attributes": {name: {"string": value} for name, value in place.items() if value is not None},
        }
        if self.maybe(0.5):
            found["allowMultipleAllocations"] = True
            policy = self.draw.choice(
                [None, {"default": "1"}, {"default": "1", "validValues": ["1", "2", "4"]}]
            )
            found["capacity"] = {"units": {"value": "4", **({"requestPolicy": policy} if policy else {})}}
        return self.dressed(found, 0.5)

    def dressed(self, device: Dict, chance: float) -> Dict:
        """With counters and taints."""
        if self.sets and self.maybe(0.9 if self.tight else chance):
            sets = self.draw.sample(range(self.sets), min(self.sets, self.draw.choice([1, 1, 1, 2])))
            device["consumesCounters"] = [
                {
                    "counterSet": f"set-{at}",
                    "counters": {
                        "slices": {"value": str(self.draw.choice([1] if self.tight else [1, 1, 2]))}
                    },
                }
                for at in sets
            ]
        if self.maybe(0.05):
            device.setdefault("taints", []).append(BROKEN)
        return device

    def slices(self) -> list[Dict]:
        self.shape = self.draw.choice([(1, 2), (1, 4), (2, 2), (2, 4)])
        self.cards = self.draw.choice([0, 1, 2, 3] if self.tight else [1, 2, 3, 4, 4])
        self.links = self.draw.choice(["none", "none", "none", "hopper", "bridges", "crossed", "mesh"])
        kinds = {
            "gpu": self.cards,
            "nic": self.draw.choice([0, 1, 2, 3, 3]),
            "mig": self.draw.choice([3, 4, 5] if self.tight else [0, 0, 2, 3]),
            "vf": self.draw.choice([0, 0, 0, 2]),
        }
        devices = [self.device(kind, number) for kind, many in kinds.items() for number in range(many)][:8]
        if not self.tight:
            self.draw.shuffle(devices)
        pools = [("koordra.io", "node-1", devices)]
        if len(devices) > 2 and self.maybe(0.25):
            cut = self.draw.randint(1, len(devices) - 1)
            pools = [("koordra.io", "node-1", devices[:cut]), ("koordra.io", "more", devices[cut:])]
        if self.maybe(0.25):
            pools.append((OTHER, "parts", [self.other(number) for number in range(self.draw.randint(1, 3))]))
        found = []
        for driver, pool, members in pools:
            bodies: list[Dict] = [{"devices": members}]
            if len(members) > 1 and self.maybe(0.15):
                bodies = [{"devices": members[:1]}, {"devices": members[1:]}]
            if self.sets:
                counters = [
                    {
                        "name": f"set-{at}",
                        "counters": {
                            "slices": {"value": str(self.draw.choice([1, 1, 2] if self.tight else [2, 3, 4]))}
                        },
                    }
                    for at in range(self.sets)
                ]
                bodies.append({"sharedCounters": counters})
            where = {"allNodes": True} if pool == "more" and self.maybe(0.5) else {"nodeName": "node-1"}
            found += [
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceSlice",
                    "metadata": {"name": f"{driver}-{pool}-{at}"},
                    "spec": {
                        "driver": driver,
                        **where,
                        "pool": {"name": pool, "generation": 1, "resourceSliceCount": len(bodies)},
                        **body,
                    },
                }
                for at, body in enumerate(bodies)
            ]
        return found

    def held(self, slices: Sequence[Dict]) -> list[Dict]:
        busy, results = self.draw.choice([0, 0, 0, 0.2, 0.4]), []
        left = {
            (spec["driver"], spec["pool"]["name"], one["name"]): int(one["counters"]["slices"]["value"])
            for spec in (one["spec"] for one in slices)
            for one in spec.get("sharedCounters", [])
        }
        for spec in (one["spec"] for one in slices):
            for device in spec.get("devices", []):
                takes = {
                    (spec["driver"], spec["pool"]["name"], one["counterSet"]): int(
                        one["counters"]["slices"]["value"]
                    )
                    for one in device.get("consumesCounters", [])
                }
                if not self.maybe(busy) or any(left[of] < amount for of, amount in takes.items()):
                    continue
                left |= {of: left[of] - amount for of, amount in takes.items()}
                result = {
                    "request": "r",
                    "driver": spec["driver"],
                    "pool": spec["pool"]["name"],
                    "device": device["name"],
                }
                if device.get("allowMultipleAllocations"):
                    amounts = {"memory": "40Gi", "share": "50", "units": "2", "slots": "1"}
                    consumed = {name: amounts.get(name, "0") for name in device["capacity"]}
                    result |= {"shareID": f"s-{device['name']}", "consumedCapacity": consumed}
                results.append(result)
        holder = machines.claim("held", namespace="elsewhere")
        return [machines.allocated(holder, {"devices": {"results": results}})] if results else []

    # --- claims ---------------------------------------------------------------------------------------------

    def body(self, kind: str) -> Dict:
        found: Dict = {"deviceClassName": f"{kind}.koordra.io" if kind != "part" else "part"}
        if self.maybe(0.1):
            found["allocationMode"] = "All"
        else:
            here = sum(name.startswith(kind) for name in self.names)
            found["count"] = min(
                here, self.draw.choice([1, 1, 1, 1, 1, 2] if self.tight else [1, 1, 1, 2, 2, 3])
            )
        amounts: Dict = {}
        if kind == "gpu":
            amounts = dict(
                self.draw.choice(
                    [{}, {"memory": "40Gi"}, {"memory": "20Gi"}, {"memory": "10Gi"}, {"cores": "50"}]
                )
            )
        elif kind == "nic":
            amounts = dict(self.draw.choice([{}, {"share": "50"}, {"share": "25"}]))
        elif kind == "mig":
            amounts = dict(
                self.draw.choice([{}, {}, {"memory": "10Gi"}, {} if self.tight else {"memory": "20Gi"}])
            )
        elif kind == "part":
            amounts = dict(self.draw.choice([{}, {"units": "2"}, {"units": "3"}]))
        if amounts:
            found["capacity"] = {"requests": amounts}
        if kind != "part" and self.maybe(0.5 if self.tight else 0.08):
            expression = f'device.attributes["koordra.io"].model == "{self.draw.choice(["A30", "H100"])}"'
            found["selectors"] = [{"cel": {"expression": expression}}]
        if self.maybe(0.1):
            found["tolerations"] = [{"key": "broken", "operator": "Exists"}]
        if self.maybe(0.05):
            found["adminAccess"] = True
        return found

    def claim(self, number: int) -> Dict:
        foreign = OTHER in self.drivers and self.maybe(0.4)
        kinds: list[str] = (
            ["part"] if foreign else ["mig"] * 4 * self.tight + ["gpu", "gpu", "nic", "nic", "mig", "vf"]
        )
        kinds = [kind for kind in kinds if any(name.startswith(kind) for name in self.names)]
        requests: list[Dict] = []
        refs: list[str] = []
        for index in range(self.draw.choice([2, 2, 3] if self.tight else [1, 1, 2, 2, 3])):
            name = f"r{index}"
            if self.maybe(0.2):
                # Of one sort: what a JointAllocation pairs depends on what a request may get, not on what it
                # gets.
                nics = self.draw.choice(kinds) in ("nic", "vf")
                sort = [kind for kind in kinds if (kind in ("nic", "vf")) == nics]
                subs = [
                    {"name": f"s{sub}", **self.body(self.draw.choice(sort))}
                    for sub in range(self.draw.randint(1, 2))
                ]
                for sub in subs:
                    sub.pop("adminAccess", None)
                requests.append({"name": name, "firstAvailable": subs})
                refs += [f"{name}/{sub['name']}" for sub in subs]
            else:
                requests.append({"name": name, "exactly": self.body(self.draw.choice(kinds))})
            refs.append(name)
        constraints = []
        for _ in range(self.draw.choice([0, 0, 0, 0, 1] if self.tight else [0, 0, 0, 1, 1, 2])):
            kind = self.draw.choice(["matchAttribute", "distinctAttribute"])
            entry: Dict = {kind: self.draw.choice(CONSTRAINED)}
            if self.maybe(0.6):
                entry["requests"] = self.draw.sample(refs, self.draw.randint(1, len(refs)))
            constraints.append(entry)
        configs = []
        for _ in range(0 if foreign else self.draw.choice([0, 0, 1, 1, 2])):
            bases = [one for one in refs if "/" not in one]
            only = self.draw.sample(bases, self.draw.randint(0, len(bases) - 1)) if self.maybe(0.3) else []
            configs.append(
                machines.joint(
                    self.draw.choice(SCOPES),
                    enforcement=self.draw.choice(["Required", "Preferred"]),
                    pairing=self.draw.choice(["PerDevice", "PerDevice", "PerGroup", "Together"]),
                    requests=only,
                )
            )
        if not foreign and self.maybe(0.1):
            configs.append(machines.config("GpuConfig", partition="Honor"))
        return machines.claim(f"c{number}", *requests, configs=configs, constraints=constraints)

    def objects(self) -> list[Dict]:
        slices = self.slices()
        self.drivers = {one["spec"]["driver"] for one in slices}
        self.names = [device["name"] for one in slices for device in one["spec"].get("devices", [])]
        part = {
            "kind": "DeviceClass",
            "metadata": {"name": "part"},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{OTHER}"'}}]},
        }
        claims = [self.claim(number) for number in range(self.draw.choice([1, 1, 1, 2, 2]))]
        honor = {"koordra.io/gpu-partition-policy": "Honor"} if self.maybe(0.1) else {}
        pods = []
        if self.maybe(0.7):
            pods = [machines.pod("pod", *(one["metadata"]["name"] for one in claims))]
        node = machines.node(labels=honor)
        return [*machines.device_classes(), part, node, *slices, *self.held(slices), *claims, *pods]


class Exhaustive:
    """Every assignment of the node's devices to one group of claims."""

    def __init__(self, objects: Sequence[Dict], features: Features) -> None:
        engine, cluster = Engine(None, features), Manifests.of(objects)
        cluster.fill(engine.index)
        (group,) = groups_of(cluster.pending, cluster.pods, engine.index.allocated)
        resolved = engine.resolve(group)
        engine.settle()
        info = engine.index.nodes["node-1"]
        self.features, self.taken, self.info = features, engine.index.taken, info
        self.asked, self.siblings = resolved.asked, resolved.siblings
        self.state = self.untouched()
        self.requests = [request for claim in self.asked for request in claim.requests]
        self.levels = rules_of(self.asked, self.siblings, self.state)
        self.partitions = self.state.demanded_of(self.asked)

    def untouched(self) -> AllocationState:
        honors = self.info.devices.honors_partitions
        return AllocationState(
            self.info.pools, self.taken, self.features, namespace="default", honors_partitions=honors
        )

    # --- what a request may have by itself ------------------------------------------------------------------

    def serves(self, wanted: RequestAlternative, device: int) -> bool:
        state = self.state
        if state.demand(wanted, device) is None:
            return False
        return wanted.spec.admin_access or not state.busy[device]

    def sets(self, wanted: RequestAlternative) -> Iterator[tuple[int, ...]]:
        """The sets of devices that the request may have, in upstream's order."""
        every = range(len(self.state.devices))
        if wanted.takes_all:
            matching = tuple([one for one in every if self.state.verdict(wanted, one).demand is not None])
            if matching and all(self.serves(wanted, one) for one in matching):
                yield matching
            return
        serving = [one for one in every if self.serves(wanted, one)]
        yield from itertools.combinations(serving, wanted.spec.count)

    def choices(self) -> list[Choice] | None:
        """All that the requests may have each by itself, in upstream's order; None where these are too
        many."""
        options = [
            [(wanted, devices) for wanted in request.alternatives for devices in self.sets(wanted)]
            for request in self.requests
        ]
        total = 1
        for one in options:
            total *= len(one)
        return None if total > MOST else [one for one in itertools.product(*options) if self.is_legal(one)]

    # --- what they may have together ------------------------------------------------------------------------

    def is_legal(self, choice: Choice) -> bool:
        """But for JointAllocations."""
        return (
            self.is_free(choice)
            and self.has_counters(choice)
            and all(
                self.meets(constraint, at, choice)
                for at, claim in enumerate(self.asked)
                for constraint in claim.constraints
            )
            and self.is_partition(choice)
        )

    def is_free(self, choice: Choice) -> bool:
        state = self.state
        holders = defaultdict[int, list[tuple[int, bool]]](list)
        used = [Counter(used) for used in state.used]
        for wanted, devices in choice:
            admin = wanted.spec.admin_access
            for device in devices:
                if not state.shared[device]:
                    # As upstream: an admin may join the others of earlier claims, nobody joins an admin.
                    if holders[device] and (not admin or any(c == wanted.claim for c, _ in holders[device])):
                        return False
                    holders[device].append((wanted.claim, admin))
                elif not admin:
                    demand = state.demand(wanted, device)
                    assert demand is not None
                    used[device].update(demand.nano)
        touched = {one for wanted, devices in choice if not wanted.spec.admin_access for one in devices}
        return all(
            used[device][name] <= amount
            for device in touched
            for name, amount in state.capacity[device].items()
        )

    def has_counters(self, choice: Choice) -> bool:
        """Shares of one device pay once; as upstream, admin access pays, but for nobody else."""
        state = self.state
        left = [Counter(one) for one in state.counters]
        paid: set[int] = set()
        for wanted, devices in choice:
            for device in devices:
                if state.shared[device] and (state.holders[device] or device in paid):
                    continue
                if not wanted.spec.admin_access:
                    paid.add(device)
                pool = state.pool_of[device]
                mine = {of for of, _ in state.consumes(device)}
                if any(amount < 0 for (of, _), amount in state.counters[pool].items() if of in mine):
                    return False
                left[pool].subtract(state.consumes(device))
                if any(left[pool][counter] < 0 for counter in state.consumes(device)):
                    return False
        return True

    def meets(self, constraint: Constraint, claim: int, choice: Choice) -> bool:
        name = constraint.match_attribute or constraint.distinct_attribute
        values = [
            self.values(name, device)
            for wanted, devices in choice
            if wanted.claim == claim
            and (
                not constraint.requests
                or wanted.base in constraint.requests
                or wanted.label in constraint.requests
            )
            for device in devices
        ]
        if not all(values):
            return False
        if constraint.match_attribute:
            return not values or bool(frozenset.intersection(*values))
        return not any(one & other for one, other in itertools.combinations(values, 2))

    def values(self, name: str, device: int) -> frozenset[Any]:
        found = self.state.devices[device].facts.attributes.get(name)
        if found is None or (found.is_list and LIST_ATTRIBUTES not in self.features):
            return frozenset()
        return found.elements

    def is_partition(self, choice: Choice) -> bool:
        if self.partitions is None:
            return True
        held = defaultdict[int, set[int]](set)
        for wanted, devices in choice:
            for device in devices:
                demand = self.state.demand(wanted, device)
                assert demand is not None
                memory = self.state.capacity[device].get(names.CAPACITY_MEMORY)
                whole = (
                    not self.state.shared[device]
                    or memory is None
                    or demand.nano.get(names.CAPACITY_MEMORY) == memory
                )
                if device in self.partitions.cards and whole:
                    held[wanted.claim].add(device)
        return all(
            len(cards) < 2 or cards in self.state.fabric.partitions
            for claim, cards in held.items()
            if claim in self.partitions.claims
        )

    def obeys(self, rule: Rule, choice: Choice) -> bool:
        devices = {
            one
            for wanted, devices in choice
            if (wanted.claim, wanted.request) in rule.members
            for one in devices
        }
        offered = [self.state.devices[one] for one in devices]
        gpus = [scope_key(one.plain, rule.scope) for one in offered if one.kind == GPU]
        nics = [scope_key(one.plain, rule.scope) for one in offered if one.kind != GPU]
        if rule.pairing is Pairing.TOGETHER:
            return len({*gpus, *nics}) <= 1 and None not in (*gpus, *nics)
        if None in gpus:
            return False
        if rule.pairing is Pairing.PER_GROUP:
            return set(gpus) <= set(nics)
        return not Counter(gpus) - Counter(nics)

    # --- the answers ----------------------------------------------------------------------------------------

    def of_least_relaxation(self, choices: Sequence[Choice]) -> tuple[int, list[Choice]]:
        """How far Preferred scopes have to be widened in all, and what is legal then, in upstream's order."""
        steps = sorted(
            itertools.product(*(range(len(rules)) for rules in self.levels)), key=lambda at: (sum(at), at)
        )
        for at in steps:
            rules = [rule for rules, step in zip(self.levels, at, strict=True) if (rule := rules[step])]
            legal = [one for one in choices if all(self.obeys(rule, one) for rule in rules)]
            if legal:
                return sum(at), legal
        return 0, []

    def cost(self, choice: Choice, policy: str) -> CostPair:
        state = self.untouched()
        asked = policy_of(policy)
        assert asked is not None
        cost = Cost(state, effective_policy([claim.placement for claim in self.asked], asked))
        made = PartialChoice(self.asked, state, Clauses(), scored=True, strict=False)
        for wanted, devices in choice:
            for device in devices:
                self._give(made, wanted, device)
        return cost(made)

    def _give(self, made: PartialChoice, wanted: RequestAlternative, device: int) -> None:
        state, demand = made.state, self.state.demand(wanted, device)
        assert demand is not None
        shared = state.shared[device]
        made.placed.append(Placed(wanted, device, demand, shared))
        if not (shared and state.holders[device]):
            for counter, amount in state.consumes(device).items():
                state.counters[state.pool_of[device]][counter] -= amount
        if not shared:
            made.allocating.setdefault(device, []).append(wanted.claim)
        elif not wanted.spec.admin_access:
            used = Counter(state.used[device])
            used.update(demand.nano)
            state.used[device], state.parts[device] = dict(used), state.part(device, used)
            state.holders[device] += 1

    def named(self, choice: Choice) -> list[tuple[str, str, str, str]]:
        return [
            (f"default/{self.asked[wanted.claim].claim.name}", wanted.label, *self.pool_and_name(device))
            for wanted, devices in choice
            for device in devices
        ]

    def pool_and_name(self, device: int) -> tuple[str, str]:
        return self.state.devices[device].id.pool, self.state.devices[device].id.device


def chosen(allocations: Mapping[str, Dict]) -> list[tuple[str, str, str, str]]:
    return [
        (key, one["request"], one["pool"], one["device"])
        for key in sorted(allocations)
        for one in allocations[key]["devices"]["results"]
    ]


def held_against_every_assignment(seed: int) -> bool | None:
    """Whether the case fits; None where there are too many assignments."""
    maker = Maker(seed)
    objects = maker.objects()
    features = Features(DEFAULT_ON | {LIST_ATTRIBUTES}) if maker.lists else Features.of(None)
    every = Exhaustive(objects, features)
    choices = every.choices()
    if choices is None:
        return None
    relaxed, legal = every.of_least_relaxation(choices)
    for policy in ("FirstFit", "koordra", maker.draw.choice(POLICIES[2:-1])):
        try:
            found = plan(objects, policy=policy, features=features)
        except PlanError as error:
            assert "because a claim constraint would not be satisfied" in str(error), (seed, policy, error)
            assert policy == "FirstFit" or not legal, (seed, policy, error)
            continue
        assert not found.undecided, (seed, policy)
        assert bool(found.allocations) == bool(legal), (seed, policy, legal and every.named(legal[0]))
        if not legal:
            continue
        assert checker.violations(objects, found.allocations, features=set(features)) == [], (seed, policy)
        if policy == "FirstFit":
            assert chosen(found.allocations) == every.named(legal[0]), (seed, policy)
            continue
        least = min(every.cost(one, policy) for one in legal).plus(RELAXATION * relaxed)
        scores = {-score for score in found.scores.values()}
        assert scores == {least.written}, (seed, policy, chosen(found.allocations))
    return bool(legal)


@pytest.mark.parametrize("hundred", mostly_long(range(3 * HUNDREDS)))
def test_nodes_on_which_all_shapes_meet(hundred: int) -> None:
    answers = [held_against_every_assignment(seed) for seed in range(100 * hundred, 100 * hundred + 100)]
    assert answers.count(True) > 10
    assert answers.count(False) > 10
