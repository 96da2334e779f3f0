"""The rows of tenant.py."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

import pytest

from koordra.api import kinds, names
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS, RESOURCE_CLASSES
from koordra.controller.webhook.refusal_log import MOST_LINES, MOST_TEXT
from tests.attacks.cluster import INNOCENT, InstalledCluster
from tests.attacks.cluster import TENANT as TENANT_NAMESPACE
from tests.attacks.row import Attack, Outcome, event
from tests.attacks.scene import Scene, all_refused, asking, attack, judge
from tests.attacks.tenant import TENANT
from tests.cluster.waiting import NODES
from tests.fakes.joint_cluster import pod

VERSION = "koordra.io/v1alpha1"
PEOPLE = (TENANT_NAMESPACE, INNOCENT)


@pytest.mark.parametrize("row", [row for row in TENANT if row.runs], ids=lambda row: row.name)
def test_tenant(cluster: InstalledCluster, row: Attack) -> None:
    judge(cluster, row)


def selecting(expression: str) -> Object:
    return {"selectors": [{"cel": {"expression": expression}}]}


def parameters(kind: str, **fields: Any) -> Object:
    return {"apiVersion": VERSION, "kind": kind, **fields}


def of_tenant(name: str, **annotations: str) -> Object:
    return {"name": name, "namespace": "tenant", "annotations": annotations}


# ------------------------------------------------------------------------------------------------- selectors


@attack("nested-parentheses")
def nested_parentheses(scene: Scene) -> Outcome:
    scene.claim("nested", exactly=selecting("(" * 20 + "true" + ")" * 20))
    scene.pod("nested", "nested")
    scene.wait(lambda: scene.allocated("nested"), "the claim placed")
    return "bounded"


@attack("deep-selector")
def deep_selector(scene: Scene) -> Outcome:
    return scene.attempt(lambda: scene.claim("deep", exactly=selecting("(" * 250 + "true" + ")" * 250)))


@attack("long-selector")
def long_selector(scene: Scene) -> Outcome:
    return scene.attempt(lambda: scene.claim("long", exactly=selecting("true" + " && true" * 2500)))


@attack("costly-selector")
def costly_selector(scene: Scene) -> Outcome:
    expression = "true"
    for name in "abcdef":
        expression = f"[0,1,2,3,4,5,6,7,8,9].all({name}, {expression})"
    return scene.attempt(lambda: scene.claim("costly", exactly=selecting(expression)))


@attack("costly-pattern")
def costly_pattern(scene: Scene) -> Outcome:
    scene.claim("pattern", exactly=selecting(f"'{'a' * 9000}'.matches('(a*)*b')"))
    scene.pod("pattern", "pattern")
    scene.wait_for(event("SelectorMismatch"))
    return "bounded"


# ---------------------------------------------------------------------------------------------------- claims


@attack("impossible-claim")
def impossible_claim(scene: Scene) -> Outcome:
    scene.claim("million", count=1_000_000)
    scene.pod("million", "million")
    scene.wait_for(event("ExceedsDevice"))
    return "bounded"


@attack("joint-taint")
def joint_taint(scene: Scene) -> Outcome:
    """In a request, in an alternative, in a template, and under a name that the server makes."""
    said = ({"key": names.JOINT_TAINT, "operator": "Exists"}, {"operator": "Exists"}, {})
    one = {"name": "a", "deviceClassName": names.CLASS_GPU, "tolerations": [said[0]]}
    alternative = {"devices": {"requests": [{"name": "r", "firstAvailable": [one]}]}}
    generated = {"metadata": {"generateName": "tolerant-"}, "spec": alternative}
    template = {"metadata": {"name": "tolerant"}, "spec": {"spec": alternative}}
    return all_refused(
        scene,
        *(lambda each=each: scene.claim("tolerant", exactly={"tolerations": [each]}) for each in said),
        lambda: scene.create(kinds.RESOURCE_CLAIMS, generated),
        lambda: scene.create(kinds.RESOURCE_CLAIM_TEMPLATES, template),
    )


@attack("held-device")
def held_device(scene: Scene) -> Outcome:
    said = (names.HELD_TAINT, names.RELEASE_TAINT)
    tolerations = [{"key": key, "operator": "Exists"} for key in said]
    return all_refused(
        scene,
        *(lambda each=each: scene.claim("tolerant", exactly={"tolerations": [each]}) for each in tolerations),
    )


@attack("immediate-by-annotation")
def immediate_by_annotation(scene: Scene) -> Outcome:
    now = {names.MODE_LABEL: names.IMMEDIATE}
    scene.claim("later")
    template = {"metadata": {"annotations": now}, "spec": asking("x")["spec"]}
    body = {"metadata": {"name": "now"}, "spec": template}
    return all_refused(
        scene,
        lambda: scene.claim("now", annotations=now),
        lambda: scene.create(
            kinds.RESOURCE_CLAIMS, {**asking("x"), "metadata": {"generateName": "now-", "annotations": now}}
        ),
        lambda: scene.tenant.patch(
            kinds.RESOURCE_CLAIMS, "later", {"metadata": {"annotations": now}}, namespace="tenant"
        ),
        lambda: scene.create(kinds.RESOURCE_CLAIM_TEMPLATES, body),
    )


@attack("forged-retain")
def forged_retain(scene: Scene) -> Outcome:
    marks = {"koordra.io/elastic-reclaim-policy": "Retain"}
    scene.claim("later")
    return all_refused(
        scene,
        lambda: scene.claim("kept", finalizers=[names.RETAIN_FINALIZER]),
        lambda: scene.claim("kept", annotations=marks),
        lambda: scene.tenant.patch(
            kinds.RESOURCE_CLAIMS,
            "later",
            {"metadata": {"finalizers": [names.RETAIN_FINALIZER]}},
            namespace="tenant",
        ),
    )


@attack("admin-access")
def admin_access(scene: Scene) -> Outcome:
    """In a claim, in a template, and by an update."""
    asked = {"adminAccess": True}
    scene.claim("later")
    later = scene.admin.get(kinds.RESOURCE_CLAIMS, "later", namespace="tenant")
    body = {"metadata": {"name": "admin"}, "spec": {"spec": asking("x", exactly=asked)["spec"]}}
    refused = all_refused(
        scene,
        lambda: scene.claim("admin", exactly=asked),
        lambda: scene.create(kinds.RESOURCE_CLAIM_TEMPLATES, body),
    )
    changed = {**later, "spec": asking("later", exactly=asked)["spec"]}
    scene.attempt(lambda: scene.tenant.update(kinds.RESOURCE_CLAIMS, changed))
    assert "immutable" in scene.told[-1]
    return refused


@attack("own-policy")
def own_policy(scene: Scene) -> Outcome:
    said = parameters("GpuConfig", isolation="none", allowedIsolation=["none"])
    return scene.attempt(lambda: scene.claim("own", memory="8Gi", config=(said,)))


@attack("network-of-others")
def network_of_others(scene: Scene) -> Outcome:
    asked: tuple[Object, ...] = (
        {"vlan": 7},
        {"pkey": "0x8001"},
        {"guid": "00:11:22:33:44:55:66:77"},
        {"attachment": "kube-system/fabric"},
        {"addresses": ["10.0.0.1/24"]},
    )
    return all_refused(
        scene,
        *(
            lambda each=each: scene.claim(
                "network", device_class=names.CLASS_NIC, config=(parameters("RdmaConfig", network=each),)
            )
            for each in asked
        ),
    )


@attack("parameters-of-another-driver")
def parameters_of_another_driver(scene: Scene) -> Outcome:
    body = asking("foreign")
    said = {"driver": "gpu.example.com", "parameters": parameters("GpuConfig", isolation="none")}
    body["spec"]["devices"]["config"] = [{"opaque": said}]
    scene.create(kinds.RESOURCE_CLAIMS, body)
    scene.pod("foreign", "foreign")
    scene.wait(lambda: scene.allocated("foreign"), "the claim placed")
    return "denied"


@attack("classes-of-its-own")
def classes_of_its_own(scene: Scene) -> Outcome:
    cls: Object = {"metadata": {"name": "mine"}, "driverName": names.DRIVER}
    return all_refused(
        scene,
        lambda: scene.tenant.create(RESOURCE_CLASSES, cls),
        lambda: scene.tenant.create(kinds.DEVICE_CLASSES, {"metadata": {"name": "mine"}, "spec": {}}),
    )


@attack("controllers-tables")
def controllers_tables(scene: Scene) -> Outcome:
    for name in ("koordra-leftover-table", "koordra-node-parts", "koordra-legacy"):
        scene.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"table": "]", NODES[0]: "]"}})
    return "denied"


# ---------------------------------------------------------------------------------- what others write or read


@attack("own-allocation")
def own_allocation(scene: Scene) -> Outcome:
    scene.claim("own")
    entry = {"driver": names.DRIVER, "pool": NODES[0], "device": "gpu-0"}
    forged: tuple[Object, ...] = (
        {"allocation": {"devices": {"results": []}}},
        {"reservedFor": [{"resource": "pods", "name": "mine", "uid": "1"}]},
        {"devices": [{**entry, "conditions": []}]},
    )
    return all_refused(
        scene,
        *(
            lambda status=status: scene.tenant.patch(
                kinds.RESOURCE_CLAIMS, "own", {"status": status}, namespace="tenant", subresource="status"
            )
            for status in forged
        ),
    )


@attack("lifted-gate")
def lifted_gate(scene: Scene) -> Outcome:
    scene.claim("gated", count=1_000)
    scene.pod("gated", "gated")
    assert scene.admin.get(kinds.PODS, "gated", namespace="tenant")["spec"]["schedulingGates"]
    lifted = {"spec": {"schedulingGates": None}}
    return scene.attempt(lambda: scene.tenant.patch(kinds.PODS, "gated", lifted, namespace="tenant"))


@attack("forged-decision")
def forged_decision(scene: Scene) -> Outcome:
    scene.create(kinds.PODS, {**pod("later", ()), "metadata": of_tenant("later")})
    forged = {"metadata": {"annotations": {"gate.koordra.io/gang": "train"}}}
    body = {**pod("forged", ()), "metadata": of_tenant("forged", **{"gate.koordra.io/gang": "train"})}
    return all_refused(
        scene,
        lambda: scene.create(kinds.PODS, body),
        lambda: scene.tenant.patch(kinds.PODS, "later", forged, namespace="tenant"),
    )


@attack("forged-allocation")
def forged_allocation(scene: Scene) -> Outcome:
    """Without a claim nothing is given; with one, what its allocation says."""
    given = json.dumps({"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "100"}}]})
    forged = {
        "scheduling.koordinator.sh/device-allocated": given,
        "hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,81559,100:;",
        "hami.io/vgpu-node": NODES[0],
        "koordra.io/allocated": given,
    }
    scene.claim("forged")
    body = {**pod("forged", ("forged",)), "metadata": of_tenant("forged", **forged)}
    body["spec"]["nodeSelector"] = {"kubernetes.io/hostname": NODES[1]}
    scene.create(kinds.PODS, body)
    scene.wait(lambda: scene.allocated("forged"), "the claim placed")
    return "denied" if scene.results("forged")[0]["pool"] == NODES[1] else "open"


@attack("bound-by-hand")
def bound_by_hand(scene: Scene) -> Outcome:
    scene.claim("bound")
    scene.pod("bound", "bound", nodeName=NODES[1])
    scene.wait(lambda: scene.allocated("bound"), "the claim placed")
    return "bounded" if scene.results("bound")[0]["pool"] == NODES[1] else "open"


# ----------------------------------------------------------------------------------------------------- gangs


def member(scene: Scene, name: str, *, gang: str, least: int, namespace: str = "tenant") -> None:
    """A pod of a gang with a claim for a GPU."""
    client = scene.tenant if namespace == "tenant" else scene.cluster.innocent
    body, user = asking(name), pod(name, (name,))
    user["metadata"]["annotations"] = {"koordra.io/gang": gang, "koordra.io/gang-min": str(least)}
    for kind, obj in ((kinds.RESOURCE_CLAIMS, body), (kinds.PODS, user)):
        obj["metadata"]["namespace"] = namespace
        client.create(kind, obj, namespace=namespace)


@attack("gang-that-never-starts")
def gang_that_never_starts(scene: Scene) -> Outcome:
    for number in range(3):
        member(scene, f"w{number}", gang="never", least=5)
    scene.wait_for(event("GangGathering"))
    scene.innocent_is_placed()
    return "open" if any(scene.allocated(f"w{number}") for number in range(3)) else "bounded"


@attack("gang-of-others")
def gang_of_others(scene: Scene) -> Outcome:
    """The other namespace's gang would be whole with it."""
    member(scene, "theirs", gang="train", least=2, namespace=INNOCENT)
    try:
        member(scene, "mine", gang="train", least=2)
        scene.wait_for(event("GangGathering"))
        scene.innocent_is_placed()
        placed = scene.allocated("mine") or scene.allocated("theirs", namespace=INNOCENT)
        return "open" if placed else "denied"
    finally:
        scene.cluster.innocent.delete(kinds.PODS, "theirs", namespace=INNOCENT, grace_period=0)
        scene.cluster.innocent.delete(kinds.RESOURCE_CLAIMS, "theirs", namespace=INNOCENT)


