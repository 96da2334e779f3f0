"""Elastic GPU's classes and claims become koordra's, and what they have is shown; at any moment somebody may
interfere."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.elastic.elastic_gpu import ELASTIC_CLAIMS, ELASTIC_CLASSES, ELASTIC_GPUS, GPUS
from koordra.api.kinds import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.controller.resource_class.elastic import claims as elastic_claims
from koordra.errors import ApiError, ApiUnreachable, Forbidden
from tests.fakes.kube_api import Killed, Write
from tests.unit.elastic.elastic_cluster import ElasticCluster

RETAINED = {"reclaimPolicy": "Retain", "egpuBindingMode": "Immediate"}


@pytest.fixture
def cluster() -> ElasticCluster:
    return ElasticCluster()


def test_a_class_becomes_a_device_class_and_drift_is_put_back(cluster: ElasticCluster) -> None:
    cluster.elastic_class(parameters={"isolation": "limiter", "nodePolicy": "Binpack", "colour": "green"})
    cluster.settle()
    found = cluster.api.get(DEVICE_CLASSES, "shares")
    assert 'type == "gpu"' in found["spec"]["selectors"][0]["cel"]["expression"]
    assert [entry["opaque"]["parameters"]["kind"] for entry in found["spec"]["config"]] == [
        "PlacementPolicy",
        "GpuConfig",
    ]
    condition = cluster.api.get(ELASTIC_CLASSES, "shares")["status"]["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("True", "Reconciled")
    assert "colour" in condition["message"]
    cluster.api.edit(DEVICE_CLASSES, "shares", lambda obj: obj["spec"].update(selectors=[]))
    cluster.settle()
    assert cluster.api.get(DEVICE_CLASSES, "shares")["spec"] == found["spec"]


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"provisioner": "other.example.com"}, "ForeignProvisioner", "left to it"),
        ({"reclaimPolicy": "Recycle"}, "InvalidClass", "Recycle"),
        ({"egpuBindingMode": "Later"}, "InvalidClass", "Immediate"),
        ({"parameters": {"memoryUnit": "GB"}}, "InvalidClass", "MiB, GiB"),
        ({"parameters": {"isolation": "nonsense"}}, "InvalidClass", "isolation"),
    ],
)
def test_a_class_that_cannot_be_served_says_why_and_so_do_its_claims(
    cluster: ElasticCluster, fields: dict[str, Any], reason: str, words: str
) -> None:
    cluster.elastic_class(**fields)
    cluster.elastic_claim()
    cluster.settle()
    condition = cluster.api.get(ELASTIC_CLASSES, "shares")["status"]["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert words in condition["message"]
    assert cluster.phase()[0] == "Pending"
    assert cluster.phase()[1] in (reason, "ClassNotReady")
    assert not cluster.has_claim()


def test_a_device_class_of_somebody_else_is_not_touched(cluster: ElasticCluster) -> None:
    cluster.elastic_class(names.CLASS_GPU)
    before = cluster.api.get(DEVICE_CLASSES, names.CLASS_GPU)
    cluster.settle()
    assert cluster.api.get(DEVICE_CLASSES, names.CLASS_GPU) == before
    condition = cluster.api.get(ELASTIC_CLASSES, names.CLASS_GPU)["status"]["conditions"][0]
    assert condition["reason"] == "NameTaken"


def test_a_claim_waits_for_its_pod_is_bound_and_free_again(cluster: ElasticCluster) -> None:
    cluster.elastic_class()
    cluster.elastic_claim()
    cluster.settle()
    assert cluster.phase() == ("Pending", "WaitForFirstConsumer")
    exactly = cluster.claim()["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly["capacity"]["requests"] == {"cores": "10", "memory": "4Gi"}
    cluster.pod("p", "a")
    cluster.settle()
    assert cluster.phase() == ("Bound", "Bound")
    (binding,) = cluster.bindings()
    assert binding["status"]["phase"] == "Bound"
    assert binding["spec"]["capacity"] == {"elasticgpu.io/gpu-core": "10", "elasticgpu.io/gpu-memory": "4096"}
    assert binding["spec"]["gpuShare"] == {"gpuName": "n0-gpu-0", "index": "0", "uuid": "GPU-n0-0"}
    assert cluster.status()["elasticGPUName"] == objects.name(binding)
    cluster.runs("p", "a")
    cluster.settle()
    gpu = cluster.gpu()
    assert gpu["spec"] | {} == {
        "index": 0,
        "memory": 81920,
        "nodeName": "n0",
        "uuid": "GPU-n0-0",
        "model": "NVIDIA H100",
        "path": "/dev/nvidia0",
    }
    assert gpu["status"]["allocatable"] == {
        "elasticgpu.io/gpu-core": "90",
        "elasticgpu.io/gpu-memory": "77824",
    }
    (allocated,) = gpu["status"]["allocated"].values()
    assert allocated["pod"] == "p"
    assert allocated["containers"] == [{"container": "main", "resource": binding["spec"]["capacity"]}]
    cluster.ends("p", "a")
    cluster.settle()
    assert cluster.phase() == ("Pending", "WaitForFirstConsumer")
    assert cluster.bindings() == []
    assert "allocated" not in cluster.gpu()["status"]


def test_immediate_binds_without_a_pod(cluster: ElasticCluster) -> None:
    cluster.elastic_class(egpuBindingMode="Immediate")
    cluster.elastic_claim()
    cluster.elastic_claim("b", core=200, memory=None)
    cluster.settle()
    assert cluster.phase() == ("Bound", "Bound")
    assert cluster.phase("b") == ("Pending", "WaitForDevices")


def test_whole_cards(cluster: ElasticCluster) -> None:
    cluster.add_node("big", 2)
    cluster.elastic_class(egpuBindingMode="Immediate")
    cluster.elastic_claim(core=250, memory=4)
    cluster.settle()
    assert cluster.phase() == ("Bound", "Bound")
    assert "the rest does not count" in cluster.message()
    (binding,) = cluster.bindings()
    cards = binding["spec"]["physicalGPU"]
    assert [entry["uuid"] for entry in cards["devices"]] == ["GPU-big-0", "GPU-big-1"]
    assert cards["gpuNames"] == ["big-gpu-0", "big-gpu-1"]
    assert binding["spec"]["capacity"]["elasticgpu.io/gpu-core"] == "200"
    assert binding["spec"]["capacity"]["elasticgpu.io/gpu-memory"] == str(2 * 81920)


def test_retained_devices_stay_between_pods_and_after_the_claim(cluster: ElasticCluster) -> None:
    cluster.elastic_class(reclaimPolicy="Retain")
    cluster.elastic_claim()
    cluster.pod("p", "a")
    cluster.settle()
    assert cluster.claim()["metadata"]["finalizers"] == [names.RETAIN_FINALIZER]
    cluster.runs("p", "a")
    cluster.settle()
    held = cluster.joint.devices("a")
    cluster.ends("p", "a")
    cluster.settle()
    assert cluster.joint.devices("a") == held
    cluster.delete_claim()
    cluster.settle()
    (binding,) = cluster.bindings()
    assert (binding["status"]["phase"], binding["status"]["reason"]) == ("Released", "Retained")
    assert cluster.joint.devices("a") == held
    cluster.api.delete(ELASTIC_GPUS, objects.name(binding))
    cluster.settle()
    assert cluster.bindings() == []
    assert not cluster.has_claim()
    assert cluster.gpu()["status"]["allocatable"]["elasticgpu.io/gpu-core"] == "100"


def test_deleting_the_elastic_gpu_of_a_claim_that_lives_waits_for_the_claim(cluster: ElasticCluster) -> None:
    cluster.elastic_class(**RETAINED)
    cluster.elastic_claim()
    cluster.settle()
    (binding,) = cluster.bindings()
    cluster.api.delete(ELASTIC_GPUS, objects.name(binding))
    cluster.settle()
    assert cluster.phase() == ("Bound", "Bound")
    cluster.delete_claim()
    cluster.settle()
    assert not cluster.has_claim()
    assert cluster.bindings() == []


def test_a_retained_share_is_not_given_to_a_new_claim_of_the_name_unless_it_names_it(
    cluster: ElasticCluster,
) -> None:
    cluster.elastic_class(**RETAINED)
    cluster.elastic_claim()
    cluster.settle()
    (binding,) = cluster.bindings()
    cluster.delete_claim()
    cluster.settle()
    cluster.elastic_claim()
    cluster.settle()
    assert cluster.phase() == ("Pending", "Retained")
    assert objects.name(binding) in cluster.message()
    cluster.api.edit(
        ELASTIC_CLAIMS, "a", lambda obj: obj["spec"].update(elasticGPUName=objects.name(binding))
    )
    cluster.settle()
    assert cluster.phase() == ("Bound", "Bound")
    (again,) = cluster.bindings()
    assert objects.uid(again) == objects.uid(binding)
    assert again["spec"]["claimRef"]["uid"] == objects.uid(cluster.api.get(ELASTIC_CLAIMS, "a"))


def test_deletion_while_a_pod_runs_waits_for_the_pod(cluster: ElasticCluster) -> None:
    cluster.elastic_class()
    cluster.elastic_claim()
    cluster.pod("p", "a")
    cluster.settle()
    cluster.runs("p", "a")
    cluster.delete_claim()
    cluster.settle()
    assert cluster.has_claim()
    (binding,) = cluster.bindings()
    assert (binding["status"]["phase"], binding["status"]["reason"]) == ("Released", "BeingDeleted")
    cluster.ends("p", "a")
    cluster.settle()
    assert not cluster.has_claim()
    assert cluster.bindings() == []


def test_a_resource_claim_of_somebody_else_is_not_touched(cluster: ElasticCluster) -> None:
    mine = cluster.joint.claim("a")
    cluster.elastic_class()
    cluster.elastic_claim()
    cluster.settle()
    assert cluster.phase() == ("Pending", "NameTaken")
    assert objects.uid(cluster.claim()) == objects.uid(mine)
    assert [told.reason for told in cluster.told] == ["NameTaken"]
    cluster.delete_claim()
    cluster.settle()
    assert cluster.has_claim()


def test_objects_of_somebody_else_with_our_names_are_not_touched(cluster: ElasticCluster) -> None:
    cluster.api.create(GPUS, {"metadata": {"name": "n0-gpu-0"}, "spec": {"index": 7}})
    cluster.api.create(ELASTIC_GPUS, {"metadata": {"name": "by-hand"}, "spec": {}})
    cluster.settle()
    assert cluster.gpu()["spec"] == {"index": 7}
    assert [objects.name(obj) for obj in cluster.bindings()] == ["by-hand"]
    assert [told.reason for told in cluster.told] == ["NameTaken"]


def test_marks_taken_off_come_back(cluster: ElasticCluster) -> None:
    cluster.elastic_class(**RETAINED)
    cluster.elastic_claim()
    cluster.settle()
    cluster.api.edit(RESOURCE_CLAIMS, "a", lambda obj: obj["metadata"].update(finalizers=[]))
    cluster.api.edit(RESOURCE_CLAIMS, "a", lambda obj: obj["metadata"]["annotations"].pop(names.MODE_LABEL))
    (binding,) = cluster.bindings()
    cluster.api.edit(
        ELASTIC_GPUS, objects.name(binding), lambda obj: obj.update(spec={}, status={"phase": "Available"})
    )
    cluster.api.edit(GPUS, "n0-gpu-0", lambda obj: obj["status"].update(state="Broken"))
    cluster.settle()
    assert cluster.claim()["metadata"]["finalizers"] == [names.RETAIN_FINALIZER]
    assert cluster.claim()["metadata"]["annotations"][names.MODE_LABEL] == "Immediate"
    (again,) = cluster.bindings()
    assert (again["spec"], again["status"]) == (binding["spec"], binding["status"])
    assert cluster.gpu()["status"]["state"] == "Ready"


def test_a_claim_whose_spec_changes(cluster: ElasticCluster) -> None:
    cluster.elastic_class()
    cluster.elastic_claim()
    cluster.settle()

    def ask_more(obj: dict[str, Any]) -> None:
        obj["spec"]["resources"] = {"requests": {"elasticgpu.io/gpu-memory": "8Gi"}}

    cluster.api.edit(ELASTIC_CLAIMS, "a", ask_more)
    cluster.settle()
    exactly = cluster.claim()["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly["capacity"]["requests"] == {"memory": "8Gi"}
    cluster.pod("p", "a")
    cluster.settle()
    cluster.api.edit(
        ELASTIC_CLAIMS,
        "a",
        lambda obj: obj["spec"]["resources"]["requests"].update({"elasticgpu.io/gpu-core": 5}),
    )
    cluster.settle()
    assert cluster.phase() == ("Bound", "SpecChanged")


def test_a_card_that_goes_away_and_comes_back(cluster: ElasticCluster) -> None:
    cluster.elastic_class(**RETAINED)
    cluster.elastic_claim()
    cluster.settle()
    published = cluster.api.get(RESOURCE_SLICES, "n0-koordra")
    cluster.api.edit(RESOURCE_SLICES, "n0-koordra", lambda obj: obj["spec"].update(devices=[]))
    cluster.settle()
    assert cluster.phase() == ("Lost", "DeviceGone")
    assert cluster.bindings()[0]["status"]["phase"] == "Failed"
    assert cluster.api.all(GPUS) == []
    cluster.api.edit(RESOURCE_SLICES, "n0-koordra", lambda obj: obj.update(spec=published["spec"]))
    cluster.settle()
    assert cluster.phase() == ("Bound", "Bound")


def test_a_class_that_goes_away_leaves_what_is_bound(cluster: ElasticCluster) -> None:
    cluster.elastic_class(egpuBindingMode="Immediate")
    cluster.elastic_claim()
    cluster.settle()
    cluster.api.delete(ELASTIC_CLASSES, "shares")
    cluster.elastic_claim("b")
    cluster.settle()
    assert cluster.phase() == ("Bound", "Bound")
    assert cluster.phase("b") == ("Pending", "NoSuchClass")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"elasticGPUClassName": ""}, "NoClass"),
        ({"elasticGPUClassName": "nobody"}, "NoSuchClass"),
        ({"egpuClassName": "other"}, "InvalidClaim"),
        ({"resources": {}}, "InvalidClaim"),
        ({"resources": {"requests": {"nvidia.com/gpu": 1}}}, "InvalidClaim"),
        ({"resources": {"requests": {"elasticgpu.io/gpu-core": "0.5"}}}, "InvalidClaim"),
        ({"resources": {"requests": {"elasticgpu.io/gpu-core": -1}}}, "InvalidClaim"),
        ({"resources": {"requests": {"elasticgpu.io/gpu-core": 100000}}}, "InvalidClaim"),
        (
            {"resources": {"requests": {"elasticgpu.io/gpu-core": 10, "elasticgpu.com/gpu-core": 20}}},
            "InvalidClaim",
        ),
        (
            {"resources": {"requests": {"elasticgpu.io/gpu-core": 10, "elasticgpu.io/gpu-tflops": 20}}},
            "InvalidClaim",
        ),
        ({"resources": {"requests": {"x" * 40000: 1}}}, "InvalidClaim"),
        ({"resources": {"requests": {"elasticgpu.io/gpu-memory": "none"}}}, "InvalidClaim"),
        ({"resources": {"requests": {"elasticgpu.io/gpu-memory": "100k"}}}, "InvalidClaim"),
        ({"resources": {"requests": "much"}}, "InvalidClaim"),
    ],
)
def test_bad_claims_say_what_is_wrong(cluster: ElasticCluster, spec: dict[str, Any], reason: str) -> None:
    cluster.elastic_class()
    cluster.elastic_claim(**spec)
    cluster.settle()
    assert cluster.phase() == ("Pending", reason)
    assert "ElasticGPUClaim default/a" in cluster.message()
    assert not cluster.has_claim()
    assert [told.reason for told in cluster.told] == [reason]


def test_a_claim_that_the_server_refuses_says_so_and_is_tried_again(cluster: ElasticCluster) -> None:
    cluster.elastic_class()
    cluster.elastic_claim()

    def full(write: Write) -> None:
        if (write.verb, write.kind) == ("create", "resourceclaims"):
            raise Forbidden("exceeded quota: gpus", code=403)

    cluster.api.before = full
    cluster.one_pass()
    assert cluster.phase() == ("Pending", "RefusedByServer")
    assert "exceeded quota" in cluster.message()
    cluster.api.before = nothing
    cluster.settle()
    assert cluster.phase() == ("Pending", "WaitForFirstConsumer")


def test_a_label_that_names_somebody_elses_claim_is_no_claim_of_ours(cluster: ElasticCluster) -> None:
    cluster.elastic_class()
    mine = cluster.elastic_claim()
    cluster.joint.claim("forged", labels={elastic_claims.CLAIM_LABEL: objects.uid(mine)})
    cluster.pod("q", "forged")
    cluster.settle()
    assert all(obj["spec"]["claimRef"]["name"] != "forged" for obj in cluster.bindings())
    assert cluster.phase() == ("Pending", "WaitForFirstConsumer")


def test_an_owner_that_was_taken_off_comes_back(cluster: ElasticCluster) -> None:
    cluster.elastic_class()
    made = cluster.elastic_claim()
    cluster.settle()
    cluster.api.edit(RESOURCE_CLAIMS, "a", lambda obj: obj["metadata"].update(ownerReferences=[]))
    cluster.settle()
    assert [owner["uid"] for owner in cluster.claim()["metadata"]["ownerReferences"]] == [objects.uid(made)]


def test_a_class_that_changes_changes_new_claims_only(cluster: ElasticCluster) -> None:
    cluster.elastic_class()
    cluster.elastic_claim()
    cluster.elastic_claim("waits")
    cluster.pod("p", "a")
    cluster.settle()

    def change(obj: Object) -> None:
        obj.update(egpuBindingMode="Immediate", reclaimPolicy="Retain", parameters={"memoryUnit": "GiB"})

    before = objects.uid(cluster.claim("waits"))
    cluster.api.edit(ELASTIC_CLASSES, "shares", change, namespace="")
    cluster.elastic_claim("new", memory=4)
    cluster.settle()
    assert cluster.phase() == ("Bound", "Bound")
    assert cluster.phase("waits") == ("Pending", "WaitForFirstConsumer")
    assert objects.uid(cluster.claim("waits")) == before
    assert cluster.phase("new") == ("Bound", "Bound")
    exactly = cluster.claim("new")["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly["capacity"]["requests"]["memory"] == "4Gi"
    assert cluster.claim("new")["metadata"]["finalizers"] == [names.RETAIN_FINALIZER]


def test_a_long_name_of_a_class_is_no_labels_value(cluster: ElasticCluster) -> None:
    name = ".".join(["shares"] * 20)
    cluster.elastic_class(name, egpuBindingMode="Immediate")
    cluster.elastic_claim(cls=name)
    cluster.settle()
    (binding,) = cluster.bindings()
    assert all(len(value) <= 63 for value in objects.labels_of(binding).values())


def test_a_device_class_that_may_not_be_made_stops_nobody_else(cluster: ElasticCluster) -> None:
    cluster.elastic_class()
    cluster.elastic_class("refused")
    cluster.elastic_claim()

    def policy(write: Write) -> None:
        if (write.kind, write.name) == ("deviceclasses", "refused"):
            raise Forbidden("not this name", code=403)

    cluster.api.before = policy
    cluster.one_pass()
    cluster.one_pass()
    assert cluster.phase() == ("Pending", "WaitForFirstConsumer")
    condition = cluster.api.get(ELASTIC_CLASSES, "refused")["status"]["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "RefusedByServer")


def test_a_device_class_that_the_cache_does_not_show_yet_is_no_missing_class(cluster: ElasticCluster) -> None:
    cluster.elastic_class()
    cluster.settle()
    cluster.elastic_claim()
    seen, elastic = cluster.snapshot()
    cluster.elastic.reconcile(replace(seen, classes=()), elastic)
    assert cluster.phase()[1] != "NoSuchClass"
    assert cluster.told == []


def test_marks_that_somebody_took_off_keep_nothing_forever(cluster: ElasticCluster) -> None:
    """Neither koordra's finalizer on a ResourceClaim whose label is gone, nor an ElasticGPU's whose label is
    gone."""
    cluster.elastic_class(**RETAINED)
    cluster.elastic_claim()
    cluster.elastic_claim("b")
    cluster.settle()
    cluster.api.edit(RESOURCE_CLAIMS, "a", lambda obj: obj["metadata"].update(labels={}))
    for binding in cluster.bindings():
        cluster.api.edit(ELASTIC_GPUS, objects.name(binding), lambda obj: obj["metadata"].update(labels={}))
    cluster.delete_claim()
    cluster.delete_claim("b")
    cluster.api.delete(RESOURCE_CLAIMS, "a")
    cluster.settle()
    assert not cluster.has_claim()
    for binding in cluster.bindings():
        cluster.api.delete(ELASTIC_GPUS, objects.name(binding))
    cluster.settle()
    assert cluster.bindings() == []
    assert not cluster.has_claim("b")
    assert cluster.gpu()["status"]["allocatable"]["elasticgpu.io/gpu-core"] == "100"


def test_koordras_finalizer_on_a_claim_of_another_driver_is_taken_off_and_nothing_else(
    cluster: ElasticCluster,
) -> None:
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "x", "device": "d"}
    claim = {"metadata": {"name": "theirs", "finalizers": [names.RETAIN_FINALIZER]}, "spec": {}}
    allocation = {"devices": {"results": [result]}, "allocationTimestamp": "2026-11-21T01:00:00Z"}
    cluster.api.create(RESOURCE_CLAIMS, {**claim, "status": {"allocation": allocation}})
    cluster.api.delete(RESOURCE_CLAIMS, "theirs")
    cluster.api.writes.clear()
    cluster.one_pass()
    assert not cluster.has_claim("theirs")
    assert [write.verb for write in cluster.api.writes if write.kind == "resourceclaims"] == ["patch"]


@pytest.mark.parametrize("error", [Forbidden("not now", code=403), ApiUnreachable("not now", code=503)])
def test_devices_that_cannot_be_given_back_keep_their_claim(cluster: ElasticCluster, error: ApiError) -> None:
    cluster.elastic_class(**RETAINED)
    cluster.elastic_claim()
    cluster.settle()
    (binding,) = cluster.bindings()
    cluster.delete_claim()
    cluster.settle()
    cluster.api.delete(ELASTIC_GPUS, objects.name(binding))

    def refused(write: Write) -> None:
        if write.kind == "resourceclaims" and write.subresource == "status":
            raise error

    cluster.api.before = refused
    cluster.one_pass()  # deletes the claim, which its finalizer keeps
    for _ in range(2):  # an interrupted pass is repeated soon, one that ends well much later
        is_interrupted = isinstance(error, ApiUnreachable)
        with pytest.raises(ApiUnreachable) if is_interrupted else nullcontext():
            cluster.one_pass()
    assert cluster.claim()["metadata"]["finalizers"] == [names.RETAIN_FINALIZER]
    assert cluster.claim()["status"]["allocation"]
    cluster.api.before = nothing
    cluster.settle()
    assert not cluster.has_claim()


def test_an_elastic_gpu_that_is_not_there_is_waited_for(cluster: ElasticCluster) -> None:
    cluster.elastic_class(**RETAINED)
    cluster.elastic_claim(elasticGPUName="egpu-of-somebody-else")
    cluster.settle()
    assert cluster.phase() == ("Pending", "NoSuchElasticGPU")
    assert not cluster.has_claim()
    cluster.api.edit(ELASTIC_CLAIMS, "a", lambda obj: obj["spec"].pop("elasticGPUName"))
    cluster.settle()
    assert cluster.phase() == ("Bound", "Bound")


def test_what_was_just_taken_over_is_not_removed_for_the_claim_before(cluster: ElasticCluster) -> None:
    """The administrator deletes the Released ElasticGPU while a new claim takes it over: whoever is seen
    first, one thing."""
    cluster.elastic_class(**RETAINED)
    cluster.elastic_claim()
    cluster.settle()
    (binding,) = cluster.bindings()
    cluster.delete_claim()
    cluster.settle()
    cluster.api.delete(ELASTIC_GPUS, objects.name(binding))
    made = cluster.elastic_claim(elasticGPUName=objects.name(binding))
    cluster.one_pass()
    assert elastic_claims.claim_uid(cluster.claim()) == objects.uid(made)
    assert not objects.is_deleting(cluster.claim())


def test_nothing_is_written_when_nothing_changes(cluster: ElasticCluster) -> None:
    cluster.elastic_class(**RETAINED)
    cluster.elastic_claim()
    cluster.settle()
    cluster.start_again()
    before = len(cluster.api.writes)
    cluster.one_pass()
    assert len(cluster.api.writes) == before


def test_killed_at_any_write_the_next_one_goes_on() -> None:
    """The life of a retained claim, with a crash before and after every single write of it."""
    step = 0
    while True:
        cluster = ElasticCluster()
        finished = live(cluster, step)
        assert cluster.bindings() == [], step
        assert not cluster.has_claim(), step
        assert cluster.gpu()["status"]["allocatable"]["elasticgpu.io/gpu-core"] == "100", step
        if finished:
            break
        step += 1
    assert step > 20


def live(cluster: ElasticCluster, step: int) -> bool:
    """True when the step was never reached."""
    writes = 0
    died = False

    def fault(write: Write) -> None:
        nonlocal writes, died
        writes += 1
        if writes == step // 2 + 1 and not died and write.kind != "pods":
            died = True
            raise Killed

    def settle() -> None:
        (cluster.api.before, cluster.api.after) = (fault, nothing) if step % 2 else (nothing, fault)
        try:
            cluster.settle()
        except Killed:
            cluster.start_again()
            cluster.settle()
        finally:
            cluster.api.before = cluster.api.after = nothing

    cluster.elastic_class(**RETAINED)
    cluster.elastic_claim()
    settle()
    assert cluster.phase() == ("Bound", "Bound"), step
    cluster.pod("p", "a")
    cluster.runs("p", "a")
    settle()
    cluster.ends("p", "a")
    cluster.delete_claim()
    settle()
    (binding,) = cluster.bindings()
    assert binding["status"]["phase"] == "Released", step
    cluster.api.delete(ELASTIC_GPUS, objects.name(binding))
    settle()
    return not died


def nothing(_write: Write) -> None:
    return


def test_the_mark_of_ownership_is_the_claims_uid(cluster: ElasticCluster) -> None:
    cluster.elastic_class()
    made = cluster.elastic_claim()
    cluster.settle()
    assert elastic_claims.claim_uid(cluster.claim()) == objects.uid(made)
    assert cluster.claim()["metadata"]["ownerReferences"][0]["uid"] == objects.uid(made)
