"""deploy/examples/rdma: what stands there is what koordra reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from koordra.api.opaque.parameters import RdmaConfig, decode
from koordra.cli.node.make_vfs import make_vfs
from koordra.kubelet_plugin.network.address_pools import read_pools
from koordra.kubelet_plugin.network.consumers import RESOURCE_NAME, multus_networks
from koordra_devcluster.demo import examples

FOLDER = Path(__file__).parents[3] / "deploy/examples/rdma"
DOCUMENTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}-{document['metadata']['name']}")
    for path in examples.files("rdma")
    for document in yaml.safe_load_all(path.read_text())
]


def of(kind: str, name: str) -> dict[str, Any]:
    """The document of that kind and name."""
    for parameter in DOCUMENTS:
        (document,) = parameter.values
        if isinstance(document, dict) and (document["kind"], document["metadata"]["name"]) == (kind, name):
            return document
    raise AssertionError(f"no {kind} {name}")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_parameters_are_read_and_claims_say_nothing_of_the_operators(document: dict[str, Any]) -> None:
    spec = document.get("spec") or {}
    of_class = document["kind"] == "DeviceClass"
    devices = spec if of_class else spec.get("spec", {}).get("devices", {})
    for entry in devices.get("config") or ():
        found = decode(entry["opaque"]["parameters"], object="example", field="", in_claim=not of_class)
        assert not of_class or isinstance(found, RdmaConfig)
    for claim in spec.get("resourceClaims") or ():
        assert of("ResourceClaimTemplate", claim["resourceClaimTemplateName"])


def test_the_pool_that_the_class_names_is_there_and_its_networks_are_in_the_fabrics_range() -> None:
    text = of("ConfigMap", "koordra-network-pools")["data"]["pools.yaml"]
    pools = read_pools(text, source="network-pools.yaml")
    entry = of("DeviceClass", "roce-rail")["spec"]["config"][0]["opaque"]["parameters"]
    config = decode(entry, object="example", field="")
    assert isinstance(config, RdmaConfig)
    assert config.network is not None
    assert config.fabric is not None
    assert config.network.pool in pools
    assert {pools["rails"].per_node - network.cidr.prefixlen for network in pools["rails"].networks} == {10}
    assert config.fabric.address_range == "10.8.0.0/13"
    assert all(str(network.cidr).startswith("10.1") for network in pools["rails"].networks)


def test_the_pods_network_asks_for_the_resource_that_the_page_names() -> None:
    pod = of("Pod", "multus-worker")
    (network,) = multus_networks(pod["metadata"]["annotations"], "default")
    definition = of("NetworkAttachmentDefinition", network.name)
    resource = definition["metadata"]["annotations"][RESOURCE_NAME]
    page = (FOLDER.parents[2] / "docs/rdma.md").read_text()
    assert f"--cni-resource vf={resource}" in page


def test_the_component_that_makes_functions_runs_the_command_as_it_is() -> None:
    path = FOLDER.parents[1] / "kustomize/nic-functions/kustomization.yaml"
    (patch,) = yaml.safe_load(path.read_text())["patches"]
    offered, added = yaml.safe_load(patch["patch"])
    assert offered["value"] == "--vfs"
    (container,) = added["value"]
    group, command, *arguments = container["args"]
    assert (group, command) == ("node", "make-vfs")
    context = make_vfs.make_context("make-vfs", arguments)
    assert (context.params["most"], str(context.params["root"])) == (8, "/host")
    writable = {mount["mountPath"]: not mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert str(context.params["state_dir"]).startswith("/var/lib/kubelet/")
    assert writable == {"/host": False, "/host/sys": True, "/var/lib/kubelet": False}
