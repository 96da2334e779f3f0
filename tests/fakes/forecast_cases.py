"""Clusters and what is to be applied to them, drawn from a seed: for comparing what `koordra plan` says with
what the controller does.

    there     two to seven machines, some in native mode, tainted, cordoned or with sick cards; quotas;
              namespaces of both modes
    first     what is applied, and runs, before
    wanted    claims of templates, shared, Immediate, alone; gangs of all sorts; Deployments; pods in another
              stack's words; pods that choose nodes and keep others off; names that are not there;
              reservations, and pods that they are for
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import names
from koordra.controller.gangs.declared.annotations import GANG, GANG_MAX, GANG_MIN
from tests.unit.allocator.machines import claim, config, device_classes, joint, machine, pod, request

Dict = dict[str, Any]

NAMESPACES: Final = ("team-a", "team-b", "native")
CARD: Final = 80
BOOKED: Final = "2026-11-21T12:00:00Z"
PAST: Final = "2026-11-20T12:00:00Z"
"""Long after, and before, the cases happen."""


@dataclass
class Case:
    """`there` are stored objects without pods; `first` and `wanted` were never applied."""

    there: list[Dict] = field(default_factory=list)
    first: list[Dict] = field(default_factory=list)
    wanted: list[Dict] = field(default_factory=list)


def drawn(seed: int) -> Case:
    return _Draw(random.Random(f"forecast {seed}")).case()


def wanted_of_nodes(seed: int, namespace: str, labels: Mapping[str, str]) -> list[Dict]:
    """For a cluster with two nodes of eight cards and NICs, which have these labels. Pods are called in the
    order in which they are planned."""
    draw = _Draw(random.Random(f"forecast of nodes {seed}"))
    alone = (draw.large, draw.large, draw.plain, draw.plain, draw.shared, draw.immediate)
    kinds = (*alone, draw.gang, draw.gang, draw.reservation)
    found = [obj for _ in range(draw.chance.randint(2, 6)) for obj in draw.chance.choice(kinds)()]
    for obj in found:
        obj["metadata"]["namespace"] = namespace
        spec = obj["spec"]
        if obj["kind"] == "Pod":
            spec.pop("priority", None)  # which is the API server's to write
            spec["nodeSelector"] = dict(labels)
            spec["containers"][0]["image"] = "busybox"
            spec["schedulingGates"] = [{"name": names.JOINT_GATE}]
            continue
        if obj["kind"] == "Reservation":
            spec.pop("priority", None)  # above 0 it takes a right
            spec["nodeSelector"] = dict(labels)
    return sorted(found, key=lambda one: (one["kind"] == "Pod", one["metadata"]["name"]))


class _Draw:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.made = 0
        self.alone_or_immediate = chance.choice((self.alone, self.immediate))
        """A pod that stands in for who will use a claim takes from Immediate claims, as any pod does."""

    def case(self) -> Case:
        found = Case([*device_classes(), *self.namespaces()])
        for number in range(self.chance.randint(2, 7)):
            found.there += self.machine(number)
        if self.chance.random() < 0.4:
            found.there.append(self.quota())
        found.first = self.several(self.chance.choice((0, 2, 4, 6)))
        found.wanted = self.several(self.chance.randint(2, 7))
        return found

    def several(self, number: int) -> list[Dict]:
        kinds: Sequence[tuple[int, Callable[[], list[Dict]]]] = (
            (8, self.plain),
            (4, self.shared),
            (5, self.gang),
            (3, self.deployment),
            (4, self.legacy),
            (3, self.alone_or_immediate),
            (2, self.reservation),
            (1, self.broken),
        )
        weights, made = zip(*kinds, strict=True)
        found = [obj for one in self.chance.choices(made, weights, k=number) for obj in one()]
        self.chance.shuffle(found)
        return found

    # what there is

    def namespaces(self) -> list[Dict]:
        labels = {"native": {names.MODE_LABEL: names.MODE_NATIVE}}
        return [
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": labels.get(name, {})},
            }
            for name in NAMESPACES
        ]

    def machine(self, number: int) -> list[Dict]:
        chance, name = self.chance, f"n{number}"
        found = copy.deepcopy(
            machine(
                chance.randint(1, 4),
                chance.choice((0, 0, 1, 2, 4)),
                name=name,
                per_switch=chance.choice((1, 2)),
                per_numa=chance.choice((2, 4)),
                labels={"zone": chance.choice("ab")},
            )
        )
        node, published = found
        node["metadata"]["uid"] = published["metadata"]["uid"] = name
        node["status"]["allocatable"]["cpu"] = str(chance.choice((2, 8, 64)))
        devices = published["spec"]["devices"]
        if chance.random() < 0.25:
            node["metadata"]["labels"][names.MODE_LABEL] = names.MODE_NATIVE
            for device in devices:
                device["attributes"]["allocator"] = {"string": names.ALLOCATOR_SCHEDULER}
                device["taints"] = []
        if chance.random() < 0.2:
            effect = chance.choice(("NoSchedule", "PreferNoSchedule"))
            node["spec"]["taints"] = [{"key": "gpus-only", "effect": effect}]
        if chance.random() < 0.08:
            node["spec"]["unschedulable"] = True
        if chance.random() < 0.05:
            node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
        if chance.random() < 0.15:
            sick = {"key": names.UNHEALTHY_TAINT, "value": "Xid79", "effect": "NoSchedule"}
            chance.choice(devices)["taints"].append(sick)
        return found

    def quota(self) -> Dict:
        name = self.chance.choice(("nvidia.com/gpu", "koordra.io/gpu"))
        hard = {f"requests.{name}": str(self.chance.randint(1, 3))}
        metadata = {"name": "cards", "namespace": self.chance.choice(NAMESPACES[:2]), "uid": "quota"}
        return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}

    # what is wanted

    def name(self, kind: str) -> str:
        self.made += 1
        return f"{kind}-{self.made}"

    def place(self) -> str:
        return self.chance.choices(NAMESPACES, (6, 3, 1))[0]

    def requests(self) -> tuple[list[Dict], list[Dict]]:
        """With configurations."""
        chance = self.chance
        kind = chance.random()
        if kind < 0.4:
            return [request("gpu", count=chance.choice((1, 1, 2, 3)))], []
        if kind < 0.75:
            amounts = {"memory": f"{chance.choice((10, 20, 35, 50, 90))}Gi"}
            if chance.random() < 0.3:
                amounts["cores"] = str(chance.choice((20, 50)))
            return [request("gpu", capacity=amounts)], []
        if kind < 0.95:
            number = chance.choice((1, 1, 2))
            both = [request("gpu", count=number), request("nic", "nic", count=number)]
            how = chance.choice(("Required", "Preferred"))
            return both, [joint(chance.choice(("PCIeSwitch", "NUMANode")), enforcement=how)]
        return [request("gpu")], [config("GpuConfig", memoryPercnt=5)]

    def claim(self, name: str, place: str) -> Dict:
        requests, configs = self.requests()
        made = claim(name, *requests, namespace=place, configs=configs)
        del made["metadata"]["uid"]
        return made

    def template(self, name: str, place: str) -> Dict:
        made = self.claim(name, place)
        metadata = {"name": name, "namespace": place}
        return {**made, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": made["spec"]}}

    def pod(self, name: str, place: str, *entries: Dict, **spec: Any) -> Dict:
        chance = self.chance
        made = pod(name, namespace=place, requests={"cpu": str(chance.choice((1, 1, 2, 4)))})
        own = made["spec"]
        own["resourceClaims"] = list(entries)
        own |= spec
        if chance.random() < 0.2:
            own["priority"] = chance.choice((-5, 5, 10))
        if chance.random() < 0.15:
            own["nodeSelector"] = {"zone": chance.choice("ab")}
        if chance.random() < 0.3:
            own["tolerations"] = [{"key": "gpus-only", "operator": "Exists"}]
        if chance.random() < 0.12:
            own["containers"][0]["ports"] = [{"containerPort": 1, "hostPort": 80}]
        if chance.random() < 0.3:
            made["metadata"].setdefault("labels", {})["team"] = "owner"
        if chance.random() < 0.12:
            made["metadata"].setdefault("labels", {})["alone"] = "yes"
            term = {
                "labelSelector": {"matchLabels": {"alone": "yes"}},
                "topologyKey": "kubernetes.io/hostname",
            }
            required = "requiredDuringSchedulingIgnoredDuringExecution"
            own["affinity"] = {"podAntiAffinity": {required: [term]}}
        return made

    def plain(self) -> list[Dict]:
        place, name = self.place(), self.name("pod")
        if self.chance.random() < 0.6:
            entries = [{"name": "gpu", "resourceClaimTemplateName": name}]
            return [self.template(name, place), self.pod(name, place, *entries)]
        claims = [f"{name}-{part}" for part in "ab"[: self.chance.choice((1, 1, 2))]]
        entries = [{"name": one, "resourceClaimName": one} for one in claims]
        return [*(self.claim(one, place) for one in claims), self.pod(name, place, *entries)]

    def large(self) -> list[Dict]:
        """For a pod of its own."""
        place, name = self.place(), self.name("large")
        made = claim(name, request("gpu", count=self.chance.choice((4, 5, 6))), namespace=place)
        del made["metadata"]["uid"]
        return [made, self.pod(name, place, {"name": "gpu", "resourceClaimName": name})]

    def shared(self) -> list[Dict]:
        place, name = self.place(), self.name("shared")
        found = [self.claim(name, place)]
        for number in range(self.chance.randint(2, 3)):
            entries = [{"name": "shared", "resourceClaimName": name}]
            if self.chance.random() < 0.3:
                own = f"{name}-own-{number}"
                found.append(self.claim(own, place))
                entries.append({"name": own, "resourceClaimName": own})
            found.append(self.pod(f"{name}-{number}", place, *entries))
        return found

    def gang(self) -> list[Dict]:
        chance, place, name = self.chance, self.place(), self.name("gang")
        size = chance.randint(2, 4)
        least = size if chance.random() < 0.7 else size - 1
        said = {GANG: name, GANG_MIN: str(least)}
        if least < size:
            said[GANG_MAX] = str(size)
        if chance.random() < 0.06:
            del said[GANG_MIN]
        found = [self.template(name, place)]
        there = size if chance.random() < 0.9 else size - 1
        for number in range(there):
            entries = [{"name": "gpu", "resourceClaimTemplateName": name}]
            member = self.pod(
                f"{name}-{number}", place, *(entries if number or chance.random() < 0.9 else ())
            )
            member["metadata"]["annotations"] = dict(said)
            found.append(member)
        return found

    def deployment(self) -> list[Dict]:
        place, name = self.place(), self.name("web")
        if self.chance.random() < 0.4:
            (of,) = self.legacy()
            found = []
        else:
            of = self.pod(name, place, {"name": "gpu", "resourceClaimTemplateName": name})
            found = [self.template(name, place)]
        template = {"metadata": {"labels": of["metadata"].get("labels", {})}, "spec": of["spec"]}
        spec = {"replicas": self.chance.randint(1, 3), "template": template}
        metadata = {"name": name, "namespace": place}
        return [*found, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}]

    def legacy(self) -> list[Dict]:
        made = self.pod(self.name("legacy"), self.place())
        limits = {"nvidia.com/gpu": str(self.chance.choice((1, 1, 2)))}
        if self.chance.random() < 0.4:
            limits["nvidia.com/gpumem"] = str(self.chance.choice((10, 30, 100)) * 1000)
        made["spec"]["containers"][0]["resources"]["limits"] = limits
        return [made]

    def alone(self) -> list[Dict]:
        return [self.claim(self.name("alone"), self.place())]

    def immediate(self) -> list[Dict]:
        made = self.claim(self.name("immediate"), self.place())
        made["metadata"]["annotations"] = {names.MODE_LABEL: names.IMMEDIATE}
        return [made]

    def reservation(self) -> list[Dict]:
        """Kept now, booked ahead, or over. The owners are pods of its namespace of one team."""
        chance, place = self.chance, self.place()
        claims = []
        for name in "ab"[: chance.choice((1, 1, 2))]:
            requests, configs = self.requests()
            claims.append({"name": name, "devices": {"requests": requests, "config": configs}})
        spec = {
            "owners": [{"labelSelector": {"matchLabels": {"team": "owner"}}}],
            "claims": claims,
            "seats": chance.choice((1, 1, 2, 3)),
            **chance.choice(({}, {}, {}, {"start": BOOKED}, {"expires": PAST})),
        }
        if chance.random() < 0.2:
            spec["priority"] = chance.choice((-5, 5))
        if chance.random() < 0.2:
            spec["allocateOnce"] = True
        if chance.random() < 0.15:
            spec["nodeSelector"] = {"zone": chance.choice("ab")}
        if chance.random() < 0.3:
            spec["tolerations"] = [{"key": "gpus-only", "operator": "Exists"}]
        metadata = {"name": self.name("kept"), "namespace": place}
        return [
            {
                "apiVersion": "koordra.io/v1alpha1",
                "kind": "Reservation",
                "metadata": metadata,
                "spec": spec,
            }
        ]

    def broken(self) -> list[Dict]:
        place, name = self.place(), self.name("broken")
        kind = self.chance.choice(("template", "claim", "class"))
        if kind == "template":
            return [self.pod(name, place, {"name": "gpu", "resourceClaimTemplateName": "gone"})]
        user = self.pod(name, place, {"name": name, "resourceClaimName": name})
        if kind == "claim":
            return [user]
        odd = self.claim(name, place)
        odd["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "nobodys"
        return [odd, user]
