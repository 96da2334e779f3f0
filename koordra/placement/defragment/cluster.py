"""`koordra plan --defragment` over the cluster's own objects: who is where, and what to move.

    index ─▶ states, units ─▶ the fewest moves by free amounts (`moves`)
                  ▲           ─▶ overlay without the evicted, the freed devices in use
                  │                                                     │ `decide` for each, the largest first
                  └─ a unit for which the engine finds no place stays ◀─┴─▶ where it goes

Claims of one pod move together; claims that pods share move with all of them; a claim that no pod uses moves
for itself. A unit that has an adminAccess result, or devices on several nodes, stays where it is. Free
amounts are all that `moves` looks at, so what it excludes is excluded; selectors, constraints and predicates
are the engine's word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.devices.inventory import Usage
from koordra.allocator.offer import Offer
from koordra.allocator.predicates import requests_of, total_of
from koordra.api import objects
from koordra.api.allocation import Allocation, DeviceResult
from koordra.api.claims import ResourceClaim
from koordra.errors import InvalidInput, InvalidManifest, KoordraError
from koordra.placement.decide import Engine
from koordra.placement.defragment.emptying import Pod, Shape
from koordra.placement.defragment.moves import Freed, defragment, shapes_free
from koordra.placement.free_amounts.node_devices import NodeDevices, devices_of_pools, size_of
from koordra.placement.free_amounts.state import FULL, WHOLE, FreeAmounts, MachineType, Request
from koordra.placement.index import NodeInfo
from koordra.placement.manifests import Manifests
from koordra.placement.plan import engine_for
from koordra.placement.request.claim_groups import ClaimGroup, claim_keys, groups_of
from koordra.topology.levels import Level

MOST_TRIES: Final = 32
"""Answers that are put to the engine."""

SCOPES: Final = {
    "PCIeSwitch": Level.PXB,
    "PCIeRoot": Level.PHB,
    "NUMANode": Level.NODE,
    "Node": Level.SYS,
}


def shape_of(text: str) -> Shape:
    """`gpus=8,nics=8,scope=Node`. Raises InvalidInput."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        found[key] = value
    scope = found.pop("scope", "PCIeSwitch")
    try:
        gpus, nics = int(found.pop("gpus", "0")), int(found.pop("nics", "0"))
    except ValueError:
        gpus = nics = -1
    if found or gpus < 0 or nics < 0 or gpus + nics == 0 or scope not in SCOPES:
        raise InvalidInput(
            f"{text!r} is no shape",
            field="--defragment",
            remedy=f"write gpus=8,nics=8,scope=Node (scopes: {', '.join(SCOPES)})",
        )
    return Shape(gpus, nics, SCOPES[scope])


def free(manifests: Iterable[Mapping[str, Any]], shape: Shape) -> dict[str, Any]:
    """The answer as a document: where, which moves, gain (such shapes that are free at once) and cost."""
    engine, given = engine_for(), Manifests.of(manifests)
    given.fill(engine.index)
    engine.settle()
    nodes = [engine.index.nodes[name] for name in sorted(engine.index.nodes)]
    devices = [devices_of_pools(info.pools).closed() for info in nodes]
    cluster = _Cluster(engine, nodes, devices, tuple(dict.fromkeys(one.kind for one in devices)))
    units = _units(engine, given.pods, devices)
    least, states = 0, cluster.states()
    wanted = {
        "gpus": shape.gpus,
        "nics": shape.nics,
        "scope": next(name for name, level in SCOPES.items() if level == shape.scope),
    }
    for _ in range(MOST_TRIES):
        found = defragment(cluster.kinds, states, [unit.pod for unit in units], shape)
        if found is None:
            break
        least = least or found.at_least
        evicted = {move.pod.name: unit for move in found.moves for unit in units if unit.pod is move.pod}
        with engine.index.overlay(frozenset().union(*(unit.gone for unit in evicted.values()))):
            moves, unplaced = _decided(cluster, found, list(evicted.values()))
            if unplaced is not None:
                units.remove(unplaced)
                continue
            after = shapes_free(cluster.kinds, cluster.states(), shape) + 1
        site, before = devices[found.site.node], shapes_free(cluster.kinds, states, shape)
        freed = [
            *(site.gpus[at].device for at in found.site.gpus),
            *(site.nics[at].device for at in found.site.nics),
        ]
        return {
            "shape": wanted,
            "freed": {"node": nodes[found.site.node].name, "devices": freed},
            "moves": [
                {"pod": pod.name, "from": nodes[pod.node].name, "to": moves[pod.name]}
                for pod, _ in found.moves
            ],
            "cost": {"pods": len(found.moves), "gpus": found.share / 1000, "atLeastPods": least},
            "proven": len(found.moves) == least,
            "gain": {"freeBefore": before, "freeAfter": after},
        }
    return {"shape": wanted, "freed": None}


@dataclass(frozen=True, slots=True)
class _Unit:
    """What moves together. `gone`: its claims and pods, by uid."""

    pod: Pod
    group: ClaimGroup
    gone: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The engine's nodes as free amounts."""

    engine: Engine
    nodes: Sequence[NodeInfo]
    devices: Sequence[NodeDevices]
    kinds: tuple[MachineType, ...]

    def states(self) -> list[FreeAmounts]:
        taken, number = self.engine.index.taken, {kind: at for at, kind in enumerate(self.kinds)}
        return [
            one.state(number[one.kind], taken, info.load, size_of(info.node))
            for info, one in zip(self.nodes, self.devices, strict=True)
        ]


