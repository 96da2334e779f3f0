"""Clusters to look at: objects of which a dashboard makes pages."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import Any, Final

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.api.opaque.isolation import node_policy
from koordra.cli.cluster.dashboard.cells import Cells, Listed
from koordra.cli.cluster.dashboard.fleet import Fleet
from koordra.cli.cluster.dashboard.pages.address import OfFleet, address_of
from koordra.cli.cluster.dashboard.snapshot import Snapshot
from koordra.cli.what_if.machines import machine_nodes
from koordra.controller.cache.changes import tables_of
from koordra.controller.explain.forecast.forecast import forecast
from koordra.controller.explain.forecast.intake import Terms
from tests.unit.allocator.machines import claim, device_classes, pod, request

NOW: Final = datetime(2026, 11, 28, 12, tzinfo=UTC)
_KINDS: Final = {
    kind.kind: kind
    for kind in (
        kinds.NODES,
        kinds.RESOURCE_SLICES,
        kinds.RESOURCE_CLAIMS,
        kinds.PODS,
        kinds.DEVICE_CLASSES,
        kinds.DEVICE_HOLDS,
        kinds.RESERVATIONS,
        kinds.EVENTS,
    )
}
LIMITED: Final = {name: {"bool": value} for name, value in node_policy(["limiter"]).attributes().items()}


def listed(manifests: Iterable[Object]) -> Listed:
    found: dict[kinds.Kind, list[Object]] = {kind: [] for kind in _KINDS.values()}
    for one in manifests:
        found[_KINDS[one["kind"]]].append(one)
    return found


def snapshot(manifests: Iterable[Object], now: datetime = NOW) -> Snapshot:
    return Snapshot.of(listed(manifests), now, levels=None, scoring=None)


class Site:
    """The pages of a cluster at one moment."""

    def __init__(self, manifests: Iterable[Object]) -> None:
        self.manifests = list(manifests)

    @cached_property
    def snapshot(self) -> Snapshot:
        return snapshot(self.manifests)

    @cached_property
    def fleet(self) -> Fleet:
        return Fleet(NOW, Cells().nodes(listed(self.manifests)))

    def page(self, target: str) -> str:
        address = address_of(target)
        if isinstance(address, OfFleet):
            return address.make(self.fleet).decode()
        return address.make(self.snapshot).decode()


def fleet(*machines: str, per_block: int = 18) -> list[Object]:
    """Nodes of these machines (`hgx-h100:8`), so many in a block, whose cards are shared with the limiter."""
    found = [copy.deepcopy(dict(one)) for one in (*device_classes(), *machine_nodes(machines))]
    number = 0
    for one in found:
        if one["kind"] == "Node":
            labels = {"fabric.koordra.io/block": f"block-{number // per_block:03}"}
            one["metadata"]["labels"] = {**objects.labels_of(one), **labels}
            one["status"] = {**objects.status_of(one), "conditions": [{"type": "Ready", "status": "True"}]}
            number += 1
        for device in objects.spec_of(one).get("devices") or ():
            if device["attributes"].get(names.ATTR_TYPE, {}).get("string") == names.TYPE_GPU:
                device["attributes"] |= LIMITED
    return found


def waiting(name: str, *requests: Any, gang: str = "", least: int = 0, **spec: Any) -> list[Object]:
    """A pod with a claim of its own that has no devices."""
    made = claim(name, *requests)
    made["metadata"] |= {"creationTimestamp": "2026-11-28T11:00:00Z", "uid": f"claim-{name}"}
    user = pod(name, name)
    user["metadata"] |= {"creationTimestamp": "2026-11-28T11:00:00Z", "uid": f"pod-{name}"}
    if gang:
        user["metadata"]["annotations"] = {"koordra.io/gang": gang, "koordra.io/gang-min": str(least)}
    user["spec"] |= {"schedulingGates": [{"name": names.JOINT_GATE}], **spec}
    return [made, user]


def running(manifests: list[Object]) -> list[Object]:
    """What waits has what it would get, and its pods run."""
    found = forecast(tables_of(manifests), Terms(NOW))
    for one in manifests:
        key = objects.key(one)
        if one["kind"] == "ResourceClaim" and key in found.planned:
            users = [
                {"resource": "pods", "name": one["metadata"]["name"], "uid": f"pod-{one['metadata']['name']}"}
            ]
            given = {**found.planned[key].allocation, "allocationTimestamp": "2026-11-28T11:00:00Z"}
            one["status"] = {"allocation": given, "reservedFor": users}
        if one["kind"] == "Pod" and key in found.planned:
            one["spec"] |= {"nodeName": found.planned[key].node}
            one["spec"].pop("schedulingGates", None)
            one["status"] = {"phase": "Running", "startTime": "2026-11-28T11:00:00Z"}
    return manifests


@cache
def small() -> list[Object]:
    """Two nodes of eight cards, a few of which are shared. Not to be changed."""
    made = fleet("hgx-h100:2")
    for number in range(4):
        made += waiting(f"infer-{number}", request("gpu", capacity={"memory": "20Gi", "cores": "30"}))
    return running(made)


@cache
def busy() -> list[Object]:
    """Two racks of an NVL72 and eight nodes of eight cards: a gang over two blocks, shares, whole cards; and
    who waits. Not to be changed."""
    made = fleet("hgx-h100:8", per_block=4)
    racks = fleet("gb200-nvl72:18")
    made += [one for one in racks if one["kind"] != "DeviceClass"]
    for number in range(6):
        made += waiting(f"train-{number}", request("gpus", count=8), gang="train", least=6)
    for number in range(5):
        made += waiting(f"infer-{number}", request("gpu", capacity={"memory": "20Gi", "cores": "30"}))
    return [
        *running(made),
        *(one for number in range(40) for one in waiting(f"sweep-{number}", request("gpu", count=8))),
        *waiting("a-" + "very-long-name-" * 4 + "of-somebody", request("gpu", capacity={"memory": "900Gi"})),
        *(
            one
            for number in range(30)
            for one in waiting(f"big-{number}", request("gpus", count=8), gang="big", least=30)
        ),
    ]
