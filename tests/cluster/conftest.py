"""A cluster to test against: the one of KUBECONFIG, or the development double started for the session.

The nodes are Node objects of the suite's own, named `koordra-test-*`, with leases that it keeps fresh, and
slices made by the real discovery from made-up machines; no kubelet stands behind them. So the suite judges
what the controller, the scheduler and kube-controller-manager make of each other, and runs on any cluster
whose administrator lends it a kubeconfig.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from tests.cluster.installation import Installation, account_kubeconfig, free_port
from tests.cluster.nodes import add_node, kept_alive, publish, remove_node
from tests.cluster.waiting import NODES, eventually

NAMESPACE = "koordra-test"
LEVELS = {level: f"example.com/{level}" for level in ("hall", "row", "rack")}
"""Of the network between nodes, as the controller's operator wrote them; NODES are in none."""
As = Callable[..., KubeClient]
STARTS_WITHIN = 300.0
"""For the devcluster to start, and for the controller to serve and to put its authority into the webhooks: a
minute each on a busy machine."""


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    lent = os.environ.get("KUBECONFIG")
    if lent:
        yield lent
        return
    folder = tmp_path_factory.mktemp("devcluster")
    path = folder / "kubeconfig"
    command = [sys.executable, "-m", "koordra", "devcluster", "control-plane", "--dir", str(folder)]
    log = folder / "log"
    with log.open("wb") as sink:
        server = subprocess.Popen([*command, "--port", "0", "--kubeconfig", str(path)], stderr=sink)
    try:
        eventually(
            lambda: path.exists() or server.poll() is not None,
            f"the devcluster's kubeconfig; see {log}",
            timeout=STARTS_WITHIN,
        )
        died = server.poll()
        assert died is None, f"the devcluster ended with {died}:\n{log.read_text()[-3000:]}"
        yield str(path)
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="session")
def client(kubeconfig: str) -> KubeClient:
    client = new_client(kubeconfig, user_agent="koordra-test")

    def answers() -> str | None:
        try:
            return client.version()
        except ApiError:
            return None

    print(f"\ncluster under test: {eventually(answers, 'the API server', timeout=STARTS_WITHIN)}")
    return client


def _create(client: KubeClient, kind: kinds.Kind, body: Object) -> Object:
    try:
        return client.create(kind, body)
    except Conflict:
        return client.get(kind, body["metadata"]["name"], namespace=body["metadata"].get("namespace"))


@pytest.fixture(scope="session")
def nodes(
    client: KubeClient, installed: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[Object]]]:
    """Node name -> its slices as the API server gave them back."""
    del installed
    _create(
        client,
        kinds.NAMESPACES,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}},
    )
    published = {}
    for name in NODES:
        remove_node(client, name)
        node = add_node(client, name)
        published[name] = publish(client, node, tmp_path_factory.mktemp(name))
    with kept_alive(client, NODES):
        yield published
    for name in NODES:
        remove_node(client, name)


@pytest.fixture(scope="session")
def installed(client: KubeClient, webhook_port: int) -> Iterator[Installation]:
    """What deploy/kustomize ships, but for the workloads: CRDs, classes, policies, RBAC, webhook
    configurations."""
    found = Installation(
        client,
        webhook_port,
        more=(
            "legacy",
            "elastic",
            "node-labels",
            "driver-upgrade",
            "kubelet-plugin-evict",
            "nri/evict",
            "imex",
            "autoscale",
            "training",
            "profiler",
            "pod-network",
        ),
    )
    found.apply()
    yield found
    found.remove_webhooks()


@pytest.fixture(scope="session")
def webhook_port() -> int:
    """A free port for the webhook, below those that the kernel gives to clients."""
    return free_port()


@pytest.fixture(scope="session")
def metrics_port() -> int:
    """A free port for the controller's metrics."""
    return free_port()


@pytest.fixture(scope="session")
def controller(
    client: KubeClient,
    kubeconfig: str,
    installed: Installation,
    nodes: dict[str, list[Object]],
    metrics_port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """`koordra controller` as a process of its own, with the rights of its ServiceAccount and with its
    webhook."""
    del nodes
    folder = tmp_path_factory.mktemp("controller")
    log = folder / "log"
    own = account_kubeconfig(client, kubeconfig, folder / "kubeconfig", account="koordra-controller")
    address = f"127.0.0.1:{installed.webhook_port}"
    command = [sys.executable, "-m", "koordra", "controller", "--kubeconfig", str(own)]
    command += [
        "--webhook-address",
        address,
        "--webhook-host",
        "127.0.0.1",
        "--metrics-address",
        f"127.0.0.1:{metrics_port}",
        "--elastic-gpu",
        "--training-jobs",
        "--peer-annotations",
        "--immediate-annotation",
        "--percent-bounds",
        "--topology-levels",
        ",".join(f"{level}={label}" for level, label in LEVELS.items()),
    ]
    command += ["--legacy-pods", "--legacy-template-grace", "5"]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stderr=sink, stdout=sink)
    try:
        eventually(
            lambda: process.poll() is not None or installed.webhook_answers(),
            f"the webhook; see {log}",
            timeout=STARTS_WITHIN,
        )
        died = process.poll()
        assert died is None, f"the controller ended with {died}:\n{log.read_text()[-3000:]}"
        yield
        died = process.poll()
    finally:
        process.terminate()
        process.wait(20)
    said = log.read_text()
    assert died is None, f"the controller ended with {died}:\n{said[-3000:]}"
    assert "denied request" not in said, "a policy of koordra's has refused what the controller writes"


@pytest.fixture
def namespace(client: KubeClient, controller: None) -> Iterator[str]:
    """An empty namespace; whatever a test leaves in it is removed, and its devices are free again
    afterwards."""
    del controller
    _create(
        client, kinds.NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    )
    eventually(lambda: _has_service_account(client), "the default ServiceAccount")
    yield NAMESPACE
    _remove_mine(client, kinds.PODS, grace_period=0)
    eventually(lambda: not _mine(client, kinds.PODS), "the pods' end")
    for kind in (kinds.RESOURCE_CLAIMS, kinds.RESOURCE_CLAIM_TEMPLATES):
        _remove_mine(client, kind)
    eventually(lambda: not _mine(client, kinds.RESOURCE_CLAIMS), "the claims' end")


@pytest.fixture
def account(client: KubeClient, kubeconfig: str, namespace: str, tmp_path: Path) -> As:
    """The API as one of koordra's ServiceAccounts sees it, with a token that is bound to a node or to
    none."""
    del namespace

    def of(name: str, node: str | None = None) -> KubeClient:
        bound = client.get(kinds.NODES, node) if node else None
        path = tmp_path / f"{name}-{node}"
        return new_client(str(account_kubeconfig(client, kubeconfig, path, account=name, bound_to=bound)))

    return of


def _mine(client: KubeClient, kind: kinds.Kind) -> list[Object]:
    return client.list(kind, namespace=NAMESPACE)[0]


def _remove_mine(client: KubeClient, kind: kinds.Kind, *, grace_period: int | None = None) -> None:
    for obj in _mine(client, kind):
        with suppress(NotFound):
            client.delete(kind, objects.name(obj), namespace=NAMESPACE, grace_period=grace_period)


def _has_service_account(client: KubeClient) -> Any:
    return [obj for obj in _mine(client, kinds.SERVICE_ACCOUNTS) if objects.name(obj) == "default"]
