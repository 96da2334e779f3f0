"""A StatefulSet whose pods come one after the other, on a development cluster: its own controller makes them,
and koordra's, a process, knows from the StatefulSet what comes."""

from __future__ import annotations

import pytest

from koordra.api import names, objects
from koordra.api.kinds import PODS
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import STATEFUL_SETS
from tests.unit.controller.test_killed_leaders import Controllers
from tests.unit.gangs.test_seats_on_devcluster import (
    bound,
    client,
    controllers,
    eventually,
    held,
    plane,
    start,
)

__all__ = ["client", "controllers", "plane"]

pytestmark = pytest.mark.long


def node_of(client: KubeClient, pod: str) -> str:
    found = client.list(PODS, namespace="default", field_selector=f"metadata.name={pod}")[0]
    return next((str(objects.spec_of(one).get("nodeName") or "") for one in found), "")


def test_a_stateful_set_starts_in_order_and_nobody_takes_the_place_of_who_comes(
    client: KubeClient, controllers: Controllers
) -> None:
    controllers.start()
    template = {
        "metadata": {"annotations": {GANG: "db", GANG_MIN: "2"}, "labels": {"app": "db"}},
        "spec": {
            "schedulingGates": [{"name": names.JOINT_GATE}],
            "containers": [{"name": "main", "image": "busybox"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "pair"}],
        },
    }
    spec = {
        "replicas": 2,
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": template,
    }
    client.create(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": spec}, namespace="default")
    eventually(lambda: node_of(client, "db-0"))
    assert held(client) == 1
    start(client, "late", 1)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    client.patch(PODS, "db-0", {"status": ready}, namespace="default", subresource="status")
    eventually(lambda: node_of(client, "db-1"))
    assert {node_of(client, "db-0"), node_of(client, "db-1")} == {"n0", "n1"}
    eventually(lambda: held(client) == 0)
    assert bound(client, "late") == {}
