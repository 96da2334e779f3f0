"""The whole controller (watches, lease, worker, Events) over HTTP on the development cluster, beside its
scheduler and claim loops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from koordra.api import names, objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from koordra.api.objects import Object
from koordra.controller.allocation.interpod_predicates import InterPodPredicates
from koordra.controller.reconcile.leadership import LeaseTimes
from koordra.controller.run import LEASE_NAME, run
from koordra.controller.settings import Settings
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A control plane with two nodes of two GPUs each and koordra's classes."""
    stop = threading.Event()
    plane = ControlPlane(tmp_path_factory.mktemp("cluster"), first_backoff=0.1)
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))
    for name, sort in ((names.CLASS_GPU, "gpu"), (names.CLASS_NIC, "nic")):
        client.create(DEVICE_CLASSES, device_class(name, sort))
    for name in ("n0", "n1"):
        made = client.create(NODES, node(name))
        client.update(NODES, {**made, "status": node(name)["status"]}, subresource="status")
        client.create(RESOURCE_SLICES, gpu_slice(name, 2))
    yield str(plane.kubeconfig)
    stop.set()
    plane.close()


@pytest.fixture
def client(kubeconfig: str) -> Iterator[KubeClient]:
    """A client; what a test leaves behind is deleted, and the claims are waited for."""
    found = new_client(kubeconfig)
    yield found
    for kind in (PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS):
        for entry in found.list(kind)[0]:
            delete(found, kind, objects.name(entry))
    eventually(lambda: not found.list(RESOURCE_CLAIMS)[0])


@pytest.fixture
def controller(kubeconfig: str) -> Iterator[Callable[..., Callable[[], None]]]:
    """Start a controller; the answer stops it. All are stopped at the end."""
    stops: list[Callable[[], None]] = []

    def start(
        *, identity: str = "one", leader_elect: bool = False, times: LeaseTimes | None = None
    ) -> Callable[[], None]:
        stop = threading.Event()
        settings = Settings(identity=identity, leader_elect=leader_elect, times=times or LeaseTimes())
        own = new_client(kubeconfig, timeout=settings.times.timeout, user_agent="koordra-controller")
        thread = threading.Thread(target=run, args=(own, settings), kwargs={"stop": stop}, daemon=True)
        thread.start()

        def end() -> None:
            stop.set()
            thread.join(PATIENCE)
            assert not thread.is_alive()

        stops.append(end)
        return end

    yield start
    for end in stops:
        end()


def delete(client: KubeClient, kind: object, name: str) -> None:
    try:
        client.delete(kind, name, namespace="default", grace_period=0)  # type: ignore[arg-type]
    except NotFound:
        return


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def node_of(client: KubeClient, name: str) -> str | None:
    return objects.spec_of(client.get(PODS, name, namespace="default")).get("nodeName")


def claim_of(client: KubeClient, pod_name: str) -> Object:
    names_of = objects.pod_claim_names(client.get(PODS, pod_name, namespace="default"))
    (claim_name,) = names_of.values()
    assert claim_name is not None
    return client.get(RESOURCE_CLAIMS, claim_name, namespace="default")


def event_reasons(client: KubeClient, name: str) -> dict[str, str]:
    return {
        event["reason"]: event["message"]
        for event in client.list(EVENTS)[0]
        if event["involvedObject"]["name"] == name
        and event.get("source", {}).get("component") == "koordra-controller"
    }


def with_template(client: KubeClient, name: str, **spec: object) -> None:
    """A template for one GPU and a pod that uses it."""
    template = {"metadata": {"name": name}, "spec": {"spec": claim("x")["spec"]}}
    client.create(RESOURCE_CLAIM_TEMPLATES, template)
    made = pod(name, (), **spec)  # type: ignore[arg-type]
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": name}]
    client.create(PODS, made)


