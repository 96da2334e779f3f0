"""An independent judge of allocations, written from the rules of dynamic resource allocation and sharing no
code with the allocator.

`violations(objects, allocations)` takes the objects as plain dicts and the planned AllocationResults by claim
and returns what is wrong, in words; an empty list means that the plan is legal. The order of checks follows
the API: each result's device exists, is offered on the node, matches class and request, is tolerated; each
request got what it asked for; constraints and JointAllocations hold; nothing is used beyond its capacity or
counters, together with what was taken before.

Selectors are evaluated by translating CEL's operators into Python's, which is enough for the expressions of
the vectors.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

Dict = dict[str, Any]
Key = tuple[str, str, str]

_UNITS = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_UNITS |= {unit: Fraction(1000 ** (power + 1)) for power, unit in enumerate("kMGTPE")}
_UNITS |= {f"{unit}i": Fraction(1024 ** (power + 1)) for power, unit in enumerate("KMGTPE")}


def amount(text: Any) -> Fraction:
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()  # type: ignore[union-attr]
    return Fraction(number) * _UNITS[unit]


def violations(
    objects: list[Dict], allocations: dict[str, Dict], *, features: set[str] | None = None, joint: bool = True
) -> list[str]:
    """What is wrong with the plan; `features` None means every gate that the rules below know is on."""
    return list(_Judge(objects, allocations, features).run(joint=joint))


class _Judge:
    def __init__(self, objects: list[Dict], allocations: dict[str, Dict], features: set[str] | None) -> None:
        self.on = lambda gate: features is None or gate in features
        self.classes = {o["metadata"]["name"]: o for o in objects if o["kind"] == "DeviceClass"}
        self.nodes = {o["metadata"]["name"]: o for o in objects if o["kind"] == "Node"}
        self.claims = {
            _key(o): o
            for o in objects
            if o["kind"] == "ResourceClaim" and "allocation" not in o.get("status", {})
        }
        self.before = [
            result
            for o in objects
            if o["kind"] == "ResourceClaim" and "allocation" in o.get("status", {})
            for result in o["status"]["allocation"]["devices"].get("results", [])
        ]
        self.pods = [o for o in objects if o["kind"] == "Pod"]
        self.allocations = allocations
        self.devices: dict[Key, tuple[Dict, Dict]] = {}
        self.counters: dict[tuple[str, str, str, str], Fraction] = {}
        newest: dict[tuple[str, str], int] = defaultdict(int)
        slices = [o for o in objects if o["kind"] == "ResourceSlice"]
        for entry in slices:
            pool = (entry["spec"]["driver"], entry["spec"]["pool"]["name"])
            newest[pool] = max(newest[pool], entry["spec"]["pool"]["generation"])
        for entry in slices:
            spec = entry["spec"]
            pool = (spec["driver"], spec["pool"]["name"])
            if spec["pool"]["generation"] < newest[pool]:
                continue
            for device in spec.get("devices", []):
                self.devices[(*pool, device["name"])] = (device, spec)
            for counters in spec.get("sharedCounters", []):
                for name, counter in counters.get("counters", {}).items():
                    self.counters[(*pool, counters["name"], name)] = amount(counter["value"])

    def run(self, *, joint: bool) -> Any:
        for key, allocation in self.allocations.items():
            claim = self.claims[key]
            results = allocation["devices"].get("results", [])
            for result in results:
                yield from self.result(key, claim, result, allocation)
            yield from self.counts(key, claim, results)
            yield from self.constraints(key, claim, results)
            yield from self.partition(key, results, self.node_of(allocation))
        if joint:
            yield from self.joints()
        yield from self.usage()

    # --- single results -------------------------------------------------------------------------------------

    def asked(self, claim: Dict, name: str) -> Dict:
        """The exact request or the subrequest that a result is for."""
        base, _, sub = name.partition("/")
        request = next(r for r in claim["spec"]["devices"]["requests"] if r["name"] == base)
        if not sub:
            return request["exactly"]
        return next(alternative for alternative in request["firstAvailable"] if alternative["name"] == sub)

    def result(self, key: str, claim: Dict, result: Dict, allocation: Dict) -> Any:
        where = (result["driver"], result["pool"], result["device"])
        if where not in self.devices:
            yield f"{key}: {where} does not exist"
            return
        device, spec = self.devices[where]
        asked = self.asked(claim, result["request"])
        for owner, entry in (("class", self.classes[asked["deviceClassName"]]["spec"]), ("request", asked)):
            for selector in entry.get("selectors", []):
                expression = selector["cel"]["expression"]
                if not evaluate(expression, device, spec["driver"], as_scheduler=owner == "class"):
                    yield f"{key}: {where} does not match {owner} selector {expression}"
        for taint in device.get("taints", []):
            if (
                taint["key"] == "koordra.io/joint"
                or taint["effect"] == "None"
                or not self.on("DRADeviceTaints")
            ):
                continue
            if not any(_tolerates(toleration, taint) for toleration in asked.get("tolerations", [])):
                yield f"{key}: {where} has taint {taint} that is not tolerated"
        shared = device.get("allowMultipleAllocations", False) and self.on("DRAConsumableCapacity")
        if shared != ("shareID" in result):
            yield f"{key}: {where} shared is {shared} but shareID is {result.get('shareID')}"
        if shared and device.get("capacity"):
            if set(result.get("consumedCapacity", {})) != set(device["capacity"]):
                yield f"{key}: {where} does not say what it consumes of every capacity"
            else:
                yield from self.amounts(key, asked, device, result, claim)
        node = self.node_of(allocation)
        if node is not None and not _offered(
            device, spec, self.nodes.get(node, {"metadata": {"name": node}})
        ):
            yield f"{key}: {where} is not offered on {node}"

    def amounts(self, key: str, asked: Dict, device: Dict, result: Dict, claim: Dict) -> Any:
        wanted = asked.get("capacity", {}).get("requests", {})
        special = _parameters(claim, result["request"])
        for name, capacity in device["capacity"].items():
            got, policy = amount(result["consumedCapacity"][name]), capacity.get("requestPolicy", {})
            value = wanted.get(name, wanted.get(f"{result['driver']}/{name}"))
            need = amount(value) if value is not None else None
            if name == "memory" and "memoryPercent" in special:
                if need is not None and got > need:
                    yield f"{key}: {name} at most {need}, consumed {got}"
                # A percentage is rounded down to a step, so that parts of a hundred percent fit together.
                need = amount(capacity["value"]) * special["memoryPercent"] / 100
                need -= amount(policy.get("validRange", {}).get("step", "1"))
            if name == "share" and special.get("mode") == "Exclusive":
                need = amount(capacity["value"])
            if need is None:
                default = amount(policy["default"]) if "default" in policy else amount(capacity["value"])
                if got != default:
                    yield f"{key}: {name} not asked for, consumed {got} instead of the default {default}"
                continue
            if got < need:
                yield f"{key}: {name} asked {need}, consumed {got}"
            if "validValues" in policy and got not in {amount(v) for v in policy["validValues"]}:
                yield f"{key}: {name} consumed {got} is no valid value"
            if "validRange" in policy:
                bounds = policy["validRange"]
                low = amount(bounds.get("min", "0"))
                if got < low or ("max" in bounds and got > amount(bounds["max"])):
                    yield f"{key}: {name} consumed {got} is out of range"
                if "step" in bounds and (got - low) % amount(bounds["step"]) != 0:
                    yield f"{key}: {name} consumed {got} is not on a step"

    def node_of(self, allocation: Dict) -> str | None:
        for term in allocation.get("nodeSelector", {}).get("nodeSelectorTerms", []):
            for field in term.get("matchFields", []):
                return field["values"][0]
        return None

    # --- whole claims ---------------------------------------------------------------------------------------

    def counts(self, key: str, claim: Dict, results: list[Dict]) -> Any:
        if len(results) > 32:
            yield f"{key}: {len(results)} devices"
        got = Counter(result["request"] for result in results)
        for request in claim["spec"]["devices"]["requests"]:
            name = request["name"]
            chosen = sorted({r for r in got if r == name or r.startswith(f"{name}/")})
            if len(chosen) != 1:
                yield f"{key}: request {name} was answered by {chosen}"
                continue
            asked = self.asked(claim, chosen[0])
            if asked.get("allocationMode", "ExactCount") == "ExactCount" and got[chosen[0]] != asked.get(
                "count", 1
            ):
                yield f"{key}: request {chosen[0]} got {got[chosen[0]]} devices"
            used = [(r["driver"], r["pool"], r["device"]) for r in results if r["request"] == chosen[0]]
            if len(set(used)) != len(used):
                yield f"{key}: request {chosen[0]} got one device twice"

    def constraints(self, key: str, claim: Dict, results: list[Dict]) -> Any:
        for constraint in claim["spec"]["devices"].get("constraints", []):
            names = constraint.get("requests", [])
            covered = [
                r
                for r in results
                if not names or r["request"] in names or r["request"].partition("/")[0] in names
            ]
            attribute = constraint.get("matchAttribute") or constraint["distinctAttribute"]
            values = [self.values(r, attribute) for r in covered]
            if any(not found for found in values):
                yield f"{key}: a device has no {attribute}"
            elif "matchAttribute" in constraint and values and not frozenset.intersection(*values):
                yield f"{key}: {attribute} has nothing in common: {values}"
            elif "distinctAttribute" in constraint and any(
                a & b for a, b in itertools.combinations(values, 2)
            ):
                yield f"{key}: {attribute} is not distinct: {values}"

    def partition(self, key: str, results: list[Dict], node: str | None) -> Any:
        """Where the node honors partitions, a claim's whole cards are one of eight Hopper cards' table; also
        where the claim asks."""
        labels = self.nodes.get(node or "", {}).get("metadata", {}).get("labels", {})
        policies = [label for name, label in sorted(labels.items()) if name.endswith("/gpu-partition-policy")]
        by_node, by_claim = policies[:1] == ["Honor"], self.asks_for_partitions(key)
        if not by_node and not by_claim:
            return
        cards = {
            where[2]: device
            for where, (device, spec) in self.devices.items()
            if where[0] == "koordra.io" and spec.get("nodeName") == node and plain(device, "type") == "gpu"
        }
        whole = {
            r["device"]
            for r in results
            if r["device"] in cards
            and (
                "shareID" not in r
                or amount(r["consumedCapacity"]["memory"])
                == amount(cards[r["device"]]["capacity"]["memory"]["value"])
            )
        }
        table = hopper_partitions(cards)
        if (table or by_claim) and len(whole) > 1 and whole not in table:
            yield f"{key}: {sorted(whole)} is no partition of {node}"

    def asks_for_partitions(self, key: str) -> bool:
        """The last GpuConfig of the claim that says something; the tests say it of whole claims only."""
        said = [
            parameters["partition"]
            for entry in self.claims[key]["spec"]["devices"].get("config", [])
            if (parameters := entry.get("opaque", {}).get("parameters", {})).get("kind") == "GpuConfig"
            and "partition" in parameters
        ]
        return said[-1:] == ["Honor"]

    def values(self, result: Dict, attribute: str) -> frozenset[tuple[str, Any]]:
        device, spec = self.devices[result["driver"], result["pool"], result["device"]]
        found = _qualified(device.get("attributes", {}), spec["driver"]).get(attribute, {})
        for kind, value in found.items():
            if isinstance(value, list):
                return (
                    frozenset((kind.removesuffix("s"), v) for v in value)
                    if self.on("DRAListTypeAttributes")
                    else frozenset()
                )
            return frozenset({(kind, value)})
        return frozenset()

    def joints(self) -> Any:
        """Required JointAllocations. A claim with one kind of device pairs with the other claims of its
        pods."""
        for key in self.allocations:
            for entry in self.claims[key]["spec"]["devices"].get("config", []):
                parameters = entry.get("opaque", {}).get("parameters", {})
                required = parameters.get("enforcement", "Required") == "Required"
                if parameters.get("kind") == "JointAllocation" and required:
                    yield from self.joint(key, entry.get("requests", []), parameters)

    def joint(self, key: str, names: list[str], parameters: Dict) -> Any:
        def places(claims: list[str], kinds: tuple[str, str], only: list[str]) -> list[Any]:
            # Shares of one device, in one claim or several, are one device.
            found = {
                (result["driver"], result["pool"], result["device"]): self.scope(result, parameters["scope"])
                for claim in claims
                for result in self.allocations[claim]["devices"]["results"]
                if self.kind(result) in kinds and (not only or result["request"].partition("/")[0] in only)
            }
            return list(found.values())

        gpu, nic = ("gpu", "mig"), ("nic", "vf")
        gpus, nics = places([key], gpu, names), places([key], nic, names)
        if not names:
            others = [other for other in self.siblings(key) if other in self.allocations]
            if not gpus:
                gpus = places(others, gpu, [])
            elif not nics:
                nics = places(others, nic, [])
        pairing = parameters.get("pairing", "PerDevice") if gpus and nics else "Together"
        if not _paired(gpus, nics, pairing):
            yield f"{key}: {pairing} in {parameters['scope']} does not hold: GPUs in {gpus}, NICs in {nics}"

    def siblings(self, key: str) -> list[str]:
        found = []
        for pod in self.pods:
            namespace = pod["metadata"].get("namespace", "default")
            used = [
                f"{namespace}/{entry['resourceClaimName']}" for entry in pod["spec"].get("resourceClaims", [])
            ]
            if key in used:
                found += [other for other in used if other != key]
        return found

    def kind(self, result: Dict) -> str:
        return next((value for _, value in self.values(result, "koordra.io/type")), "")

    def scope(self, result: Dict, scope: str) -> Any:
        attribute = {
            "PCIeSwitch": "koordra.io/pcieSwitch",
            "PCIeRoot": "resource.kubernetes.io/pcieRoot",
            "NUMANode": "koordra.io/numaNode",
            "Socket": "koordra.io/socket",
        }.get(scope)
        if attribute is None:
            return "node"
        return next((value for _, value in self.values(result, attribute)), None)

    # --- use ------------------------------------------------------------------------------------------------

    def usage(self) -> Any:
        """No device, capacity or counter beyond what there is, over earlier allocations and the plan."""
        results = [(None, r) for r in self.before] + [
            (key, r)
            for key, allocation in self.allocations.items()
            for r in allocation["devices"].get("results", [])
        ]
        results = [(key, r) for key, r in results if not r.get("adminAccess")]
        dedicated: Counter[Key] = Counter()
        shared: dict[Key, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
        new: set[Key] = set()
        for key, result in results:
            where = (result["driver"], result["pool"], result["device"])
            if key is not None:
                new.add(where)
            if "shareID" not in result:
                dedicated[where] += 1
                continue
            for name, value in result.get("consumedCapacity", {}).items():
                shared[where][name] += amount(value)
            shared[where]["(shares)"] += 1
        for where in sorted(new):
            if dedicated[where] > 1 or (dedicated[where] and where in shared):
                yield f"{where} is given out {dedicated[where]} times and in {shared[where]['(shares)']} shares"
            for name, capacity in self.devices[where][0].get("capacity", {}).items():
                if shared[where][name] > amount(capacity["value"]):
                    yield f"{where}: {name} {shared[where][name]} of {capacity['value']}"
        yield from self.counter_usage({*dedicated, *shared}, new)

    def counter_usage(self, used: set[Key], new: set[Key]) -> Any:
        left = dict(self.counters)
        touched = set()
        for where in used:
            for consumed in self.devices.get(where, ({}, {}))[0].get("consumesCounters", []):
                for name, counter in consumed["counters"].items():
                    counter_key = (where[0], where[1], consumed["counterSet"], name)
                    left[counter_key] = left.get(counter_key, Fraction(0)) - amount(counter["value"])
                    if where in new:
                        touched.add(counter_key)
        for counter_key in sorted(touched):
            if left[counter_key] < 0:
                yield f"counter {counter_key} is overdrawn by {-left[counter_key]}"


def plain(device: Dict, attribute: str) -> Any:
    return next(iter(device.get("attributes", {}).get(attribute, {}).values()), None)


def nvlinks(a: Dict, b: Dict) -> int:
    """NVLinks between two cards as they are published."""
    domain, peers = plain(a, "nvlinkDomain"), plain(a, "nvlinkPeers")
    if domain is None or domain != plain(b, "nvlinkDomain"):
        return 0
    if peers is not None:
        widths = peers.split(",")
        return int(widths[plain(b, "minor")]) if plain(b, "minor") < len(widths) else 0
    return int(min(plain(a, "nvlinks"), plain(b, "nvlinks")))


def hopper_partitions(cards: dict[str, Dict]) -> list[set[str]]:
    """The table of eight Hopper cards on one switched fabric, by minor number; other machines have none."""
    if len(cards) != 8 or {plain(card, "architecture") for card in cards.values()} != {"Hopper"}:
        return []
    widths = {nvlinks(a, b) for a, b in itertools.combinations(cards.values(), 2)}
    if len(widths) != 1 or 0 in widths:
        return []
    order = sorted(cards, key=lambda name: int(plain(cards[name], "minor")))
    return [set(order[start : start + size]) for size in (8, 4, 2) for start in range(0, 8, size)]


def _key(claim: Dict) -> str:
    return f"{claim['metadata'].get('namespace', 'default')}/{claim['metadata']['name']}"


def _qualified(names: Dict, driver: str) -> Dict:
    bare = {f"{driver}/{name}": value for name, value in names.items() if "/" not in name}
    return bare | {name: value for name, value in names.items() if "/" in name}


def _tolerates(toleration: Dict, taint: Dict) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]) or toleration.get("key") not in (
        None,
        "",
        taint["key"],
    ):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _offered(device: Dict, spec: Dict, node: Dict) -> bool:
    where = device if spec.get("perDeviceNodeSelection") else spec
    if where.get("nodeName"):
        return where["nodeName"] == node["metadata"]["name"]
    if where.get("allNodes"):
        return True
    labels = node["metadata"].get("labels", {})
    terms = where.get("nodeSelector", {}).get("nodeSelectorTerms", [])
    return any(
        all(
            labels.get(e["key"]) in e["values"]
            for e in term.get("matchExpressions", [])
            if e["operator"] == "In"
        )
        and all(node["metadata"]["name"] in e["values"] for e in term.get("matchFields", []))
        for term in terms
    )


def _paired(gpus: list[Any], nics: list[Any], pairing: str) -> bool:
    if pairing == "Together":
        scopes = {*gpus, *nics}
        return len(scopes) <= 1 and None not in scopes
    if None in gpus:
        return False
    if pairing == "PerGroup":
        return set(gpus) <= set(nics)
    left = list(nics)
    for scope in gpus:
        if scope not in left:
            return False
        left.remove(scope)
    return True


def _parameters(claim: Dict, request: str) -> Dict:
    found: Dict = {}
    for entry in claim["spec"]["devices"].get("config", []):
        names = entry.get("requests", [])
        if not names or request in names or request.partition("/")[0] in names:
            found |= entry.get("opaque", {}).get("parameters", {})
    return found


# --- selectors ----------------------------------------------------------------------------------------------


class _Names(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__


class _Domains(dict):  # type: ignore[type-arg]
    def __missing__(self, domain: str) -> _Names:
        return _Names()


class _Quantity:
    def __init__(self, text: Any) -> None:
        self.value = amount(text)

    def compareTo(self, other: _Quantity) -> int:
        return (self.value > other.value) - (self.value < other.value)

    def isGreaterThan(self, other: _Quantity) -> bool:
        return self.value > other.value

    def isLessThan(self, other: _Quantity) -> bool:
        return self.value < other.value


def evaluate(expression: str, device: Dict, driver: str, *, as_scheduler: bool) -> bool:
    """Whether the device matches, for expressions made of comparisons, `in` and quantities."""
    attributes, capacity = _Domains(), _Domains()
    for name, value in _qualified(device.get("attributes", {}), driver).items():
        domain, _, identifier = name.partition("/")
        attributes.setdefault(domain, _Names())[identifier] = next(iter(value.values()), None)
    if as_scheduler and driver == "koordra.io" and "allocator" in attributes[driver]:
        attributes[driver]["allocator"] = "scheduler"
    for name, entry in _qualified(device.get("capacity", {}), driver).items():
        domain, _, identifier = name.partition("/")
        capacity.setdefault(domain, _Names())[identifier] = _Quantity(entry["value"])
    shown = _Names(
        driver=driver,
        attributes=attributes,
        capacity=capacity,
        allowMultipleAllocations=device.get("allowMultipleAllocations", False),
    )
    python = re.sub(r"!(?!=)", " not ", expression.replace("&&", " and ").replace("||", " or ")).strip()
    names = {"device": shown, "quantity": _Quantity, "true": True, "false": False}
    return bool(eval(" ".join(python.split()), {"__builtins__": {}}, names))
