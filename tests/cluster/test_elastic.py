"""Elastic GPU's objects on a cluster: the README's example, shares that are retained, deletion, and objects
of other people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from koordra.api import kinds, names, objects
from koordra.api.elastic.elastic_gpu import ELASTIC_CLAIMS, ELASTIC_CLASSES, ELASTIC_GPUS, GPUS
from koordra.api.objects import Object
from koordra.errors import ApiError, NotFound
from koordra.kube.client import KubeClient
from tests.cluster import waiting
from tests.cluster.installation import ROOT, kind_of
from tests.cluster.waiting import NODES

pytestmark = pytest.mark.cluster

T = TypeVar("T")


def eventually(look: Callable[[], T | None], what: str, timeout: float = 90.0) -> T:
    return waiting.eventually(look, what, timeout)


EXAMPLE = ROOT.parent / "examples" / "elastic-gpu" / "elastic-gpu.yaml"


def typed(kind: kinds.Kind, body: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **body}


class Elastic:
    """Elastic GPU's objects in the test's namespace, and what becomes of them."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    def apply(self, path: Path) -> None:
        """As kubectl would, in the version that the manifest names; pods go to the suite's nodes."""
        for obj in yaml.safe_load_all(path.read_text()):
            if obj["kind"] == "Pod":
                self.pod_from(obj)
            else:
                kind = kind_of(obj)
                self.client.create(kind, obj, namespace=self.namespace, strict=True)

    def pod_from(self, obj: Object) -> None:
        spec = {**obj["spec"], "nodeSelector": {"koordra.io/test": "true"}}
        made = self.client.create(kinds.PODS, {**obj, "spec": spec}, namespace=self.namespace)
        assert made["spec"]["resourceClaims"], "the webhook has bound the pod to the claim that it names"

    def elastic_class(self, name: str, **fields: Any) -> None:
        body = {"metadata": {"name": name}, "provisioner": "gpushare.provisioner.elasticgpu.io", **fields}
        self.client.create(ELASTIC_CLASSES, typed(ELASTIC_CLASSES, body), strict=True)

    def elastic_claim(self, name: str, cls: str, **requests: Any) -> None:
        amounts = {f"elasticgpu.io/gpu-{key}": value for key, value in requests.items()}
        spec = {"elasticGPUClassName": cls, "resources": {"requests": amounts}}
        body = typed(ELASTIC_CLAIMS, {"metadata": {"name": name}, "spec": spec})
        self.client.create(ELASTIC_CLAIMS, body, namespace=self.namespace, strict=True)

    def pod(self, name: str, claim: str) -> None:
        annotations = {"egpuc.elasticgpu.io/main": claim}
        container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "50m"}}}
        body = {"metadata": {"name": name, "annotations": annotations}, "spec": {"containers": [container]}}
        self.pod_from({"apiVersion": "v1", "kind": "Pod", **body})

    def end(self, pod: str) -> None:
        self.client.delete(kinds.PODS, pod, namespace=self.namespace, grace_period=0)
        eventually(lambda: self.absent(kinds.PODS, pod), f"the end of pod {pod}")

    def delete(self, kind: kinds.Kind, name: str) -> None:
        self.client.delete(kind, name, namespace=self.namespace if kind.namespaced else None)

    def get(self, kind: kinds.Kind, name: str) -> Object:
        return self.client.get(kind, name, namespace=self.namespace if kind.namespaced else None)

    def absent(self, kind: kinds.Kind, name: str) -> bool:
        try:
            self.get(kind, name)
        except NotFound:
            return True
        return False

    def reaches(self, name: str, phase: str, reason: str) -> Object:
        """The claim, once it is in this phase for this reason."""

        def look() -> Object | None:
            claim = self.get(ELASTIC_CLAIMS, name)
            status = claim.get("status") or {}
            conditions = status.get("conditions") or [{}]
            return claim if (status.get("phase"), conditions[0].get("reason")) == (phase, reason) else None

        try:
            return eventually(look, f"ElasticGPUClaim {name}: {phase}, {reason}")
        except BaseException:
            print(self.get(ELASTIC_CLAIMS, name))
            raise

    def device(self, name: str) -> tuple[str, str]:
        claim = self.get(kinds.RESOURCE_CLAIMS, name)
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        return result["pool"], result["device"]

    def binding(self, name: str) -> Object:
        """The ElasticGPU of a ResourceClaim."""
        return self.get(ELASTIC_GPUS, f"egpu-{objects.uid(self.get(kinds.RESOURCE_CLAIMS, name))}")


