"""Workloads that speak other stacks' dialects run unchanged: made, allocated, bound, scaled, rolled, deleted,
and nothing is left.

The nodes of this suite have no kubelet, so "prepared" is shown elsewhere (tests/e2e, docs/migrate/README.md
says what ran where).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.legacy.templates import MADE_BY
from koordra.errors import ApiError, Forbidden, Invalid, NotFound
from koordra.kube.client import KubeClient
from tests.cluster.conftest import NAMESPACE
from tests.cluster.waiting import NODES, eventually

pytestmark = pytest.mark.cluster

DEPLOYMENTS: Final = Kind("apps", "v1", "deployments", "Deployment")
TEMPLATES: Final = kinds.RESOURCE_CLAIM_TEMPLATES
LONG: Final = 90.0

ONE: Final[Mapping[str, Object]] = {
    "koordinator": {"main": {"koordinator.sh/gpu": "50"}},
    "hami": {"main": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "20"}},
    "aliyun": {"main": {"aliyun.com/gpu-mem": "4"}},
    "alnair": {"main": {"alnair/vgpu-memory": "4", "alnair/vgpu-compute": "20"}},
    "elastic-gpu": {"main": {"elasticgpu.io/gpu-core": "10", "elasticgpu.io/gpu-memory": "4096"}},
    "tke": {"main": {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "16"}},
    "volcano-vgpu": {"main": {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "4096"}},
    "volcano-gpu": {"main": {"volcano.sh/gpu-memory": "4096"}},
    "plain": {"main": {"nvidia.com/gpu": "1"}},
}
SCHEDULERS: Final = {"koordinator": "koord-scheduler", "hami": "hami-scheduler", "volcano-vgpu": "volcano"}


class Team:
    """Deployments in the suite's namespace, and what came of them."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client

    def deploy(
        self,
        name: str,
        asks: Mapping[str, Object],
        *,
        replicas: int = 1,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        labels = {"app": name}
        containers = [
            {"name": called, "image": "busybox", "resources": {"limits": dict(limits)}}
            for called, limits in asks.items()
        ]
        metadata = {"labels": labels, "annotations": dict(annotations or {})}
        pod = {"nodeSelector": {"koordra.io/test": "true"}, "terminationGracePeriodSeconds": 0, **spec}
        template = {"metadata": metadata, "spec": {**pod, "containers": containers}}
        body = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        self.client.create(
            DEPLOYMENTS,
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {**body, "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
            },
        )

    def change(self, name: str, change: Object) -> None:
        self.client.patch(DEPLOYMENTS, name, change, namespace=NAMESPACE)

    def pods(self, name: str = "") -> list[Object]:
        found, _ = self.client.list(kinds.PODS, namespace=NAMESPACE)
        alive = [pod for pod in found if not objects.is_deleting(pod)]
        return [pod for pod in alive if not name or objects.labels_of(pod).get("app") == name]

    def running(self, name: str, number: int) -> list[Object]:
        """That many pods of the workload, each with its claim allocated and on a node."""

        def look() -> list[Object] | None:
            found = self.pods(name)
            good = [pod for pod in found if pod["spec"].get("nodeName") in NODES and self._claims(pod)]
            return good if len(found) == len(good) == number else None

        return eventually(look, f"{number} pods of {name}", timeout=LONG)

    def running_pod(self, name: str) -> Object:
        def look() -> Object | None:
            found = self._get(kinds.PODS, name)
            return found if found and found["spec"].get("nodeName") and self._claims(found) else None

        return eventually(look, f"pod {name}", timeout=LONG)

    def _claims(self, pod: Object) -> list[Object]:
        called = objects.pod_claim_names(pod)
        found = []
        for name in called.values():
            claim = self._get(kinds.RESOURCE_CLAIMS, name) if name else None
            if claim is None or not objects.status_of(claim).get("allocation"):
                return []
            found.append(claim)
        return found

    def claim(self, pod: Object) -> Object:
        (claim,) = self._claims(pod)
        return claim

    def _get(self, kind: Kind, name: str) -> Object | None:
        try:
            return self.client.get(kind, name, namespace=NAMESPACE)
        except NotFound:
            return None

    def templates(self) -> list[Object]:
        found, _ = self.client.list(TEMPLATES, namespace=NAMESPACE)
        return [one for one in found if objects.labels_of(one).get(MADE_BY)]

    def end(self, *names_of: str) -> None:
        """Delete workloads; pods of nodes without a kubelet have nobody to end them, so they are ended
        here."""
        for name in names_of:
            with contextlib.suppress(NotFound):
                self.client.delete(DEPLOYMENTS, name, namespace=NAMESPACE)

        def gone() -> bool:
            found, _ = self.client.list(kinds.PODS, namespace=NAMESPACE)
            mine = [pod for pod in found if objects.labels_of(pod).get("app") in names_of]
            for pod in mine:
                if objects.is_deleting(pod):
                    self.finish(pod)
            return not mine

        eventually(gone, "the pods' end", timeout=LONG)

    def finish(self, pod: Object) -> None:
        with contextlib.suppress(NotFound):
            self.client.delete(kinds.PODS, objects.name(pod), namespace=NAMESPACE, grace_period=0)

    def ready(self, pods: list[Object]) -> None:
        """What a kubelet would say, so that a roll goes on."""
        for pod in pods:
            condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            status = {"phase": "Running", "conditions": [condition]}
            with contextlib.suppress(NotFound):
                self.client.patch(
                    kinds.PODS,
                    objects.name(pod),
                    {"status": status},
                    namespace=NAMESPACE,
                    subresource="status",
                )

    def nothing_left(self) -> None:
        def look() -> bool:
            claims, _ = self.client.list(kinds.RESOURCE_CLAIMS, namespace=NAMESPACE)
            return not claims and not self.templates()

        eventually(look, "no claim and no template", timeout=LONG)


@pytest.fixture
def team(client: KubeClient, namespace: str) -> Iterator[Team]:
    del namespace
    team = Team(client)
    eventually(lambda: _is_rewriting(client), "the webhook for legacy pods")
    yield team
    found, _ = client.list(DEPLOYMENTS, namespace=NAMESPACE)
    team.end(*(objects.name(one) for one in found))


def _is_rewriting(client: KubeClient) -> bool:
    """The API server's own view of webhook configurations lags by a moment."""
    try:
        return bool(dry(client, {"nvidia.com/gpu": "1"})["spec"].get("resourceClaims"))
    except ApiError:
        return False


def dry(client: KubeClient, limits: Object) -> Object:
    return client._answer(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/pods",
        body=pod("dry", limits),
        query={"dryRun": "All"},
    )


def pod(name: str, limits: Object, **metadata: Any) -> Object:
    container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
    spec = {"restartPolicy": "Never", "nodeSelector": {"koordra.io/test": "true"}, "containers": [container]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
        "spec": spec,
    }


def results(claim: Object) -> list[Object]:
    found: list[Object] = claim["status"]["allocation"]["devices"]["results"]
    return found


def card(result: Object) -> tuple[str, str]:
    return result["pool"], result["device"]


def test_a_deployment_of_each_dialect_runs_is_scaled_rolled_and_deleted_without_a_trace(team: Team) -> None:
    for dialect, asks in ONE.items():
        more = {"schedulerName": SCHEDULERS[dialect]} if dialect in SCHEDULERS else {}
        team.deploy(dialect, asks, **more)
    for dialect in ONE:
        (found,) = team.running(dialect, 1)
        assert found["metadata"]["annotations"]["koordra.io/dialect"] == dialect
        assert found["spec"]["schedulerName"] == "default-scheduler"
        claim = team.claim(found)
        assert claim["metadata"]["labels"]["koordra.io/dialect"] == dialect
        assert {result["driver"] for result in results(claim)} == {names.DRIVER}
    assert len(team.templates()) == len(ONE)

    team.change("hami", {"spec": {"replicas": 3}})
    assert len({objects.name(team.claim(found)) for found in team.running("hami", 3)}) == 3
    assert len(team.templates()) == len(ONE), "equal pods share a template"

    before = {objects.name(found) for found in team.running("aliyun", 1)}
    team.ready(team.pods("aliyun"))
    rolled = [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "6"}}}]
    team.change("aliyun", {"spec": {"template": {"spec": {"containers": [{**ONE_CONTAINER, **rolled[0]}]}}}})

    def settled() -> Object | None:
        team.ready(team.pods("aliyun"))
        for old in team.client.list(kinds.PODS, namespace=NAMESPACE)[0]:
            if objects.is_deleting(old):
                team.finish(old)
        found = [one for one in team.pods("aliyun") if objects.name(one) not in before]
        return (
            found[0]
            if len(team.pods("aliyun")) == len(found) == 1 and found[0]["spec"].get("nodeName")
            else None
        )

    new = eventually(settled, "the roll", timeout=LONG)
    (result,) = results(team.claim(new))
    assert result["consumedCapacity"]["memory"] == "6Gi"

    team.end(*ONE)
    team.nothing_left()


