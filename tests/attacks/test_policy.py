"""The rows of policy.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.api.opaque.parameters import API_VERSION
from koordra.api.resource_class import CLASS_PARAMETERS
from koordra.errors import NotFound
from tests.attacks.cluster import INNOCENT, InstalledCluster
from tests.attacks.policy import POLICY
from tests.attacks.row import Attack, Outcome, event
from tests.attacks.scene import Scene, all_refused, asking, attack, judge
from tests.unit.api.test_authority import OPERATORS, document


@pytest.mark.parametrize("row", [row for row in POLICY if row.runs], ids=lambda row: row.name)
def test_policy(cluster: InstalledCluster, row: Attack) -> None:
    judge(cluster, row)


def gpu_config(**fields: Any) -> Object:
    return {"apiVersion": API_VERSION, "kind": "GpuConfig", **fields}


def saying(name: str, *config: Object, requests: list[Object] | None = None, **asked: Any) -> Object:
    """A claim with whole entries of configuration."""
    body = asking(name, **asked)
    opaque = [
        {
            **({"requests": entry["requests"]} if "requests" in entry else {}),
            "opaque": {"driver": names.DRIVER, "parameters": entry["said"]},
        }
        for entry in config
    ]
    body["spec"]["devices"] |= {"config": opaque, **({"requests": requests} if requests else {})}
    return body


def template(claim: Object) -> Object:
    return {"metadata": {"name": objects.name(claim)}, "spec": {"spec": claim["spec"]}}


@attack("every-word-of-the-operators")
def every_word_of_the_operators(scene: Scene) -> Outcome:
    claims = [
        saying(f"says-{number}", {"said": document(of, name)}) for number, (of, name) in enumerate(OPERATORS)
    ]
    found = all_refused(
        scene,
        *(lambda each=each: scene.create(kinds.RESOURCE_CLAIMS, each) for each in claims),
        *(lambda each=each: scene.create(kinds.RESOURCE_CLAIM_TEMPLATES, template(each)) for each in claims),
    )
    assert all("is for the operator to say" in text for text in scene.told), scene.told
    return found


@contextmanager
def without_webhooks(scene: Scene) -> Iterator[None]:
    installation = scene.cluster.installation
    installation.remove_webhooks()
    try:
        yield
    finally:
        scene.wait(installation.webhook_answers, "the webhook")


@attack("past-the-webhook")
def past_the_webhook(scene: Scene) -> Outcome:
    with without_webhooks(scene):
        for number, (of, name) in enumerate(OPERATORS):
            scene.create(kinds.RESOURCE_CLAIMS, saying(f"says-{number}", {"said": document(of, name)}))
            scene.pod(f"says-{number}", f"says-{number}")
        scene.wait_for(event("ConstraintViolated"))
        scene.innocent_is_placed()
        placed = [number for number in range(len(OPERATORS)) if scene.allocated(f"says-{number}")]
    return "open" if placed else "denied"


def waits(scene: Scene, *claims: Object) -> Outcome:
    """`denied` when none of them is placed, and one of another tenant is."""
    for each in claims:
        scene.create(kinds.RESOURCE_CLAIMS, each)
        scene.pod(objects.name(each), objects.name(each))
    scene.wait_for(event("BackendUnavailable"))
    scene.innocent_is_placed()
    return "open" if any(scene.allocated(objects.name(each)) for each in claims) else "denied"


NONE, LIMITER = gpu_config(isolation="none"), gpu_config(isolation="limiter")


@attack("share-without-limits")
def share_without_limits(scene: Scene) -> Outcome:
    part = {"deviceClassName": names.CLASS_GPU, "capacity": {"requests": {"memory": "8Gi"}}}
    alternatives = [{"name": "gpu", "firstAvailable": [{"name": "part", **part}]}]
    return waits(
        scene,
        saying("all", {"said": NONE}, memory="8Gi"),
        saying("named", {"said": NONE, "requests": ["gpu"]}, memory="8Gi"),
        saying("first", {"said": NONE, "requests": ["gpu"]}, {"said": LIMITER}, memory="8Gi"),
        saying("last", {"said": LIMITER}, {"said": NONE, "requests": ["gpu"]}, memory="8Gi"),
        saying("part", {"said": NONE, "requests": ["gpu/part"]}, requests=alternatives),
        saying("parts", {"said": NONE, "requests": ["gpu"]}, requests=alternatives),
    )


@attack("spelled-otherwise")
def spelled_otherwise(scene: Scene) -> Outcome:
    words = ("None", "NONE", " none", "none\n", "n\u043ene", "no\u200bne", "")
    said = [
        *(gpu_config(isolation=word) for word in words),
        gpu_config(isolation="none") | {"kind": "gpuconfig"},
        gpu_config(isolation="none") | {"kind": "GangMember"},
        gpu_config(isolation="none") | {"apiVersion": "koordra.io/v1"},
        gpu_config(Isolation="none"),
        gpu_config(isolation=["none"]),
    ]
    return all_refused(
        scene, *(lambda each=each: scene.claim("spelled", memory="8Gi", config=(each,)) for each in said)
    )


@attack("said-twice")
def said_twice(scene: Scene) -> Outcome:
    return all_refused(
        scene,
        lambda: scene.claim("twice", memory="8Gi", config=(LIMITER, NONE)),
        lambda: scene.claim("twice", memory="8Gi", config=(NONE, LIMITER)),
    )


@attack("amounts-in-disguise")
def amounts_in_disguise(scene: Scene) -> Outcome:
    """A card of these nodes has 81559Mi."""
    amounts = ("79Gi", "8e10", "80000000000", "81558Mi", "81557.5Mi", "85519000000000m")
    qualified = {"capacity": {"requests": {"koordra.io/memory": "8Gi"}}}
    return waits(
        scene,
        *(saying(f"amount-{number}", {"said": NONE}, memory=amount) for number, amount in enumerate(amounts)),
        saying("qualified", {"said": NONE}, exactly=qualified),
        saying("percent", {"said": gpu_config(isolation="none", memoryPercent=99)}),
    )


@attack("drawing-past-the-limit")
def drawing_past_the_limit(scene: Scene) -> Outcome:
    drawing = [["compute", word] for word in ("graphics", "display", "ngx", "all")]
    found = all_refused(
        scene,
        *(
            lambda words=words: scene.claim(
                "draws", memory="8Gi", config=(gpu_config(isolation="limiter", driverCapabilities=words),)
            )
            for words in drawing
        ),
    )
    silent = saying("silent", {"said": gpu_config(driverCapabilities=["graphics"])}, memory="8Gi")
    return found if waits(scene, silent) == "denied" else "open"


@attack("parameters-of-a-class")
def parameters_of_a_class(scene: Scene) -> Outcome:
    body = {"metadata": {"name": "mine"}, "vendorParameters": [{"parameters": NONE}]}
    return scene.attempt(lambda: scene.create(CLASS_PARAMETERS, body))


@attack("class-for-others")
def class_for_others(scene: Scene) -> Outcome:
    """In a claim, for an alternative, in a template. Who is named may."""
    nics = scene.admin.get(kinds.DEVICE_CLASSES, names.CLASS_NIC)
    said = {"apiVersion": API_VERSION, "kind": "RdmaConfig", "network": {"vlan": 7}}
    config = [{"opaque": {"driver": names.DRIVER, "parameters": said}}]
    metadata = {
        "name": "of-others",
        "labels": {names.RESTRICTED_LABEL: "true"},
        "annotations": {names.CLASS_NAMESPACES: f"finance, {INNOCENT}"},
    }
    scene.admin.create(
        kinds.DEVICE_CLASSES, {"metadata": metadata, "spec": {**nics["spec"], "config": config}}
    )
    other = asking("other", device_class="of-others")
    alternatives = [
        {"name": "first", "deviceClassName": names.CLASS_GPU},
        {"name": "second", "deviceClassName": "of-others"},
    ]
    either = {"devices": {"requests": [{"name": "any", "firstAvailable": alternatives}]}}
    template = {"metadata": {"name": "other"}, "spec": {"spec": other["spec"]}}
    try:
        found = all_refused(
            scene,
            lambda: scene.create(kinds.RESOURCE_CLAIMS, other),
            lambda: scene.create(kinds.RESOURCE_CLAIMS, {**other, "spec": either}),
            lambda: scene.create(kinds.RESOURCE_CLAIM_TEMPLATES, template),
        )
        theirs = {**other, "metadata": {"name": "theirs", "namespace": INNOCENT}}
        scene.cluster.innocent.create(kinds.RESOURCE_CLAIMS, theirs, namespace=INNOCENT)
        scene.cluster.innocent.delete(kinds.RESOURCE_CLAIMS, "theirs", namespace=INNOCENT)
        for nobody in ({names.CLASS_NAMESPACES: None}, {names.CLASS_NAMESPACES: ""}):
            scene.admin.patch(kinds.DEVICE_CLASSES, "of-others", {"metadata": {"annotations": nobody}})
            assert scene.attempt(lambda: scene.create(kinds.RESOURCE_CLAIMS, other)) == "refused"
        return found
    finally:
        with suppress(NotFound):
            scene.admin.delete(kinds.DEVICE_CLASSES, "of-others")