def test_gated_and_ungated_pods_are_bound_and_their_claims_freed(
    client: KubeClient, controller: Callable[..., object]
) -> None:
    controller()
    with_template(client, "gated", gates=[names.JOINT_GATE])
    client.create(RESOURCE_CLAIMS, claim("plain"))
    client.create(PODS, pod("ungated", ["plain"]))
    eventually(lambda: node_of(client, "gated") and node_of(client, "ungated"))
    for name in ("gated", "ungated"):
        held = claim_of(client, name)
        assert held["status"]["reservedFor"][0]["name"] == name
        assert names.DELETE_PROTECTION in held["metadata"]["finalizers"]
    eventually(lambda: "Allocated" in event_reasons(client, "plain"))
    delete(client, PODS, "gated")
    delete(client, PODS, "ungated")
    eventually(lambda: len(client.list(RESOURCE_CLAIMS)[0]) == 1)
    eventually(
        lambda: (
            not client.get(RESOURCE_CLAIMS, "plain", namespace="default").get("status", {}).get("allocation")
        )
    )


def test_a_claim_that_cannot_fit_is_told_why(client: KubeClient, controller: Callable[..., object]) -> None:
    controller()
    client.create(RESOURCE_CLAIMS, claim("too-large", memory="120Gi"))
    client.create(PODS, pod("waits", ["too-large"]))
    eventually(lambda: "ExceedsDevice" in event_reasons(client, "too-large"))
    message = event_reasons(client, "too-large")["ExceedsDevice"]
    assert "memory: requested 120Gi, no device has more than 80Gi" in message
    eventually(lambda: event_reasons(client, "waits") == {"ExceedsDevice": message})