ONE_CONTAINER: Final = {"name": "main", "image": "busybox"}


def test_two_aliyun_containers_land_on_one_card(team: Team) -> None:
    team.deploy("two", {"one": {"aliyun.com/gpu-mem": "4"}, "other": {"aliyun.com/gpu-mem": "6"}})
    (found,) = team.running("two", 1)
    one, other = results(team.claim(found))
    assert card(one) == card(other)
    assert {one["consumedCapacity"]["memory"], other["consumedCapacity"]["memory"]} == {"4Gi", "6Gi"}


def test_two_hami_vgpus_land_on_two_cards(team: Team) -> None:
    team.deploy("two", {"main": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000"}})
    (found,) = team.running("two", 1)
    one, other = results(team.claim(found))
    assert card(one) != card(other)


def test_a_koordinator_joint_pod_gets_gpu_and_nic_under_one_root(
    team: Team, nodes: dict[str, list[Object]]
) -> None:
    joint = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
    team.deploy(
        "joint",
        {"main": {"koordinator.sh/gpu": "100", "koordinator.sh/rdma": "100"}},
        annotations={"scheduling.koordinator.sh/device-joint-allocate": json.dumps(joint)},
        schedulerName="koord-scheduler",
    )
    (found,) = team.running("joint", 1)
    gpu, nic = results(team.claim(found))
    assert (gpu["request"], nic["request"]) == ("gpu", "rdma")
    roots = {
        (entry["spec"]["nodeName"], device["name"]): device["attributes"][names.STANDARD_PCIE_ROOT]["string"]
        for published in nodes.values()
        for entry in published
        for device in entry["spec"].get("devices") or ()
        if names.STANDARD_PCIE_ROOT in device["attributes"]
    }
    assert roots[card(gpu)] == roots[card(nic)]


def test_four_alnair_pods_share_one_card_with_their_limits(team: Team) -> None:
    team.deploy("four", {"main": {"alnair/vgpu-memory": "10", "alnair/vgpu-compute": "25"}}, replicas=4,
                schedulerName="alnair-cost-saving")  # fmt: skip
    found = [results(team.claim(one)) for one in team.running("four", 4)]
    assert len({card(result) for (result,) in found}) == 1
    for (result,) in found:
        assert {"cores": "25", "memory": "10Gi"}.items() <= result["consumedCapacity"].items()


# --- admission ---


def test_a_dry_run_leaves_nothing(team: Team) -> None:
    found = dry(team.client, {"nvidia.com/gpu": "3"})
    assert found["spec"]["resourceClaims"]
    assert found["spec"]["schedulingGates"] == [{"name": names.JOINT_GATE}]
    assert not team.templates()


def test_who_opts_out_is_left_alone(team: Team) -> None:
    made = team.client.create(
        kinds.PODS, pod("out", {"nvidia.com/gpu": "1"}, labels={"koordra.io/legacy-pods": "ignore"})
    )
    assert "resourceClaims" not in made["spec"]
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_a_planted_template_is_refused(team: Team) -> None:
    entry = dry(team.client, {"nvidia.com/gpu": "2"})["spec"]["resourceClaims"][0]
    exactly = {"deviceClassName": names.CLASS_GPU, "count": 8}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": entry["resourceClaimTemplateName"], "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": [{"name": "main", "exactly": exactly}]}}},
    }
    team.client.create(TEMPLATES, body)
    with pytest.raises((Forbidden, Invalid), match="other content than its name promises"):
        team.client.create(kinds.PODS, pod("p", {"nvidia.com/gpu": "2"}))


def test_two_dialects_are_refused_with_both_names(team: Team) -> None:
    with pytest.raises((Forbidden, Invalid), match=r"Koordinator.*HAMi|HAMi.*Koordinator"):
        team.client.create(kinds.PODS, pod("p", {"nvidia.com/gpumem": "1", "koordinator.sh/gpu": "50"}))


QUOTAS: Final = kinds.RESOURCE_QUOTAS


@pytest.fixture
def quota(team: Team) -> Iterator[None]:
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "cards", "namespace": NAMESPACE},
        "spec": {"hard": {"requests.nvidia.com/gpu": "2"}},
    }
    team.client.create(QUOTAS, body)
    yield
    team.client.delete(QUOTAS, "cards", namespace=NAMESPACE)


