"""`koordra explain` asks the controller through the API server's proxy: administrators with whatever
credential they have, and tenants of one namespace by the Role that is shipped for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import ROLE_BINDINGS, ROLES
from tests.cluster.behind_service import behind_service
from tests.cluster.installation import Installation, account_kubeconfig
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.cluster
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture(scope="module")
def reached(client: KubeClient, controller: None, installed: Installation) -> Iterator[None]:
    del controller
    with behind_service(client, installed.webhook_port):
        yield


def explain(kubeconfig: str | Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koordra", "explain", *words, "--kubeconfig", str(kubeconfig)]
    return subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False)


def asked(kubeconfig: str | Path, *words: str) -> Object:
    """The controller's answer."""

    def look() -> subprocess.CompletedProcess[str] | None:
        found = explain(kubeconfig, *words)
        return None if "the controller did not answer" in found.stderr else found

    found = eventually(look, "an answer of the controller; endpoints take their time")
    assert found.returncode == 0, found.stderr
    document: Object = json.loads(found.stdout)
    return document


@pytest.fixture
def large(client: KubeClient, namespace: str, reached: None) -> str:
    """A claim of the test's namespace that no node could ever serve."""
    del reached
    Workload(client, namespace).claim("large", [request("gpu", "gpu.koordra.io", memory="200Gi")])
    return namespace


def test_administrators_are_answered_with_the_credential_they_have(kubeconfig: str, large: str) -> None:
    """That of a kubeconfig is lent: a token, or a client certificate as kubeadm's."""
    (claim,) = asked(kubeconfig, "claim/large", "-n", large)["claims"]
    assert claim["status"] == "DoesNotFit"
    assert any("200Gi" in line for line in claim["told"])
    (node,) = asked(kubeconfig, "node/koordra-test-a")["nodes"]
    assert node["name"] == "koordra-test-a"


def test_a_tenant_is_answered_what_they_may_read(
    client: KubeClient, kubeconfig: str, large: str, tmp_path: Path
) -> None:
    own = account_kubeconfig(client, kubeconfig, tmp_path / "own", account="default", namespace=large)
    _give(client, large, "reads-claims", _role(client, large, "resource.k8s.io", "resourceclaims"), large)
    found = explain(own, "claim/large", "-n", large)
    assert "the controller did not answer" in found.stderr, "the Role is bound to nobody"
    assert found.returncode != 0, "and a tenant may not read the cluster"
    _give(client, "koordra-system", "koordra-test-explain", "koordra-explain", large)
    (claim,) = asked(own, "claim/large", "-n", large)["claims"]
    assert claim["name"] == "large"
    found = explain(own, "node/koordra-test-a")
    assert f"system:serviceaccount:{large}:default may not get nodes" in found.stderr
    assert found.returncode != 0


def _role(client: KubeClient, namespace: str, group: str, resource: str) -> str:
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": ["get", "list"]}]
    meta = {"name": f"reads-{resource}", "namespace": namespace}
    _made(client, ROLES, {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": meta, "rules": rules})
    return str(meta["name"])


def _give(client: KubeClient, namespace: str, name: str, role: str, account_of: str) -> None:
    """Bind the Role to the default ServiceAccount of a namespace."""
    body: Object = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": account_of}],
    }
    _made(client, ROLE_BINDINGS, body)


def _made(client: KubeClient, kind: Kind, body: Object) -> None:
    with suppress(Conflict):
        client.create(kind, body)


@pytest.fixture(autouse=True)
def nothing_bound(client: KubeClient) -> Iterator[None]:
    yield
    with suppress(NotFound):
        client.delete(ROLE_BINDINGS, "koordra-test-explain", namespace="koordra-system")


def test_a_token_for_the_controller_lets_nobody_in_elsewhere(
    client: KubeClient, kubeconfig: str, large: str, tmp_path: Path
) -> None:
    spec = {"audiences": ["koordra-explain"], "expirationSeconds": 600}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": spec}
    place = {"namespace": "koordra-system", "name": "koordra-explain", "subresource": "token"}
    token = client.create(kinds.SERVICE_ACCOUNTS, body, **place)["status"]["token"]
    own = account_kubeconfig(
        client, kubeconfig, tmp_path / "own", account="koordra-explain", namespace="koordra-system"
    )
    (tmp_path / "other").write_text(own.read_text().replace(_token_in(own), token))
    found = explain(tmp_path / "other", "claim/large", "-n", large)
    assert found.returncode != 0
    assert "Unauthorized" in found.stderr or "401" in found.stderr


def _token_in(kubeconfig: Path) -> str:
    return str(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"])