@pytest.fixture
def elastic(client: KubeClient, namespace: str) -> Iterator[Elastic]:
    before = {objects.name(obj) for obj in client.list(ELASTIC_CLASSES)[0]}
    yield Elastic(client, namespace)
    for pod in client.list(kinds.PODS, namespace=namespace)[0]:
        client.delete(kinds.PODS, objects.name(pod), namespace=namespace, grace_period=0)
    for claim in client.list(ELASTIC_CLAIMS, namespace=namespace)[0]:
        client.delete(ELASTIC_CLAIMS, objects.name(claim), namespace=namespace)
    for obj in client.list(ELASTIC_CLASSES)[0]:
        if objects.name(obj) not in before:
            client.delete(ELASTIC_CLASSES, objects.name(obj))

    def cleared() -> bool:
        mine = [obj for obj in client.list(ELASTIC_GPUS)[0] if _of(obj, namespace)]
        for obj in mine:
            if not objects.is_deleting(obj):
                _quietly(lambda obj=obj: client.delete(ELASTIC_GPUS, objects.name(obj)))
        return not mine

    eventually(cleared, "the ElasticGPUs' end")


def _of(binding: Object, namespace: str) -> bool:
    return (binding.get("spec") or {}).get("claimRef", {}).get("namespace") == namespace


def _quietly(step: Callable[[], None]) -> None:
    try:
        step()
    except ApiError:
        return


def test_the_example_of_the_readme(elastic: Elastic, client: KubeClient) -> None:
    elastic.apply(EXAMPLE)
    for number in (1, 2):
        elastic.reaches(f"gpushare-egpuc-{number}", "Bound", "Bound")
        eventually(
            lambda number=number: elastic.get(kinds.PODS, f"test-cuda-{number}")["spec"].get("nodeName"),
            f"pod test-cuda-{number} on a node",
        )
    one, two = elastic.device("gpushare-egpuc-1"), elastic.device("gpushare-egpuc-2")
    assert one == two, "two small shares are packed on one card"
    pod = elastic.get(kinds.PODS, "test-cuda-1")
    assert pod["spec"]["nodeName"] == one[0]
    binding = elastic.binding("gpushare-egpuc-1")
    assert binding["spec"]["capacity"] == {"elasticgpu.io/gpu-core": "10", "elasticgpu.io/gpu-memory": "4"}

    def shown() -> Object | None:
        card = client.get(GPUS, f"{one[0]}-{one[1]}")
        pods = {entry.get("pod") for entry in (card["status"].get("allocated") or {}).values()}
        return card if pods == {"test-cuda-1", "test-cuda-2"} else None

    card = eventually(shown, "both pods on the GPU object")
    assert card["status"]["allocatable"]["elasticgpu.io/gpu-core"] == "80"
    assert card["spec"]["uuid"] == binding["spec"]["gpuShare"]["uuid"]
    assert binding["spec"]["gpuShare"]["gpuName"] == objects.name(card)

    elastic.end("test-cuda-1")
    elastic.delete(ELASTIC_CLAIMS, "gpushare-egpuc-1")
    eventually(
        lambda: (elastic.binding("gpushare-egpuc-1").get("status") or {}).get("phase") == "Released",
        "the share of the deleted claim kept, Released",
    )
    assert elastic.device("gpushare-egpuc-1") == one
    elastic.delete(ELASTIC_GPUS, objects.name(binding))
    eventually(lambda: elastic.absent(kinds.RESOURCE_CLAIMS, "gpushare-egpuc-1"), "the share free again")
    eventually(lambda: elastic.absent(ELASTIC_GPUS, objects.name(binding)), "its ElasticGPU gone")


def test_a_share_that_waits_for_its_pod_and_is_free_afterwards(elastic: Elastic) -> None:
    elastic.elastic_class("koordra-test-waits")
    elastic.elastic_claim("w", "koordra-test-waits", core=30, memory="8Gi")
    elastic.reaches("w", "Pending", "WaitForFirstConsumer")
    elastic.pod("user", "w")
    elastic.reaches("w", "Bound", "Bound")
    binding = objects.name(elastic.binding("w"))
    eventually(lambda: elastic.get(kinds.PODS, "user")["spec"].get("nodeName"), "the pod on a node")
    elastic.end("user")
    elastic.reaches("w", "Pending", "WaitForFirstConsumer")
    eventually(lambda: elastic.absent(ELASTIC_GPUS, binding), "its ElasticGPU gone")
    elastic.delete(ELASTIC_CLAIMS, "w")
    eventually(lambda: elastic.absent(kinds.RESOURCE_CLAIMS, "w"), "its ResourceClaim gone")