def test_a_quota_on_cards_holds(team: Team, quota: None) -> None:
    def bounded() -> bool:
        """The webhook's own view of quotas lags by a moment."""
        try:
            dry(team.client, {"nvidia.com/gpu": "3"})
        except (Forbidden, Invalid) as error:
            return "exceeded quota: cards" in str(error)
        return False

    eventually(bounded, "the quota in the webhook")
    team.deploy("cards", ONE["plain"], replicas=4)
    found = team.running("cards", 2)
    assert len(found) == 2

    def told() -> bool:
        events, _ = team.client.list(kinds.EVENTS, namespace=NAMESPACE)
        wanted = "exceeded quota: cards, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2, limited"
        return any(event["reason"] == "FailedCreate" and wanted in event["message"] for event in events)

    eventually(told, "an Event of the ReplicaSet", timeout=LONG)
    assert len(team.pods("cards")) == 2


def test_a_pod_that_came_past_the_quota_gets_no_devices_until_there_is_room(team: Team, quota: None) -> None:
    """As when another replica has let it in: it refers to the template of the first, and nobody was asked."""
    made = team.client.create(kinds.PODS, pod("first", {"nvidia.com/gpu": "2"}))
    team.running_pod("first")
    second = past_the_webhook(made, "second")
    team.client.create(kinds.PODS, second)

    def told() -> bool:
        events, _ = team.client.list(kinds.EVENTS, namespace=NAMESPACE)
        wanted = (
            "exceeded quota: cards, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=2"
        )
        about = {
            event["involvedObject"]["kind"]
            for event in events
            if event["reason"] == "QuotaExceeded" and wanted in event["message"]
        }
        return {"Pod", "ResourceClaim"} <= about

    eventually(told, "an Event on pod and claim", timeout=LONG)
    stored = team._get(kinds.PODS, "second")
    assert stored
    assert not team._claims(stored)
    assert not stored["spec"].get("nodeName")
    team.client.delete(kinds.PODS, "first", namespace=NAMESPACE, grace_period=0)
    team.running_pod("second")


