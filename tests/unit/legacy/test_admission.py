"""A legacy pod's review: what it becomes, and what it must never become. What HAMi's webhook gets wrong is
tested by name."""

from __future__ import annotations

import json

import pytest

from koordra.api import names, objects
from koordra.compat import original_request
from koordra.compat.dialect.allocation import DIALECT_LABEL
from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document
from koordra.controller.legacy.templates import LAST_USED, MADE_BY
from koordra.controller.webhook import native
from tests.unit.legacy.cluster import Cluster, Object, container, of_kind, pod

GPU = {"nvidia.com/gpu": 1}
ASKS = {
    "plain": GPU,
    "hami": {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000},
    "koordinator": {"koordinator.sh/gpu": 50},
    "volcano-vgpu": {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1000},
    "volcano-gpu": {"volcano.sh/gpu-memory": 1000},
    "aliyun": {"aliyun.com/gpu-mem": 4},
    "alnair": {"alnair/vgpu-memory": 4, "alnair/vgpu-compute": 30},
    "elastic-gpu": {"elasticgpu.io/gpu-core": 10, "elasticgpu.io/gpu-memory": 4},
    "tke": {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 8},
}


@pytest.mark.parametrize("dialect", ASKS)
def test_every_dialect_becomes_a_gated_pod_with_a_claim(dialect: str) -> None:
    cluster = Cluster()
    found = cluster.admitted(pod({**ASKS[dialect], "cpu": 1}))
    (template,) = of_kind(cluster)
    (entry,) = found["spec"]["resourceClaims"]
    assert entry["resourceClaimTemplateName"] == objects.name(template)
    assert objects.name(template).startswith(f"koordra-{dialect}-")
    assert template["metadata"]["namespace"] == "team"
    assert template["metadata"]["labels"] == {"koordra.io/dialect": dialect, MADE_BY: "legacy-pods"}
    assert template["spec"]["metadata"]["labels"] == {"koordra.io/dialect": dialect}
    assert found["metadata"]["annotations"][DIALECT_LABEL] == dialect
    (main,) = found["spec"]["containers"]
    assert main["resources"]["limits"] == main["resources"]["requests"] == {"cpu": "1"}
    assert {claim["name"] for claim in main["resources"]["claims"]} == {entry["name"]}
    assert found["spec"]["schedulingGates"] == [{"name": names.JOINT_GATE}]
    assert cluster.counted == [(dialect, "rewritten")]


def test_asked_again_nothing_changes_and_nothing_is_made() -> None:
    cluster = Cluster()
    first = cluster.admitted(pod(ASKS["hami"]))
    again = cluster.ask(first)
    assert again.object is None or again.object == first
    assert len(cluster.writes) == 1


def test_another_webhook_may_ask_for_more_in_between() -> None:
    cluster = Cluster()
    first = cluster.admitted(pod(ASKS["hami"]))
    sidecar = container("injected", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 500})
    more = {**first, "spec": {**first["spec"], "containers": [*first["spec"]["containers"], sidecar]}}
    found = cluster.admitted(more)
    assert [entry["name"] for entry in found["spec"]["resourceClaims"]] == [
        "koordra-devices",
        "koordra-devices-2",
    ]
    assert original_request.entries(found) == ["koordra-devices", "koordra-devices-2"]
    assert found["spec"]["schedulingGates"] == [{"name": names.JOINT_GATE}]
    for entry in found["spec"]["resourceClaims"]:
        remade = original_request.rewritten_again(found, entry["name"], cluster.settings)
        assert remade is not None
        assert remade.template is not None
        assert objects.name(remade.template) == entry["resourceClaimTemplateName"]


def test_a_dry_run_answers_the_same_and_makes_nothing() -> None:
    cluster = Cluster()
    dry = cluster.admitted(pod(GPU), dry_run=True)
    assert cluster.writes == []
    assert cluster.admitted(pod(GPU)) == dry
    assert len(cluster.writes) == 1


