"""Pods of other schedulers go where koordra gave them their devices.

Runs where the cluster has Volcano's scheduler with DynamicResourceAllocation; on the double the stock
scheduler plays it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
import yaml

from koordra.api import kinds, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient
from tests.cluster.waiting import NODES, eventually

pytestmark = pytest.mark.cluster
EXAMPLE: Final = Path(__file__).parents[2] / "deploy/examples/scheduler-volcano/scheduler-volcano.yaml"
POD_GROUPS: Final = Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
NUMBER: Final = 6
LONG: Final = 120.0


@pytest.fixture
def group(client: KubeClient, namespace: str) -> Iterator[dict[str, str]]:
    """Annotations of a pod of Volcano's: its controller would make the PodGroup."""
    if "koordra-devcluster" in client.version():
        yield {}
        return
    try:
        client.list(POD_GROUPS, namespace=namespace)
    except ApiError:
        pytest.skip("this cluster has no Volcano")
    body: Object = {
        "apiVersion": POD_GROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {"name": "inference"},
        "spec": {"minMember": 1, "queue": "default"},
    }
    with suppress(Conflict):
        client.create(POD_GROUPS, body, namespace=namespace)
    yield {"scheduling.k8s.io/group-name": "inference"}
    with suppress(NotFound):
        client.delete(POD_GROUPS, "inference", namespace=namespace)


def test_volcano_binds_pods_to_the_nodes_of_their_allocations(
    client: KubeClient, namespace: str, group: dict[str, str]
) -> None:
    template, pod = yaml.safe_load_all(EXAMPLE.read_text())
    client.create(kinds.RESOURCE_CLAIM_TEMPLATES, template, namespace=namespace)
    named = [f"inference-{number}" for number in range(NUMBER)]
    for name in named:
        made = {**pod, "metadata": {"name": name, "annotations": dict(group)}}
        client.create(kinds.PODS, made, namespace=namespace)

    def bound() -> list[Object] | None:
        pods = [client.get(kinds.PODS, name, namespace=namespace) for name in named]
        return pods if all(objects.spec_of(one).get("nodeName") for one in pods) else None

    for one in eventually(bound, "the pods bound", timeout=LONG):
        (name,) = objects.pod_claim_names(one).values()
        claim = client.get(kinds.RESOURCE_CLAIMS, str(name), namespace=namespace)
        node = objects.spec_of(one)["nodeName"]
        assert node in NODES
        assert claims_of.node_of(claim) == node
        assert [entry["uid"] for entry in objects.status_of(claim)["reservedFor"]] == [objects.uid(one)]
        told = objects.status_of(one).get("conditions") or ()
        assert any(entry.get("type") == "PodScheduled" and entry.get("status") == "True" for entry in told)
