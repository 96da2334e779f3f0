"""Groups whose workers are made after their leader has a node, as a LeaderWorkerSet with exclusive-topology
does it, where there is room for one group and a half: never two leaders that wait for their workers."""

from __future__ import annotations

import contextlib

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.controller.gangs.declared.workload_kind import LWS
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from tests.cluster.test_gangs import PATIENCE, pod_spec
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.cluster

CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
GROUPS = (0, 1)


class Maker:
    """What the operator does, step by step."""

    def __init__(self, workload: Workload) -> None:
        self.client, self.namespace = workload.client, workload.namespace

    def group(self, group: int) -> None:
        """Its owner, for whom what is held ends, and the leader."""
        metadata = {"name": f"serve-{group}", "namespace": self.namespace}
        self.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        self.make(group)

    def make(self, group: int, worker: int = 0) -> None:
        name = f"serve-{group}" if worker == 0 else f"serve-{group}-{worker}"
        labels = {"name": "serve", "group-index": str(group), "worker-index": str(worker)}
        annotations = {"size": "2", "exclusive-topology": "koordra.io/test"}
        owner = self.client.get(CONFIG_MAPS, f"serve-{group}", namespace=self.namespace)
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": {f"{LWS}{key}": value for key, value in labels.items()},
            "annotations": {
                GANG: "serve",
                GANG_MIN: "2",
                **{f"{LWS}{key}": value for key, value in annotations.items()},
            },
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": f"serve-{group}",
                    "uid": objects.uid(owner),
                    "controller": True,
                }
            ],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec("four")}
        self.client.create(kinds.PODS, body)

    def pods(self) -> dict[str, Object]:
        found, _ = self.client.list(kinds.PODS, namespace=self.namespace)
        return {objects.name(pod): pod for pod in found if GANG in objects.annotations_of(pod)}

    def step(self) -> set[str]:
        """Workers of the leaders that have a node; who has one."""
        there = self.pods()
        bound = {name for name, pod in there.items() if objects.spec_of(pod).get("nodeName")}
        for group in GROUPS:
            if f"serve-{group}" in bound and f"serve-{group}-1" not in there:
                self.make(group, 1)
        return bound

    def end(self, group: str) -> None:
        """The garbage collector ends the pods and what is held; no kubelet is there to confirm it."""
        with contextlib.suppress(NotFound):
            self.client.delete(
                CONFIG_MAPS, f"serve-{group}", namespace=self.namespace, propagation="Background"
            )
        for name in self.pods():
            if name.startswith(f"serve-{group}"):
                with contextlib.suppress(NotFound):
                    self.client.delete(kinds.PODS, name, namespace=self.namespace, grace_period=0)


def test_of_two_groups_one_starts_and_the_other_waits_as_a_whole(client: KubeClient, namespace: str) -> None:
    """Two nodes of eight GPUs are four places of four; one is taken."""
    workload = Workload(client, namespace)
    workload.template("four", [request("gpu", names.CLASS_GPU, count=4)])
    workload.claim("other", [request("gpu", names.CLASS_GPU, count=4)])
    workload.pod("other", claim="other")
    workload.bound("other")
    maker = Maker(workload)
    try:
        for one in GROUPS:
            maker.group(one)

        def one_group() -> set[str]:
            bound = maker.step()
            leaders = bound & {f"serve-{group}" for group in GROUPS}
            assert len(leaders) <= 1, "two leaders wait for their workers"
            return bound if len(bound) == 2 else set()

        first = eventually(one_group, "the start of one group", timeout=PATIENCE)
        group = min(first)[-1]
        other = str(1 - int(group))
        assert first == {f"serve-{group}", f"serve-{group}-1"}

        def told() -> list[Object]:
            return [
                event for event in workload.events(f"serve-{other}") if event.get("reason") == "GangWaiting"
            ]

        (event, *_) = eventually(told, "the Event that tells why the other waits", timeout=PATIENCE)
        assert f"gang {namespace}/serve:{other}: 1 of 2 members fit" in event["message"]
        maker.end(group)
        second = {f"serve-{other}", f"serve-{other}-1"}
        eventually(lambda: maker.step() == second, "the start of the other group", timeout=PATIENCE)
    finally:
        for one in GROUPS:
            maker.end(str(one))