def test_hami_names_collide_here_pods_without_a_name_share_what_is_equal() -> None:
    """HAMi's webhook names a claim after the pod: pods of a ReplicaSet have no name yet, and collide."""
    cluster = Cluster()
    found = [cluster.admitted(pod(GPU, name="web", generate=True)) for _ in range(3)]
    assert len({one["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] for one in found}) == 1
    assert len(cluster.writes) == 1
    cluster.admitted(pod(ASKS["hami"], name="web", generate=True))
    assert len(of_kind(cluster)) == 2


def test_hami_leaks_here_a_template_of_a_pod_that_was_never_stored_ages_out() -> None:
    """HAMi's webhook makes a claim without an owner as a side effect. See test_template_gc for the
    deletion."""
    cluster = Cluster()
    cluster.admitted(pod(GPU))
    (template,) = of_kind(cluster)
    assert template["metadata"]["annotations"][LAST_USED] == "1970-01-12T13:46:40Z"


def test_hami_overwrites_here_claims_of_the_user_stay() -> None:
    user = container("main", {"nvidia.com/gpu": 1})
    user["resources"]["claims"] = [{"name": "mine"}]
    mine = {"name": "mine", "resourceClaimName": "disk"}
    found = Cluster().admitted(pod(containers=[user], resourceClaims=[mine]))
    assert found["spec"]["resourceClaims"][0] == mine
    assert found["spec"]["containers"][0]["resources"]["claims"] == [
        {"name": "mine"},
        {"name": "koordra-devices", "request": "main"},
    ]


@pytest.mark.parametrize(
    ("limits", "annotations", "words"),
    [
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 30}, {}, '"memoryPercent": 30'),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10, "nvidia.com/priority": 0}, {}, '"priority": 0'),
        ({"nvidia.com/gpumem": 10}, {"nvidia.com/nouse-gputype": "A100"}, "a100"),
        ({"nvidia.com/gpumem": 10}, {"nvidia.com/use-gpuuuid": "GPU-1,GPU-2"}, "GPU-2"),
        ({"nvidia.com/gpumem": 10}, {"nvidia.com/vgpu-mode": "mig"}, "mig.koordra.io"),
    ],
)
def test_hami_ignores_here_percentages_priorities_lists_and_modes_count(
    limits: Object, annotations: Object, words: str
) -> None:
    cluster = Cluster()
    cluster.admitted(pod(limits, annotations=annotations))
    assert words in json.dumps(of_kind(cluster)[0])


def test_hami_ignores_here_init_containers_count() -> None:
    cluster = Cluster()
    init = container("load", {"nvidia.com/gpumem": 2000})
    found = cluster.admitted(pod({"nvidia.com/gpumem": 1000}, initContainers=[init]))
    assert found["spec"]["initContainers"][0]["resources"]["claims"]
    (request,) = of_kind(cluster)[0]["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"]["memory"] == "2000Mi"


def test_hami_believes_here_what_only_a_scheduler_may_write_is_taken_out() -> None:
    forged = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,80000,100:;", "hami.io/vgpu-node": "n"}
    found = Cluster().admitted(pod({"nvidia.com/gpumem": 10}, annotations=forged))
    assert not any(key.startswith("hami.io/") for key in found["metadata"]["annotations"])


@pytest.mark.parametrize(
    "obj",
    [
        pod({"cpu": 1}),
        pod({"amd.com/gpu": 1}),
        pod({"example.com/fpga": 1}),
        pod(GPU, labels={"koordra.io/legacy-pods": "ignore"}),
        pod(GPU, annotations={"kubernetes.io/config.mirror": "digest"}),
        pod(GPU, labels={"hami.io/webhook": "ignore"}),
        pod({"nvidia.com/gpu": 0}),
    ],
    ids=["nothing", "another-vendor", "unknown", "opted-out", "mirror", "hami-opted-out", "zero"],
)
def test_what_is_none_of_koordras_business_stays(obj: Object) -> None:
    cluster = Cluster()
    answer = cluster.ask(obj)
    assert answer.object is None
    assert not answer.problems
    assert cluster.writes == []


