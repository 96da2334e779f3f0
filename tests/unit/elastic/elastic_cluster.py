"""A cluster with Elastic GPU's objects: koordra's two reconcilers over one API in memory, and the other loops
as single steps."""

from __future__ import annotations

import copy
from typing import Any

from koordra.api import names, objects
from koordra.api.elastic.elastic_gpu import ELASTIC_CLAIMS, ELASTIC_CLASSES, ELASTIC_GPUS, GPUS
from koordra.api.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Kind
from koordra.api.objects import Object
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.controller.resource_class.elastic.reconcile import KINDS, ElasticReconciler
from tests.fakes.cluster import Cluster
from tests.fakes.joint_cluster import JointCluster, gpu_slice, node

PROVISIONER = "gpushare.provisioner.elasticgpu.io"


class ElasticCluster:
    """`settle` lets both reconcilers run until nothing is written any more."""

    def __init__(self, *, nodes: int = 1, gpus: int = 1) -> None:
        self.joint = JointCluster(nodes=0)
        self.api = self.joint.api
        for number in range(nodes):
            self.add_node(f"n{number}", gpus)
        self.told: list[ClaimEvent] = []
        self.start_again()

    def start_again(self) -> None:
        """A new controller process."""
        self.joint.start_again()
        self.elastic = ElasticReconciler(
            self.api, now=self.joint.timestamp, may_write=lambda: True, report=self.told.append
        )

    def add_node(self, name: str, gpus: int) -> None:
        self.api.create(NODES, node(name))
        body = gpu_slice(name, gpus)
        for index, device in enumerate(body["spec"]["devices"]):
            device["attributes"] |= {
                "uuid": {"string": f"GPU-{name}-{index}"},
                "minor": {"int": index},
                "productName": {"string": "NVIDIA H100"},
            }
            policy = {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}
            device["capacity"]["cores"] = {"value": "100", "requestPolicy": policy}
        self.api.create(RESOURCE_SLICES, body)

    def one_pass(self) -> None:
        self.elastic.reconcile(*self.snapshot())

    def snapshot(self) -> tuple[Cluster, dict[Kind, list[Object]]]:
        """What the caches show."""
        cluster = Cluster(
            classes=self.api.all(DEVICE_CLASSES),
            claims=self.api.all(RESOURCE_CLAIMS),
            slices=self.api.all(RESOURCE_SLICES),
            pods=self.api.all(PODS),
        )
        return cluster, {kind: self.api.all(kind) for kind in KINDS}

    def settle(self) -> None:
        for _ in range(12):
            before = len(self.api.writes)
            self.one_pass()
            self.joint.settle(passes=1)
            self.garbage_collection()
            if len(self.api.writes) == before:
                return
        raise AssertionError("never quiet: " + ", ".join(str(write) for write in self.api.writes[-8:]))

    # people

    def elastic_class(self, name: str = "shares", **fields: Any) -> Object:
        body = {"metadata": {"name": name}, "provisioner": PROVISIONER, **fields}
        return self.api.create(ELASTIC_CLASSES, body)

    def elastic_claim(
        self, name: str = "a", *, cls: str = "shares", core: Any = 10, memory: Any = 4096, **spec: Any
    ) -> Object:
        amounts = {f"{PROVISIONER}/gpu-core": core, f"{PROVISIONER}/gpu-memory": memory}
        requests = {key: value for key, value in amounts.items() if value is not None}
        body = {"elasticGPUClassName": cls, "resources": {"requests": requests}, **spec}
        return self.api.create(ELASTIC_CLAIMS, {"metadata": {"name": name}, "spec": body})

    def delete_claim(self, name: str = "a") -> None:
        self.api.delete(ELASTIC_CLAIMS, name)

    def pod(self, name: str, claim: str) -> Object:
        container = {"name": "main", "image": "x", "resources": {"claims": [{"name": claim}]}}
        return self.joint.pod(name, claim, containers=[container])

    # looking

    def status(self, name: str = "a") -> Object:
        return self.api.get(ELASTIC_CLAIMS, name).get("status") or {}

    def phase(self, name: str = "a") -> tuple[str, str]:
        status = self.status(name)
        return status["phase"], status["conditions"][0]["reason"]

    def message(self, name: str = "a") -> str:
        return str(self.status(name)["conditions"][0]["message"])

    def claim(self, name: str = "a") -> Object:
        return self.api.get(RESOURCE_CLAIMS, name)

    def has_claim(self, name: str = "a") -> bool:
        return any(objects.name(obj) == name for obj in self.api.all(RESOURCE_CLAIMS))

    def bindings(self) -> list[Object]:
        return self.api.all(ELASTIC_GPUS)

    def gpu(self, name: str = "n0-gpu-0") -> Object:
        return self.api.get(GPUS, name)

    # other loops

    def garbage_collection(self) -> None:
        """Objects whose owner is gone."""
        living = {objects.uid(obj) for obj in self.api.objects.values()}
        for (plural, place, name), obj in list(self.api.objects.items()):
            owners = objects.metadata(obj).get("ownerReferences") or ()
            if owners and not any(owner["uid"] in living for owner in owners):
                kind = {"deviceclasses": DEVICE_CLASSES, "resourceclaims": RESOURCE_CLAIMS}[plural]
                if not objects.is_deleting(obj):
                    self.api.delete(kind, name, namespace=place or None)
        for obj in self.api.all(RESOURCE_CLAIMS):
            protected = names.DELETE_PROTECTION in (objects.metadata(obj).get("finalizers") or ())
            unused = not (obj.get("status") or {}).get("reservedFor")
            if objects.is_deleting(obj) and protected and unused:
                self.api.edit(RESOURCE_CLAIMS, objects.name(obj), lambda found: found.update(status={}))
                self._take_finalizer(objects.name(obj))

    def _take_finalizer(self, name: str) -> None:
        obj = self.api.get(RESOURCE_CLAIMS, name)
        kept = [entry for entry in obj["metadata"]["finalizers"] if entry != names.DELETE_PROTECTION]
        self.api.patch(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": kept}})

    def runs(self, pod: str, claim: str) -> None:
        self.joint.scheduler_binds(pod, claim)

    def ends(self, pod: str, claim: str) -> None:
        """The pod is gone; kube-controller-manager takes it off the claim, and frees one with the builtin
        finalizer."""
        uid = objects.uid(self.api.get(PODS, pod))
        self.api.delete(PODS, pod)
        self.api.edit(RESOURCE_CLAIMS, claim, lambda found: _without(found, uid))


def _without(claim: Object, uid: str) -> None:
    status = copy.deepcopy(claim.get("status") or {})
    left = [entry for entry in status.get("reservedFor") or () if entry["uid"] != uid]
    status.pop("reservedFor", None)
    if left:
        status["reservedFor"] = left
    elif names.DELETE_PROTECTION in (claim["metadata"].get("finalizers") or ()):
        status = {}
    claim["status"] = status
