"""A cluster for the controller's tests: objects by the dozen, and the other writers of a real cluster as
single steps.

The allocator in these tests is the real one; kube-scheduler and kube-controller-manager are played by the
methods named after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.writes import Writer
from koordra.controller.cache.immediate_claims import DEFAULT_RULES, ImmediateRules
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.placement.policy.learned_order import Learned
from tests.fakes.kube_api import FakeCaches, FakeKubeApi, Write

GI = 1024**3


class JointCluster:
    """API, caches, a clock that tests turn, and one reconciler over them (`start_again` is a new process)."""

    def __init__(
        self,
        *,
        nodes: int = 2,
        gpus: int = 2,
        starves_after: float = 0.0,
        preemption: bool = False,
        immediate: ImmediateRules = DEFAULT_RULES,
    ) -> None:
        self.immediate = immediate
        self.starves_after = starves_after
        self.preemption = preemption
        self.api = FakeKubeApi()
        self.now = 1000.0
        self.leading = True
        self.told: list[ClaimEvent] = []
        self.api.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
        self.api.create(DEVICE_CLASSES, device_class(names.CLASS_NIC, "nic"))
        for number in range(nodes):
            self.api.create(NODES, node(f"n{number}"))
            self.api.create(RESOURCE_SLICES, gpu_slice(f"n{number}", gpus))
        self.start_again()

    def start_again(self, *, learned: Learned | None = None) -> None:
        """A new controller process: empty memory, freshly listed caches."""
        self.caches = FakeCaches(self.api)
        self.caches.deliver()
        self.writer = Writer(self.api, may_write=lambda: self.leading, now=self.timestamp)
        self.reconciler = Reconciler(
            self.caches,
            self.writer,
            clock=lambda: self.now,
            report=self.told.append,
            starves_after=self.starves_after,
            preemption=self.preemption,
            immediate=self.immediate,
            placer=Placer(learned=learned, asks_again=True),
        )

    def timestamp(self) -> str:
        return (
            f"2026-11-21T{int(self.now) // 3600:02d}:{int(self.now) // 60 % 60:02d}:{int(self.now) % 60:02d}Z"
        )

    def settle(self, *, passes: int = 3) -> float | None:
        """Deliver everything and reconcile, a few times; what the last pass says about the next one."""
        pause = None
        for _ in range(passes):
            self.caches.deliver()
            pause = self.reconciler.reconcile()
        return pause

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    # people

    def claim(self, name: str, **asked: Any) -> Object:
        return self.api.create(RESOURCE_CLAIMS, claim(name, **asked))

    def pod(self, name: str, *claims: str, **spec: Any) -> Object:
        return self.api.create(PODS, pod(name, claims, **spec))

    # looking

    def allocation(self, name: str) -> dict[str, Any] | None:
        found = (self.api.get(RESOURCE_CLAIMS, name).get("status") or {}).get("allocation")
        return found if isinstance(found, dict) else None

    def node_of(self, name: str) -> str | None:
        found = self.allocation(name)
        return None if found is None else str(found["devices"]["results"][0]["pool"])

    def devices(self, name: str) -> list[str]:
        found = self.allocation(name) or {"devices": {"results": []}}
        return [f"{result['pool']}/{result['device']}" for result in found["devices"]["results"]]

    def reasons(self) -> list[str]:
        return [happening.reason for happening in self.told]

    def assert_no_device_twice(self) -> None:
        """Whole-card claims only: every device has at most one holder."""
        names_of = [objects.name(entry) for entry in self.api.all(RESOURCE_CLAIMS)]
        given = [device for name in names_of for device in self.devices(name)]
        assert len(given) == len(set(given)), given

    # the other writers

    def scheduler_says_no(
        self, pod_name: str, message: str = "0/2 nodes are available: 2 Insufficient cpu.", **extra: Any
    ) -> None:
        """PodScheduled=False, Unschedulable; the allocation stays."""
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            **extra,
        }
        self.api.edit(PODS, pod_name, lambda pod: pod.setdefault("status", {}).update(conditions=[condition]))

    def scheduler_erases(self, claim_name: str) -> None:
        """PostFilter: allocation, reservedFor and devices go."""
        self.api.edit(RESOURCE_CLAIMS, claim_name, lambda found: found.update(status={}))

    def scheduler_binds(self, pod_name: str, *claims: str) -> None:
        """reservedFor, then the node."""
        uid = objects.uid(self.api.get(PODS, pod_name))
        consumer = {"resource": "pods", "name": pod_name, "uid": uid}
        for name in claims:
            self.api.edit(
                RESOURCE_CLAIMS,
                name,
                lambda found: found["status"].setdefault("reservedFor", []).append(consumer),
            )
        target = self.node_of(claims[0])
        self.api.edit(PODS, pod_name, lambda found: found["spec"].update(nodeName=target))

    def pod_ends(self, pod_name: str, *claims: str) -> None:
        """The pod is deleted and kube-controller-manager frees its claims if it was the last consumer."""
        uid = objects.uid(self.api.get(PODS, pod_name))
        self.api.delete(PODS, pod_name)
        for name in claims:
            self.api.edit(RESOURCE_CLAIMS, name, lambda found: _release(found, uid))


def _release(claim: Object, uid: str) -> None:
    status = claim.get("status") or {}
    left = [entry for entry in status.get("reservedFor") or () if entry["uid"] != uid]
    if left:
        status["reservedFor"] = left
    elif status.get("reservedFor"):
        assert names.DELETE_PROTECTION in claim["metadata"]["finalizers"]
        claim["status"] = {}


def node(name: str, *, cpu: str = "64") -> Object:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": cpu, "memory": "1Ti", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def device_class(name: str, type: str) -> Object:
    expression = (
        f'device.driver == "koordra.io" && device.attributes["koordra.io"].type == "{type}" && '
        'device.attributes["koordra.io"].allocator == "scheduler"'
    )
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def gpu_slice(node_name: str, gpus: int, *, allocator: str = "controller") -> Object:
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {"type": {"string": "gpu"}, "allocator": {"string": allocator}},
            "capacity": {
                "memory": {
                    "value": "80Gi",
                    "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "step": "1Mi"}},
                }
            },
            "allowMultipleAllocations": True,
            "taints": [{"key": names.JOINT_TAINT, "effect": "NoSchedule"}],
        }
        for index in range(gpus)
    ]
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"{node_name}-koordra"},
        "spec": {"driver": names.DRIVER, "nodeName": node_name, "pool": pool, "devices": devices},
    }


def claim(
    name: str,
    *,
    count: int = 1,
    memory: str | None = None,
    device_class: str = names.CLASS_GPU,
    owner: Object | None = None,
    **metadata: Any,
) -> Object:
    """One request `gpu`; with `owner` a template's claim for that pod."""
    exactly: dict[str, Any] = {"deviceClassName": device_class, "count": count}
    if memory:
        exactly["capacity"] = {"requests": {"memory": memory}}
    meta: dict[str, Any] = {"name": name, "namespace": "default", **metadata}
    if owner is not None:
        meta["annotations"] = {names.POD_CLAIM_NAME: "gpu"}
        meta["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": objects.name(owner),
                "uid": objects.uid(owner),
                "controller": True,
            }
        ]
    return {"metadata": meta, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}


def pod(
    name: str,
    claims: Iterable[str],
    *,
    gates: Iterable[str] = (),
    priority: int | None = None,
    created: str | None = None,
    **spec: Any,
) -> Object:
    """A pod that uses claims by name."""
    meta: dict[str, Any] = {"name": name, "namespace": "default"}
    if created:
        meta["creationTimestamp"] = created
    body: dict[str, Any] = {
        "resourceClaims": [{"name": entry, "resourceClaimName": entry} for entry in claims],
        "containers": [{"name": "main", "image": "busybox"}],
        **spec,
    }
    if gates:
        body["schedulingGates"] = [{"name": gate} for gate in gates]
    if priority is not None:
        body["priority"] = priority
    return {"metadata": meta, "spec": body, "status": {"phase": "Pending"}}


def explode_at(step: int, error: Callable[[], BaseException]) -> Callable[[Write], None]:
    """A fault for FakeKubeApi.before or .after: raise at this write, counted from now on. Objects that people
    create and delete in the meantime do not count: only what a component writes (patches, updates,
    Events)."""
    seen = -1

    def fault(write: Write) -> None:
        nonlocal seen
        if write.verb in {"patch", "update"} or write.kind == "events":
            seen += 1
            if seen == step:
                raise error()

    return fault
