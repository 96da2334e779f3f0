"""LeaderWorkerSets, whose StatefulSets the cluster's own controller serves: where there is room for one group
and a half, never do two leaders wait for their workers; and a group that is made anew gets its seats back.

Two racks of two nodes of eight GPUs; each pod takes a node. What tells the racks apart is no level of the
network to anybody: exclusive-topology alone says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.kube.client import KubeClient
from tests.cluster.leader_worker_set import LeaderWorkerSet, operator
from tests.cluster.nodes import made_up
from tests.cluster.test_gangs import PATIENCE, pod_spec
from tests.cluster.test_joint_allocation import Workload, request, results
from tests.cluster.waiting import eventually
from tests.cluster.without_kubelet import ends_deleted, events_of, runs

pytestmark = pytest.mark.cluster

RACK, HERE = "example.com/pool", {"koordra.io/test-leaders": "true"}
NODES = {
    f"koordra-test-{rack}{number}": {RACK: rack, **HERE} for rack in ("east", "west") for number in range(2)
}


@pytest.fixture(scope="module")
def racks(client: KubeClient, controller: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    del controller
    with made_up(client, NODES, tmp_path_factory.mktemp("racks")):
        yield


@pytest.fixture(scope="module", name="operator")
def served(client: KubeClient) -> Iterator[None]:
    with operator(client):
        yield


class Serving:
    """Two groups of two, and a pod that has one of the four nodes."""

    def __init__(self, client: KubeClient, namespace: str, **more: Any) -> None:
        self.client, self.workload = client, Workload(client, namespace)
        template = {"metadata": {"annotations": {GANG: "serve", GANG_MIN: "2"}}, "spec": on_racks("node")}
        self.set = LeaderWorkerSet(client, namespace, "serve", groups=2, size=2, template=template, **more)
        self.workload.template("node", [request("gpu", names.CLASS_GPU, count=8)])
        other = {"metadata": {"name": "other", "namespace": namespace}, "spec": on_racks("node")}
        client.create(kinds.PODS, {"apiVersion": "v1", "kind": "Pod", **other})
        self.workload.bound("other")

    def step(self) -> dict[str, Object]:
        """The bound pods, which run from then on."""
        found = self.set.reconcile()
        ends_deleted(self.client, self.workload.namespace)
        bound = {name: pod for name, pod in found.items() if pod["spec"].get("nodeName")}
        for pod in bound.values():
            if objects.status_of(pod).get("phase") == "Pending" and not objects.is_deleting(pod):
                runs(self.client, pod)
        leaders = {name for name in bound if name.count("-") == 1}
        lonely = {name for name in leaders if f"{name}-1" not in bound}
        assert len(lonely) < 2, f"{lonely} wait for their workers"
        return bound

    def until_bound(self, *pods: str) -> dict[str, tuple[str, list[str]]]:
        """Node and devices of each pod, once these and no others are bound."""
        eventually(lambda: set(self.step()) == set(pods), f"binding of {pods}", timeout=PATIENCE)
        return {name: self.place(pod) for name, pod in self.step().items()}

    def place(self, pod: Object) -> tuple[str, list[str]]:
        (name,) = objects.pod_claim_names(pod).values()
        claim = self.client.get(kinds.RESOURCE_CLAIMS, str(name), namespace=objects.namespace(pod))
        return pod["spec"]["nodeName"], sorted(result["device"] for result in results(claim))


def on_racks(template: str) -> Object:
    return {**pod_spec(template), "nodeSelector": HERE, "restartPolicy": "Always"}


@pytest.fixture(
    params=[
        {},
        {"startup": "LeaderReady"},
        {"exclusive": RACK},
        {"exclusive": RACK, "startup": "LeaderReady"},
    ],
    ids=["LeaderCreated", "LeaderReady", "exclusive", "exclusive-LeaderReady"],
)
def serving(
    client: KubeClient, namespace: str, racks: None, operator: None, request: pytest.FixtureRequest
) -> Iterator[Serving]:
    found = Serving(client, namespace, **request.param)
    yield found
    found.set.delete()
    eventually(lambda: not found.step(), "the end of the LeaderWorkerSet's pods")


def test_one_group_starts_is_made_anew_in_its_seats_and_the_other_follows(serving: Serving) -> None:
    serving.set.create()

    def started() -> str | None:
        bound = serving.step()
        return next((group for group in "01" if {f"serve-{group}", f"serve-{group}-1"} <= set(bound)), None)

    group = eventually(started, "the start of one group", timeout=PATIENCE)
    mine, others = ((f"serve-{one}", f"serve-{one}-1") for one in (group, "10"[int(group)]))
    before = serving.until_bound(*mine)
    if serving.set.exclusive:
        assert len({NODES[node][RACK] for node, _ in before.values()}) == 1

    waits = f"serve:{others[0][-1]}"
    eventually(lambda: told(serving, others[0], waits), "the Event that says why the other waits")

    uids = {name: objects.uid(pod) for name, pod in serving.step().items()}
    serving.client.delete(kinds.PODS, mine[1], namespace=serving.workload.namespace, grace_period=30)

    def anew() -> bool:
        bound = serving.step()
        return set(bound) == set(mine) and all(objects.uid(bound[name]) != uids[name] for name in mine)

    eventually(anew, "the group that is made anew", timeout=PATIENCE)
    assert serving.until_bound(*mine) == before

    serving.client.delete(kinds.PODS, "other", namespace=serving.workload.namespace, grace_period=0)
    everybody = serving.until_bound(*mine, *others)
    assert len({node for node, _ in everybody.values()}) == 4
    if serving.set.exclusive:
        for of_group in (mine, others):
            assert len({NODES[everybody[name][0]][RACK] for name in of_group}) == 1


def told(serving: Serving, pod: str, gang: str) -> bool:
    serving.step()
    found = serving.client.get(kinds.PODS, pod, namespace=serving.workload.namespace)
    return any(
        event.get("reason") == "GangWaiting" and f"/{gang}: 1 of 2 members fit" in event["message"]
        for event in events_of(serving.client, found)
    )
