"""`koordra dashboard` under the account that its component ships: it reads what pages are made of, and what
it may not read nobody asks for. Who sees it is the API server's to say: by a port that it forwards into the
pod, or by a token of somebody who may list what is shown."""

from __future__ import annotations

import base64
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from koordra.api import kinds, names
from koordra.api.objects import Object
from koordra.controller.webhook import keys
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS, ROLES
from tests.cluster.definitions import defined
from tests.cluster.installation import account_kubeconfig, documents, free_port, kind_of, token
from tests.cluster.kubelet_node import SYSTEM, lent_node, pod_of
from tests.cluster.test_gang_levels import FABRICS
from tests.cluster.test_gangs import pod_spec
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.test_kinds_of_others import GROUPS, NAME, SYSTEMS
from tests.cluster.waiting import NODES, eventually
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster

ACCOUNT = "koordra-dashboard"
RBAC = "rbac.authorization.k8s.io"
LABELS = {"app.kubernetes.io/name": "koordra", "app.kubernetes.io/component": "dashboard"}


@pytest.fixture(scope="module")
def own(
    client: KubeClient, controller: None, kubeconfig: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The rights that the component dashboard ships."""
    del controller
    for _, obj in documents(folders=("dashboard",)):
        if obj["kind"] != "Deployment":
            with suppress(Conflict):
                client.create(kind_of(obj), obj, strict=True)
    path = tmp_path_factory.mktemp("dashboard") / "own"
    return account_kubeconfig(client, kubeconfig, path, account=ACCOUNT)


@contextmanager
def dashboard(own: Path, folder: Path, address: str, *options: str) -> Iterator[str]:
    """The command as a process, until the address that it says is let go."""
    command = [sys.executable, "-m", "koordra", "dashboard", "--kubeconfig", str(own)]
    log = folder / "dashboard.log"
    with log.open("w+") as sink:
        process = subprocess.Popen([*command, "--address", address, *options], stdout=sink, stderr=sink)

    def said() -> str | None:
        assert process.poll() is None, log.read_text()
        found = re.search(r"^https?://\S+", log.read_text(), re.MULTILINE)
        return found and found[0]

    try:
        yield eventually(said, f"the dashboard's address; see {log}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, log.read_text()
        assert "orbidden" not in log.read_text(), "it asks for what its account may not read"
    finally:
        process.kill()
        process.wait(PATIENCE)


def page(address: str, **headers: str) -> str:
    asked = urllib.request.Request(address, headers=headers)
    trusted = ssl.create_default_context()
    trusted.check_hostname, trusted.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(asked, timeout=PATIENCE, context=trusted) as answer:
        found: str = answer.read().decode()
        return found


def words(html: str) -> str:
    return re.sub(r"<[^>]*>", "", html)


def shows(address: str, path: str, wanted: str, **headers: str) -> None:
    def look() -> bool:
        try:
            return wanted in words(page(address + path, **headers))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:  # not read yet
                    return False
                raise

    eventually(look, f"{wanted!r} on {path}")


@pytest.fixture
def waits(client: KubeClient, namespace: str) -> str:
    """A claim that no node could ever serve, and one that has a card."""
    made = Workload(client, namespace)
    made.claim("large", [request("gpu", "gpu.koordra.io", memory="200Gi")])
    made.pod("large", claim="large")
    made.claim("fits", [request("gpu", "gpu.koordra.io")])
    made.pod("fits", claim="fits")
    eventually(lambda: "allocation" in _status(client, namespace, "fits"), "the allocation of fits")
    return namespace


def _status(client: KubeClient, namespace: str, claim: str) -> Object:
    found: Object = client.get(kinds.RESOURCE_CLAIMS, claim, namespace=namespace).get("status") or {}
    return found


def test_pages_are_made_of_what_its_account_may_read(own: Path, waits: str, tmp_path: Path) -> None:
    with dashboard(own, tmp_path, "127.0.0.1:0") as address:
        shows(address, "", f"{NODES[0]}")
        shows(address, "waiting", "requested 200Gi, no device has more than 79.6Gi")
        shows(address, f"claim/{waits}/fits", "used by pod fits")


def test_gangs_are_those_of_other_systems_too(
    client: KubeClient, own: Path, namespace: str, tmp_path: Path
) -> None:
    volcano = "scheduling.volcano.sh"
    system, group = SYSTEMS[volcano], GROUPS[volcano]
    with defined(client, [*GROUPS.values(), *FABRICS.values()]):
        body = {**group.type_meta, "metadata": {"name": NAME}, "spec": dict(system.spec)}
        client.create(group, body, namespace=namespace)
        Workload(client, namespace).template("one", [request("gpu", names.CLASS_GPU)])
        member = {
            "metadata": {"name": "w0", "annotations": dict(system.annotations)},
            "spec": pod_spec("one"),
        }
        client.create(kinds.PODS, member, namespace=namespace)
        with dashboard(own, tmp_path, "127.0.0.1:0") as address:
            shows(address, "waiting", "1 of 2 members are there")
        client.delete(group, NAME, namespace=namespace)


def test_beyond_loopback_a_token_of_somebody_who_may_list_it_is_needed(
    client: KubeClient, own: Path, waits: str, tmp_path: Path
) -> None:
    """Asked of the API server by TokenReview and SubjectAccessReview, with the rights of
    system:auth-delegator."""
    now = datetime.now(UTC)
    pair = keys.issue(None, ("localhost",), now=now, lifetime=timedelta(days=1)).to_pem()
    for name, content in zip(("tls.crt", "tls.key"), pair, strict=True):
        (tmp_path / name).write_bytes(content)
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM}
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "koordra-test-dashboard"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "system:auth-delegator"},
        "subjects": [subject],
    }
    with suppress(Conflict):
        client.create(CLUSTER_ROLE_BINDINGS, binding)
    try:
        options = ("--certificates", str(tmp_path))
        with dashboard(own, tmp_path, f"0.0.0.0:{free_port()}", *options) as said:
            address = re.sub(r"//[^:]+", "//127.0.0.1", said)
            allowed, other = (token(client, name) for name in (ACCOUNT, "koordra-nri"))
            shows(address, "waiting", "requested 200Gi", Authorization=f"Bearer {allowed}")
            dialog = base64.b64encode(f"anybody:{allowed}".encode()).decode()
            assert NODES[0] in page(address, Authorization=f"Basic {dialog}")
            for header, code in (
                ({}, 401),
                ({"Authorization": "Bearer made-up"}, 401),
                ({"Authorization": f"Bearer {other}"}, 403),
            ):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    page(address, **header)
                with refused.value as error:
                    assert error.code == code, header
    finally:
        client.delete(CLUSTER_ROLE_BINDINGS, "koordra-test-dashboard")


def test_in_the_cluster_the_api_server_lets_in_who_may_forward_a_port(
    client: KubeClient, kubeconfig: str, own: Path, waits: str, tmp_path: Path
) -> None:
    """Through the kubelet and the runtime into the pod's network, to its loopback address."""
    node, port, mine = lent_node(client), free_port(), free_port()
    visitor = account_kubeconfig(client, kubeconfig, tmp_path / "visitor", account="default", namespace=waits)
    with dashboard(own, tmp_path, f"127.0.0.1:{port}"), pod_of(node, "dashboard", LABELS) as pod:
        command = ["kubectl", "--kubeconfig", str(visitor), "-n", SYSTEM, "port-forward", f"pod/{pod}"]
        command.append(f"{mine}:{port}")
        refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert refused.returncode != 0
        assert "orbidden" in refused.stderr
        with _may_forward(client, waits), (tmp_path / "forward").open("w") as log:
            forward = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                eventually(
                    lambda: "Forwarding from" in (tmp_path / "forward").read_text() or forward.poll(),
                    "the forwarded port",
                )
                assert forward.poll() is None, (tmp_path / "forward").read_text()
                shows(f"http://localhost:{mine}/", "waiting", "requested 200Gi")
            finally:
                forward.terminate()
                forward.wait(PATIENCE)


@contextmanager
def _may_forward(client: KubeClient, account_of: str) -> Iterator[None]:
    """What a Role needs for `kubectl port-forward`."""
    name = "koordra-test-forwards"
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create", "get"]},
    ]
    body = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": name, "namespace": SYSTEM}}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": account_of}
    role = {"apiGroup": RBAC, "kind": "Role", "name": name}
    client.create(ROLES, {**body, "kind": "Role", "rules": rules})
    client.create(ROLE_BINDINGS, {**body, "kind": "RoleBinding", "subjects": [subject], "roleRef": role})
    try:
        yield
    finally:
        for kind in (ROLE_BINDINGS, ROLES):
            with suppress(NotFound):
                client.delete(kind, name, namespace=SYSTEM)
