"""Joint mode on a cluster: what the controller writes, the scheduler honours and kube-controller-manager
frees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from koordra import quantity
from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import Invalid
from koordra.kube.client import KubeClient
from koordra_devcluster.demo.report import worst_level
from tests.cluster.waiting import NODES, eventually

pytestmark = pytest.mark.cluster


def request(name: str, device_class: str, *, count: int | None = None, **capacity: str) -> Object:
    exactly: Object = {"deviceClassName": device_class}
    if count is not None:
        exactly["count"] = count
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    return {"name": name, "exactly": exactly}


def joint(*requests: str, scope: str = "PCIeSwitch") -> Object:
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "JointAllocation", "scope": scope}
    return {"requests": list(requests), "opaque": {"driver": names.DRIVER, "parameters": parameters}}


def ordinary_memlock(*requests: str) -> Object:
    """Locking memory without a limit takes CAP_SYS_RESOURCE, which the runtime of a test may lack."""
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "RdmaConfig", "memlock": False}
    return {"requests": list(requests), "opaque": {"driver": names.DRIVER, "parameters": parameters}}


class Workload:
    """Makes claims and pods in the test's namespace."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    def claim(self, name: str, requests: Sequence[Object], config: Sequence[Object] = ()) -> Object:
        devices: Object = {"requests": list(requests)}
        if config:
            devices["config"] = list(config)
        return self.client.create(
            kinds.RESOURCE_CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"devices": devices},
            },
        )

    def template(self, name: str, requests: Sequence[Object]) -> None:
        self.client.create(
            kinds.RESOURCE_CLAIM_TEMPLATES,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"spec": {"devices": {"requests": list(requests)}}},
            },
        )

    def pod(
        self, name: str, *, claim: str = "", template: str = "", gated: bool = False, cpu: str = "100m"
    ) -> Object:
        reference = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "nodeSelector": {"koordra.io/test": "true"},
            "resourceClaims": [{"name": "devices", **reference}],
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "resources": {"claims": [{"name": "devices"}], "requests": {"cpu": cpu}},
                }
            ],
        }
        if gated:
            spec["schedulingGates"] = [{"name": names.JOINT_GATE}]
        return self.client.create(
            kinds.PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": spec,
            },
        )

    def allocated(self, name: str) -> Object:
        """The claim, once it is allocated."""

        def look() -> Object | None:
            claim = self.client.get(kinds.RESOURCE_CLAIMS, name, namespace=self.namespace)
            return claim if objects.status_of(claim).get("allocation") else None

        return eventually(look, f"allocation of claim {name}")

    def bound(self, name: str) -> str:
        """The node of a pod, once it is bound."""

        def look() -> str | None:
            pod = self.client.get(kinds.PODS, name, namespace=self.namespace)
            return str(pod["spec"].get("nodeName") or "") or None

        return eventually(look, f"binding of pod {name}")

    def events(self, name: str) -> list[Object]:
        found, _ = self.client.list(kinds.EVENTS, namespace=self.namespace)
        return [event for event in found if event.get("involvedObject", {}).get("name") == name]


@pytest.fixture
def workload(client: KubeClient, namespace: str) -> Workload:
    return Workload(client, namespace)


def results(claim: Object) -> list[Object]:
    found: list[Object] = claim["status"]["allocation"]["devices"]["results"]
    return found


def test_slices_come_back_as_they_were_sent(nodes: dict[str, list[Object]]) -> None:
    """The API server dropped no field: what koordra relies on is served by this cluster."""
    for published in nodes.values():
        for entry in published:
            for device in entry["spec"].get("devices") or ():
                assert device["allowMultipleAllocations"] is True
                assert [taint["key"] for taint in device["taints"]] == [names.JOINT_TAINT]
                assert all("requestPolicy" in capacity for capacity in device["capacity"].values())


def test_a_pair_is_placed_together_and_the_pod_goes_there(
    workload: Workload, nodes: dict[str, list[Object]]
) -> None:
    workload.claim(
        "pair", [request("gpu", names.CLASS_GPU), request("nic", names.CLASS_NIC)], [joint("gpu", "nic")]
    )
    workload.pod("pair", claim="pair")
    claim = workload.allocated("pair")
    node = workload.bound("pair")
    assert node in NODES
    assert {result["pool"] for result in results(claim)} == {node}
    assert names.DELETE_PROTECTION in claim["metadata"]["finalizers"]
    assert claim["status"]["allocation"]["allocationTimestamp"]
    assert worst_level(claim, [entry for found in nodes.values() for entry in found]) in {"PIX", "PXB"}


def test_a_gated_pod_of_a_template_is_let_go_once_allocated(workload: Workload) -> None:
    workload.template("one", [request("gpu", names.CLASS_GPU)])
    workload.pod("gated", template="one", gated=True)
    assert workload.bound("gated") in NODES
    pod = workload.client.get(kinds.PODS, "gated", namespace=workload.namespace)
    assert not pod["spec"].get("schedulingGates")
    (claim,) = objects.pod_claim_names(pod).values()
    assert claim is not None
    reserved = workload.allocated(claim)["status"].get("reservedFor") or []
    assert [entry["name"] for entry in reserved] == ["gated"]


