"""The rows of murphy.py. Each leaves the cluster as it was."""

from __future__ import annotations

from functools import partial

import pytest

import koordra.kube.watch
from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.resource_class import RESOURCE_CLASSES
from tests.attacks.cluster import InstalledCluster
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
    with development(scene).slow_api_server(1.0) as answers:
        scene.claim("slow")
        scene.pod("slow", "slow")
        scene.wait(lambda: scene.allocated("slow"), "the claim placed")
    return "bounded" if len(answers) < 200 else "open"


@attack("crds-deleted")
def crds_deleted(scene: Scene) -> Outcome:
    found = [one for one in scene.admin.list(CRDS)[0] if objects.name(one).endswith(".koordra.io")]
    assert found
    for each in found:
        scene.admin.delete(CRDS, objects.name(each))
    scene.innocent_is_placed()
    for each in found:
        put_back(scene, CRDS, {key: value for key, value in each.items() if key != "status"})
    body = {
        "apiVersion": RESOURCE_CLASSES.type_meta["apiVersion"],
        "kind": "ResourceClass",
        "deviceType": "gpu",
    }
    scene.wait(
        lambda: (
            scene.attempt(
                lambda: scene.admin.create(RESOURCE_CLASSES, {**body, "metadata": {"name": "again"}})
            )
            == "open"
        ),
        "the definitions served",
    )
    try:
        scene.wait(
            lambda: any(objects.name(one) == "again" for one in scene.admin.list(kinds.DEVICE_CLASSES)[0]),
            "its DeviceClass",
        )
        return "repaired"
    finally:
        scene.admin.delete(RESOURCE_CLASSES, "again")


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
        scene.innocent_is_placed()
        return "bounded"
    finally:
        for kind in HOOKS:
            scene.admin.delete(kind, "koordra")
        scene.wait(scene.cluster.installation.webhook_answers, "the webhook")


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
