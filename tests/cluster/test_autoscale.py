"""Nodes are asked for with the rights of the controller's ServiceAccount, come as an autoscaler brings them,
and go as it takes them away (tests/fakes/growing_groups).

One test is for a Cluster Autoscaler itself, where one runs: `--cloud-provider=kwok`, nodeGroups
`fromNodeLabelKey: koordra.io/test-pool`, `skipTaint: true`, and one template: a Ready node of POOL, with
more than SIZE, since the autoscaler sets some aside for kube-proxy; `--scan-interval=2s`,
`--scale-down-delay-after-add=5s --scale-down-unneeded-time=5s`. The others need a cluster without one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.what_if.machines import machine_slices
from koordra.controller.allocation.reserved.quotas import NO_QUOTAS
from koordra.controller.allocation.writes import Writer
from koordra.controller.autoscale.asking import start_asking
from koordra.controller.autoscale.node_groups import NodeGroup
from koordra.controller.autoscale.settings import AutoscaleSettings
from koordra.controller.cache.changes import Informers
from koordra.controller.cache.placeholders import GROUP, NAMESPACE
from koordra.controller.reporting.autoscale_metrics import AutoscaleMetrics
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.controller.settings import Settings
from koordra.errors import Forbidden, NotFound
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kube.wall_clock import utc_now
from koordra.metrics import Metrics
from tests.cluster import waiting
from tests.cluster.installation import Installation, account_kubeconfig
from tests.fakes.growing_groups import GrowingGroups

pytestmark = pytest.mark.cluster

POOL = {"koordra.io/test-pool": "growing"}
SIZE = {"cpu": "16", "memory": "64Gi", "pods": "32"}
T = TypeVar("T")


def eventually(look: Callable[[], T | None], what: str) -> T:
    return waiting.eventually(look, what, 120.0)


class Asking:
    """The loop of a leader's term, as the controller's account; `stop` ends the term."""

    def __init__(self, kubeconfig: Path, group: NodeGroup) -> None:
        self.client = new_client(str(kubeconfig), user_agent="koordra-controller")
        self.client.negotiate()
        self.told: list[ClaimEvent] = []
        self.group = group
        self.metrics = AutoscaleMetrics(Metrics())
        self.stop = threading.Event()
        self.begin()

    def begin(self) -> None:
        self.stop = stop = threading.Event()
        changed = threading.Event()
        caches = Informers(self.client, changed=(changed,), stop=stop, listeners={})
        assert caches.start()
        start_asking(
            self.client,
            Settings("test", autoscale=AutoscaleSettings([self.group], after=1.0)),
            observe=caches.cluster,
            writer=Writer(self.client, may_write=lambda: not stop.is_set(), now=utc_now),
            quotas=NO_QUOTAS,
            report=self.told.append,
            metrics=self.metrics,
            changed=changed,
            stop=stop,
        )


@pytest.fixture
def group() -> NodeGroup:
    return NodeGroup("growing", "t4x4-1nic", machine_slices("t4x4-1nic"), 3, POOL, (), SIZE)


class AutoscaledGroups(GrowingGroups):
    """A Cluster Autoscaler does it."""

    def grow(self) -> list[str]:
        """Nodes that came since: what a kubelet and a node controller do for new ones."""
        label = ",".join(f"{key}={value}" for key, value in POOL.items())
        nodes = map(objects.name, self._client.list(kinds.NODES, label_selector=label)[0])
        came = [name for name in nodes if name not in self.made]
        for name in came:
            self._client.patch(kinds.NODES, name, {"spec": {"taints": None}})
            self.made[name] = self._groups[0]
        return came


def has_autoscaler(client: KubeClient) -> bool:
    with suppress(NotFound):
        client.get(CONFIG_MAPS, "cluster-autoscaler-status", namespace="kube-system")
        return True
    return False


@pytest.fixture
def growing(
    request: pytest.FixtureRequest, client: KubeClient, namespace: str, group: NodeGroup
) -> Iterator[GrowingGroups]:
    """`param`: how they grow."""
    del namespace
    grows = getattr(request, "param", GrowingGroups)
    if has_autoscaler(client) is not (grows is AutoscaledGroups):
        pytest.skip("this cluster has to have a Cluster Autoscaler for one test, and none for the others")
    found: GrowingGroups = grows(client, [group])
    yield found
    for pod in client.list(kinds.PODS)[0]:
        if objects.spec_of(pod).get("nodeName") in found.made:
            client.delete(kinds.PODS, objects.name(pod), namespace=objects.namespace(pod), grace_period=0)
    for name in list(found.made):
        found.remove(name)


@pytest.fixture
def asking(
    client: KubeClient,
    kubeconfig: str,
    installed: Installation,
    group: NodeGroup,
    growing: GrowingGroups,
    tmp_path: Path,
) -> Iterator[Asking]:
    del installed, growing
    own = account_kubeconfig(client, kubeconfig, tmp_path / "kubeconfig", account="koordra-controller")
    found = Asking(own, group)
    yield found
    found.stop.set()
    for pod in placeholders(client):
        client.delete(kinds.PODS, objects.name(pod), namespace=NAMESPACE, grace_period=0)


def placeholders(client: KubeClient) -> list[Object]:
    return client.list(kinds.PODS, namespace=NAMESPACE, label_selector=GROUP)[0]


def wants(client: KubeClient, namespace: str, name: str, gpus: int, **more: Any) -> None:
    """A pod with a claim from a template, which may run in the pool alone."""
    exactly = {"deviceClassName": names.CLASS_GPU, "count": gpus}
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    body = {**kinds.RESOURCE_CLAIM_TEMPLATES.type_meta, "metadata": {"name": name}, "spec": spec}
    client.create(kinds.RESOURCE_CLAIM_TEMPLATES, body, namespace=namespace)
    main = {
        "name": "main",
        "image": "busybox",
        "resources": {"claims": [{"name": "gpu"}], "requests": {"cpu": "1"}},
    }
    pod = {
        "metadata": {"name": name, **more},
        "spec": {
            "containers": [main],
            "nodeSelector": POOL,
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
        },
    }
    client.create(kinds.PODS, {**kinds.PODS.type_meta, **pod}, namespace=namespace)


def node_of(client: KubeClient, namespace: str, name: str) -> str | None:
    return objects.spec_of(client.get(kinds.PODS, name, namespace=namespace)).get("nodeName")


def test_nodes_are_asked_for_come_and_go(
    client: KubeClient, namespace: str, asking: Asking, growing: GrowingGroups
) -> None:
    for name in ("a", "b"):
        wants(client, namespace, name, 4)
    eventually(lambda: len(placeholders(client)) == 2 or None, "two placeholders")
    first = {objects.uid(pod) for pod in placeholders(client)}
    asking.stop.set()
    asking.begin()  # another leader
    came = eventually(lambda: growing.grow() or None, "that kube-scheduler finds no node for them")
    assert len(came) == 2
    eventually(
        lambda: all(objects.spec_of(pod).get("nodeName") for pod in placeholders(client)) or None,
        "both bound",
    )
    assert {objects.uid(pod) for pod in placeholders(client)} == first, "asked for once"
    for name in came:
        growing.publish(name)
    eventually(lambda: not placeholders(client) or None, "that the placeholders make room")
    for name in ("a", "b"):
        eventually(lambda name=name: node_of(client, namespace, name), f"pod {name} bound")
    assert {node_of(client, namespace, name) for name in ("a", "b")} == set(came)
    assert {one.reason for one in asking.told} == {"NodesAsked"}
    assert not growing.grow()

    # one of them is to go: nobody is placed there any more, and its pod's devices are free only with its end
    gone = str(node_of(client, namespace, "a"))
    growing.taint(gone)
    claim = objects.pod_claim_names(client.get(kinds.PODS, "a", namespace=namespace))["gpu"]
    assert client.get(kinds.RESOURCE_CLAIMS, str(claim), namespace=namespace)["status"]["reservedFor"]
    assert not growing.drain(gone)
    eventually(
        lambda: (
            "a" not in {objects.name(pod) for pod in client.list(kinds.PODS, namespace=namespace)[0]} or None
        ),
        "the pod's end",
    )
    client.delete(kinds.RESOURCE_CLAIM_TEMPLATES, "a", namespace=namespace)
    wants(client, namespace, "a", 4)
    (ask,) = eventually(lambda: placeholders(client) or None, "another node is asked for")
    assert objects.labels_of(ask)[GROUP] == "growing"
    assert node_of(client, namespace, "a") is None, "not on the node that is about to go"
    growing.remove(gone)
    (new,) = eventually(lambda: growing.grow() or None, "the next node")
    growing.publish(new)
    assert eventually(lambda: node_of(client, namespace, "a"), "pod a on it") == new


def test_a_budget_keeps_a_node(
    client: KubeClient, namespace: str, asking: Asking, growing: GrowingGroups
) -> None:
    """cluster-autoscaler drains by evictions: who may not go keeps node and devices."""
    budgets = kinds.Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
    wants(client, namespace, "kept", 4, labels={"app": "kept"})
    eventually(lambda: placeholders(client) or None, "a placeholder")
    (name,) = eventually(lambda: growing.grow() or None, "a node")
    growing.publish(name)
    eventually(lambda: node_of(client, namespace, "kept"), "pod kept bound")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    budget = {**budgets.type_meta, "metadata": {"name": "kept"}, "spec": spec}
    client.create(budgets, budget, namespace=namespace)
    try:
        _runs(client, namespace, "kept")
        eventually(
            lambda: _counted(client.get(budgets, "kept", namespace=namespace)), "the budget to count it"
        )
        growing.taint(name)
        refused = eventually(lambda: growing.drain(name) or None, "the budget's word")
        assert "disruption budget" in refused[0]
        assert node_of(client, namespace, "kept") == name
        assert not placeholders(client)
    finally:
        client.delete(budgets, "kept", namespace=namespace)


def _runs(client: KubeClient, namespace: str, name: str) -> None:
    """What the node's kubelet would say: a pod that never ran has no budget."""
    conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady")]
    body = {"status": {"phase": "Running", "conditions": conditions}}
    client.patch(kinds.PODS, name, body, namespace=namespace, subresource="status")