# ---------------------------------------------------------------------------------------- words and numbers


@attack("escape-sequences")
def escape_sequences(scene: Scene) -> Outcome:
    wild = "\x1b[2J\u202e\x9b"
    body = {
        **pod("wild", ()),
        "metadata": of_tenant("wild", **{"koordra.io/gang": wild, "koordra.io/gang-min": "2"}),
    }
    found = all_refused(
        scene,
        lambda: scene.claim("wild", config=(parameters("GpuConfig", isolation=wild),)),
        lambda: scene.create(kinds.PODS, body),
    )
    assert all(text.isprintable() for text in scene.told), scene.told
    return found


@attack("event-flood")
def event_flood(scene: Scene) -> Outcome:
    scene.claim("flood", count=99)
    scene.pod("flood", "flood")
    scene.wait_for(event("ExceedsDevice"))
    before = scene.admin.newest(kinds.EVENTS)
    for number in range(100):
        change = {"metadata": {"labels": {"changed": str(number)}}}
        scene.tenant.patch(kinds.PODS, "flood", change, namespace="tenant")
        scene.tenant.patch(kinds.RESOURCE_CLAIMS, "flood", change, namespace="tenant")
    scene.innocent_is_placed()
    return "bounded" if scene.cluster.events_written(since=before) < 20 else "open"