@pytest.mark.parametrize(
    ("asked", "spec", "reason", "message"),
    [
        (
            {"count": 3},
            {},
            "ExceedsDevice",
            "claim many: request gpu, 2 nodes: devices: requested 3 of class gpu.koordra.io, no node has more than 2",
        ),
        (
            {},
            {"nodeSelector": {"kubernetes.io/hostname": "elsewhere"}},
            "NodeUnsuitable",
            "claim pinned: node elsewhere, where the pod has to run (nodeSelector kubernetes.io/hostname), does not exist",
        ),
        (
            {},
            {"nodeSelector": {"zone": "z9"}},
            "NodeUnsuitable",
            "claim zoned: 2 nodes: nodeSelector zone: required z9, the node has no such label",
        ),
    ],
)
def test_an_event_tells_of_all_nodes(
    client: KubeClient,
    controller: Callable[..., object],
    asked: dict[str, int],
    spec: dict[str, object],
    reason: str,
    message: str,
) -> None:
    """A sample of what tests/unit/explain/waiting has offline."""
    controller()
    name = message.partition(":")[0].removeprefix("claim ")
    client.create(RESOURCE_CLAIMS, claim(name, **asked))
    client.create(PODS, pod(name, [name], **spec))
    eventually(lambda: reason in event_reasons(client, name))
    assert event_reasons(client, name) == {reason: message}


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller does not see host ports, so that the scheduler has to say no."""
    monkeypatch.setattr(InterPodPredicates, "of", lambda _self, _group: {})


def test_host_ports_are_seen_beforehand(client: KubeClient, controller: Callable[..., object]) -> None:
    controller()
    port = [{"name": "main", "image": "busybox", "ports": [{"containerPort": 80, "hostPort": 8079}]}]
    for name in ("n0", "n1"):
        client.create(
            PODS, pod(f"holds-{name}", [], containers=port, nodeSelector={"kubernetes.io/hostname": name})
        )
        eventually(lambda name=name: node_of(client, f"holds-{name}"))
    with_template(client, "wants-too", gates=[names.JOINT_GATE], containers=port)
    eventually(lambda: "NodeUnsuitable" in event_reasons(client, "wants-too"))
    assert (
        "host port TCP/8079 is taken by pod default/holds-n0"
        in event_reasons(client, "wants-too")["NodeUnsuitable"]
    )
    delete(client, PODS, "holds-n1")
    eventually(lambda: node_of(client, "wants-too") == "n1")


def test_a_scheduler_that_erases_the_allocation_gets_another_node(
    client: KubeClient, controller: Callable[..., object], blind: None
) -> None:
    """The host port is taken where the devices were chosen."""
    del blind
    controller()
    port = [{"name": "main", "image": "busybox", "ports": [{"containerPort": 80, "hostPort": 8080}]}]
    client.create(PODS, pod("holder", [], containers=port, nodeSelector={"kubernetes.io/hostname": "n0"}))
    eventually(lambda: node_of(client, "holder") == "n0")
    with_template(client, "wants-port", gates=[names.JOINT_GATE], containers=port)
    eventually(lambda: node_of(client, "wants-port"))
    assert node_of(client, "wants-port") == "n1"


def test_a_scheduler_that_leaves_the_allocation_is_understood_too(
    client: KubeClient, controller: Callable[..., object], blind: None
) -> None:
    del blind
    controller()
    port = [{"name": "main", "image": "busybox", "ports": [{"containerPort": 80, "hostPort": 8081}]}]
    for name in ("n0", "n1"):
        client.create(
            PODS, pod(f"holder-{name}", [], containers=port, nodeSelector={"kubernetes.io/hostname": name})
        )
        eventually(lambda name=name: node_of(client, f"holder-{name}"))
    with_template(client, "wants-port", gates=[names.JOINT_GATE], containers=port)
    eventually(lambda: "AllocationRefused" in event_reasons(client, "wants-port"))
    delete(client, PODS, "holder-n1")
    eventually(lambda: node_of(client, "wants-port") == "n1")


def test_bad_manifests_do_not_disturb_others(client: KubeClient, controller: Callable[..., object]) -> None:
    controller()
    bad = claim("bad")
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "JointAllocation", "scoop": "Node"}
    bad["spec"]["devices"]["config"] = [{"opaque": {"driver": "koordra.io", "parameters": parameters}}]
    client.create(RESOURCE_CLAIMS, bad)
    client.create(RESOURCE_CLAIMS, claim("lost", device_class="lost.koordra.io"))
    client.create(RESOURCE_CLAIMS, claim("good"))
    for name in ("bad", "lost", "good"):
        client.create(PODS, pod(name, [name]))
    eventually(lambda: node_of(client, "good"))
    eventually(lambda: any("scope" in message for message in event_reasons(client, "bad").values()))
    eventually(
        lambda: any("lost.koordra.io" in message for message in event_reasons(client, "lost").values())
    )


def test_a_controller_that_was_stopped_half_way_is_made_good_by_the_next(
    client: KubeClient, controller: Callable[..., Callable[[], None]]
) -> None:
    """Allocated, but the gate not lifted: what a kill between the two writes leaves."""
    end = controller()
    with_template(client, "first", gates=[names.JOINT_GATE, "example.org/hold"])
    eventually(lambda: objects.pod_claim_names(client.get(PODS, "first", namespace="default"))["gpu"])
    end()
    held = claim_of(client, "first")
    allocation = {
        "allocationTimestamp": "2026-11-21T00:00:00Z",
        "devices": {"results": [{"request": "gpu", "driver": "koordra.io", "pool": "n1", "device": "gpu-0"}]},
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
            ]
        },
    }
    client.patch(
        RESOURCE_CLAIMS,
        objects.name(held),
        {"metadata": {"finalizers": [names.DELETE_PROTECTION]}},
        namespace="default",
    )
    client.patch(
        RESOURCE_CLAIMS,
        objects.name(held),
        {"status": {"allocation": allocation}},
        namespace="default",
        subresource="status",
    )
    gates = {"spec": {"schedulingGates": [{"name": names.JOINT_GATE}]}}
    client.patch(PODS, "first", gates, namespace="default")
    controller(identity="two")
    eventually(lambda: node_of(client, "first") == "n1")


def test_a_standby_takes_over_when_the_leader_goes(
    client: KubeClient, controller: Callable[..., Callable[[], None]]
) -> None:
    times = LeaseTimes(lease=60.0, retry=0.5, timeout=10.0)
    place = {"name": LEASE_NAME, "namespace": "koordra-system"}
    free = {"holderIdentity": "", "leaseDurationSeconds": 1}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": place, "spec": free}
    client.create(LEASES, lease, namespace="koordra-system")
    end = controller(identity="one", leader_elect=True, times=times)

    def holder() -> str:
        lease = client.get(LEASES, LEASE_NAME, namespace="koordra-system")
        return str(objects.spec_of(lease)["holderIdentity"])

    eventually(lambda: holder() == "one")
    controller(identity="two", leader_elect=True, times=times)
    with_template(client, "before")
    eventually(lambda: node_of(client, "before"))
    assert holder() == "one"
    end()
    with_template(client, "after")
    eventually(lambda: node_of(client, "after"))
    assert holder() == "two"