def test_a_retained_share_stays_between_pods(elastic: Elastic) -> None:
    elastic.elastic_class("koordra-test-retains", reclaimPolicy="Retain")
    elastic.elastic_claim("r", "koordra-test-retains", core=20, memory=2048)
    elastic.pod("first", "r")
    elastic.reaches("r", "Bound", "Bound")
    before = elastic.device("r")
    claim = elastic.get(kinds.RESOURCE_CLAIMS, "r")
    assert claim["metadata"]["finalizers"] == [names.RETAIN_FINALIZER]
    eventually(
        lambda: objects.annotations_of(elastic.get(kinds.RESOURCE_CLAIMS, "r")).get(names.MODE_LABEL),
        "the claim marked as one that keeps its devices",
    )
    elastic.end("first")
    eventually(
        lambda: not elastic.get(kinds.RESOURCE_CLAIMS, "r")["status"].get("reservedFor"),
        "the claim without consumers",
    )
    assert elastic.device("r") == before
    elastic.pod("second", "r")
    eventually(
        lambda: elastic.get(kinds.PODS, "second")["spec"].get("nodeName") == before[0], "the same node"
    )
    assert elastic.device("r") == before


def test_deletion_of_a_claim_that_a_pod_uses(elastic: Elastic) -> None:
    elastic.elastic_class("koordra-test-deletes", egpuBindingMode="Immediate")
    elastic.elastic_claim("d", "koordra-test-deletes", core=20, memory=2048)
    elastic.reaches("d", "Bound", "Bound")
    elastic.pod("user", "d")
    eventually(lambda: elastic.get(kinds.PODS, "user")["spec"].get("nodeName"), "the pod on a node")
    elastic.delete(ELASTIC_CLAIMS, "d")
    eventually(
        lambda: (elastic.binding("d").get("status") or {}).get("reason") == "BeingDeleted",
        "the ElasticGPU says so",
    )
    assert elastic.device("d")
    elastic.end("user")
    eventually(lambda: elastic.absent(kinds.RESOURCE_CLAIMS, "d"), "its ResourceClaim gone")


def test_objects_of_other_people_and_bad_input(elastic: Elastic, client: KubeClient) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": names.CLASS_GPU}}
    theirs = {"metadata": {"name": "taken"}, "spec": {"devices": {"requests": [request]}}}
    before = client.create(
        kinds.RESOURCE_CLAIMS, typed(kinds.RESOURCE_CLAIMS, theirs), namespace=elastic.namespace
    )
    elastic.elastic_class("koordra-test-bad")
    elastic.elastic_claim("taken", "koordra-test-bad", core=10, memory=4)
    elastic.elastic_claim("odd", "koordra-test-bad", core="0.5", memory=4)
    elastic.elastic_claim("lost", "koordra-test-nobody", core=10, memory=4)
    elastic.reaches("taken", "Pending", "NameTaken")
    elastic.reaches("odd", "Pending", "InvalidClaim")
    elastic.reaches("lost", "Pending", "NoSuchClass")
    assert objects.uid(elastic.get(kinds.RESOURCE_CLAIMS, "taken")) == objects.uid(before)
    elastic.elastic_class(names.CLASS_NIC)
    try:
        condition = eventually(
            lambda: (client.get(ELASTIC_CLASSES, names.CLASS_NIC).get("status") or {}).get("conditions"),
            "a condition on the class",
        )[0]
        assert (condition["status"], condition["reason"]) == ("False", "NameTaken")
    finally:
        client.delete(ELASTIC_CLASSES, names.CLASS_NIC)


def test_the_cards_are_shown(elastic: Elastic, client: KubeClient) -> None:
    del elastic
    for node in NODES:
        found = [obj for obj in client.list(GPUS)[0] if obj["spec"].get("nodeName") == node]
        assert len(found) == 8
        assert {obj["spec"]["index"] for obj in found} == set(range(8))
        assert all(obj["spec"]["memory"] > 80000 for obj in found)
    name, index = objects.name(found[0]), found[0]["spec"]["index"]
    client.patch(GPUS, name, {"spec": {"index": 77}})
    eventually(lambda: client.get(GPUS, name)["spec"]["index"] == index, "the card shown as it is")