@attack("refusal-flood")
def refusal_flood(scene: Scene) -> Outcome:
    """Each of them has 992 contradictions in 11 KB."""
    said = tuple(
        parameters("GpuConfig", memoryPercent=number + 1, driverCapabilities=["compute"] * (number + 1))
        for number in range(32)
    )
    for number in range(200):
        assert scene.attempt(lambda n=number: scene.claim(f"refused-{n}", config=said)) == "refused"
    lines = [line for line in scene.logged if line["event"] == "admission_refused"]
    assert 0 < len(lines) <= 2 * MOST_LINES, "of two minutes at most"
    assert max(len(str(line)) for line in lines) < MOST_TEXT + 300
    assert {line["namespace"] for line in lines} == {TENANT_NAMESPACE}
    return "bounded"


@attack("label-values")
def label_values(scene: Scene) -> Outcome:
    before = scene.cluster.samples().keys()
    for number in range(20):
        name = f"odd-{number}-value"
        scene.attempt(lambda name=name: scene.claim(name, config=(parameters(name, **{name: name}),)))
        scene.attempt(lambda name=name: scene.claim(name, device_class=f"{name}.example.com"))
        scene.pod(name, name)
    scene.innocent_is_placed()
    new = scene.cluster.samples().keys() - before
    return "open" if len(new) > 40 or any("odd-" in each for each in new) else "bounded"


