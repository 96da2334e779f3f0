"""Where the dialects differ: scope, init containers and sidecars, limits and requests; and which dialect a
pod speaks."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from koordra.compat.dialects import DIALECTS
from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document
from koordra.controller.legacy.settings import in_a_cluster
from koordra.controller.webhook.native import translate
from tests.unit.compat.pods import Dict, asking, container, converted, pod, refusal, users, warnings, words
from tests.unit.compat.rows import HINT, JOINT, KEEP, K, N, V

# --- which dialect ------------------------------------------------------------------------------------------

TWO = [
    ("hami and koordinator", asking({N + "gpumem": 10, K + "gpu-core": 10}), ("HAMi", "Koordinator")),
    ("hami and aliyun", asking({N + "gpumem": 10, "aliyun.com/gpu-mem": 1}), ("HAMi", "Aliyun")),
    (
        "plain and alnair",
        asking({N + "gpu": 1, "alnair/vgpu-memory": 1}),
        ("NVIDIA's device plugin", "Alnair"),
    ),
    (
        "two containers",
        pod(container("a", ask={V + "vgpu-number": 1}), container("b", ask={"tencent.com/vcuda-core": 100})),
        ("Volcano vGPU", "GaiaGPU"),
    ),
    (
        "the two of volcano",
        asking({V + "vgpu-number": 1, V + "gpu-number": 1}),
        ("Volcano vGPU", "Volcano gpu-share"),
    ),
    (
        "annotation of another",
        asking({"aliyun.com/gpu-mem": 1}, annotations={"hami.io/gpu-scheduler-policy": "spread"}),
        ("Aliyun", "HAMi"),
    ),
    ("hint on hami", asking({N + "gpumem": 10}, annotations={HINT: "{}"}), ("HAMi", "Koordinator")),
    (
        "hami's list on koordinator",
        asking({K + "gpu": 50}, annotations={N + "use-gputype": "a"}),
        ("Koordinator", "HAMi"),
    ),
    (
        "annotations of two on a plain card",
        asking({N + "gpu": 1}, annotations={HINT: "{}", N + "numa-bind": "true"}),
        ("Koordinator", "HAMi"),
    ),
    (
        "label of another",
        asking({"alnair/vgpu-memory": 1}, labels={K + "gpu-isolation-provider": "HAMi-core"}),
        ("Alnair", "Koordinator"),
    ),
]


@pytest.mark.parametrize(("manifest", "titles"), [row[1:] for row in TWO], ids=[row[0] for row in TWO])
def test_signs_of_two_are_refused_naming_both(manifest: Dict, titles: tuple[str, str]) -> None:
    told = refusal(manifest)
    assert all(title in told for title in titles), told


def dialect_of(manifest: Dict, settings: Settings | None = None) -> str:
    label: str = converted(manifest, settings=settings).objects[1]["metadata"]["labels"]["koordra.io/dialect"]
    return label


SPEAKS = [
    ("plain", asking({N + "gpu": 1}), Settings()),
    ("hami", asking({N + "gpu": 1}), Settings(default_dialect="hami")),
    ("koordinator", asking({N + "gpu": 1}), Settings(default_dialect="koordinator")),
    ("hami", asking({N + "gpu": 1, N + "gpucores": 1}), Settings(default_dialect="koordinator")),
    ("hami", asking({N + "gpu": 1, N + "priority": 1}), Settings()),
    ("hami", asking({N + "gpu": 1}, annotations={N + "use-gputype": "x"}), Settings()),
    ("volcano-vgpu", asking({V + "vgpu-number": 1}, annotations={N + "use-gputype": "x"}), Settings()),
    ("koordinator", asking({N + "gpu": 1}, annotations={HINT: "{}"}), Settings(default_dialect="hami")),
    ("koordinator", asking({N + "gpu": 1, K + "rdma": 1}), Settings()),
    ("plain", asking({N + "mig-1g.5gb": 1}), Settings(default_dialect="koordinator")),
    ("hami", asking({N + "gpumem": 1}, labels={K + "qosClass": "BE"}), Settings()),
    ("koordinator", asking({K + "gpu": 50}, annotations={"hami.io/vgpu-node": "n"}), Settings()),
    ("plain", asking({N + "gpu": 1, "aliyun.com/gpu-mem": 0}), Settings()),
    ("hami", asking({N + "gpu": 1, N + "gpucores": 0}), Settings()),
]


@pytest.mark.parametrize(("expected", "manifest", "settings"), SPEAKS)
def test_one_sign_decides(expected: str, manifest: Dict, settings: Settings) -> None:
    assert dialect_of(manifest, settings) == expected


NOTHING = [
    pod(container()),
    pod(container(), annotations={"hami.io/gpu-scheduler-policy": "spread", HINT: "{"}),
    asking({N + "gpu": 0}),
    asking({N + "gpu": "0", "aliyun.com/gpu-mem": 0}),
    asking({"cpu": 1, "example.com/gpu": 1}),
    asking({"cpu": 1}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}),
]


@pytest.mark.parametrize("manifest", NOTHING)
def test_a_pod_that_asks_for_no_device_is_the_very_same(manifest: Dict) -> None:
    conversion = converted(manifest)
    assert list(conversion.objects) == [manifest]
    assert not conversion.notes


def test_a_pod_that_opts_out_of_hami_is_left_alone() -> None:
    manifest = asking({N + "gpumem": 10}, labels={"hami.io/webhook": "ignore"})
    conversion = converted(manifest)
    assert list(conversion.objects) == [manifest]
    assert [note.field for note in conversion.notes] == ["metadata.labels[hami.io/webhook]"]


# --- limits and requests ------------------------------------------------------------------------------------


def both(limits: Dict, requests: Dict) -> Dict:
    return pod({"name": "a", "image": "x", "resources": {"limits": limits, "requests": requests}})


SIDES = [
    (both({N + "gpu": 2, N + "gpumem": 300}, {N + "gpu": 1, N + "gpumem": 100}), "a: 2 gpu memory 300Mi"),
    (
        both(
            {"elasticgpu.io/gpu-core": 20, "elasticgpu.io/gpu-memory": 300},
            {"elasticgpu.io/gpu-core": 10, "elasticgpu.io/gpu-memory": 100},
        ),
        "a: 1 gpu memory 100Mi cores 10",
    ),
    (both({"aliyun.com/gpu-mem": 3}, {"aliyun.com/gpu-mem": 1}), "a: 1 gpu memory 3Gi"),
    (both({V + "vgpu-number": 3}, {V + "vgpu-number": 1}), "a: 3 gpu"),
    (both({K + "gpu": 200}, {K + "gpu": 100}), "gpu: 1 gpu cores 100"),
    (both({"tencent.com/vcuda-core": 200}, {"tencent.com/vcuda-core": 100}), "a: 2 gpu cores 100"),
]


@pytest.mark.parametrize(("manifest", "request_words"), SIDES)
def test_each_dialect_reads_its_side_and_tells_of_a_difference(manifest: Dict, request_words: str) -> None:
    assert words(manifest)[0] == request_words
    assert any("differs from" in told for told in warnings(manifest))


def test_requests_alone_count_where_the_dialect_falls_back() -> None:
    assert words(both({}, {N + "gpu": 1, N + "gpumem": 10})) == ["a: 1 gpu memory 10Mi", KEEP]
    assert words(both({"elasticgpu.io/gpu-memory": 7}, {})) == ["a: 1 gpu memory 7Mi"]
    assert words(both({}, {K + "gpu": 50}))[0] == "gpu: 1 gpu cores 50"


# --- containers ---------------------------------------------------------------------------------------------


def hami(name: str, memory: int, count: int = 1, **more: object) -> Dict:
    return container(name, ask={N + "gpu": count, N + "gpumem": memory}, **more)


def test_every_container_uses_its_own_request_only() -> None:
    manifest = pod(hami("a", 100), hami("b", 200, 2), container("c"))
    assert words(manifest) == [
        "a: 1 gpu memory 100Mi",
        "b: 2 gpu memory 200Mi",
        "distinct koordra.io/uuid: b",
        "a b: GpuConfig isolation=limiter",
    ]
    assert users(manifest) == {"a": ["a"], "b": ["b"]}


def test_koordinators_devices_are_seen_by_all_containers() -> None:
    manifest = pod(
        container("a", ask={K + "gpu": 100, K + "rdma": 1}), container("b"), init=(container("i"),)
    )
    assert users(manifest) == {"i": ["gpu", "rdma"], "a": ["gpu", "rdma"], "b": ["gpu", "rdma"]}


def test_koordinators_containers_are_summed_after_its_webhook() -> None:
    # The webhook gives each container gpu.shared 1, so that two halves are a half of each of two cards.
    manifest = pod(container("a", ask={K + "gpu": 50}), container("b", ask={K + "gpu": 50}))
    assert words(manifest) == [
        "gpu: 2 gpu cores 50",
        "distinct koordra.io/uuid: gpu",
        "gpu: GpuConfig memoryPercent=50",
    ]


def test_a_gpu_of_zero_beside_a_nic_is_refused() -> None:
    manifest = pod(container("a", ask={K + "rdma": 50}), container("b", ask={K + "gpu-memory": 0}))
    assert "is 0 everywhere, and asks for no GPU" in refusal(manifest)


def test_koordinators_init_container_counts_where_it_is_larger() -> None:
    whole = {K + "gpu-core": 100, K + "gpu-memory-ratio": 100, K + "gpu.shared": 1}
    manifest = pod(container("a", ask={K + "gpu": 50}), init=(container("i", ask=whole),))
    assert words(manifest) == ["gpu: 1 gpu cores 100"]


def test_a_sidecar_has_a_request_of_its_own() -> None:
    sidecar = hami("s", 50, restartPolicy="Always")
    manifest = pod(hami("a", 100), init=(sidecar,))
    assert words(manifest)[:2] == ["s: 1 gpu memory 50Mi", "a: 1 gpu memory 100Mi"]
    assert users(manifest) == {"s": ["s"], "a": ["a"]}


INITS = [
    # init container, containers -> requests, what the init container uses
    ("smaller", hami("i", 50), [hami("a", 100)], ["a: 1 gpu memory 100Mi"], ["a"]),
    ("larger", hami("i", 150), [hami("a", 100)], ["a: 1 gpu memory 150Mi"], ["a"]),
    (
        "the better of two",
        hami("i", 150),
        [hami("a", 100), hami("b", 140)],
        ["a: 1 gpu memory 100Mi", "b: 1 gpu memory 150Mi"],
        ["b"],
    ),
    (
        "the one with room",
        hami("i", 90),
        [hami("a", 100), hami("b", 140)],
        ["a: 1 gpu memory 100Mi", "b: 1 gpu memory 140Mi"],
        ["a"],
    ),
    (
        "more cards",
        hami("i", 50, 3),
        [hami("a", 100)],
        ["a: 1 gpu memory 100Mi", "i: 2 gpu memory 50Mi"],
        ["a", "i"],
    ),
    ("fewer cards", hami("i", 50), [hami("a", 100, 2)], ["a: 2 gpu memory 100Mi"], ["a"]),
    ("alone", hami("i", 50), [container("a")], ["i: 1 gpu memory 50Mi"], ["i"]),
    (
        "not to be compared",
        container("i", ask={N + "gpumem-percentage": 10}),
        [hami("a", 100)],
        ["a: 1 gpu memory 100Mi", "i: 1 gpu"],
        ["i"],
    ),
    (
        "whole cards of two",
        container("i", ask={N + "gpu": 2}),
        [container("a", ask={N + "gpu": 1}), container("b", ask={N + "gpu": 1})],
        ["a: 1 gpu", "b: 1 gpu"],
        ["a", "b"],
    ),
    (
        "more whole cards",
        container("i", ask={N + "gpu": 3}),
        [container("a", ask={N + "gpu": 1})],
        ["a: 1 gpu", "i: 2 gpu"],
        ["a", "i"],
    ),
    (
        "fewer whole cards",
        container("i", ask={N + "gpu": 1}),
        [container("a", ask={N + "gpu": 4})],
        ["a: 4 gpu"],
        ["a"],
    ),
    (
        "one card, more",
        container("i", ask={V + "gpu-memory": 500}),
        [container("a", ask={V + "gpu-memory": 100}), container("b", ask={V + "gpu-memory": 200})],
        ["a: 1 gpu memory 300Mi", "b: 1 gpu memory 200Mi"],
        ["a", "b"],
    ),
    (
        "one card, less",
        container("i", ask={V + "gpu-memory": 5}),
        [container("a", ask={V + "gpu-memory": 100})],
        ["a: 1 gpu memory 100Mi"],
        ["a"],
    ),
    (
        "volcano does not look",
        container("i", ask={V + "vgpu-memory": 500}),
        [container("a", ask={V + "vgpu-memory": 100})],
        ["a: 1 gpu memory 100Mi"],
        ["a"],
    ),
    (
        "aliyun does not look",
        container("i", ask={"aliyun.com/gpu-mem": 5}),
        [container("a", ask={"aliyun.com/gpu-mem": 1})],
        ["a: 1 gpu memory 1Gi"],
        ["a"],
    ),
]


@pytest.mark.parametrize(
    ("init", "apps", "requests", "used"), [row[1:] for row in INITS], ids=[row[0] for row in INITS]
)
def test_an_init_container_uses_what_the_others_have(
    init: Dict, apps: list[Dict], requests: list[str], used: list[str]
) -> None:
    manifest = pod(*apps, init=(init,))
    assert [
        line
        for line in words(manifest)
        if " gpu" in line and "distinct" not in line and "match" not in line and "Config" not in line
    ] == requests
    assert users(manifest)["i"] == used


def test_cards_of_two_requests_of_one_container_differ() -> None:
    manifest = pod(hami("a", 100), init=(hami("i", 50, 3),))
    assert "distinct koordra.io/uuid: a i" in words(manifest)


@pytest.mark.parametrize(
    "key", [V + "vgpu-number", "aliyun.com/gpu-mem", "tencent.com/vcuda-core", "elasticgpu.io/gpu-core"]
)
def test_an_init_container_that_nobody_would_serve_is_refused(key: str) -> None:
    manifest = pod(container("a"), init=(container("i", ask={key: 100}),))
    assert "gives nothing to init containers" in refusal(manifest)


def test_names_that_are_taken_get_a_number() -> None:
    claims = [{"name": "koordra-devices", "resourceClaimName": "mine"}]
    manifest = asking({N + "gpu": 1}, resourceClaims=claims)
    spec = converted(manifest).objects[0]["spec"]
    assert [entry["name"] for entry in spec["resourceClaims"]] == ["koordra-devices", "koordra-devices-2"]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "koordra-devices-2", "request": "a"}]


def test_request_names_stay_labels_and_stay_different() -> None:
    long = "c" * 63
    manifest = asking({})
    manifest["spec"]["containers"] = [container(long, ask={N + "mig-1g.5gb": 1, N + "mig-2g.10gb": 1})]
    names = [line.partition(":")[0] for line in words(manifest)]
    assert len(set(names)) == 2
    assert all(len(name) <= 63 for name in names)


# --- what else in the pod is told ---------------------------------------------------------------------------


def on_nodes(*terms: list[tuple[str, str, list[str] | None]]) -> Dict:
    """Required node affinity: terms of (label, operator, values)."""
    written = [
        {"matchExpressions": [dict(zip(("key", "operator", "values"), one, strict=True)) for one in term]}
        for term in terms
    ]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {required: {"nodeSelectorTerms": written}}}


TOLD = [
    (asking({N + "gpu": 1}, nodeName="n1"), "spec.nodeName"),
    (
        pod(container(ask={N + "gpu": 1}, securityContext={"privileged": True})),
        "privileged container sees every device",
    ),
    (
        pod(container(ask={"aliyun.com/gpu-mem": 1}, args=["--mem=$(ALIYUN_COM_GPU_MEM_CONTAINER)"])),
        "has $(ALIYUN_COM_GPU_MEM_...) where the kubelet puts values in",
    ),
    (
        pod(
            container(
                ask={"aliyun.com/gpu-mem": 1}, command=["sh", "-c", "run $ALIYUN_COM_GPU_MEM_CONTAINER"]
            )
        ),
        "",
    ),
    (
        pod(container(ask={N + "gpu": 1}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
        "NVIDIA_VISIBLE_DEVICES",
    ),
    (
        pod(container(ask={N + "gpumem": 1}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
        "uses NVIDIA_VISIBLE_DEVICES",
    ),
    (
        pod(container(ask={N + "gpumem": 1}, env=[{"name": "CUDA_DISABLE_CONTROL", "value": "true"}])),
        "is not honoured",
    ),
    (asking({K + "gpu": 50}, annotations={JOINT: '{"deviceTypes": ["gpu", "rdma"]}'}), ""),
    (asking({K + "gpu": 50}, annotations={HINT: '{"rdma": {"vfSelector": {}}}'}), "the pod asks for no rdma"),
    (asking({N + "gpumem": 1}, annotations={N + "numa-bind": "perhaps"}), "neither true nor false"),
    (asking({N + "gpumem": 1}, annotations={"hami.io/node-scheduler-policy": "best"}), "is no policy"),
    (
        asking({N + "gpumem": 1}, nodeSelector={"pool": "a", "gpu": "on"}),
        "spec.nodeSelector[gpu]: gpu=on is taken off nodes together with HAMi's device plugin",
    ),
    (asking({N + "gpu": 1}, nodeSelector={"gpu": "on", "gpushare": "true"}), "nodeSelector[gpu]"),
    (asking({N + "gpumem": 1}, nodeSelector={"gpu": "a100"}), ""),
    (asking({"aliyun.com/gpu-mem": 1}, nodeSelector={"gpushare": "true"}), "nodeSelector[gpushare]"),
    (
        asking({N + "gpu": 1}, nodeSelector={"gaia.tencent.com/gpu-model": "T4"}),
        "gaia.tencent.com/gpu-model is not written by koordra; select on `productName`",
    ),
    (
        asking({N + "gpumem": 1}, affinity=on_nodes([("gpu", "In", ["off", "on"])])),
        "Terms[0].matchExpressions[0]: gpu=on",
    ),
    (
        asking({N + "gpumem": 1}, affinity=on_nodes([("a", "Exists", None), ("gpu", "Exists", None)])),
        "Terms[0].matchExpressions[1]",
    ),
    (asking({N + "gpumem": 1}, affinity=on_nodes([("gpu", "In", ["off"])])), ""),
    (asking({N + "gpumem": 1}, affinity=on_nodes([("gpu", "NotIn", ["on"])])), ""),
    (asking({N + "gpumem": 1}, affinity=on_nodes([("gpu", "In", ["on"])], [("pool", "In", ["a"])])), ""),
    (asking({N + "gpumem": 1}, affinity=on_nodes()), ""),
    (asking({N + "gpumem": 1}, affinity={"nodeAffinity": "odd"}, nodeSelector=["odd"]), ""),
]


@pytest.mark.parametrize(("manifest", "told"), TOLD)
def test_what_else_changes_is_told(manifest: Dict, told: str) -> None:
    found = warnings(manifest)
    assert len(found) == (1 if told else 0)
    assert all(told in text for text in found)


STAY_IN_FILES = {"volcano", "koord-scheduler"}
"""They go on with gangs, queues and CPUs; in a cluster whose other stacks are gone they do not."""


@pytest.mark.parametrize("scheduler", sorted({name for dialect in DIALECTS for name in dialect.schedulers}))
def test_files_lose_the_schedulers_that_a_cluster_takes_out(scheduler: str) -> None:
    manifest = pod(container(ask={N + "gpu": 1}), schedulerName=scheduler)
    in_file, in_cluster = (
        converted(manifest, settings=settings) for settings in (Settings(), in_a_cluster(Settings()))
    )
    assert "schedulerName" not in in_cluster.objects[0]["spec"]
    stays = in_file.objects[0]["spec"].get("schedulerName") == scheduler
    assert stays == (scheduler in STAY_IN_FILES)
    assert [note.field for note in in_file.notes] == ["spec.schedulerName"]


def test_the_runtime_class_goes_from_files_as_in_a_cluster() -> None:
    manifest = asking({N + "gpumem": 1}, runtimeClassName="nvidia")
    for settings in (Settings(), in_a_cluster(Settings())):
        found = converted(manifest, settings=settings)
        assert "runtimeClassName" not in found.objects[0]["spec"]
        assert [note.field for note in found.notes] == ["spec.runtimeClassName"]
    kept = with_document(Settings(), {"runtimeClasses": []}, source="s")
    for settings, runtime in ((Settings(), "kata"), (kept, "nvidia")):
        found = converted(asking({N + "gpumem": 1}, runtimeClassName=runtime), settings=settings)
        assert found.objects[0]["spec"]["runtimeClassName"] == runtime
        assert not found.notes


def test_names_are_the_clusters() -> None:
    settings = Settings(
        names=MappingProxyType({N + "gpu": "corp.example/vgpu", N + "gpumem": "corp.example/mib"})
    )
    manifest = asking({"corp.example/vgpu": 2, "corp.example/mib": 100})
    assert words(manifest, settings=settings)[0] == "a: 2 gpu memory 100Mi"
    assert converted(manifest).objects == (manifest,)


def test_claims_that_a_container_has_stay() -> None:
    manifest = asking({N + "gpu": 1}, resourceClaims=[{"name": "mine", "resourceClaimName": "mine"}])
    manifest["spec"]["containers"][0]["resources"]["claims"] = [{"name": "mine"}]
    made = converted(manifest).objects[0]["spec"]["containers"][0]["resources"]
    assert made == {"claims": [{"name": "mine"}, {"name": "koordra-devices", "request": "a"}]}


def test_native_mode_says_that_it_cannot_keep_a_card_alone() -> None:
    template = converted(asking({N + "gpu": 1, N + "gpumem": 10, N + "gpucores": 100})).objects[1]
    (problem,) = translate(template, {}).problems
    assert "nobody keeps the rest of a card free" in str(problem)
