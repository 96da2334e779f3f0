"""Nodes of one machine, on which koordra's own engine places the pods of a trace: the path of `plan()` and of
the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from koordra.allocator.features import Features
from koordra.allocator.offer import Offer
from koordra.allocator.request.classes import shipped_classes
from koordra.allocator.score import policy_of
from koordra.api import names, objects
from koordra.api.claims import ResourceClaim
from koordra.api.objects import Fields
from koordra.placement.decide import Engine
from koordra.placement.free_amounts.state import FULL, WHOLE, Request
from koordra.placement.index import CLASS, NODE, POD, SLICE, ClusterChange
from koordra.placement.policy.learned_order import Learned
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.topology.machine_shape import pair_level


class PodPlacement(NamedTuple):
    """`key`: of claim and pod. `level` is the worst of GPU and NIC, `best` the best that was free on the
    node; for one of each."""

    key: str
    request: Request
    level: int | None = None
    best: int | None = None


class MachineCluster:
    """`slices`: what one node publishes. `learned` None: nothing is known of the workload, and it is learned
    from what arrives.

    `cores` and `gibibytes` are per GPU.
    """

    def __init__(
        self,
        slices: Sequence[Fields],
        count: int,
        *,
        policy: str = names.DEFAULT_POLICY,
        learned: Learned | None = None,
        cores: int = 16,
        gibibytes: int = 128,
    ) -> None:
        self.engine = Engine(policy_of(policy), Features.of(None), learned=learned or Learned())
        self._learns = learned is None
        self._number = 0
        self._pairs: dict[tuple[int, int], int] = {}
        """Levels of GPU and NIC, by position."""
        apply = self.engine.index.apply
        for one in shipped_classes():
            apply(ClusterChange(CLASS, objects.name(one), one))
        devices = [device for one in slices for device in one["spec"].get("devices", ())]
        gpus = sum(one["attributes"].get(names.ATTR_TYPE) == {"string": names.TYPE_GPU} for one in devices)
        size = {"cpu": str(cores * gpus), "memory": f"{gibibytes * gpus}Gi", "pods": "10000"}
        for number in range(count):
            name = f"node-{number:06}"
            for at, published in enumerate(slices):
                pool = {**published["spec"]["pool"], "name": name}
                spec = {**published["spec"], "nodeName": name, "pool": pool}
                key = f"{name}-{at}"
                apply(ClusterChange(SLICE, key, {**published, "metadata": {"name": key}, "spec": spec}))
            apply(ClusterChange(NODE, name, {"metadata": {"name": name}, "status": {"allocatable": size}}))
        self.capacity = WHOLE * gpus * count

    def place(self, request: Request) -> PodPlacement | None:
        """The best place for the request, taken; None where no node can serve it."""
        self._number += 1
        return self.take(claim_of(request, f"c{self._number}"), request)

    def take(self, manifest: Fields, request: Request) -> PodPlacement | None:
        """The same of a claim, for a pod that asks for the request's cores and memory."""
        engine, key = self.engine, objects.key(manifest)
        group = ClaimGroup((ResourceClaim.from_dict(manifest),), (pod_of(request, objects.name(manifest)),))
        resolved = engine.resolve(group)
        if self._learns:
            engine.settle()
            engine.order.observe(resolved, frozenset({key}))
        offer = engine.decide(resolved)
        if not isinstance(offer, Offer):
            return None
        levels = self._levels(offer, request)
        (allocation,) = offer.allocations(pin_to_node=True)
        engine.index.assume(manifest, allocation, key=key, node=offer.node, pods=group.pods)
        return PodPlacement(key, request, *levels)

    def release(self, placement: PodPlacement) -> None:
        """The request is there no more."""
        self.engine.index.forget(placement.key)
        self.engine.index.apply(ClusterChange(POD, placement.key, {}))
        self.engine.index.apply(ClusterChange(POD, placement.key, None))

    def _levels(self, offer: Offer, request: Request) -> tuple[int | None, int | None]:
        found = self.engine.order.free(self.engine.index.nodes[offer.node])
        assert found is not None
        devices, free = found
        shape = devices.kind.shape
        if shape is None or request.gpus != 1 or request.nics != 1:
            return None, None
        chosen = [place for one in offer.placed if (place := devices.places[one.device])]
        (gpu,) = [place.card for place in chosen if place.is_gpu]
        (nic,) = [place.card for place in chosen if not place.is_gpu]
        self._pairs = self._pairs or {
            (at, port): int(pair_level(shape, 1 << at, 1 << port) or 0)
            for at in range(shape.gpus)
            for port in range(shape.nics)
        }
        best = min(
            level
            for (at, port), level in self._pairs.items()
            if free.gpus[at] >= request.milli and free.nics[port] >= request.percent
        )
        return self._pairs[gpu, nic], best


def claim_of(request: Request, name: str) -> Fields:
    requests, config = [], []
    if request.gpus:
        exactly: dict[str, Any] = {"deviceClassName": names.CLASS_GPU, "count": request.gpus}
        requests.append({"name": "gpu", "exactly": exactly})
    if request.gpus and request.milli < WHOLE:
        parameters = {
            "apiVersion": "koordra.io/v1alpha1",
            "kind": "GpuConfig",
            "memoryPercent": -(-request.milli // 10),
        }
        config.append({"requests": ["gpu"], "opaque": {"driver": names.DRIVER, "parameters": parameters}})
    if request.nics:
        exactly = {"deviceClassName": names.CLASS_NIC, "count": request.nics}
        if request.percent < FULL:
            exactly["capacity"] = {"requests": {names.CAPACITY_SHARE: str(request.percent)}}
        requests.append({"name": "nic", "exactly": exactly})
    devices = {"requests": requests, "config": config}
    return {"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"devices": devices}}


def pod_of(request: Request, name: str) -> Fields:
    asked = {"cpu": f"{request.cpu}m", "memory": f"{request.memory}Mi"}
    spec = {"containers": [{"name": "c", "resources": {"requests": asked}}]}
    return {"metadata": {"name": name, "namespace": "d", "uid": f"p-{name}"}, "spec": spec}