@attack("metrics-of-the-controller")
def metrics_of_the_controller(scene: Scene) -> Outcome:
    """Of claims that are placed, wait and are refused, of a class, a gang and a pod."""
    scene.claim("secret-placed")
    scene.pod("secret-placed", "secret-placed")
    scene.claim("secret-waits", count=1_000)
    scene.pod("secret-waits", "secret-waits")
    scene.claim("secret-foreign", device_class="secret-class.example.com")
    scene.pod("secret-foreign", "secret-foreign")
    scene.attempt(lambda: scene.claim("secret-refused", config=(parameters("GpuConfig", secret=True),)))
    member(scene, "secret-member", gang="secret-gang", least=2)
    scene.wait_for(event("GangGathering"))
    scene.wait_for(event("ExceedsDevice"))
    scene.wait(lambda: scene.allocated("secret-placed"), "the claim placed")
    samples = scene.cluster.samples()
    assert any(NODES[0] in sample for sample in samples), "of nodes they tell"
    told = [each for each in samples if "secret" in each or any(f'"{one}"' in each for one in PEOPLE)]
    return "open" if told else "denied"


@attack("webhook-bodies")
def webhook_bodies(scene: Scene) -> Outcome:
    statuses = []
    for body, length in ((b"[" * 100_000, None), (b"{", "nine"), (b"", str(9 * 1024 * 1024))):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            "127.0.0.1", scene.cluster.installation.webhook_port, context=context, timeout=60
        )
        connection.putrequest("POST", "/validate")
        connection.putheader("Content-Length", length or str(len(body)))
        connection.endheaders(body)
        statuses.append(connection.getresponse().status)
        connection.close()
    scene.told += map(str, statuses)
    return "refused" if statuses == [400, 411, 413] else "open"
