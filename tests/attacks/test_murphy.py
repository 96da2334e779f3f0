"""The rows of murphy.py. Each leaves the cluster as it was."""

from __future__ import annotations

from functools import partial

import pytest

import koordra.kube.watch
from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.resource_class import RESOURCE_CLASSES
from koordra.controller.run import LEASE_NAME
from tests.attacks.cluster import TENANT, InstalledCluster
from tests.attacks.development import DevelopmentCluster
from tests.attacks.murphy import MURPHY
from tests.attacks.row import Attack, Outcome, event, log, metric
from tests.attacks.scene import Scene, attack, judge

_HOOKS = "admissionregistration.k8s.io"
HOOKS = tuple(
    Kind(
        _HOOKS,
        "v1",
        f"{which.lower()}webhookconfigurations",
        f"{which}WebhookConfiguration",
        namespaced=False,
    )
    for which in ("Validating", "Mutating")
)
CRDS = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
BINDINGS = Kind(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
REFUSED_WRITES = 'koordra_controller_write_errors_total{code="403",resource="resourceclaims"}'


@pytest.mark.parametrize("row", [row for row in MURPHY if row.runs], ids=lambda row: row.name)
def test_murphy(cluster: InstalledCluster, row: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(koordra.kube.watch, "OLDER_LISTS", 2)  # eight take minutes
    judge(cluster, row)


def development(scene: Scene) -> DevelopmentCluster:
    assert isinstance(scene.cluster, DevelopmentCluster), f"{scene.cluster.kubeconfig} is another's"
    return scene.cluster


def put_back(scene: Scene, kind: Kind, found: Object) -> None:
    metadata = {
        key: value
        for key, value in objects.metadata(found).items()
        if key in {"name", "labels", "annotations"}
    }
    scene.admin.create(kind, {**found, "metadata": metadata})


def misspelt() -> Object:
    return {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "isolatoin": "none"}


@attack("api-server-restarts")
def api_server_restarts(scene: Scene) -> Outcome:
    scene.claim("before")
    development(scene).restart_api_server()
    scene.wait_for(log("watch_interrupted"))
    scene.pod("before", "before")
    scene.wait(lambda: scene.allocated("before"), "the claim placed")
    return "repaired"


@attack("etcd-restored")
def etcd_restored(scene: Scene) -> Outcome:
    """What was made since the backup held all cards but four; for koordra they must be free again."""
    backup = scene.cluster.folder / "backup.db"
    backup.unlink(missing_ok=True)
    development(scene).back_up(backup)
    for number in range(12):
        scene.claim(f"lost-{number}")
        scene.pod(f"lost-{number}", f"lost-{number}")
    scene.wait(lambda: all(scene.allocated(f"lost-{number}") for number in range(12)), "the claims placed")
    development(scene).restart_api_server(restored=backup)
    scene.wait_for(log("history_went_back"))
    for number in range(6):
        scene.claim(f"new-{number}")
        scene.pod(f"new-{number}", f"new-{number}")
    scene.wait(lambda: all(scene.allocated(f"new-{number}") for number in range(6)), "the new claims placed")
    return "repaired"


@attack("api-server-slow")
def api_server_slow(scene: Scene) -> Outcome:
    cluster = development(scene)
    scene.wait(lambda: "acquireTime" in lease_of(scene), "a leader")
    before = lease_of(scene)
    with cluster.slow_api_server(1.0) as answers:
        scene.claim("slow")
        scene.pod("slow", "slow")
        scene.wait(lambda: scene.allocated("slow"), "the claim placed")
        for _ in range(4):
            seen = lease_of(scene)["renewTime"]
            scene.wait(lambda seen=seen: lease_of(scene)["renewTime"] > seen, "the Lease renewed")
    led = {key: before[key] for key in ("holderIdentity", "acquireTime", "leaseTransitions")}
    assert led.items() <= lease_of(scene).items()
    return "bounded" if len(answers) < 200 else "open"


def lease_of(scene: Scene) -> Object:
    found = scene.admin.get(kinds.LEASES, LEASE_NAME, namespace="koordra-system")
    return dict(objects.spec_of(found))


@attack("crds-deleted")
def crds_deleted(scene: Scene) -> Outcome:
    """A class that was there is gone, and works when it is made again."""
    found = [one for one in scene.admin.list(CRDS)[0] if objects.name(one).endswith(".koordra.io")]
    assert found
    make_class(scene)
    scene.wait(lambda: has_device_class(scene), "its DeviceClass")
    for each in found:
        scene.admin.delete(CRDS, objects.name(each))
    scene.wait(lambda: not has_device_class(scene), "the end of its DeviceClass")
    if isinstance(scene.cluster, DevelopmentCluster):
        scene.wait_for(log("watch_interrupted"))
    scene.innocent_is_placed()
    for each in found:
        put_back(scene, CRDS, {key: value for key, value in each.items() if key != "status"})
    scene.wait(lambda: scene.attempt(lambda: make_class(scene)) == "open", "the definitions served")
    try:
        scene.wait(lambda: has_device_class(scene), "its DeviceClass")
        return "repaired"
    finally:
        scene.admin.delete(RESOURCE_CLASSES, "again")


def make_class(scene: Scene) -> None:
    version = RESOURCE_CLASSES.type_meta["apiVersion"]
    body = {
        "apiVersion": version,
        "kind": "ResourceClass",
        "metadata": {"name": "again"},
        "deviceType": "gpu",
    }
    scene.admin.create(RESOURCE_CLASSES, body)


def has_device_class(scene: Scene) -> bool:
    return any(objects.name(one) == "again" for one in scene.admin.list(kinds.DEVICE_CLASSES)[0])


@attack("namespace-deleted")
def namespace_deleted(scene: Scene) -> Outcome:
    """What was placed before holds half of the cards; what waits meanwhile wants the other half, and one
    more."""
    cluster = development(scene)
    ask(scene, "before", count=8)
    scene.wait(lambda: scene.allocated("before"), "the claim placed")
    before = scene.results("before")
    scene.claim("meanwhile", count=7)
    scene.claim("too-much", count=2)
    scene.admin.delete(kinds.NAMESPACES, "koordra-system")
    cluster.stop_programs()
    scene.wait(lambda: not namespace_is_there(scene), "the namespace's end")
    try:
        asked = partial(scene.claim, "asks", config=({**misspelt(), "isolatoin": "limiter"},))
        assert scene.attempt(asked, unanswered=True) == "refused"
        scene.pod("meanwhile", "meanwhile")
        scene.pod("too-much", "too-much")
    finally:
        cluster.installation.apply()
        cluster.start_programs()
    scene.wait(lambda: scene.allocated("meanwhile"), "the claim that waited placed")
    given = [(one["pool"], one["device"]) for one in (*before, *scene.results("meanwhile"))]
    kept = scene.results("before") == before and len(set(given)) == len(given)
    return "open" if scene.allocated("too-much") or not kept else "detected"


def ask(scene: Scene, name: str, *, count: int) -> None:
    """Claims for one card each would be alike; on two nodes, a claim for several has one node."""
    scene.claim(name, count=count)
    scene.pod(name, name)


def namespace_is_there(scene: Scene) -> bool:
    return any(objects.name(one) == "koordra-system" for one in scene.admin.list(kinds.NAMESPACES)[0])


@attack("foreign-writer")
def foreign_writer(scene: Scene) -> Outcome:
    scene.claim("has")
    scene.pod("has", "has")
    scene.claim("takes", count=1_000)
    scene.pod("takes", "takes")
    scene.wait(lambda: scene.allocated("has"), "the claim placed")
    (given,) = scene.results("has")
    taken = scene.admin.get(kinds.RESOURCE_CLAIMS, "has", namespace="tenant")["status"]["allocation"]
    scene.admin.patch(
        kinds.RESOURCE_CLAIMS,
        "takes",
        {"status": {"allocation": taken}},
        namespace="tenant",
        subresource="status",
    )
    scene.wait_for(event("OverCommitted"))
    for number in range(3):
        scene.claim(f"later-{number}")
        scene.pod(f"later-{number}", f"later-{number}")
        scene.wait(lambda number=number: scene.allocated(f"later-{number}"), "the later claim placed")
        (other,) = scene.results(f"later-{number}")
        assert (other["pool"], other["device"]) != (given["pool"], given["device"])
    return "detected" if scene.results("has") == [given] else "open"


@attack("class-deleted")
def class_deleted(scene: Scene) -> Outcome:
    found = scene.admin.get(kinds.DEVICE_CLASSES, names.CLASS_GPU)
    scene.admin.delete(kinds.DEVICE_CLASSES, names.CLASS_GPU)
    scene.claim("waits")
    scene.pod("waits", "waits")
    scene.wait_for(event("SelectorMismatch"))
    put_back(scene, kinds.DEVICE_CLASSES, found)
    scene.wait(lambda: scene.allocated("waits"), "the claim placed")
    return "repaired"


@attack("webhooks-deleted")
def webhooks_deleted(scene: Scene) -> Outcome:
    found = [(kind, scene.admin.get(kind, "koordra")) for kind in HOOKS]
    for kind, _ in found:
        scene.admin.delete(kind, "koordra")
    try:
        scene.claim("misspelt", config=(misspelt(),))
        scene.pod("misspelt", "misspelt")
        scene.wait_for(event("ConstraintViolated"))
        scene.innocent_is_placed()
        return "open" if scene.allocated("misspelt") else "detected"
    finally:
        for kind, configuration in found:
            put_back(scene, kind, configuration)


@attack("webhook-away")
def webhook_away(scene: Scene) -> Outcome:
    scene.claim("there")
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.koordra.io/gpu": "1000"}}}
    scene.admin.create(kinds.RESOURCE_QUOTAS, quota, namespace=TENANT)
    scene.wait(lambda: _asked_about(scene) == [TENANT], "the quota in force")
    for kind in HOOKS:
        found = scene.admin.get(kind, "koordra")
        entries = [
            {**each, "clientConfig": {**each["clientConfig"], "url": "https://127.0.0.1:9/"}}
            for each in found["webhooks"]
        ]
        scene.admin.update(kind, {**found, "webhooks": entries})
    try:
        asked = partial(scene.claim, "asks", config=({**misspelt(), "isolatoin": "limiter"},))
        assert scene.attempt(asked, unanswered=True) == "refused"
        assert scene.attempt(partial(scene.claim, "uncounted"), unanswered=True) == "refused"
        scene.innocent_is_placed()
        scene.create(kinds.RESOURCE_CLAIMS, of_another_driver())
        scene.pod("there", "there")
        scene.wait(lambda: scene.allocated("there"), "the claim that was there placed")
    finally:
        scene.admin.delete(kinds.RESOURCE_QUOTAS, "gpus", namespace=TENANT)
        for kind in HOOKS:
            scene.admin.delete(kind, "koordra")
        scene.wait(scene.cluster.installation.webhook_answers, "the webhook")
    scene.innocent_is_placed()
    return "bounded"


def _asked_about(scene: Scene) -> list[str]:
    entries = scene.admin.get(HOOKS[0], "koordra")["webhooks"]
    (found,) = (each["namespaceSelector"] for each in entries if each["name"] == "quota.koordra.io")
    return list(found["matchExpressions"][0].get("values") or ())


def of_another_driver() -> Object:
    exactly = {"deviceClassName": "example.com"}
    return {
        "metadata": {"name": "of-another"},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": exactly}]}},
    }


@attack("rights-taken-away")
def rights_taken_away(scene: Scene) -> Outcome:
    """The claim is tried again a minute later: the row does not wait for it."""
    found = scene.admin.get(BINDINGS, "koordra-controller")
    scene.admin.delete(BINDINGS, "koordra-controller")
    try:
        scene.claim("waits")
        scene.pod("waits", "waits")
        scene.wait_for(metric(REFUSED_WRITES))
        return "open" if scene.allocated("waits") else "detected"
    finally:
        put_back(scene, BINDINGS, found)
