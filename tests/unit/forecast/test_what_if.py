"""Manifests that were never applied, as the controller would meet them."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.classic.notes import Notes
from koordra.cli.what_if.manifests import Assumed, WhatIf, what_if
from koordra.compat.settings import Settings
from koordra.controller.allocation.learned.leftover_store import NAME, data_of
from koordra.controller.legacy.settings import in_a_cluster
from koordra.controller.legacy.translation import Translations
from koordra.errors import InvalidManifest, PlanError
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload_table import LearnedTable
from tests.unit.allocator.machines import (
    allocated,
    claim,
    device_classes,
    gpu,
    machine,
    node,
    place,
    pod,
    request,
    slice_of,
)
from tests.unit.compat.pods import converted
from tests.unit.forecast.test_forecast import NOW

Dict = dict[str, Any]


def asked(*manifests: Dict, **assumed: Any) -> WhatIf:
    return what_if([*device_classes(), *manifests], Assumed(**assumed), NOW)


def new_claim(name: str, *requests: Dict) -> Dict:
    made = claim(name, *requests)
    del made["metadata"]["uid"]
    return made


def template(name: str, *requests: Dict) -> Dict:
    made = claim("x", *requests)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": made["spec"]},
    }


def of_template(name: str, of: str) -> Dict:
    made = pod(name)
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": of}]
    return made


def legacy(name: str, number: int = 1) -> Dict:
    made = pod(name)
    made["spec"]["containers"] = [
        {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(number)}}}
    ]
    return made


def deployment(replicas: int, of: Dict) -> Dict:
    spec = {"replicas": replicas, "template": {"metadata": {"labels": {"app": "web"}}, "spec": of["spec"]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


def why(found: WhatIf, key: str) -> str:
    return " ".join(map(str, found.plan().unsatisfiable[key]))


def test_a_native_node_is_never_offered_to_a_joint_claim() -> None:
    native = machine(1, 1)
    native[0]["metadata"]["labels"][names.MODE_LABEL] = names.MODE_NATIVE
    for device in native[1]["spec"]["devices"]:
        device["attributes"]["allocator"] = {"string": names.ALLOCATOR_SCHEDULER}
        device["taints"] = []
    found = asked(
        *native, *machine(1, 1, name="node-2"), claim("a", request("gpu")), claim("b", request("gpu"))
    )
    assert found.plan().nodes == {"default/a": "node-2"}
    assert "native mode" in why(found, "default/b")


def test_a_missing_template_or_claim_is_told_on_the_pod() -> None:
    named = pod("named", "nowhere")
    found = asked(*machine(), of_template("made", "gone"), named)
    assert "ResourceClaimTemplate default/gone, which is not there" in why(found, "default/made-gpu")
    assert "pod default/named names ResourceClaim default/nowhere" in why(found, "default/nowhere")


def test_a_gang_is_placed_as_a_whole_or_not_at_all() -> None:
    def members(number: int) -> list[Dict]:
        made = [of_template(f"m{at}", "one") for at in range(number)]
        for one in made:
            one["metadata"]["annotations"] = {"koordra.io/gang": "g", "koordra.io/gang-min": str(number)}
        return [template("one", request("gpu")), *made]

    assert len(asked(*machine(2, 1), *members(2)).plan().allocations) == 2
    short = asked(*machine(2, 1), *members(3)).plan()
    assert not short.allocations
    assert {*short.unsatisfiable} == {"default/m0-gpu", "default/m1-gpu", "default/m2-gpu"}


@pytest.mark.parametrize("of", [of_template("x", "one"), legacy("x")], ids=["claims", "legacy"])
def test_a_deployment_stands_for_all_of_its_pods(of: Dict) -> None:
    found = asked(*machine(2, 1), template("one", request("gpu")), deployment(3, of))
    planned = found.plan()
    assert (len(planned.allocations), len(planned.unsatisfiable)) == (2, 1)
    assert "Deployment web: its 3 pods are planned, deployment-web-0 to deployment-web-2" in found.notes
    names_of = [objects.name(one) for one in found.given if one["kind"] == "Pod"]
    assert names_of == ["deployment-web-0", "deployment-web-1", "deployment-web-2"]


def test_a_workload_that_a_cluster_has_is_there_with_its_pods() -> None:
    made = deployment(3, of_template("x", "one"))
    made["metadata"]["uid"] = "stored"
    found = asked(*machine(2, 1), template("one", request("gpu")), made)
    assert not found.plan().allocations
    assert not found.notes


@pytest.mark.parametrize(
    ("kind", "spec", "number"),
    [
        ("Job", {"parallelism": 4, "completions": 3}, 3),
        ("StatefulSet", {"replicas": 2}, 2),
        ("Deployment", {}, 1),
        ("Deployment", {"replicas": 0}, 0),
        ("DaemonSet", {}, 1),
    ],
)
def test_how_many_pods_a_workload_has(kind: str, spec: Dict, number: int) -> None:
    of = {"spec": of_template("x", "one")["spec"]}
    made = {"kind": kind, "apiVersion": "v1", "metadata": {"name": "w"}, "spec": {**spec, "template": of}}
    found = asked(*machine(8, 1), template("one", request("gpu")), made)
    assert len(found.plan().allocations) == number


def test_groups_of_a_leader_worker_set_are_gangs_of_their_own() -> None:
    of = {
        "metadata": {"annotations": {"koordra.io/gang": "serve", "koordra.io/gang-min": "2"}},
        "spec": of_template("x", "one")["spec"],
    }
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "leaderTemplate": of, "workerTemplate": of}}
    made = {"kind": "LeaderWorkerSet", "apiVersion": "v1", "metadata": {"name": "w"}, "spec": spec}
    found = asked(*machine(3, 1), template("one", request("gpu")), made)
    planned = found.plan()
    group = {"default/leaderworkerset-w-leader-0-gpu", "default/leaderworkerset-w-worker-0-gpu"}
    assert {*planned.allocations} == group, "three cards, and no half of the other"


def test_a_quota_refuses_in_its_words() -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "cards", "namespace": "default"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "1"}},
    }
    found = asked(*machine(4, 1), quota, legacy("a"), legacy("b"))
    assert len(found.plan().allocations) == 1
    text = 'pods "b" is forbidden: exceeded quota: cards, requested: requests.nvidia.com/gpu=1'
    assert text in why(found, "default/b")


HAMI_QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "mib", "namespace": "default"},
    "spec": {"hard": {"limits.nvidia.com/gpumem": "1500", "requests.koordra.io/gpu": "9"}},
}


def in_hamis_words(name: str) -> Dict:
    made = legacy(name)
    made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "1000"
    return made


def test_a_quota_on_an_old_name_says_where_it_counts_converted_pods() -> None:
    found = converted(in_hamis_words("a"), in_hamis_words("b")).objects
    told = [note for note in asked(*machine(4, 1), HAMI_QUOTA, *found).notes if "counts converted" in note]
    where = "koordra: ResourceQuota default/mib: spec.hard[limits.nvidia.com/gpumem]"
    what = "counts converted pods where component legacy is installed, as is assumed here; elsewhere it counts none of them"
    assert told == [f"{where}: {what}"]


@pytest.mark.parametrize("given", ["old words", "rewritten", "another namespace", "another stack"])
def test_it_says_so_of_no_other_pods(given: str) -> None:
    one, quota = in_hamis_words("a"), HAMI_QUOTA
    if given == "rewritten":
        one = (
            Translations(in_a_cluster(Settings()))
            .of({"kind": "Pod", "apiVersion": "v1", **one}, Notes("a"))
            .pod
        )
    elif given == "another namespace":
        (one, _), quota = converted(one).objects, {**quota, "metadata": {"name": "q", "namespace": "other"}}
    elif given == "another stack":
        (one, _), quota = (
            converted(one).objects,
            {**quota, "spec": {"hard": {"limits.aliyun.com/gpu-mem": "4"}}},
        )
    assert not [note for note in asked(*machine(4, 1), quota, one).notes if "counts converted" in note]


def test_what_the_webhook_refuses_is_refused_in_its_words() -> None:
    wrong = new_claim("wrong", request("gpu"))
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "memoryPercnt": 5}
    wrong["spec"]["devices"]["config"] = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    found = asked(*machine(), wrong, pod("p", "wrong"))
    assert "would be refused: ResourceClaim default/wrong: spec.devices.config[0]" in why(
        found, "default/wrong"
    )
    assert not found.plan().allocations


def test_an_object_that_is_there_twice_is_refused_and_one_of_the_cluster_stays() -> None:
    twice = asked(*machine(), new_claim("a", request("gpu")), new_claim("a", request("gpu", count=9)))
    text = 'resourceclaims.resource.k8s.io "a" already exists'
    assert twice.notes == (f"koordra: ResourceClaim default/a would be refused: {text}",)
    assert twice.plan().nodes == {"default/a": "node-1"}
    stored = claim("a", request("gpu"))
    stored["metadata"]["uid"] = "1"
    kept = asked(*machine(), new_claim("a", request("gpu", count=9)), stored)
    assert kept.plan().nodes
    assert [note for note in kept.notes if "ResourceClaim default/a: is in the cluster already" in note]


def test_a_claim_without_a_pod_comes_after_the_pods_and_minds_what_is_cordoned() -> None:
    maintained = machine(1, 1)
    maintained[0]["spec"] = {"taints": [{"key": "gpus-only", "effect": "NoSchedule"}]}
    found = asked(
        *maintained, claim("alone", request("gpu")), claim("used", request("gpu")), pod("p", "used")
    )
    assert found.plan().nodes == {"default/alone": "node-1"}, "the pod does not tolerate the taint"
    open_to_all = asked(
        *machine(1, 1), claim("alone", request("gpu")), claim("used", request("gpu")), pod("p", "used")
    )
    assert open_to_all.plan().nodes == {"default/used": "node-1"}
    cordoned = machine(1, 1)
    cordoned[0]["spec"] = {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable"}]}
    assert not asked(*cordoned, claim("alone", request("gpu"))).plan().nodes


def test_nodes_are_those_that_slices_name_where_there_are_none() -> None:
    _, *slices = machine(1, 1)
    assert asked(*slices, claim("a", request("gpu"))).plan().nodes == {"default/a": "node-1"}


def test_devices_of_a_claim_whose_pods_were_left_out_are_taken() -> None:
    first = asked(*machine(1, 1), claim("a", request("gpu"))).plan()
    held = claim("a", request("gpu"))
    held["metadata"]["uid"] = "1"
    held["status"] = {"allocation": first.allocations["default/a"]}
    found = asked(*machine(1, 1), held, claim("b", request("gpu")))
    assert not found.plan().allocations
    assert "ResourceClaim default/a" in why(found, "default/b")


def test_of_a_shared_claim_the_pod_that_cannot_is_named() -> None:
    there, nowhere = pod("there", "shared"), pod("nowhere", "shared")
    nowhere["spec"]["nodeSelector"] = there["spec"]["nodeSelector"] = {"zone": "a"}
    nowhere["spec"]["tolerations"] = []
    cluster = machine(1, 1)
    cluster[0] = node("node-1", labels={"zone": "b"})
    assert "pod" in why(asked(*cluster, claim("shared", request("gpu")), there, nowhere), "default/shared")


def test_an_unknown_policy_is_told() -> None:
    with pytest.raises(PlanError, match="policies are koordra"):
        asked(*machine(), policy="Best")


def test_what_is_asked_is_not_changed() -> None:
    manifests = [*machine(2, 1), template("one", request("gpu")), of_template("p", "one"), legacy("q")]
    before = repr(manifests)
    assert len(asked(*manifests).plan().allocations) == 2
    assert repr(manifests) == before


def test_what_the_controller_has_learned_counts_where_it_is_given() -> None:
    """A quarter of the large GPU, of which half is in use, leaves what is asked for otherwise."""
    nodes = [
        one
        for name, memory in (("a", "40Gi"), ("b", "40Gi"), ("z", "80Gi"))
        for one in (node(name), slice_of([gpu(0, memory=memory, place=place(0))], name=name))
    ]
    result = {"request": "gpu", "driver": "koordra.io", "pool": "z", "device": "gpu-0", "shareID": "s"}
    taken = {"consumedCapacity": {"memory": "20Gi", "cores": "0", "slots": "1"}}
    share = request("gpu", capacity={"memory": "20Gi"})
    held = allocated(claim("held", share), {"devices": {"results": [{**result, **taken}]}})
    holes = tuple({25: 250_000, 75: 100_000}.get(step, 0) for step in range(101))
    data = data_of(Learned(LearnedTable(holes=holes, pods=100)))
    learned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": data}
    there = [*nodes, held, claim("new", share)]
    assert asked(*there, learned).plan().nodes == {"default/new": "z"}
    other = {**learned, "metadata": {"name": "another"}}
    for unknown in (other, {**learned, "data": {}}):
        assert asked(*there, unknown).plan().nodes == {"default/new": "a"}
    with pytest.raises(InvalidManifest, match="is no JSON"):
        asked(*there, {**learned, "data": {"table.json": "{"}})
