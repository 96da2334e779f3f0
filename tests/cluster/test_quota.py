"""ResourceQuotas on koordra's own names: claims of templates, of users and of kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.controller.quota.scope import WEBHOOKS
from koordra.controller.webhook.cert_rotation import CONFIGURATIONS, NAME
from koordra.errors import ApiError, Conflict, Forbidden, NotFound
from koordra.kube.client import KubeClient
from tests.cluster.installation import Installation
from tests.cluster.test_extended_resources import CLASS, NODE, RESOURCE, native, premium
from tests.cluster.waiting import eventually

__all__ = ["native", "premium"]

pytestmark = pytest.mark.cluster
TEAM: Final = "koordra-test-native"
LONG: Final = 90.0


@pytest.fixture
def team(client: KubeClient, native: None) -> Iterator[str]:
    """A namespace in native mode."""
    labels = {names.MODE_LABEL: names.MODE_NATIVE}
    with suppress(Conflict):
        client.create(kinds.NAMESPACES, {"metadata": {"name": TEAM, "labels": labels}})
    accounts = kinds.SERVICE_ACCOUNTS
    eventually(lambda: client.list(accounts, namespace=TEAM)[0], "the default ServiceAccount")
    yield TEAM
    for kind in (
        kinds.RESOURCE_QUOTAS, kinds.PODS, kinds.RESOURCE_CLAIMS, kinds.RESOURCE_CLAIM_TEMPLATES,
    ):  # fmt: skip
        for one in client.list(kind, namespace=TEAM)[0]:
            with suppress(NotFound):
                client.delete(kind, objects.name(one), namespace=TEAM, grace_period=0)
    eventually(
        lambda: not client.list(kinds.RESOURCE_CLAIMS, namespace=TEAM)[0], "the claims' end", timeout=LONG
    )


def bound(client: KubeClient, team: str, **hard: str) -> None:
    lines = {f"requests.koordra.io/{key.replace('_', '-')}": value for key, value in hard.items()}
    client.create(
        kinds.RESOURCE_QUOTAS, {"metadata": {"name": "gpus"}, "spec": {"hard": lines}}, namespace=team
    )
    probe = claim("probe", "1000000Gi" if "gpu_memory" in hard else "1Gi", count=10)

    def is_seen() -> bool:
        try:
            client.create(kinds.RESOURCE_CLAIMS, probe, namespace=team)
        except Forbidden as error:
            return "exceeded quota: gpus" in str(error)
        client.delete(kinds.RESOURCE_CLAIMS, "probe", namespace=team)
        return False

    eventually(is_seen, "the quota in the webhook", timeout=LONG)


def claim(name: str, memory: str, *, count: int = 1) -> Object:
    asked = {
        "deviceClassName": "gpu.koordra.io",
        "count": count,
        "capacity": {"requests": {"memory": memory}},
    }
    return {
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}},
    }


def pod_of(template: str, name: str, *, node: str) -> Object:
    """A pod for a node; for any, where it is empty."""
    entry = {"name": "gpu", "resourceClaimTemplateName": template}
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    spec = {"containers": [container], "resourceClaims": [entry], **({"affinity": affinity} if node else {})}
    return {"metadata": {"name": name}, "spec": spec}


def events(client: KubeClient, team: str) -> list[str]:
    return [
        str(one.get("message") or one.get("note")) for one in client.list(kinds.EVENTS, namespace=team)[0]
    ]


def test_pods_of_a_template_wait_beyond_the_quota_and_go_on_when_there_is_room(
    client: KubeClient, team: str
) -> None:
    bound(client, team, gpu_memory="100Gi")
    spec = claim("", "40Gi")["spec"]
    client.create(
        kinds.RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "part"}, "spec": {"spec": spec}}, namespace=team
    )
    node = "" if "koordra-devcluster" in client.version() else NODE  # whose scheduler shares no devices
    for name in ("a", "b", "c"):
        client.create(kinds.PODS, pod_of("part", name, node=node), namespace=team)

    def placed() -> list[str]:
        pods = client.list(kinds.PODS, namespace=team)[0]
        return [objects.name(one) for one in pods if objects.spec_of(one).get("nodeName")]

    eventually(lambda: len(placed()) == 2, "two pods on nodes", timeout=LONG)

    def told() -> bool:
        return any(
            "is forbidden: exceeded quota: gpus, requested: requests.koordra.io/gpu-memory=40Gi" in one
            for one in events(client, team)
        )

    eventually(told, "the waiting pod's Event", timeout=LONG)
    assert len(client.list(kinds.RESOURCE_CLAIMS, namespace=team)[0]) == 2
    first = placed()[0]
    client.delete(kinds.PODS, first, namespace=team, grace_period=0)
    eventually(lambda: len(placed()) == 2 and first not in placed(), "the third pod", timeout=LONG)


def test_of_many_claims_at_once_as_many_are_let_in_as_the_quota_has_room_for(
    client: KubeClient, team: str
) -> None:
    bound(client, team, gpu="5")

    def create(number: int) -> bool:
        try:
            client.create(kinds.RESOURCE_CLAIMS, claim(f"c{number}", "1Gi"), namespace=team)
        except Forbidden as error:
            assert "exceeded quota: gpus" in str(error)
            return False
        return True

    with ThreadPoolExecutor(8) as several:
        assert sum(several.map(create, range(16))) == 5
    dry: dict[str, Any] = claim("dry", "1Gi")
    with pytest.raises(Forbidden):
        client.create(kinds.RESOURCE_CLAIMS, dry, namespace=team)


def asked_about(client: KubeClient) -> list[str]:
    """Namespaces about which the API server asks whether a claim is within its quota."""
    found = client.get(CONFIGURATIONS[1], NAME)["webhooks"]
    selectors = [entry["namespaceSelector"] for entry in found if entry["name"] in WEBHOOKS]
    assert len(selectors) == len(WEBHOOKS)
    assert selectors[0] == selectors[1]
    (only,) = selectors[0]["matchExpressions"]
    return [only["operator"], *only.get("values", ())]


def test_without_koordra_claims_wait_only_where_there_is_a_quota(
    client: KubeClient, team: str, namespace: str, installed: Installation
) -> None:
    eventually(lambda: asked_about(client) == ["DoesNotExist"], "no namespace asked about", timeout=LONG)
    bound(client, team, gpu="5")
    assert asked_about(client) == ["In", team]
    with installed.webhook_away("quota.koordra.io"):
        for name in ("beside", "beside-it"):
            client.create(kinds.RESOURCE_CLAIMS, claim(name, "1Gi"), namespace=namespace)

        def refused() -> bool:
            try:
                client.create(kinds.RESOURCE_CLAIMS, claim("within", "1Gi"), namespace=team)
            except ApiError as error:
                return "failed calling webhook" in str(error)
            client.delete(kinds.RESOURCE_CLAIMS, "within", namespace=team)
            return False  # the API server has not read the configuration yet

        eventually(refused, "claims under a quota are refused", timeout=LONG)

    def let_in() -> bool:
        with suppress(ApiError):
            client.create(kinds.RESOURCE_CLAIMS, claim("again", "1Gi"), namespace=team)
            return True
        return False

    eventually(let_in, "the webhook is back", timeout=LONG)
    client.delete(kinds.RESOURCE_QUOTAS, "gpus", namespace=team)
    eventually(lambda: asked_about(client) == ["DoesNotExist"], "no namespace asked about", timeout=LONG)


def test_what_came_before_the_quota_counts(client: KubeClient, team: str) -> None:
    for number in range(4):
        client.create(kinds.RESOURCE_CLAIMS, claim(f"before{number}", "1Gi"), namespace=team)
    bound(client, team, gpu="5")
    client.create(kinds.RESOURCE_CLAIMS, claim("last", "1Gi"), namespace=team)
    with pytest.raises(Forbidden, match="gpu=5, limited"):
        client.create(kinds.RESOURCE_CLAIMS, claim("more", "1Gi"), namespace=team)


def test_a_claim_that_kube_scheduler_makes_is_bounded(client: KubeClient, team: str, premium: None) -> None:
    client.patch(kinds.DEVICE_CLASSES, CLASS, {"metadata": {"annotations": {"koordra.io/namespaces": team}}})
    bound(client, team, gpu="0")
    container: Object = {"name": "main", "image": "x", "resources": {"limits": {RESOURCE: "1"}}}
    client.create(
        kinds.PODS, {"metadata": {"name": "extended"}, "spec": {"containers": [container]}}, namespace=team
    )

    def refused() -> bool:
        pod = client.get(kinds.PODS, "extended", namespace=team)
        told = [str(one.get("message")) for one in objects.status_of(pod).get("conditions") or ()]
        assert not objects.spec_of(pod).get("nodeName"), "bound beyond the quota"
        if any("Insufficient" in one for one in told):
            pytest.skip("this scheduler makes no claims for extended resources")
        return any("exceeded quota: gpus" in one for one in told)

    eventually(refused, "the scheduler is refused its claim", timeout=LONG)
    quota = client.get(kinds.RESOURCE_QUOTAS, "gpus", namespace=team)
    quota["spec"]["hard"] = {"requests.koordra.io/gpu": "1"}
    client.update(kinds.RESOURCE_QUOTAS, quota)
    eventually(
        lambda: objects.spec_of(client.get(kinds.PODS, "extended", namespace=team)).get("nodeName") == NODE,
        "the pod bound",
        timeout=LONG,
    )
