"""Claims that kube-scheduler makes for an extended resource: a class is for whom it says here, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.topology import presets
from tests.cluster.nodes import add_node, remove_node
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.cluster
NODE, CLASS, RESOURCE = "koordra-test-native", "koordra-test-premium", "test.koordra.io/premium"
GUARDED = 'device.driver == "koordra.io" && device.attributes["koordra.io"].type == "gpu" && '
GUARDED += 'device.attributes["koordra.io"].allocator == "scheduler"'


@pytest.fixture
def native(client: KubeClient, controller: None, tmp_path: Path) -> Iterator[None]:
    """A node whose devices the scheduler gives out."""
    del controller
    node = add_node(client, NODE)
    presets.write_machine(presets.load("hgx-h100"), tmp_path, serial=NODE)
    for body in build_slices(
        discover(tmp_path).machine,
        node_name=NODE,
        node_uid=objects.uid(node),
        mode=names.MODE_NATIVE,
        generation=1,
        offering=Offering(),
    ):
        client.create(kinds.RESOURCE_SLICES, body)
    yield
    remove_node(client, NODE)


@pytest.fixture
def premium(client: KubeClient) -> Iterator[None]:
    """A class for no namespace yet."""
    spec = {"extendedResourceName": RESOURCE, "selectors": [{"cel": {"expression": GUARDED}}]}
    made = {"metadata": {"name": CLASS, "labels": {"koordra.io/restricted": "true"}}, "spec": spec}
    if "extendedResourceName" not in client.create(kinds.DEVICE_CLASSES, made)["spec"]:
        client.delete(kinds.DEVICE_CLASSES, CLASS)
        pytest.skip("the feature DRAExtendedResource is off")
    yield
    client.delete(kinds.DEVICE_CLASSES, CLASS)


def test_a_restricted_class_is_given_as_an_extended_resource_to_its_namespaces_alone(
    client: KubeClient, namespace: str, native: None, premium: None
) -> None:
    container: Object = {"name": "main", "image": "x", "resources": {"limits": {RESOURCE: "1"}}}
    pod = {"metadata": {"name": "extended"}, "spec": {"containers": [container]}}
    client.create(kinds.PODS, pod, namespace=namespace)

    def seen() -> Any:
        return client.get(kinds.PODS, "extended", namespace=namespace)

    def refused() -> bool:
        told = [str(one.get("message")) for one in objects.status_of(seen()).get("conditions") or ()]
        if not any("Insufficient" in one for one in told):
            return any(f"DeviceClass {CLASS} is not for namespace {namespace}" in one for one in told)
        return pytest.skip("this scheduler makes no claims for extended resources")

    eventually(refused, "the scheduler refused")
    assert client.list(kinds.RESOURCE_CLAIMS, namespace=namespace)[0] == []
    allowed = {"metadata": {"annotations": {"koordra.io/namespaces": f"other, {namespace}"}}}
    client.patch(kinds.DEVICE_CLASSES, CLASS, allowed)
    eventually(lambda: objects.spec_of(seen()).get("nodeName") == NODE, "the pod bound")
    (made,) = client.list(kinds.RESOURCE_CLAIMS, namespace=namespace)[0]
    assert objects.status_of(made)["allocation"]["devices"]["results"][0]["pool"] == NODE
