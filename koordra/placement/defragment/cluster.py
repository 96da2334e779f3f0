"""`koordra plan --defragment` over the cluster's own objects: who is where, and what to move.

Claims of one pod move together; claims that pods share move with all of them; a claim that no pod uses moves for itself. A unit
that has an adminAccess result, or devices on several nodes, stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.devices.inventory import Usage
from koordra.allocator.predicates import requests_of
from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.errors import InvalidInput
from koordra.placement.columns.node_devices import NodeDevices, nodes_of
from koordra.placement.columns.state import FULL, WHOLE, Kind, Request
from koordra.placement.defragment.emptying import Pod, Shape
from koordra.placement.defragment.moves import Freed, carried_out, defragment, shapes_free
from koordra.placement.index import ClusterIndex
from koordra.placement.manifests import index_of
from koordra.placement.request.groups import claim_keys
from koordra.topology.levels import Level

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
    index, given = index_of(manifests)
    devices = [
        one.closed()
        for one in nodes_of({name: info.node for name, info in index.nodes.items()}, index.inventory)
    ]
    kinds: dict[Kind, int] = {}
    numbers = [kinds.setdefault(one.kind, len(kinds)) for one in devices]
    states = [
        one.state(kind, index.taken, index.nodes[one.name].load)
        for one, kind in zip(devices, numbers, strict=True)
    ]
    found = defragment(tuple(kinds), states, _units(index, given.pods, devices), shape)
    answer = _document(found, devices, shape)
    if found is not None:
        kept = carried_out(states, found)
        answer["gain"] = {
            "freeBefore": shapes_free(tuple(kinds), states, shape),
            "freeAfter": shapes_free(tuple(kinds), kept, shape) + 1,
        }
    return answer


def _document(found: Freed | None, devices: Sequence[NodeDevices], shape: Shape) -> dict[str, Any]:
    wanted = {"gpus": shape.gpus, "nics": shape.nics, "scope": _scope_name(shape)}
    if found is None:
        return {"shape": wanted, "freed": None}
    site = devices[found.node]
    return {
        "shape": wanted,
        "freed": {
            "node": site.name,
            "devices": [site.gpus[at].device for at in found.gpus]
            + [site.nics[at].device for at in found.nics],
        },
        "moves": [
            {"pod": move.pod.name, "from": devices[move.pod.node].name, "to": devices[move.node].name}
            for move in found.moves
        ],
        "cost": {"pods": len(found.moves), "gpus": found.share / 1000, "atLeastPods": found.at_least},
        "proven": found.proven,
    }


def _scope_name(shape: Shape) -> str:
    return next(name for name, level in SCOPES.items() if level == shape.scope)


def _units(
    index: ClusterIndex, pods_given: Sequence[Mapping[str, Any]], devices: Sequence[NodeDevices]
) -> list[Pod]:
    """What moves together, by name."""
    users: dict[str, list[Mapping[str, Any]]] = {}
    for pod in pods_given:
        if not objects.pod_is_finished(pod):
            for key in claim_keys(pod):
                users.setdefault(key, []).append(pod)
    unit_of = {key: key for key in index.allocated}

    def root(key: str) -> str:
        while unit_of[key] != key:
            key = unit_of[key]
        return key

    for pod in pods_given:
        mine = [key for key in claim_keys(pod) if key in unit_of]
        for key in mine[1:]:
            first, other = sorted((root(mine[0]), root(key)))
            unit_of[other] = first
    members: dict[str, list[str]] = {}
    for key in sorted(unit_of):
        members.setdefault(root(key), []).append(key)
    at = {device: number for number, one in enumerate(devices) for device in one.parts}
    found = []
    for keys in members.values():
        unit = _unit([index.allocated[key].allocation for key in keys], devices, at)
        if unit is None:
            continue
        pods = {objects.key(pod): pod for key in keys for pod in users.get(key, ())}
        needed: dict[str, Decimal] = {}
        for pod in pods.values():
            for resource, amount in requests_of(pod).items():
                needed[resource] = needed.get(resource, Decimal(0)) + amount
        request = unit.request._replace(
            cpu=int(needed.get("cpu", Decimal(0)) * 1000), memory=int(needed.get("memory", Decimal(0))) >> 20
        )
        name = ", ".join(sorted(pods)) or f"claim {keys[0]}"
        found.append(unit._replace(name=name, request=request))
    return sorted(found)


def _unit(
    allocations: Sequence[Allocation], devices: Sequence[NodeDevices], at: Mapping[Any, int]
) -> Pod | None:
    """The devices of one unit; None if it holds none of these nodes' GPUs and NICs."""
    nodes: set[int] = set()
    gpus: dict[int, int] = {}
    nics: dict[int, int] = {}
    movable = True
    for result in (one for allocation in allocations for one in allocation.results):
        number = at.get(result.device)
        if number is None:
            continue
        nodes.add(number)
        movable = movable and not result.admin_access
        if result.device in devices[number].cuts:
            # A slice frees no GPU, and nothing says where else it could go.
            movable = False
            continue
        held = Usage()
        held.add([result], holder="")
        is_gpu, position, _ = devices[number].parts[result.device]
        used = devices[number].used(result.device, held)
        table = gpus if is_gpu else nics
        table[position] = table.get(position, 0) + used
    if not nodes:
        return None
    node = min(nodes)
    return Pod(
        "",
        node,
        Request(
            cpu=0,
            memory=0,
            gpus=len(gpus),
            milli=min(WHOLE, max(gpus.values(), default=0)),
            nics=len(nics),
            percent=min(FULL, max(nics.values(), default=0)),
        ),
        tuple(sorted(gpus)),
        tuple(sorted(nics)),
        movable and len(nodes) == 1,
    )
