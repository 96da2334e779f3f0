"""What the programs of a node read and write with their own accounts where it takes a container that has what
it should not have, a network of somebody else's or Koordinator's scheduler to have them do it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import Conflict, Forbidden, Invalid, KoordraError, NotFound
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.network.address_pools import read_pools
from koordra.kubelet_plugin.network.consumers import NETWORK_ATTACHMENTS, RESOURCE_NAME, ClaimSource
from koordra.kubelet_plugin.network.node_parts import NAME, NodeParts
from koordra.nri.hook.koordinator import admission_policy
from koordra.nri.hook.ledger import GrantedDevice
from koordra.nri.hook.oci import Container
from koordra.nri.hook.system_pods import SystemPods
from koordra.nri.verify.api_reporter import ISOLATION_DRIFT, ApiReporter
from koordra.nri.verify.drift import Drift, Finding
from tests.cluster.conftest import As
from tests.cluster.definitions import defined
from tests.cluster.installation import documents, kind_of
from tests.cluster.test_gangs import pod_spec
from tests.cluster.test_joint_allocation import Workload, request, results
from tests.cluster.waiting import NODES, eventually
from tests.cluster.without_kubelet import events_of

pytestmark = pytest.mark.cluster

HOOK, PLUGIN, SYSTEM = "koordra-nri", "koordra-kubelet-plugin", "koordra-system"
REFUSED = (Forbidden, Invalid)
POOL = """
schema: koordra.io/network-pools/v1
pools: [{name: rails, perNode: 29, networks: [{cidr: 203.0.113.0/24}]}]
"""


def bound(client: KubeClient, namespace: str, device_class: str, **annotations: str) -> Object:
    """The claim of a pod that is bound."""
    workload = Workload(client, namespace)
    workload.template("one", [request("device", device_class)])
    meta = {"name": "bound", "annotations": annotations}
    client.create(kinds.PODS, {"metadata": meta, "spec": pod_spec("one")}, namespace=namespace)
    workload.bound("bound")
    (name,) = objects.pod_claim_names(client.get(kinds.PODS, "bound", namespace=namespace)).values()
    return client.get(kinds.RESOURCE_CLAIMS, str(name), namespace=namespace)


def conditions(client: KubeClient, claim: Object) -> dict[str, str]:
    """Of its only device."""
    found = client.get(kinds.RESOURCE_CLAIMS, objects.name(claim), namespace=objects.namespace(claim))
    (device,) = objects.status_of(found)["devices"]
    return {one["type"]: one["status"] for one in device["conditions"]}


def test_the_hook_says_of_a_claim_whose_container_has_more_and_asks_whether_a_pod_is_the_nodes(
    client: KubeClient, account: As, namespace: str
) -> None:
    claim = bound(client, namespace, names.CLASS_GPU)
    pod = client.get(kinds.PODS, "bound", namespace=namespace)
    (result,) = results(claim)
    hook = account(HOOK, result["pool"])
    container = Container(namespace, "bound", "main", id=uuid4().hex, pod_uid=objects.uid(pod))
    device = GrantedDevice(
        namespace,
        objects.name(claim),
        objects.uid(claim),
        result["device"],
        names.TYPE_GPU,
        result.get("shareID"),
    )
    finding = Finding(container, Drift("ForeignDevice", "it can open gpu-x", (device,)))
    reporter = ApiReporter(hook, result["pool"])
    reporter.found(finding)
    assert conditions(client, claim) == {"Isolated": "False"}
    assert ISOLATION_DRIFT in {event["reason"] for event in events_of(client, pod)}
    reporter.gone(finding)
    assert conditions(client, claim) == {"Isolated": "True"}
    confined = replace(finding, drift=replace(finding.drift, kind="NotConfined"))
    elsewhere = next(node for node in NODES if node != result["pool"])
    with suppress(Forbidden):
        ApiReporter(account(HOOK, elsewhere), result["pool"]).found(confined)
    assert conditions(client, claim) == {"Isolated": "True"}, "written by another node"

    assert SystemPods(client=hook).critical(container) == ""
    critical = {**pod_spec("none"), "priorityClassName": "system-node-critical", "resourceClaims": []}
    critical["containers"][0]["resources"] = {}
    body = {"metadata": {"name": "critical"}, "spec": critical}
    made = client.create(kinds.PODS, body, namespace=namespace)
    of_node = replace(container, pod="critical", pod_uid=objects.uid(made))
    assert SystemPods(client=hook).critical(of_node) == "its priority is system-node-critical"


def test_the_plugin_reads_which_networks_multus_gives_the_pods_of_a_nic(
    client: KubeClient, account: As, namespace: str
) -> None:
    meta = {"name": "fabric", "annotations": {RESOURCE_NAME: "example.com/fabric"}}
    said = {**NETWORK_ATTACHMENTS.type_meta, "metadata": meta}
    with defined(client, [NETWORK_ATTACHMENTS]):
        client.create(NETWORK_ATTACHMENTS, {**said, "spec": {"config": "{}"}}, namespace=namespace)
        claim = bound(client, namespace, names.CLASS_NIC, **{"k8s.v1.cni.cncf.io/networks": "fabric"})
        source = ClaimSource(account(PLUGIN, results(claim)[0]["pool"]))
        found = source.consumers(source.get(namespace, objects.name(claim)))
        pod = client.get(kinds.PODS, "bound", namespace=namespace)
        assert (found.pods, found.resources) == ((objects.uid(pod),), {"example.com/fabric"})
        client.delete(NETWORK_ATTACHMENTS, "fabric", namespace=namespace)


def test_each_node_takes_a_part_of_a_network_for_itself(client: KubeClient, account: As) -> None:
    pool = read_pools(POOL, source="pools.yaml")["rails"]
    plugins = [account(PLUGIN, node) for node in NODES]
    try:
        taken = [
            NodeParts(own, node=node, namespace=SYSTEM).of(pool).parts
            for own, node in zip(plugins, NODES, strict=True)
        ]
        assert taken[0] != taken[1]
        assert NodeParts(plugins[0], node=NODES[0], namespace=SYSTEM).of(pool).parts == taken[0]
        with pytest.raises(REFUSED, match="for its own node only"):
            plugins[0].patch(CONFIG_MAPS, NAME, {"data": {"198.51.100.0-24": NODES[1]}}, namespace=SYSTEM)
        with pytest.raises(REFUSED, match="does not take or change"):
            plugins[0].patch(CONFIG_MAPS, NAME, {"data": {_key(taken[1][0]): NODES[0]}}, namespace=SYSTEM)
    finally:
        client.patch(CONFIG_MAPS, NAME, {"data": None}, namespace=SYSTEM)


def _key(part: object) -> str:
    return str(part).replace("/", "-")


@pytest.fixture
def koordinator(client: KubeClient) -> Iterator[None]:
    """The component, but for what is of the workloads."""
    shipped = [obj for _, obj in documents(folders=("nri/koordinator",))]
    for obj in shipped:
        with suppress(Conflict):
            client.create(kind_of(obj), obj)
    yield
    for obj in shipped:
        with suppress(NotFound):
            client.delete(kind_of(obj), objects.name(obj))


def test_the_hook_serves_koordinators_pods_where_nobody_else_may_write_its_annotation(
    account: As, client: KubeClient, namespace: str, koordinator: None
) -> None:
    hook = account(HOOK, NODES[0])
    admission_policy.require(hook, scheduler=admission_policy.DEFAULT_SCHEDULER)
    with pytest.raises(KoordraError, match="lets only somebody"):
        admission_policy.require(hook, scheduler="somebody")
    meta = {"name": "forged", "annotations": {admission_policy.ANNOTATION: "{}"}}
    spec = {"containers": [{"name": "main", "image": "x"}]}

    def is_refused() -> bool:
        """A new policy counts after a moment."""
        try:
            client.create(kinds.PODS, {"metadata": meta, "spec": spec}, namespace=namespace)
        except REFUSED as error:
            return "may set, change or remove it" in str(error)
        client.delete(kinds.PODS, "forged", namespace=namespace, grace_period=0)
        return False

    eventually(is_refused, "the annotation's protection")