def _counted(budget: Object) -> bool:
    status = objects.status_of(budget)
    return status.get("expectedPods") == 1 and status.get("currentHealthy") == 1


@pytest.mark.parametrize("growing", [AutoscaledGroups], indirect=True)
def test_a_cluster_autoscaler_adds_the_nodes_and_takes_them_away(
    client: KubeClient, namespace: str, asking: Asking, growing: GrowingGroups
) -> None:
    wants(client, namespace, "a", 4)
    wants(client, namespace, "b", 1, annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"})
    came = list[str]()
    eventually(lambda: came.extend(growing.grow()) or len(came) == 2 or None, "two nodes")
    eventually(
        lambda: all(objects.spec_of(pod).get("nodeName") for pod in placeholders(client)) or None,
        "that the placeholders keep them",
    )
    for name in came:
        growing.publish(name)
    places = {
        name: eventually(lambda name=name: node_of(client, namespace, name), f"pod {name} bound")
        for name in ("a", "b")
    }
    assert {*places.values()} == {*came}
    eventually(lambda: not placeholders(client) or None, "that the placeholders make room")
    assert {one.reason for one in asking.told} == {"NodesAsked"}
    client.delete(kinds.PODS, "a", namespace=namespace, grace_period=0)
    eventually(lambda: _is_gone(client, places["a"]) or None, "that the node without pods is taken away")
    seen = _looked_at(client)
    for _ in range(8):
        seen = eventually(lambda seen=seen: next(iter({_looked_at(client)} - {seen}), None), "another look")
    assert not _is_gone(client, places["b"]), "hardly used, but its claim fits nowhere else by what it knows"
    assert node_of(client, namespace, "b") == places["b"]
    assert not growing.grow()


def _looked_at(client: KubeClient) -> str:
    """When the autoscaler looked last at what it can take away."""
    status = client.get(CONFIG_MAPS, "cluster-autoscaler-status", namespace="kube-system")["data"]["status"]
    return str(yaml.safe_load(status)["clusterWide"]["scaleDown"]["lastProbeTime"])


def _is_gone(client: KubeClient, node: str) -> bool:
    return node not in map(objects.name, client.list(kinds.NODES)[0])


def test_only_placeholders_are_in_their_namespace(asking: Asking) -> None:
    """Whoever had the controller's token could run nothing there."""
    container: Object = {
        "name": "main",
        "image": "busybox",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: Object = {
        "containers": [container],
        "priorityClassName": "koordra-placeholder",
        "automountServiceAccountToken": False,
        "nodeSelector": POOL,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    bad: list[tuple[Object, str]] = [
        ({"containers": [{**container, "command": ["sh"]}]}, "runs its image as it is"),
        ({"automountServiceAccountToken": True}, "no volumes, claims or token"),
        ({"volumes": [{"name": "a", "emptyDir": {}}]}, "no volumes, claims or token"),
        ({"priorityClassName": "system-node-critical"}, "PriorityClass koordra-placeholder"),
        ({"nodeSelector": {}}, "names its group"),
    ]
    for change, word in bad:
        labels = {GROUP: "growing"}
        body = {
            **kinds.PODS.type_meta,
            "metadata": {"name": "x", "labels": labels},
            "spec": {**spec, **change},
        }
        with pytest.raises(Forbidden, match=word):
            asking.client.create(kinds.PODS, body, namespace=NAMESPACE)
    for place in ("default", "koordra-system"):
        with pytest.raises(Forbidden):
            asking.client.create(
                kinds.PODS, {**kinds.PODS.type_meta, "metadata": {"name": "x"}, "spec": spec}, namespace=place
            )
