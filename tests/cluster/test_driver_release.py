"""A node whose GPU driver is to be free, on a cluster: the controller evicts who holds its GPUs, under their
disruption budgets.

The kubelet plugin's part is its taint, which the test puts on the slices; no pod runs, so the test says in
the kubelet's place that they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import Conflict
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import REPLICA_SETS
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import NODES, eventually

pytestmark = pytest.mark.cluster
NODE = NODES[0]
GANG = {"koordra.io/gang": "train", "koordra.io/gang-min": "2"}


class Release(Workload):
    """A node that is released, and pods that hold its GPUs."""

    node = NODE

    def taint(self, phase: str) -> None:
        """What the plugin says of the driver; empty: it is in use."""
        selector = f"spec.nodeName={self.node}"

        def written() -> bool:
            for one in self.client.list(kinds.RESOURCE_SLICES, field_selector=selector)[0]:
                for device in one["spec"].get("devices") or ():
                    if device["name"].startswith("gpu-"):
                        device["taints"] = [
                            taint for taint in device["taints"] if taint["key"] != names.RELEASE_TAINT
                        ]
                        more = {"key": names.RELEASE_TAINT, "value": phase, "effect": "NoSchedule"}
                        device["taints"] += [more] if phase else []
                try:
                    self.client.update(kinds.RESOURCE_SLICES, one)
                except Conflict:
                    return False
            return True

        eventually(written, "the taint")

    def replicas(self, name: str, count: int, **annotations: str) -> list[str]:
        """Pods of a ReplicaSet, with a share of a card each on the node; they run."""
        head = {"labels": {"app": name}, "annotations": annotations}
        spec = {
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": self.node},
            "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": "share"}],
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "devices"}]}}],
        }
        body = {
            "apiVersion": REPLICA_SETS.api_version,
            "kind": REPLICA_SETS.kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "replicas": count,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": head, "spec": spec},
            },
        }
        self.client.create(REPLICA_SETS, body)
        eventually(lambda: len(self.pods(name)) == count, "the pods")
        pods = [objects.name(pod) for pod in self.pods(name)]
        for pod in pods:
            self.bound(pod)
            self.runs(pod)
        return pods

    def runs(self, pod: str) -> None:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"status": {"phase": "Running", "conditions": [ready]}}
        self.client.patch(kinds.PODS, pod, status, namespace=self.namespace, subresource="status")

    def pods(self, app: str) -> list[Object]:
        found, _ = self.client.list(kinds.PODS, namespace=self.namespace, label_selector=f"app={app}")
        return [pod for pod in found if not objects.is_deleting(pod)]

    def there(self, pod: str) -> bool:
        return pod in [objects.name(one) for one in self.client.list(kinds.PODS, namespace=self.namespace)[0]]

    def budget(self, name: str, app: str, at_least: int, *, lets_go: int | None = None) -> None:
        """Made, or changed; and what the cluster makes of it, where nobody takes that up at once."""
        spec: dict[str, Any] = {"minAvailable": at_least, "selector": {"matchLabels": {"app": app}}}
        kind = kinds.POD_DISRUPTION_BUDGETS
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
        try:
            self.client.create(kind, body, namespace=self.namespace)
        except Conflict:
            self.client.patch(kind, name, {"spec": spec}, namespace=self.namespace)

        if lets_go is None:
            return

        def settled() -> bool:
            found = self.client.get(kind, name, namespace=self.namespace)
            status = objects.status_of(found)
            seen = status.get("observedGeneration") == found["metadata"]["generation"]
            return seen and status.get("disruptionsAllowed") == lets_go

        eventually(settled, f"budget {name}")

    def remove_workloads(self) -> None:
        for kind in (REPLICA_SETS, kinds.POD_DISRUPTION_BUDGETS):
            for one in self.client.list(kind, namespace=self.namespace)[0]:
                self.client.delete(kind, objects.name(one), namespace=self.namespace)

    def annotation(self) -> str:
        """What the Node says of it."""
        node = self.client.get(kinds.NODES, self.node)
        return objects.annotations_of(node).get(names.RELEASE_ANNOTATION, "")

    def told(self, pod: str, words: str) -> None:
        eventually(
            lambda: any(words in str(event.get("message")) for event in self.events(pod)),
            f"an Event of pod {pod} with {words!r}",
        )


@pytest.fixture
def release(client: KubeClient, namespace: str, nodes: dict[str, list[Object]]) -> Iterator[Release]:
    del nodes
    release = Release(client, namespace)
    release.template("share", [request("gpu", names.CLASS_GPU, memory="1Gi")])
    yield release
    release.taint("")
    release.remove_workloads()


def test_pods_go_as_their_budget_lets_them_and_bare_ones_stay(release: Release) -> None:
    release.pod("bare", template="share")
    first, second = release.replicas("web", 2)
    release.budget("web", "web", 2, lets_go=0)
    node = release.bound("bare")
    release.taint("Evicting")

    for pod in (first, second):
        release.told(pod, "The disruption budget web needs 2 healthy pods and has 2 currently")
    if node == NODE:
        release.told("bare", "no controller that would make it anew")

    release.budget("web", "web", 1)
    eventually(lambda: release.there(first) != release.there(second), "one pod's end")
    release.budget("web", "web", 0)
    eventually(lambda: not release.there(first) and not release.there(second), "the other's")
    assert release.there("bare")
    release.taint("Released")
    eventually(lambda: release.annotation() == "Released", "the Node's annotation")

    anew = [objects.name(pod) for pod in release.pods("web")]
    assert not [pod for pod in release.pods("web") if objects.spec_of(pod).get("nodeName")]
    release.taint("")
    assert [release.bound(pod) for pod in anew] == [NODE, NODE]
    eventually(lambda: not release.annotation(), "the annotation's end")


def test_a_gang_goes_whole_or_not_at_all(release: Release) -> None:
    members = release.replicas("train", 2, **GANG)
    release.budget("train", "train", 1, lets_go=1)
    release.taint("Evicting")
    release.told(members[0], "PodDisruptionBudget train covers 2 of them and lets 1 go now")

    release.budget("train", "train", 0)
    eventually(lambda: not any(map(release.there, members)), "the gang's end")


def test_a_pod_with_two_budgets_stays_and_nobody_waits_for_it(release: Release) -> None:
    """Kubernetes evicts no such pod; the controller goes on with the others."""
    (kept,) = release.replicas("kept", 1)
    (goes,) = release.replicas("goes", 1)
    for name in ("one", "two"):
        release.budget(name, "kept", 0, lets_go=1)
    release.taint("Evicting")

    release.told(kept, "more than one PodDisruptionBudget")
    eventually(lambda: not release.there(goes), "the other pod's end")
    assert release.there(kept)