def test_two_dialects_are_refused_by_name() -> None:
    text = Cluster().refused(pod({"nvidia.com/gpumem": 1, "koordinator.sh/gpu": 50}))
    assert "Koordinator" in text
    assert "HAMi" in text
    assert "Pod team/p" in text


def test_a_pod_without_a_name_is_called_by_what_it_begins_with() -> None:
    obj = pod({"nvidia.com/gpumem": 1, "koordinator.sh/gpu": 50}, name="web", generate=True)
    assert "Pod team/web-..." in Cluster().refused(obj)


# --- templates ---


def test_a_planted_template_is_refused_and_never_used() -> None:
    cluster = Cluster()
    cluster.admitted(pod(ASKS["hami"]))
    (template,) = of_kind(cluster)
    cluster.now += 60
    planted = json.loads(json.dumps(template))
    planted["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 8
    cluster.known["ResourceClaimTemplate", objects.key(template)] = planted
    answer = cluster.ask(pod(ASKS["hami"]))
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert "has other content than its name promises" in str(answer.problems[0])
    assert answer.object is None


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_also_what_a_template_says_about_its_claims_counts(part: str) -> None:
    cluster = Cluster()
    cluster.admitted(pod(GPU))
    (template,) = of_kind(cluster)
    cluster.now += 60
    template["spec"]["metadata"][part] = {"koordra.io/allocation-mode": "Immediate"}
    assert "other content" in cluster.refused(pod(GPU))


def test_planted_before_the_watch_shows_it() -> None:
    """The template is there, but not in the watch: making it conflicts, and then it is read."""
    seen = Cluster()
    seen.admitted(pod(GPU))
    (template,) = of_kind(seen)
    cluster = Cluster(template)
    cluster.templates.known = lambda _key: None
    cluster.admitted(pod(GPU))
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 8
    cluster.now += 60
    assert "other content" in cluster.refused(pod(GPU))


def test_a_converted_template_that_a_user_applied_is_used() -> None:
    made = Cluster()
    made.admitted(pod(GPU))
    (template,) = of_kind(made)
    del template["metadata"]["labels"][MADE_BY]
    cluster = Cluster(template)
    cluster.now += 10_000
    cluster.admitted(pod(GPU))
    assert cluster.writes == [], "somebody else's to keep"


def test_a_template_is_marked_as_used_once_per_half_of_the_grace() -> None:
    cluster = Cluster(grace=600)
    for _ in range(3):
        cluster.admitted(pod(GPU))
    cluster.now += 290
    cluster.admitted(pod(GPU))
    assert [write.split()[0] for write in cluster.writes] == ["create"]
    cluster.now += 20
    for _ in range(3):
        cluster.admitted(pod(GPU))
    assert [write.split()[0] for write in cluster.writes] == ["create", "patch"]


def test_a_template_deleted_behind_the_watch_is_made_again_when_it_is_marked() -> None:
    cluster = Cluster()
    cluster.admitted(pod(GPU))
    (template,) = of_kind(cluster)
    cluster.now += 1000
    cluster.templates.known = lambda _key: template
    del cluster.known["ResourceClaimTemplate", objects.key(template)]
    cluster.admitted(pod(GPU))
    assert of_kind(cluster)


def test_without_an_api_server_the_pod_is_refused_not_stored() -> None:
    cluster = Cluster()
    cluster.away = True
    assert "could not be made: nobody answers" in cluster.refused(pod(GPU))


# --- what else a pod brings ---


@pytest.mark.parametrize("name", ["hami-scheduler", "koord-scheduler", "volcano", "alnair-cost-saving"])
def test_schedulers_that_are_gone_give_way_to_the_default_one(name: str) -> None:
    limits = ASKS["alnair"] if name.startswith("alnair") else GPU
    found = Cluster().admitted(pod(limits, schedulerName=name))
    assert found["spec"]["schedulerName"] == "default-scheduler"


def test_which_schedulers_are_gone_is_a_setting() -> None:
    settings = with_document(Settings(), {"schedulers": ["corp-scheduler"]}, source="s")
    cluster = Cluster(settings=settings)
    assert (
        cluster.admitted(pod(GPU, schedulerName="corp-scheduler"))["spec"]["schedulerName"]
        == "default-scheduler"
    )
    kept = cluster.admitted(pod(GPU, schedulerName="volcano"))
    assert kept["spec"]["schedulerName"] == "volcano"
    assert kept["spec"]["schedulingGates"] == [{"name": names.JOINT_GATE}], (
        "a gang of another scheduler waits too"
    )


def test_the_runtime_class_goes_and_with_it_what_it_weighs() -> None:
    found = Cluster().admitted(pod(GPU, runtimeClassName="nvidia", overhead={"cpu": "10m"}))
    assert not {"runtimeClassName", "overhead"} & found["spec"].keys()
    kept = Cluster().admitted(pod(GPU, runtimeClassName="kata"))
    assert kept["spec"]["runtimeClassName"] == "kata"


def test_a_pod_that_is_bound_already_is_not_gated() -> None:
    found = Cluster().admitted(pod(GPU, nodeName="n"))
    assert "schedulingGates" not in found["spec"]


def test_an_elastic_gpu_claim_by_annotation_is_a_reference() -> None:
    found = Cluster().admitted(pod({"cpu": 1}, annotations={"egpuc.elasticgpu.io/main": "one"}))
    assert found["spec"]["resourceClaims"] == [{"name": "egpuc-one", "resourceClaimName": "one"}]
    assert found["metadata"]["annotations"] == {"egpuc.elasticgpu.io/main": "one"}


# --- native mode ---


def extended(name: str, resource: str) -> Object:
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"extendedResourceName": resource}}


