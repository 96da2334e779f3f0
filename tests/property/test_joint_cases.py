"""Made-up cases of everything that upstream's allocator knows, held against an exhaustive search
(`conformance/exhaustive.py`).

FirstFit has to give the first legal choice in upstream's order, device by device; the scored policies have to
agree on what is feasible and to give something legal. `make soak` tries more (KOORDRA_EXAMPLES).
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from koordra.placement import PlanError, plan
from tests.conformance.exhaustive import Exhaustive
from tests.long import mostly_long

Dict = dict[str, Any]

GPU, NIC = "gpu.example.com", "nic.example.com"
ROOT, NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
LISTS = "DRAListTypeAttributes"


def _model(device: Dict) -> str:
    return str(device["attributes"].get("model", {}).get("string"))


SELECTORS = {
    f'device.driver == "{GPU}"': lambda device: device["driver"] == GPU,
    f'device.driver == "{NIC}"': lambda device: device["driver"] == NIC,
    f'device.attributes["{GPU}"].model == "large"': lambda device: _model(device) == "large",
    f'has(device.attributes["{GPU}"].model) && device.attributes["{GPU}"].model != "small"': lambda device: (
        "model" in device["attributes"] and _model(device) != "small"
    ),
    "device.allowMultipleAllocations": lambda device: bool(device.get("allowMultipleAllocations")),
    "!device.allowMultipleAllocations": lambda device: not device.get("allowMultipleAllocations"),
}
MODELS = list(SELECTORS)[2:4]
POLICIES: list[Dict | None] = [
    None,
    {"default": "40", "validRange": {"min": "10", "step": "10"}},
    {"default": "20", "validRange": {"min": "20", "max": "60", "step": "20"}},
    {"default": "50", "validValues": ["25", "50", "100"]},
    {"default": "7500m", "validRange": {"min": "2500m", "step": "2500m"}},
    {"default": "0", "validRange": {"min": "0"}},
]


class Maker:
    """One random cluster of one node. Everything is drawn from `self.draw`."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.lists = self.draw.random() < 0.25
        self.roots = self.draw.randint(1, 3)

    def maybe(self, chance: float) -> bool:
        return self.draw.random() < chance

    def place(self) -> Dict:
        root = self.draw.randrange(self.roots)
        found: Dict = {}
        if self.lists and self.maybe(0.5):
            roots = self.draw.sample(range(self.roots), self.draw.randint(1, self.roots))
            found[ROOT] = {"strings": [f"pci{number}" for number in roots]}
        elif self.maybe(0.95):
            found[ROOT] = {"string": f"pci{root}"}
        if self.maybe(0.9):
            found[NUMA] = {"int": root // 2} if self.maybe(0.95) else {"string": str(root // 2)}
        return found

    def devices(self, driver: str, prefix: str, most: int) -> list[Dict]:
        found = []
        partitioned = driver == GPU and self.maybe(0.3)
        for number in range(self.draw.randint(1, most)):
            device: Dict = {"name": f"{prefix}-{number}", "attributes": self.place()}
            if driver == GPU:
                device["attributes"]["model"] = {"string": self.draw.choice(["large", "small", "small"])}
            if self.maybe(0.45):
                device["allowMultipleAllocations"] = True
                policy = self.draw.choice(POLICIES)
                device["capacity"] = {
                    "units": {"value": "100", **({"requestPolicy": policy} if policy else {})}
                }
                if self.maybe(0.3):
                    device["capacity"]["slots"] = {"value": "2", "requestPolicy": {"default": "1"}}
            elif self.maybe(0.4):
                device["capacity"] = {"units": {"value": self.draw.choice(["50", "100"])}}
            if partitioned and self.maybe(0.8):
                taken = {"slices": {"value": str(self.draw.choice([1, 2, 2, 3]))}}
                sets = self.draw.choice([["card"], ["card"], ["card", "rest"]])
                device["consumesCounters"] = [{"counterSet": name, "counters": taken} for name in sets]
            if self.maybe(0.15):
                effect = self.draw.choice(["NoSchedule", "NoExecute", "None"])
                device["taints"] = [
                    {"key": "broken", "value": self.draw.choice(["a", "b"]), "effect": effect}
                ]
            found.append(device)
        return found

    def slices(self) -> list[Dict]:
        found = []
        for driver, prefix, most in ((GPU, "gpu", 5), (NIC, "nic", 4)):
            devices = self.devices(driver, prefix, most)
            spec = {"driver": driver, "nodeName": "node", "pool": {"name": "node", "generation": 1}}
            cut = self.draw.randint(0, len(devices)) if self.maybe(0.2) else 0
            bodies: list[Dict] = [{"devices": part} for part in (devices[:cut], devices[cut:]) if part]
            if any("consumesCounters" in device for device in devices):
                counters = {"slices": {"value": str(self.draw.randint(2, 6))}}
                bodies.append(
                    {"sharedCounters": [{"name": name, "counters": counters} for name in ("card", "rest")]}
                )
            for number, body in enumerate(bodies):
                spec["pool"] = {**spec["pool"], "resourceSliceCount": len(bodies)}  # type: ignore[dict-item]
                found.append(
                    {
                        "kind": "ResourceSlice",
                        "metadata": {"name": f"{prefix}-{number}"},
                        "spec": {**spec, **body},
                    }
                )
        return found

    def body(self, kind: str) -> Dict:
        found: Dict = {"deviceClassName": kind}
        if kind == "gpu" and self.maybe(0.25):
            found["selectors"] = [{"cel": {"expression": self.draw.choice(MODELS)}}]
        elif self.maybe(0.1):
            found["selectors"] = [{"cel": {"expression": self.draw.choice(list(SELECTORS)[4:])}}]
        if self.maybe(0.1):
            found["allocationMode"] = "All"
        elif self.maybe(0.6):
            found["count"] = self.draw.choice([1, 1, 2, 2, 3])
        if self.maybe(0.3):
            asked = {"units": self.draw.choice(["5", "20", "35", "50", "60", "100", "2600m"])}
            if self.maybe(0.1):
                asked["slots"] = "2"
            found["capacity"] = {"requests": asked}
        if self.maybe(0.15):
            toleration = self.draw.choice(
                [
                    {"key": "broken", "operator": "Exists"},
                    {"key": "broken", "value": "a", "effect": "NoSchedule"},
                ]
            )
            found["tolerations"] = [toleration]
        return found

    def claim(self, number: int) -> Dict:
        requests, refs = [], []
        for index in range(self.draw.randint(1, 3)):
            name = f"r{index}"
            if self.maybe(0.25):
                subs = [
                    {"name": f"s{sub}", **self.body(self.draw.choice(["gpu", "nic"]))}
                    for sub in range(self.draw.randint(1, 3))
                ]
                requests.append({"name": name, "firstAvailable": subs})
                refs += [f"{name}/{sub['name']}" for sub in subs]
            else:
                requests.append({"name": name, "exactly": self.body(self.draw.choice(["gpu", "gpu", "nic"]))})
            refs.append(name)
        devices: Dict = {"requests": requests}
        constraints = []
        for _ in range(self.draw.choice([0, 1, 1, 2])):
            kind = self.draw.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
            entry: Dict = {kind: self.draw.choice([ROOT, ROOT, NUMA, f"{GPU}/model"])}
            if self.maybe(0.6):
                entry["requests"] = self.draw.sample(refs, self.draw.randint(1, len(refs)))
            constraints.append(entry)
        if constraints:
            devices["constraints"] = constraints
        metadata = {"name": f"claim-{number}", "namespace": "default", "uid": f"uid-{number}"}
        return {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}

    def holder(self, slices: list[Dict]) -> list[Dict]:
        results = []
        for spec in (entry["spec"] for entry in slices):
            for device in spec.get("devices", []):
                if not self.maybe(0.15):
                    continue
                result = {"request": "r", "driver": spec["driver"], "pool": "node", "device": device["name"]}
                if device.get("allowMultipleAllocations"):
                    amounts = {"units": self.draw.choice(["10", "40", "60"]), "slots": "1"}
                    consumed = {name: amounts[name] for name in device["capacity"]}
                    result |= {"shareID": f"share-{device['name']}", "consumedCapacity": consumed}
                results.append(result)
        if not results:
            return []
        metadata = {"name": "holder", "namespace": "elsewhere"}
        status = {"allocation": {"devices": {"results": results}}}
        return [{"kind": "ResourceClaim", "metadata": metadata, "spec": {}, "status": status}]

    def objects(self) -> list[Dict]:
        slices = self.slices()
        classes = [
            {
                "kind": "DeviceClass",
                "metadata": {"name": kind},
                "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
            }
            for kind, driver in (("gpu", GPU), ("nic", NIC))
        ]
        rules = []
        if self.maybe(0.1):
            selector = self.draw.choice(
                [{"driver": NIC}, {"device": "gpu-0"}, {"pool": "node", "driver": GPU, "device": "gpu-1"}]
            )
            taint = {"key": "broken", "value": "a", "effect": "NoSchedule"}
            rules = [
                {
                    "kind": "DeviceTaintRule",
                    "metadata": {"name": "rule"},
                    "spec": {"deviceSelector": selector, "taint": taint},
                }
            ]
        claims = [self.claim(number) for number in range(self.draw.choice([1, 1, 2]))]
        uses = [{"name": c["metadata"]["name"], "resourceClaimName": c["metadata"]["name"]} for c in claims]
        pod = {"kind": "Pod", "metadata": {"name": "pod"}, "spec": {"resourceClaims": uses}}
        node = {"kind": "Node", "metadata": {"name": "node", "labels": {}}}
        return [node, *classes, *rules, *slices, *self.holder(slices), *claims, pod]


def chosen(allocation: Dict) -> list[tuple[str, str, str, str]]:
    results = allocation["devices"]["results"]
    return [(r["request"], r["driver"], r["pool"], r["device"]) for r in results]


def held_against_exhaustive_search(seed: int) -> bool:
    """Whether the case fits."""
    maker = Maker(seed)
    objects = maker.objects()
    gates = f"{'+'.join(DEFAULT)}+{LISTS}" if maker.lists else None
    exhaustive = Exhaustive(objects, SELECTORS, lists=maker.lists)
    expected = exhaustive.first()
    claims = [o for o in objects if o["kind"] == "ResourceClaim" and "status" not in o]
    for policy in ("FirstFit", "koordra", "Binpack", "Spread"):
        try:
            found = plan(objects, policy=policy, features=gates)
        except PlanError as error:
            # Upstream ends there, whatever other alternatives there are.
            assert policy == "FirstFit" or expected is None
            assert "because a claim constraint would not be satisfied" in str(error)
            continue
        assert not found.undecided
        assert bool(found.allocations) == (expected is not None), (seed, policy, found.unsatisfiable)
        if expected is None:
            continue
        keys = [f"default/{claim['metadata']['name']}" for claim in claims]
        if policy == "FirstFit":
            assert [chosen(found.allocations[key]) for key in keys] == expected, seed
        else:
            assert exhaustive.accepts(found.allocations), (seed, policy)
    return expected is not None


DEFAULT = (
    "DRAAdminAccess",
    "DRAPrioritizedList",
    "DRADeviceTaints",
    "DRADeviceTaintRules",
    "DRADeviceBindingConditions",
    "DRAResourceClaimDeviceStatus",
    "DRAConsumableCapacity",
    "DRAPartitionableDevices",
    "DRAFractionalCapacityRange",
)


@pytest.mark.parametrize(
    "hundred", mostly_long(range(max(3, int(os.environ.get("KOORDRA_EXAMPLES") or 0) // 100)))
)
def test_made_up_cases(hundred: int) -> None:
    fitting = [held_against_exhaustive_search(seed) for seed in range(100 * hundred, 100 * hundred + 100)]
    assert 10 < sum(fitting) < 90, "cases that all fit, or never do, show little"
