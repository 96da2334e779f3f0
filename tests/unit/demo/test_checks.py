"""What is wrong with a file is found before anything is started, with object, field and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from koordra.api.objects import Object
from koordra_devcluster.demo import checks, manifests
from koordra_devcluster.demo.needs import Needs
from koordra_devcluster.demo.programs import installed

POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims: [{name: d, resourceClaimName: c}]
  containers: [{name: m, image: busybox, resources: {claims: [{name: d}]}}]
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.koordra.io}}]}}
"""
RESOURCE_CLASS = """
apiVersion: koordra.io/v1alpha1
kind: ResourceClass
metadata: {name: fast}
deviceType: gpu
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: m, image: busybox, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


def told(text: str) -> list[str]:
    documents: list[Object] = list(yaml.safe_load_all(text))
    needs = Needs.of(documents)
    found = checks.problems(documents, installed=installed(needs), gates=needs.gates)
    return [str(problem) for problem in found]


def test_a_config_map_that_need_not_be_there_is_not_missed() -> None:
    optional = "volumes: [{name: v, configMap: {name: x, optional: true}}], containers:"
    assert told(DEPLOYMENT.replace("containers:", optional)) == []


def test_what_is_right_is_not_complained_of() -> None:
    assert told(f"{POD}---{CLAIM}---{DEPLOYMENT}") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (POD, "Pod p: spec.resourceClaims[0].resourceClaimName: there is no ResourceClaim c; add it to the file"),
        (
            POD.replace("resourceClaimName: c", "resourceClaimName: cards") + "---" + CLAIM.replace("name: c", "name: card"),
            "there is no ResourceClaim cards; write card",
        ),
        (
            POD.replace("resourceClaimName", "resourceClaimTemplateName"),
            "spec.resourceClaims[0].resourceClaimTemplateName: there is no ResourceClaimTemplate c",
        ),
        (
            CLAIM.replace("gpu.koordra.io", "gpus.koordra.io"),
            ("ResourceClaim c: spec.devices.requests[0].exactly.deviceClassName: there is no DeviceClass "
            "gpus.koordra.io; write gpu.koordra.io"),
        ),
        (
            CLAIM.replace("resource.k8s.io/v1", "resource.k8s.io/v1alpha2"),
            "koordra convert -f FILE translates what classic DRA said; or write resource.k8s.io/v1 ResourceClaim",
        ),
        (
            DEPLOYMENT.replace("containers:", "volumes: [{name: v, configMap: {name: progams}}], containers:")
            + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: programs}\n",
            "Deployment web: spec.template.spec.volumes[0]: there is no ConfigMap progams; write programs",
        ),
        (
            RESOURCE_CLASS + "selectors: [{cel: {expression: device.atributes}}]",
            "ResourceClass fast: selectors: 'device.atributes' is no selector",
        ),
        (
            RESOURCE_CLASS + "parametersRef: {apiGroup: koordra.io, kind: ResourceClassParameters, name: x}",
            "ResourceClass fast: parametersRef: there is no ResourceClassParameters koordra-system/x",
        ),
        (
            RESOURCE_CLASS.replace("fast", "gpu.koordra.io"),
            "there is a DeviceClass gpu.koordra.io that does not belong to this class",
        ),
        (CLAIM.replace("exactly:", "exact:"), 'unknown field "spec.devices.requests[0].exact"'),
        (
            CLAIM.replace("gpu.koordra.io}", "gpu.koordra.io, count: -1}"),
            "ResourceClaim c: spec.devices.requests[0].exactly.count: Invalid value: -1",
        ),
        (
            CLAIM.replace("gpu.koordra.io}", 'gpu.koordra.io, selectors: [{cel: {expression: "device.driver =="}}]}'),
            "ResourceClaim c: spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value",
        ),
        (
            CLAIM.replace(
                "requests:",
                "config: [{opaque: {driver: koordra.io, parameters: {apiVersion: koordra.io/v1alpha1, kind: GpuConfig, "
                "memoryPercnt: 5}}}], requests:",
            ),
            "did you mean memoryPercent?",
        ),
        (CLAIM.replace("/v1", "/v1beta1"), ("ResourceClaim c: kind: the demo serves no resource.k8s.io/v1beta1 "
         "ResourceClaim; write resource.k8s.io/v1 ResourceClaim")),
        (POD.replace("kind: Pod", "kind: Pdo"), "Pdo p: kind: the demo serves no v1 Pdo; write v1 Pod"),
        (
            "apiVersion: example.com/v1\nkind: Frobnicator\nmetadata: {name: t}",
            "Frobnicator t: kind: the demo serves no example.com/v1 Frobnicator; put its CustomResourceDefinition",
        ),
        (CLAIM.replace("name: c", "name: c, namespace: team"), "put a Namespace of that name into the file"),
        (CLAIM + "---" + CLAIM, "already exists; the manifests have it twice"),
        (DEPLOYMENT.replace("{a: b}}\n  template", "{a: c}}\n  template"), "Deployment web: spec.template.metadata.labels"),
        (
            DEPLOYMENT.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 1, tencent.com/vcuda-core: 10"),
            "a pod speaks one dialect",
        ),
        (
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {egpuc.elasticgpu.io/m: lost}}\n"
            "spec: {containers: [{name: m, image: busybox}]}"),
            "metadata.annotations[egpuc.elasticgpu.io/m]: there is no ElasticGPUClaim lost",
        ),
        (
            "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: s}\nspec: {replicatedJob: []}",
            'unknown field "spec.replicatedJob"',
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    assert any(words in one for one in told(text)), told(text)


def test_every_mistake_is_told_at_once() -> None:
    found = told((Path(__file__).parents[2] / "demo" / "mistakes.yaml").read_text())
    for words in (
        "ResourceClaim no-class: spec.devices.requests[0].exactly.deviceClassName: there is no DeviceClass",
        "ResourceClaim bad-cel: spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value",
        "GpuConfig has no field 'memoryPercnt' (did you mean memoryPercent?)",
        "Deployment unknown: spec",
    ):
        assert any(words in one for one in found), (words, found)
    assert not any("good" in one or "many" in one for one in found)


def test_a_namespace_of_the_file_is_there() -> None:
    own = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team}"
    assert told(f"{CLAIM.replace('name: c', 'name: c, namespace: team')}---\n{own}") == []


def test_the_shipped_examples_are_right() -> None:
    documents = manifests.shipped(manifests.deploy_folder())
    assert checks.problems(documents, installed=installed(Needs.of(documents))) == []