def test_native_plain_cards_are_left_to_the_scheduler_where_a_class_has_the_name() -> None:
    cluster = Cluster()
    cluster.extra_classes["x"] = extended("x", "nvidia.com/gpu")
    assert cluster.ask(pod(GPU), native=True).object is None
    assert cluster.admitted(pod({"nvidia.com/mig-1g.10gb": 1}), native=True), "no class has that name"
    assert cluster.admitted(pod(ASKS["hami"]), native=True), "a share is not a card"
    assert cluster.admitted(pod(GPU)), "in joint mode koordra allocates"


def test_native_claims_are_in_standard_terms_and_not_gated() -> None:
    limits = {"koordinator.sh/gpu": 200, "koordinator.sh/rdma": 200}
    joint = {
        "scheduling.koordinator.sh/device-joint-allocate": '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'
    }
    cluster = Cluster()
    answer = cluster.ask(pod(limits, annotations=joint), native=True)
    if answer.problems:
        assert "in native mode" in str(answer.problems[0]) or "PerGroup" in str(answer.problems[0])
        return
    assert answer.object is not None
    assert "schedulingGates" not in answer.object["spec"]


def test_a_native_request_that_was_split_is_used_whole() -> None:
    """Each of two GPUs with a NIC of its own."""
    joint = {
        "scheduling.koordinator.sh/device-joint-allocate": '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'
    }
    cluster = Cluster()
    limits = {"koordinator.sh/gpu": 200, "koordinator.sh/rdma": 200}
    found = cluster.admitted(pod(limits, annotations=joint), native=True)
    (used,) = found["spec"]["containers"]
    requests = ["gpu-0", "gpu-1", "rdma-0", "rdma-1"]
    assert [claim["request"] for claim in used["resources"]["claims"]] == requests
    (template,) = of_kind(cluster)
    assert [request["name"] for request in template["spec"]["spec"]["devices"]["requests"]] == requests
    assert found["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == objects.name(template)
    again = native.translate(template, cluster.classes()).object
    assert again == template, "translated again it is the same, so that its name holds"