def _decided(cluster: _Cluster, found: Freed, evicted: list[_Unit]) -> tuple[dict[str, str], _Unit | None]:
    """Where each unit goes as the engine decides it, the largest first; or the one for which it finds no
    place. What is decided is assumed."""
    engine, site = cluster.engine, cluster.devices[found.site.node]
    freed = [
        DeviceResult("freed", device)
        for device, place in site.parts.items()
        if place.card in (found.site.gpus if place.is_gpu else found.site.nics)
    ]
    _assume(engine, ClaimGroup(()), {"freed": Allocation(tuple(freed))}, cluster.nodes[found.site.node].name)
    nodes: dict[str, str] = {}
    for unit in sorted(
        evicted, key=lambda unit: (-unit.pod.request.share, -unit.pod.request.percent, unit.pod.name)
    ):
        try:
            decision = engine.decide(unit.group)
        except KoordraError:
            return nodes, unit
        if not isinstance(decision, Offer):
            return nodes, unit
        given = decision.allocations(pin_to_node=True)
        keys = [claim.key for claim in unit.group.claims]
        _assume(engine, unit.group, dict(zip(keys, given, strict=True)), decision.node)
        nodes[unit.pod.name] = decision.node
    return nodes, None


def _assume(engine: Engine, group: ClaimGroup, given: Mapping[str, Allocation], node: str) -> None:
    for key, allocation in given.items():
        namespace, _, name = key.rpartition("/")
        claim = {"metadata": {"namespace": namespace, "name": name}}
        engine.index.assume(claim, allocation, key=key, node=node, pods=group.pods)
    engine.index.settle()


def _units(engine: Engine, pods: Sequence[Mapping[str, Any]], devices: Sequence[NodeDevices]) -> list[_Unit]:
    """What moves together, by name. Devices of what is not among them are nobody's to free."""
    allocated = engine.index.allocated
    claims = {key: claim for key, held in allocated.items() if (claim := _read(key, held.claim)) is not None}
    living = [
        {**pod, "spec": {name: value for name, value in objects.spec_of(pod).items() if name != "nodeName"}}
        for pod in pods
        if not objects.pod_is_finished(pod)
    ]
    used = {key for pod in living for key in claim_keys(pod)}
    groups = groups_of({key: claims[key] for key in claims.keys() & used}, living, frozenset())
    groups += [ClaimGroup((claims[key],)) for key in sorted(claims.keys() - used)]
    at = {device: number for number, one in enumerate(devices) for device in one.parts}
    found = []
    for group in groups:
        keys = [claim.key for claim in group.claims]
        others = {key for pod in group.pods for key in claim_keys(pod)} & allocated.keys() - claims.keys()
        held = None if others else _held([allocated[key].allocation for key in keys], devices, at)
        if held is None:
            continue
        needed = total_of(map(requests_of, group.pods))
        cpu, memory = needed.get("cpu", Decimal(0)), needed.get("memory", Decimal(0))
        request = held.request._replace(cpu=int(cpu * 1000), memory=int(memory) >> 20)
        name = ", ".join(sorted(map(objects.key, group.pods))) or f"claim {keys[0]}"
        gone = frozenset(map(objects.identity, (*(allocated[key].claim for key in keys), *group.pods)))
        found.append(_Unit(held._replace(name=name, request=request), group, gone))
    return sorted(found, key=lambda unit: unit.pod)


def _read(key: str, claim: Mapping[str, Any]) -> ResourceClaim | None:
    """The claim as it would wait for a place."""
    try:
        return replace(ResourceClaim.from_dict(claim), name=key.partition("/")[2])
    except InvalidManifest:
        return None


def _held(
    allocations: Sequence[Allocation], devices: Sequence[NodeDevices], at: Mapping[Any, int]
) -> Pod | None:
    """The devices of one unit; None if it holds none of these nodes' GPUs and NICs, or cannot move:
    administrators look at devices where they are, and a MIG slice frees no GPU, and nothing says where else
    it could go."""
    results = [one for allocation in allocations for one in allocation.results if one.device in at]
    nodes = {at[one.device] for one in results}
    if len(nodes) != 1 or any(one.admin_access for one in results):
        return None
    node = nodes.pop()
    parts = devices[node].parts
    if any(parts[one.device].cut >= 0 for one in results):
        return None
    gpus: Counter[int] = Counter()
    nics: Counter[int] = Counter()
    for result in results:
        used = Usage()
        used.add([result], holder="unit", namespace="")
        place = parts[result.device]
        (gpus if place.is_gpu else nics)[place.card] += devices[node].used(result.device, used)
    milli, percent = max(gpus.values(), default=0), max(nics.values(), default=0)
    request = Request(0, 0, len(gpus), min(WHOLE, milli), nics=len(nics), percent=min(FULL, percent))
    return Pod("", node, request, tuple(sorted(gpus)), tuple(sorted(nics)))
