"""Every backend can be named by a ResourceClass and by an ElasticGPUClass: claims of the class go where it
is, and have its word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordra.api import resource_class
from koordra.api.elastic import elastic_gpu
from koordra.api.opaque.isolation import node_policy
from koordra.kubelet_plugin.publish.resource_slices import WITHOUT_POLICY, build_slices
from koordra.placement import plan
from koordra.topology import presets
from koordra.topology.presets.mig import mig_profiles
from tests.unit.allocator import machines

Dict = dict[str, Any]
WORDS = ("none", "limiter", "hami-core", "mps", "timeslicing", "mig")


def node_with(word: str) -> list[Dict]:
    """As its plugin publishes it: shares by this backend alone."""
    machine = presets.load("hgx-h100").machine(serial=word)
    if word == "mig":
        profiles = mig_profiles({"mig_profiles": "H100-SXM5-80GB"})
        cut = [
            replace(gpu, mig_enabled=True, mig_profiles=profiles, multiprocessors=132) for gpu in machine.gpus
        ]
        machine = replace(machine, gpus=tuple(cut))
    offering = replace(
        WITHOUT_POLICY, mig=word == "mig", mig_on_demand=word == "mig", isolation=node_policy([word])
    )
    name = f"with-{word}"
    slices = build_slices(
        machine, node_name=name, node_uid=None, mode="joint", generation=1, offering=offering
    )
    return [machines.node(name), *slices]


NODES = [one for word in WORDS for one in node_with(word)]


def by_resource_class(word: str) -> list[Dict]:
    meant = {
        "kind": "ResourceClass",
        "metadata": {"name": "kept", "uid": "1"},
        "deviceType": "mig" if word == "mig" else "gpu",
        "policy": {"gpu": {"isolation": word}},
    }
    asked = machines.request("gpu", capacity={"memory": "18Gi", "cores": "15"})
    asked["exactly"]["deviceClassName"] = "kept"
    made = resource_class.device_class(meant, lookup=lambda *_: None, own_namespace="")
    return [made, machines.claim("c", asked)]


def by_elastic_class(word: str) -> list[Dict]:
    meant = {
        "kind": "ElasticGPUClass",
        "metadata": {"name": "kept", "uid": "1"},
        "provisioner": "qgpu.provisioner.elasticgpu.io",
        "parameters": {"isolation": word},
    }
    resources = {"elasticgpu.io/gpu-memory": "18432", "elasticgpu.io/gpu-core": "15"}
    claim = {
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"elasticGPUClassName": "kept", "resources": {"requests": resources}},
    }
    read = elastic_gpu.read_class(meant)
    spec = elastic_gpu.claim_spec(elastic_gpu.requested(claim, read), read)
    return [elastic_gpu.device_class(meant), {**machines.claim("c"), "spec": spec}]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "named", [by_resource_class, by_elastic_class], ids=["resource-class", "elastic-gpu"]
)
def test_a_class_names_what_keeps_its_claims(named: Any, word: str) -> None:
    found = plan([*NODES, *named(word)])
    assert found.nodes == {"default/c": f"with-{word}"}
    devices = found.allocations["default/c"]["devices"]
    (given,) = [
        entry["opaque"]["parameters"]["isolation"]
        for entry in devices["config"]
        if entry["source"] == "FromClass" and "isolation" in entry["opaque"]["parameters"]
    ]
    assert given == word
    (result,) = devices["results"]
    assert ("-mig-1g20gb-" in result["device"]) == (word == "mig")