# --- chaos ---


def past_the_webhook(made: Object, name: str) -> Object:
    """A pod like one that was rewritten, as it is stored."""
    found = pod(name, {}, annotations=made["metadata"]["annotations"])
    found["spec"]["resourceClaims"] = made["spec"]["resourceClaims"]
    found["spec"]["schedulingGates"] = made["spec"]["schedulingGates"]
    uses = made["spec"]["containers"][0]["resources"]
    found["spec"]["containers"] = [{**ONE_CONTAINER, "resources": uses}]
    return found


def test_a_template_deleted_by_hand_before_its_claim_is_made(team: Team) -> None:
    """Stored with its template gone at once, as if the controller had been killed in between: the pod
    recovers."""
    made = team.client.create(kinds.PODS, pod("first", {"nvidia.com/gpu": "1"}))
    name = made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    team.running_pod("first")
    team.client.delete(kinds.PODS, "first", namespace=NAMESPACE, grace_period=0)
    eventually(lambda: team._get(kinds.PODS, "first") is None, "the pod's end")
    with contextlib.suppress(NotFound):
        team.client.delete(TEMPLATES, name, namespace=NAMESPACE)
    orphan = past_the_webhook(made, "orphan")
    team.client.create(kinds.PODS, orphan)
    team.running_pod("orphan")
    assert team._get(TEMPLATES, name)
