"""Nodes ask for evictions with their own tokens, and the controller evicts with its own, on a cluster.

No pod runs, so the test says in the kubelet's place that they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import Forbidden, Invalid
from koordra.evictions import OF_HOOK, OF_PLUGIN, EvictionRequest, EvictionRequests
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from tests.cluster.installation import account_kubeconfig
from tests.cluster.test_driver_release import Release
from tests.cluster.test_joint_allocation import request
from tests.cluster.waiting import NODES, eventually
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster
ACCOUNTS = {OF_PLUGIN: "koordra-kubelet-plugin", OF_HOOK: "koordra-nri"}


class Asking(Release):
    """Pods of ReplicaSets with shares of cards of the first node, and what nodes ask for."""

    kubeconfig: str
    folder: Path

    def as_node(self, name: str, node: str) -> KubeClient:
        path = self.folder / f"{name}-{node}"
        bound = self.client.get(kinds.NODES, node)
        account_kubeconfig(self.client, self.kubeconfig, path, account=ACCOUNTS[name], bound_to=bound)
        return new_client(str(path), user_agent=ACCOUNTS[name])

    def asks(self, *pods: str, name: str, node: str) -> EvictionRequests:
        client = self.as_node(name, node)
        requests = EvictionRequests(client, name, node=node, namespace="koordra-system")
        found = [self.client.get(kinds.PODS, pod, namespace=self.namespace) for pod in pods]
        requests.want(
            EvictionRequest(self.namespace, objects.name(pod), objects.uid(pod), "OverLimit") for pod in found
        )
        return requests

    def withdraw(self) -> None:
        for name in ACCOUNTS:
            data = self.client.get(CONFIG_MAPS, name, namespace="koordra-system").get("data") or {}
            if data:
                self.client.patch(
                    CONFIG_MAPS, name, {"data": dict.fromkeys(data)}, namespace="koordra-system"
                )


@pytest.fixture
def asking(
    client: KubeClient, kubeconfig: str, namespace: str, nodes: dict[str, list[Object]], tmp_path: Path
) -> Iterator[Asking]:
    del nodes
    asking = Asking(client, namespace)
    asking.kubeconfig, asking.folder = kubeconfig, tmp_path
    asking.withdraw()
    asking.template("share", [request("gpu", names.CLASS_GPU, memory="1Gi")])
    yield asking
    asking.withdraw()
    asking.remove_workloads()


@pytest.mark.parametrize("name", ACCOUNTS)
def test_a_node_gets_its_own_pods_evicted_and_no_others_within_their_budget(
    asking: Asking, name: str
) -> None:
    first, second, third = asking.replicas("served", 3)
    asking.budget("served", "served", 3, lets_go=0)
    asking.asks(first, name=name, node=NODES[1])
    mine = asking.asks(second, name=name, node=NODES[0])
    asking.told(second, "node koordra-test-a asks for the eviction")
    asking.budget("served", "served", 2)
    eventually(lambda: not asking.there(second), f"the eviction of {second}", timeout=PATIENCE)
    asking.told(second, "was evicted because node koordra-test-a asked for it: OverLimit")
    mine.want([])
    assert asking.there(first), "it is on another node than the one that asks"
    assert asking.there(third), "nobody asks"


@pytest.mark.parametrize("name", ACCOUNTS)
def test_a_node_evicts_nobody_itself_and_asks_under_its_own_name_only(asking: Asking, name: str) -> None:
    (pod,) = asking.replicas("served", 1)
    node = asking.as_node(name, NODES[0])
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": asking.namespace},
    }
    with pytest.raises(Forbidden):
        node.create(kinds.PODS, body, namespace=asking.namespace, name=pod, subresource="eviction")
    for body, words in (
        ({"data": {NODES[1]: "[]"}}, "under its own name only"),
        ({"data": {NODES[0]: "x" * 8193}}, "at most 8192"),
        ({"metadata": {"labels": {"app": "x"}}}, "its entry and nothing else"),
        ({"immutable": True}, "its entry and nothing else"),
    ):
        with pytest.raises((Forbidden, Invalid), match=words):
            node.patch(CONFIG_MAPS, name, body, namespace="koordra-system")
    other = next(each for each in ACCOUNTS if each != name)
    with pytest.raises(Forbidden):
        node.patch(CONFIG_MAPS, other, {"data": {NODES[0]: "[]"}}, namespace="koordra-system")
    with pytest.raises(Forbidden):  # with component imex each can be read by who knows its name
        node.list(CONFIG_MAPS, namespace="koordra-system")
