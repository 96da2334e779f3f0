"""A cluster's plain objects as `place_gang` sees them,, without a view of nodes kept from change to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from koordra.allocator.predicates import requests_of
from koordra.api import objects
from koordra.placement.gang.types import GangNode
from koordra.placement.manifests import read_inventory

Object = Mapping[str, Any]


def gang_nodes(
    manifests: Iterable[Object], *, features: str | Iterable[str] | None = None
) -> tuple[dict[str, GangNode], dict[str, Object]]:
    """The nodes and the DeviceClasses among the objects. Allocated claims hold what they say, bound pods load their node."""
    found = list(manifests)
    of = {
        kind: [entry for entry in found if entry.get("kind") == kind]
        for kind in ("Node", "Pod", "ResourceClaim", "DeviceClass")
    }
    slices = [entry for entry in found if entry.get("kind") in ("ResourceSlice", "DeviceTaintRule")]
    inventory = read_inventory(slices, features=features)
    at = {str(objects.spec_of(entry).get("nodeName")): _pool(entry) for entry in slices}
    node_of_pool = {pool: node for node, pool in at.items()}
    holders: dict[str, list[Object]] = {}
    for claim in of["ResourceClaim"]:
        results = ((objects.status_of(claim).get("allocation") or {}).get("devices") or {}).get(
            "results"
        ) or ()
        for pool in dict.fromkeys(str(result.get("pool")) for result in results):
            holders.setdefault(node_of_pool.get(pool, pool), []).append(claim)
    loads: dict[str, dict[str, Decimal]] = {}
    for pod in of["Pod"]:
        node = objects.spec_of(pod).get("nodeName")
        if node and not objects.pod_is_finished(pod):
            load = loads.setdefault(str(node), {})
            for resource, amount in requests_of(pod).items():
                load[resource] = load.get(resource, Decimal(0)) + amount
    nodes = {
        objects.name(node): GangNode(
            node, inventory, tuple(holders.get(objects.name(node), ())), loads.get(objects.name(node), {})
        )
        for node in of["Node"]
    }
    return nodes, {objects.name(entry): entry for entry in of["DeviceClass"]}


def _pool(entry: Object) -> str:
    return str((objects.spec_of(entry).get("pool") or {}).get("name"))
