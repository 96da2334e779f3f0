"""A node passes from each other stack to koordra and back, with pods; pools pass one after the other. A
watcher looks all the time whether a device has two owners."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from koordra.api.kinds import NODES
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from tests.cluster.handed_node import LONG, NODE, HandedNode
from tests.cluster.installation import account_kubeconfig
from tests.cluster.nodes import add_node, kept_alive, remove_node
from tests.cluster.waiting import eventually
from tests.fakes.hand_over_peers import DevicePlugin, DraDriver, Dranet, Hami, Koordinator, Peer

pytestmark = pytest.mark.cluster
STACK = "another-stack"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="k") as name:  # short, for sockets
        yield Path(name)


@contextmanager
def handed(
    client: KubeClient, namespace: str, folder: Path, stack: type[Peer], name: str = NODE
) -> Iterator[HandedNode]:
    """A node that the stack has, with a pod of its own."""
    remove_node(client, name)
    add_node(client, name)
    node = HandedNode(client, namespace, folder, stack, name)
    node.programs(there=True)
    node.gives()
    try:
        with kept_alive(client, [name]):
            yield node
    finally:
        node._leaves(folder)
        for pod in node.peer.pods:
            with suppress(NotFound):
                node.ends(pod.uid)
        remove_node(client, name)


@contextmanager
def koordra_on(node: HandedNode, kubeconfig: str) -> Iterator[None]:
    """Its plugin runs there, and no device has two owners."""
    bound = node.client.get(NODES, node.name)
    own = account_kubeconfig(
        node.client, kubeconfig, node.folder / "own", account="koordra-kubelet-plugin", bound_to=bound
    )
    with node.plugin(own), node.watched():
        yield


@pytest.mark.parametrize("stack", [DevicePlugin, Hami, Koordinator, DraDriver, Dranet])
def test_a_node_passes_to_koordra_and_back(
    client: KubeClient, kubeconfig: str, namespace: str, folder: Path, stack: type[Peer]
) -> None:
    with handed(client, namespace, folder, stack) as node, koordra_on(node, kubeconfig):
        _to_koordra(node)
        _comes_back(node)
        _is_given_back(node)


def test_pools_pass_to_koordra_one_after_the_other(
    client: KubeClient, kubeconfig: str, namespace: str, folder: Path
) -> None:
    """A pool where koordra does not run yet goes on with the other stack, whose pods come and go there, and
    gets none of koordra's."""
    folders = [folder / name for name in "ab"]
    for one in folders:
        one.mkdir()
    with (
        handed(client, namespace, folders[0], Hami, "koordra-test-pool-a") as first,
        handed(client, namespace, folders[1], Hami, "koordra-test-pool-b") as second,
        koordra_on(first, kubeconfig),
    ):
        _is_taken(first)
        first.pod("ours-a", [first.name, second.name])
        second.pod("ours-b", [second.name])
        eventually(lambda: first.is_bound("ours-a"), "koordra's pod in the first pool", LONG)
        second.gives()
        assert second.taints() == set(), "koordra offers nothing there"
        assert second.says(second.peer.kind.given_to) == ""
        with koordra_on(second, kubeconfig):
            second.is_in("Left")
            assert not second.is_bound("ours-b")
            assert first.taints() == {""}, "the first pool stays as it is"
            _is_taken(second)
            eventually(lambda: second.is_bound("ours-b"), "koordra's pod in the second pool", LONG)
            for node, pod in ((first, "ours-a"), (second, "ours-b")):
                assert node.call("NodePrepareResources", pod) == ""
                assert node.call("NodeUnprepareResources", pod) == ""
                node.ends(pod)


def _is_taken(node: HandedNode) -> None:
    """Its programs are taken off, and its pods end."""
    node.is_in("Left")
    node.programs(there=False)
    while any(pod.lives for pod in node.peer.pods):
        node.is_in("Left")
        node.peer.end_pod()
    node.is_in("")


def _to_koordra(node: HandedNode) -> None:
    node.is_in("Left")
    node.pod("ours")
    node.gives()  # past koordra
    node.peer.restart_kubelet()
    node.record()
    node.programs(there=True)
    node.kill()
    node.is_in("Left")
    if not node.peer.driver:  # their claims end while their driver runs
        node.programs(there=False)
    assert not node.guards()
    node.peer.end_pod()
    node.kill()
    node.is_in("Left")
    assert not node.is_bound("ours"), "a pod of the other stack has a device still"
    node.peer.end_pod()
    if node.peer.driver:
        node.is_in("Left")
        node.programs(there=False)
    node.is_in("")
    assert node.guards()
    eventually(lambda: node.is_bound("ours"), "koordra's pod on the node", LONG)
    assert node.call("NodePrepareResources", "ours") == ""


def _comes_back(node: HandedNode) -> None:
    """The other stack's programs run again although the node is koordra's: the hook would refuse its
    containers; nothing new is given out."""
    node.programs(there=True)
    node.is_in("Owned")
    node.pod("late")
    assert node.guards()
    node.kill()
    assert node.call("NodePrepareResources", "ours") == "", "it has its device"
    node.label(STACK)
    node.is_in("Leaving")
    assert node.guards()
    assert not node.says(node.peer.kind.given_to)


def _is_given_back(node: HandedNode) -> None:
    assert node.call("NodeUnprepareResources", "ours") == ""
    node.ends("ours")
    node.is_in("Left")
    eventually(lambda: node.says(node.peer.kind.given_to) == STACK, "the node given", LONG)
    assert not node.guards()
    assert not node.is_bound("late")
    node.gives()
    node.ends("late")
