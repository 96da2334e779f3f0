"""A cluster with TrainingJobs: koordra's allocation and its training reconciler over one API in memory; the
other loops (kube-controller-manager, scheduler, kubelets) as single steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_HOLDS, PODS, RESOURCE_CLAIMS, SERVICES, TRAINING_JOBS
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.training.moves import Mover
from koordra.controller.training.reconcile import TrainingReconciler
from koordra.controller.training.training_job import State, text_of
from tests.fakes.cluster import Cluster
from tests.fakes.joint_cluster import JointCluster, claim
from tests.fakes.kube_api import Write


def template(*, claims: int = 1, **spec: Any) -> Object:
    body: Object = {"containers": [{"name": "main", "image": "train"}], **spec}
    if claims:
        body["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    return {"metadata": {"labels": {"app": "x"}}, "spec": body}


def spec(framework: str = "ElasticPyTorch", *, least: int = 1, most: int = 2, **more: Any) -> Object:
    found: Object = {
        "framework": framework,
        "minReplicas": least,
        "maxReplicas": most,
        "template": template(),
        "backoffLimit": 6,
        "pendingSeconds": 600,
        "shrink": "Never",
        **more,
    }
    if framework in ("ElasticHorovod", "MPI"):
        found.setdefault("launcher", template(claims=0))
    return found


GRACE = timedelta(seconds=30)
_KUBELET = "test/kubelet"


def run(act: Callable[[], object]) -> None:
    act()


class TrainingCluster:
    """`settle` lets everybody run until nothing is written any more; `broken`: nodes on which no pod comes
    up. `graceful`: pods that are bound end at the kubelet's next turn after they were deleted."""

    def __init__(self, *, nodes: int = 1, gpus: int = 2, mover: bool = False, graceful: bool = False) -> None:
        self.joint = JointCluster(nodes=nodes, gpus=gpus)
        self.api = self.joint.api
        self.api.stamp = self.joint.timestamp
        self.api.ends = lambda: text_of(self.now() + GRACE)
        self.broken: set[str] = set()
        self.with_mover, self.graceful = mover, graceful
        self.start_again()

    def start_again(self) -> None:
        """A new controller process."""
        self.joint.start_again()
        self.start_training_again()

    def start_training_again(self) -> None:
        mover = Mover(self.now, lambda: self.joint.now, lambda: Terms(self.now()))
        self.training = TrainingReconciler(
            self.api,
            self.now,
            lambda: self.joint.now,
            lambda: True,
            self.joint.told.append,
            mover if self.with_mover else None,
        )

    def now(self) -> datetime:
        return datetime.fromisoformat(self.joint.timestamp())

    # koordra

    def training_pass(self) -> float | None:
        return self.training.reconcile(self.api.all(TRAINING_JOBS), self.tables())

    def tables(self) -> Cluster:
        self.joint.caches.deliver()
        return self.joint.caches.cluster()

    # the others

    def others(self) -> None:
        self.claim_controller()
        self.joint.settle(passes=2)
        self.kubelets()

    def claim_controller(self) -> None:
        """Claims of templates are made for pods, and go with them."""
        pods = {objects.uid(pod): pod for pod in self.api.all(PODS)}
        for found in self.api.all(RESOURCE_CLAIMS):
            owner = (objects.metadata(found).get("ownerReferences") or [{}])[0].get("uid")
            user = pods.get(str(owner))
            if user is None or objects.pod_is_finished(user):
                name = objects.name(found)
                if objects.finalizers_of(found):
                    self.api.edit(RESOURCE_CLAIMS, name, lambda one: one["metadata"].pop("finalizers"))
                if user is None:
                    self.api.delete(RESOURCE_CLAIMS, name)
                elif claims_of.is_allocated(found):
                    self.api.edit(RESOURCE_CLAIMS, name, lambda one: one.update(status={}))
        for pod in pods.values():
            made = (pod.get("status") or {}).get("resourceClaimStatuses")
            if objects.spec_of(pod).get("resourceClaims") and not made:
                name = f"{objects.name(pod)}-gpu-{objects.uid(pod)}"
                self.api.create(RESOURCE_CLAIMS, claim(name, owner=pod))
                statuses = [{"name": "gpu", "resourceClaimName": name}]
                self.api.edit(
                    PODS,
                    objects.name(pod),
                    lambda one, given=statuses: one.setdefault("status", {"phase": "Pending"}).update(
                        resourceClaimStatuses=given
                    ),
                )

    def kubelets(self) -> None:
        for pod in self.api.all(PODS):
            if objects.is_deleting(pod):
                self._has_ended(objects.name(pod))
                continue
            gates = objects.spec_of(pod).get("schedulingGates")
            if gates or objects.status_of(pod).get("phase", "Pending") != "Pending":
                continue
            claims = [str(name) for name in objects.pod_claim_names(pod).values()]
            name = objects.name(pod)
            if claims and not objects.spec_of(pod).get("nodeName"):
                self.joint.scheduler_binds(name, *claims)
            if self.graceful and not objects.finalizers_of(pod):
                self.api.edit(PODS, name, lambda one: one["metadata"].update(finalizers=[_KUBELET]))
            node = objects.spec_of(self.api.get(PODS, name)).get("nodeName")
            if node not in self.broken:
                self.phase(name, "Running", startTime=self.joint.timestamp())

    def phase(self, pod: str, phase: str, **status: Any) -> None:
        ready = {
            "type": "Ready",
            "status": "True" if phase == "Running" else "False",
            "lastTransitionTime": self.joint.timestamp(),
        }
        self.api.edit(
            PODS,
            pod,
            lambda one: one.setdefault("status", {}).update(
                {"phase": phase, "conditions": [ready, *status.pop("conditions", ())], **status}
            ),
        )

    def _has_ended(self, pod: str) -> None:
        self.api.edit(PODS, pod, lambda one: one["metadata"].pop("finalizers"))
        self.api.delete(PODS, pod)

    def settle(self, rounds: int = 12, turn: Callable[[Callable[[], object]], None] = run) -> None:
        """`turn` runs a pass of the training controller."""
        for _ in range(rounds):
            before = len(self.api.history)
            turn(self.training_pass)
            self.others()
            if len(self.api.history) == before:
                return
        raise AssertionError("never quiet: " + ", ".join(str(write) for write in self.api.writes[-8:]))

    def wait(self, seconds: float) -> None:
        self.joint.pass_time(seconds)
        self.settle()

    # people

    def job(self, name: str = "train", **fields: Any) -> Object:
        return self.api.create(TRAINING_JOBS, {"metadata": {"name": name}, "spec": spec(**fields)})

    def change(self, name: str = "train", **fields: Any) -> None:
        self.api.edit(TRAINING_JOBS, name, lambda one: one["spec"].update(fields))

    def delete_job(self, name: str) -> None:
        """With what belongs to it."""
        uid = objects.uid(self.api.get(TRAINING_JOBS, name))
        self.api.delete(TRAINING_JOBS, name)
        for kind in (PODS, SERVICES, DEVICE_HOLDS):
            for obj in self.api.all(kind):
                if any(one["uid"] == uid for one in objects.metadata(obj).get("ownerReferences") or ()):
                    self.api.delete(kind, objects.name(obj))

    # looking

    def status(self, name: str = "train") -> Object:
        return self.api.get(TRAINING_JOBS, name).get("status") or {}

    def state(self, name: str = "train") -> State:
        return State(self.status(name)["state"])

    def condition(self, kind: str, name: str = "train") -> Object:
        (found,) = [one for one in self.status(name)["conditions"] if one["type"] == kind]
        return found

    def pods(self, *phases: str) -> list[str]:
        return [
            objects.name(pod)
            for pod in self.api.all(PODS)
            if not phases or objects.status_of(pod).get("phase", "Pending") in phases
        ]

    def held(self) -> list[str]:
        """Pods behind koordra's gate."""
        return [
            objects.name(pod)
            for pod in self.api.all(PODS)
            for gate in objects.spec_of(pod).get("schedulingGates") or ()
            if gate["name"] == names.JOINT_GATE
        ]

    def claim_of(self, pod: str) -> str:
        (name,) = objects.pod_claim_names(self.api.get(PODS, pod)).values()
        return str(name)

    def node_of(self, pod: str) -> str | None:
        return self.joint.node_of(self.claim_of(pod))

    def nodes_of(self, job: str = "train") -> list[str]:
        """Of its pods that run, by their names."""
        return [str(self.node_of(name)) for name in self.pods("Running") if name.startswith(f"{job}-")]

    def services(self) -> list[str]:
        return [objects.name(one) for one in self.api.all(SERVICES)]

    def delete(self, pods: Iterable[str]) -> None:
        for name in pods:
            self.api.delete(PODS, name)


def killed_at(step: int, error: Callable[[], BaseException], start: int) -> Callable[[Write], None]:
    """A fault for `FakeKubeApi.before` or `after`: raise at this write after write number `start`."""

    def fault(write: Write) -> None:
        if write.step == start + step:
            raise error()

    return fault
