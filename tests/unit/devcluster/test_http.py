"""The API over HTTP: authentication, keep-alive, watches, restarts, and clients that were not written for
it."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds
from koordra.errors import Forbidden, Gone, Invalid, NotFound
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kube.watch import WatchCache
from koordra_devcluster.apiserver.server import ApiServer
from tests.patience import PATIENCE
from tests.unit.devcluster.calling import eventually
from tests.unit.devcluster.manifests import claim, device_class, node, pod

KUBECTL = shutil.which("kubectl")


def test_the_client_of_koordra_works(client: KubeClient) -> None:
    assert "koordra-devcluster" in client.version()
    made = client.create(kinds.RESOURCE_CLAIMS, claim("a"))
    assert client.get(kinds.RESOURCE_CLAIMS, "a", namespace="default") == made
    patched = client.patch(
        kinds.RESOURCE_CLAIMS, "a", {"metadata": {"labels": {"x": "1"}}}, namespace="default"
    )
    items, version = client.list(kinds.RESOURCE_CLAIMS, label_selector="x=1")
    assert [item["metadata"]["resourceVersion"] for item in items] == [version]
    assert version == patched["metadata"]["resourceVersion"]
    with pytest.raises(Invalid):
        client.create(kinds.RESOURCE_CLAIMS, claim("B"))
    client.delete(kinds.RESOURCE_CLAIMS, "a", namespace="default")
    with pytest.raises(NotFound):
        client.get(kinds.RESOURCE_CLAIMS, "a", namespace="default")


def test_a_watch_cache_follows(client: KubeClient, stop: threading.Event) -> None:
    cache = WatchCache(client, kinds.RESOURCE_CLAIMS)
    threading.Thread(target=cache.run, args=(stop,), daemon=True).start()
    assert cache.wait_synced(5)
    client.create(kinds.RESOURCE_CLAIMS, claim("a"))
    eventually(lambda: cache.get("default/a"))
    client.delete(kinds.RESOURCE_CLAIMS, "a", namespace="default")
    eventually(lambda: cache.get("default/a") is None)


def test_an_old_version_is_gone(server: ApiServer, client: KubeClient) -> None:
    _, old = client.list(kinds.RESOURCE_CLAIMS)
    client.create(kinds.RESOURCE_CLAIMS, claim("a"))
    server.store.forget_history()
    with pytest.raises(Gone):
        next(client.watch(kinds.RESOURCE_CLAIMS, resource_version=old))


def test_a_kubeconfig_with_another_token_is_refused(server: ApiServer, tmp_path: Path) -> None:
    document = json.loads((tmp_path / "kubeconfig").read_text())
    document["users"][0]["user"]["token"] = "guess"
    document["clusters"][0]["cluster"]["server"] = server.url
    (tmp_path / "other").write_text(json.dumps(document))
    with pytest.raises(Forbidden):
        new_client(str(tmp_path / "other")).list(kinds.PODS)


def test_the_kubeconfig_is_private(server: ApiServer, tmp_path: Path) -> None:
    del server
    assert (tmp_path / "kubeconfig").stat().st_mode & 0o777 == 0o600


def test_health_needs_no_token_and_the_connection_stays(server: ApiServer) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE)
    for path, code in (("/healthz", 200), ("/api/v1/pods", 401), ("/readyz", 200), ("/livez", 200)):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        assert response.status == code
    connection.close()


def test_a_request_that_is_too_large_is_refused(server: ApiServer) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE)
    connection.putrequest("POST", "/api/v1/namespaces")
    connection.putheader("Content-Length", str(10 * 1024 * 1024))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_a_restart_keeps_token_port_and_objects(tmp_path: Path) -> None:
    first = ApiServer(tmp_path / "s")
    first.start()
    first.write_kubeconfig(tmp_path / "kubeconfig")
    client = new_client(str(tmp_path / "kubeconfig"))
    made = client.create(kinds.RESOURCE_CLAIMS, claim("a"))
    first.close()
    second = ApiServer(tmp_path / "s")
    second.start()
    assert second.url == first.url
    assert client.get(kinds.RESOURCE_CLAIMS, "a", namespace="default") == made
    second.close()


def test_the_official_typed_client_works(server: ApiServer, tmp_path: Path) -> None:
    del server
    from kubernetes import client, config, watch

    configuration = client.Configuration()
    config.load_kube_config(str(tmp_path / "kubeconfig"), client_configuration=configuration)
    with client.ApiClient(configuration) as api:
        core, resource = client.CoreV1Api(api), client.ResourceV1Api(api)
        assert "default" in {one.metadata.name for one in core.list_namespace().items}
        resource.create_device_class(body=device_class() | {"apiVersion": "resource.k8s.io/v1"})
        made: Any = resource.create_namespaced_resource_claim("default", body=claim("typed"))
        assert made.spec.devices.requests[0].exactly.count == 1
        core.create_namespaced_pod("default", body=pod("typed"))
        events = watch.Watch().stream(core.list_namespaced_pod, "default", timeout_seconds=1)
        assert [event["object"].metadata.name for event in events] == ["typed"]
        core.create_node(body=node())
        assert core.read_node("n1").status.capacity["cpu"] == "8"
        with pytest.raises(client.ApiException) as refused:
            core.read_namespaced_pod("nothing", "default")
        assert refused.value.status == 404


@pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl on this machine")
def test_kubectl_creates_applies_explains_describes_and_deletes(server: ApiServer, tmp_path: Path) -> None:
    del server
    manifest = tmp_path / "m.json"
    items = [device_class() | {"apiVersion": "resource.k8s.io/v1"}, claim("a"), pod("p"), node()]
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def kubectl(*arguments: str) -> str:
        command = [str(KUBECTL), "--kubeconfig", str(tmp_path / "kubeconfig"), *arguments]
        environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert kubectl("apply", "-f", str(manifest)).count("created") == 4
    version = kubectl("get", "resourceclaim/a", "-o", "jsonpath={.metadata.resourceVersion}")
    assert kubectl("apply", "-f", str(manifest)).count("unchanged") >= 3
    assert kubectl("get", "resourceclaim/a", "-o", "jsonpath={.metadata.resourceVersion}") == version
    assert "pending" in kubectl("get", "resourceclaims")
    assert "Image:" in kubectl("describe", "pod", "p")
    assert "deviceClassName" in kubectl("explain", "resourceclaim.spec.devices.requests.exactly")
    kubectl("label", "pod", "p", "a=b")
    kubectl("create", "namespace", "team")
    misspelt = json.dumps({**claim("b"), "spec": {"devices": {"request": []}}})
    manifest.write_text(misspelt)
    with pytest.raises(AssertionError, match=r'unknown field \\?"spec.devices.request'):
        kubectl("create", "-f", str(manifest))
    assert "deleted" in kubectl("delete", "pod/p", "resourceclaim/a", "node/n1")