def test_shares_never_exceed_a_card(workload: Workload, nodes: dict[str, list[Object]]) -> None:
    """Forty shares of 30 Gi on sixteen cards of less than 80 Gi: two to a card fit, eight claims have to
    wait."""
    for number in range(40):
        workload.claim(f"share-{number:02}", [request("gpu", names.CLASS_GPU, memory="30Gi")])
        workload.pod(f"share-{number:02}", claim=f"share-{number:02}", cpu="10m")

    def settled() -> list[Object] | None:
        claims, _ = workload.client.list(kinds.RESOURCE_CLAIMS, namespace=workload.namespace)
        allocated = [claim for claim in claims if objects.status_of(claim).get("allocation")]
        return allocated if len(allocated) >= 32 else None

    allocated = eventually(settled, "allocation of 32 shares", timeout=60)
    assert len(allocated) == 32
    used: dict[tuple[str, str], int] = {}
    for claim in allocated:
        for result in results(claim):
            card = (result["pool"], result["device"])
            used[card] = used.get(card, 0) + quantity.to_int(result["consumedCapacity"]["memory"])
    sizes = {
        (node, device["name"]): quantity.to_int(device["capacity"]["memory"]["value"])
        for node, published in nodes.items()
        for entry in published
        for device in entry["spec"].get("devices") or ()
        if "memory" in device["capacity"]
    }
    assert all(amount <= sizes[card] for card, amount in used.items())


def test_what_cannot_fit_waits_and_says_why(workload: Workload) -> None:
    workload.claim("large", [request("gpu", names.CLASS_GPU, memory="120Gi")])
    workload.pod("large", claim="large")

    def told() -> list[Object]:
        return [event for event in workload.events("large") if "120Gi" in event.get("message", "")]

    event = eventually(told, "an Event that names the figure")[0]
    assert event["reason"] == "ExceedsDevice"
    assert "memory: requested 120Gi, no device has more than 79.6Gi" in event["message"]
    claim = workload.client.get(kinds.RESOURCE_CLAIMS, "large", namespace=workload.namespace)
    assert not objects.status_of(claim).get("allocation")


def test_devices_of_a_deleted_pod_are_given_to_the_next(workload: Workload) -> None:
    workload.template("all", [request("gpus", names.CLASS_GPU, count=8)])
    for name in ("first", "second"):
        workload.pod(name, template="all")
        workload.bound(name)
    workload.pod("third", template="all")
    workload.client.delete(kinds.PODS, "first", namespace=workload.namespace, grace_period=0)
    assert workload.bound("third") in NODES


def test_a_no_from_the_scheduler_gives_the_devices_back(workload: Workload) -> None:
    """The first pod asks for more CPU than any node has: it must not sit on the devices it cannot use."""
    workload.claim("greedy", [request("gpus", names.CLASS_GPU, count=8)])
    workload.pod("greedy", claim="greedy", cpu="1000")
    workload.template("all", [request("gpus", names.CLASS_GPU, count=8)])
    for name in ("modest-a", "modest-b"):
        workload.pod(name, template="all")
    assert {workload.bound("modest-a"), workload.bound("modest-b")} == set(NODES)


@pytest.mark.parametrize(
    ("name", "requests", "config", "words"),
    [
        ("no-class", [request("gpu", "no-such-class")], [], "no-such-class"),
        ("zero", [request("gpu", names.CLASS_GPU, memory="0")], [], "memory"),
        ("many", [request("gpu", names.CLASS_GPU, count=30)], [], "30"),
        (
            "unknown-field",
            [request("gpu", names.CLASS_GPU)],
            [
                {
                    "opaque": {
                        "driver": names.DRIVER,
                        "parameters": {
                            "apiVersion": "koordra.io/v1alpha1",
                            "kind": "GpuConfig",
                            "memoryPercnt": 5,
                        },
                    }
                }
            ],
            "memoryPercnt",
        ),
        (
            "bad-cel",
            [
                {
                    "name": "gpu",
                    "exactly": {
                        "deviceClassName": names.CLASS_GPU,
                        "selectors": [{"cel": {"expression": "device.driver =="}}],
                    },
                }
            ],
            [],
            "device.driver ==",
        ),
    ],
)
def test_bad_claims_are_told_and_disturb_nobody(
    workload: Workload, name: str, requests: list[Object], config: list[Object], words: str
) -> None:
    try:
        workload.claim(name, requests, config)
    except Invalid as error:
        assert words in str(error)
    else:
        workload.pod(name, claim=name)
        eventually(
            lambda: [event for event in workload.events(name) if words in event.get("message", "")],
            f"an Event on {name} that says {words!r}",
        )
    workload.claim("good", [request("gpu", names.CLASS_GPU)])
    workload.pod("good", claim="good")
    assert workload.bound("good") in NODES
