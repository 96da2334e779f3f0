"""Legacy pods, any of them: a valid pod and claim come out, or a message; nothing else changes; a second pass
changes nothing; and a claim asks for exactly what the dialect's own scheduler would have charged, worked out
here a second time."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from koordra.api.claims import ResourceClaim
from koordra.api.classic.notes import Notes
from koordra.api.opaque import parameters
from koordra.cel.selectors import compile_error
from koordra.compat.detection import is_written
from koordra.compat.dialect import Dialect, covers
from koordra.compat.dialects import DIALECTS
from koordra.compat.dialects import elastic_gpu as elastic
from koordra.compat.rewrite import Rewritten
from koordra.compat.settings import Settings
from koordra.controller.legacy.settings import in_a_cluster
from koordra.controller.legacy.translation import Translations, translated
from koordra.errors import InvalidInput
from koordra.kube.validation.field_errors import FieldErrors
from koordra.quantity import to_int
from koordra_devcluster.apiserver.fields.schema import Decoder
from koordra_devcluster.apiserver.storage.strategies import Rules, strategy
from tests.unit.compat.pods import Dict, container, converted, pod

MIB, GIB = 1 << 20, 1 << 30
SETTINGS = in_a_cluster(Settings())
RULES = Rules(datetime(2026, 1, 1, tzinfo=UTC), compile_error)

# --- any pod ------------------------------------------------------------------------------------------------

RESOURCES = sorted({name.replace("*", "1g.5gb") for dialect in DIALECTS for name in dialect.resources})


def annotations_of(dialect: Dialect) -> list[str]:
    known = (*dialect.annotations, *dialect.soft_annotations, *dialect.written)
    return sorted({name.replace("*", "a") for name in known})


ANNOTATIONS = sorted({name for dialect in DIALECTS for name in annotations_of(dialect)})
LABELS = sorted(
    {name.replace("*", "a") for dialect in DIALECTS for name in (*dialect.labels, *dialect.soft_labels)}
)
WORDS = (
    "", "true", "spread", "binpack,mutex", "numa", "A100,V100", ",", "GPU-1", "mig", "hami-core", "50", "slot=1,core=1,memory=1", "ignore", "HAMi-core", "{", "[]",
    '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}', '{"rdma": {"vfSelector": {}}}', '{"gpu": {"requiredTopologyScope": "PCIe"}}', '{"allocatePolicy": "Restricted"}',
    '{"rdma": {"selector": {"matchLabels": {"a\\"b": "c\\\\"}}}}',
)  # fmt: skip
small = st.sampled_from([0, 1, 1, 2, 4, 30, 50, 100, 100, 200])
values = st.one_of(
    small, st.sampled_from([101, 150, 2**31, 2**40, "0", "2", "1k", "1Gi", "500m", "-1", "x", ""])
)
strange = st.dictionaries(
    st.sampled_from([*RESOURCES, "cpu", "memory", "amd.com/gpu", "rdma/hca"]), values, max_size=4
)
HOPELESS = {"koordinator.sh/fpga", "aliyun.com/gpu-count", *elastic.README_ONLY}
FAMILIES = [
    (
        [name for name in RESOURCES if covers(dialect.resources, name) and name not in HOPELESS],
        annotations_of(dialect),
    )
    for dialect in DIALECTS
]


@st.composite
def containers(draw: st.DrawFn, name: str, family: list[str]) -> Dict:
    """Mostly of one dialect, with amounts that mostly mean something."""
    usual = st.dictionaries(st.sampled_from([*family, "cpu"]), small, max_size=3)
    ask = draw(st.one_of(usual, usual, usual, usual, usual, strange))
    made = container(
        name,
        ask=ask,
        sides=draw(
            st.sampled_from(
                [("limits",), ("limits", "requests"), ("limits",), ("limits", "requests"), ("requests",)]
            )
        ),
    )
    if draw(st.booleans()):
        made["env"] = [
            {
                "name": "GPU_CORE_UTILIZATION_POLICY",
                "value": draw(st.sampled_from(["force", "disable", "no"])),
            }
        ]
    return made


@st.composite
def any_pods(draw: st.DrawFn) -> Dict:
    family, own = draw(st.sampled_from([*FAMILIES, *FAMILIES, ([], ANNOTATIONS)]))
    keys = draw(st.sampled_from([own, own, own, ANNOTATIONS]))
    names = [f"c{number}" for number in range(draw(st.integers(1, 3)))]
    init = [draw(containers(name=f"i{number}", family=family)) for number in range(draw(st.integers(0, 2)))]
    for entry in init:
        if draw(st.booleans()):
            entry["restartPolicy"] = "Always"
    extra: Dict = {}
    if draw(st.booleans()):
        extra["schedulerName"] = draw(
            st.sampled_from(["alnair-cost-saving", "volcano", "hami-scheduler", "mine"])
        )
    if draw(st.booleans()):
        extra["resourceClaims"] = [{"name": "koordra-devices", "resourceClaimName": "other"}]
    return pod(
        *(draw(containers(name=name, family=family)) for name in names),
        init=tuple(init),
        annotations=draw(
            st.dictionaries(
                st.sampled_from([*keys, "example.com/note"]),
                st.sampled_from(WORDS),
                max_size=draw(st.sampled_from([0, 0, 1, 3])),
            )
        ),
        labels=draw(
            st.dictionaries(
                st.sampled_from([*LABELS, "app", "tier", "team"]),
                st.sampled_from(["ignore", "HAMi-core", "x"]),
                max_size=draw(st.sampled_from([0, 0, 0, 2])),
            )
        ),
        **extra,
    )


def problems(obj: Dict, plural: str) -> list[str]:
    """What the API server would say of the object."""
    decoder = Decoder(obj["kind"])
    made = decoder.decode(obj["kind"], copy.deepcopy(obj))
    rules, errors = strategy(plural), FieldErrors()
    rules.default(made, RULES)
    rules.prepare(made, RULES)
    rules.validate(errors, made, RULES)
    return [*decoder.unknown, *(str(error) for error in errors.found)]


def in_order(manifest: Dict) -> bool:
    try:
        return not problems(manifest, "pods")
    except Exception:  # noqa: BLE001 a quantity that the server cannot decode
        return False


@given(any_pods())
def test_any_pod_becomes_a_valid_pod_or_a_message(manifest: Dict) -> None:
    before = copy.deepcopy(manifest)
    conversion = converted(manifest)
    assert manifest == before
    if conversion.refused:
        event("refused")
        assert not conversion.objects
        assert all(note.object and note.field and note.problem for note in conversion.refused)
        return
    made, *templates = conversion.objects
    event(f"{len(templates)} templates")
    if in_order(manifest):
        assert problems(made, "pods") == []
    for template in templates:
        assert problems(template, "resourceclaimtemplates.resource.k8s.io") == []
        check_claim(template)


def check_claim(template: Dict) -> None:
    """What the API server does not look at: koordra's parameters, of which none is the operator's, and that
    koordra reads the claim."""
    claim = {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": template["spec"]["spec"]}
    ResourceClaim.from_dict(claim)
    for entry in template["spec"]["spec"]["devices"].get("config", ()):
        parameters.decode(entry["opaque"]["parameters"], object="c", field="config", in_claim=True)


@given(any_pods())
def test_a_second_pass_changes_nothing(manifest: Dict) -> None:
    once = converted(manifest)
    if not once.refused:
        twice = converted(*once.objects)
        assert twice.objects == once.objects
        # What a pod says that asks for nothing now is nobody's business any more.
        assert len(once.objects) == 1 or not twice.notes


@given(any_pods())
def test_nothing_unrelated_changes(manifest: Dict) -> None:
    conversion = converted(manifest)
    if conversion.refused or len(conversion.objects) == 1:
        assert conversion.refused or conversion.objects == (manifest,)
        return
    made = copy.deepcopy(conversion.objects[0])
    entry = made["spec"]["resourceClaims"].pop()["name"]
    if not made["spec"]["resourceClaims"]:
        del made["spec"]["resourceClaims"]
    for one in each_container(made):
        resources = one.get("resources", {})
        resources["claims"] = [claim for claim in resources.get("claims", ()) if claim["name"] != entry]
    assert bare(made) == bare(copy.deepcopy(manifest))


def each_container(manifest: Dict) -> list[Dict]:
    return [*manifest["spec"].get("initContainers", ()), *manifest["spec"]["containers"]]


def bare(manifest: Dict) -> Dict:
    """The pod without anything legacy in it."""
    spec = manifest["spec"]
    if spec.get("schedulerName") in ("hami-scheduler", "alnair-cost-saving"):
        del spec["schedulerName"]
    results = {name for name in ANNOTATIONS if is_written(name)}
    annotations = {
        key: value for key, value in manifest["metadata"].pop("annotations", {}).items() if key not in results
    }
    if annotations:
        manifest["metadata"]["annotations"] = annotations
    for one in each_container(manifest):
        resources = one.pop("resources", {})
        for side in ("limits", "requests"):
            resources[side] = {
                key: value for key, value in resources.get(side, {}).items() if key not in RESOURCES
            }
        kept = {key: value for key, value in resources.items() if value}
        if kept:
            one["resources"] = kept
    return manifest


# --- what the dialect's scheduler would have charged --------------------------------------------------------

ALL = "all"
Charge = Counter[tuple[Any, int, bool]]
"""Cards by (memory: bytes, "n%" or all; compute; alone on the card)."""


def charged(manifest: Dict) -> Charge | None:
    """The claim's charge; None where the pod is refused."""
    conversion = converted(manifest)
    if conversion.refused:
        return None
    found: Charge = Counter()
    if len(conversion.objects) == 1:
        return found
    devices = conversion.objects[1]["spec"]["spec"]["devices"]
    for request in devices["requests"]:
        exactly = request["exactly"]
        amounts = exactly.get("capacity", {}).get("requests", {})
        own: Dict = {}
        for entry in devices.get("config", ()):
            if request["name"] in entry.get("requests", ()):
                own |= entry["opaque"]["parameters"]
        memory: Any = to_int(amounts["memory"]) if "memory" in amounts else ALL
        if "memoryPercent" in own:
            memory = f"{own['memoryPercent']}%"
        alone = own.get("exclusive", False) or memory == ALL
        found[memory, int(amounts.get("cores", 0)), alone] += exactly["count"]
    return found


def apps(*asked: Dict) -> Dict:
    return pod(*(container(f"c{number}", ask=ask) for number, ask in enumerate(asked)))


def some(**names: st.SearchStrategy[Any]) -> st.SearchStrategy[Dict]:
    """Dictionaries with any of these names; `__` is a dot or slash: given by SPELLED."""
    return st.fixed_dictionaries({}, optional={SPELLED[name]: values for name, values in names.items()})


SPELLED = {
    "gpu": "nvidia.com/gpu", "gpumem": "nvidia.com/gpumem", "percent": "nvidia.com/gpumem-percentage", "gpucores": "nvidia.com/gpucores",
    "vnumber": "volcano.sh/vgpu-number", "vmemory": "volcano.sh/vgpu-memory", "vpercent": "volcano.sh/vgpu-memory-percentage", "vcores": "volcano.sh/vgpu-cores",
    "ecore": "elasticgpu.io/gpu-core", "ememory": "elasticgpu.io/gpu-memory", "acompute": "alnair/vgpu-compute", "amemory": "alnair/vgpu-memory",
    "tcore": "tencent.com/vcuda-core", "tmemory": "tencent.com/vcuda-memory", "mem": "aliyun.com/gpu-mem", "oldmemory": "volcano.sh/gpu-memory",
    "kgpu": "koordinator.sh/gpu", "kcore": "koordinator.sh/gpu-core", "kmemory": "koordinator.sh/gpu-memory", "kratio": "koordinator.sh/gpu-memory-ratio", "kshared": "koordinator.sh/gpu.shared",
}  # fmt: skip

counts, cores, memories = (
    st.integers(0, 4),
    st.sampled_from([0, 1, 30, 99, 100, 120]),
    st.sampled_from([0, 1, 500, 2048]),
)
percents = st.sampled_from([0, 1, 50, 100])


def hami_scheduler(ask: Dict) -> Charge:
    """GenerateResourceRequests after MutateAdmission, as Go does it: numbers and the sentinel 101."""
    limits = dict(ask)
    if "nvidia.com/gpu" not in limits:
        if not set(limits) & {"nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"}:
            return Counter()
        limits["nvidia.com/gpu"] = 1
    if "nvidia.com/gpucores" not in limits:
        if "nvidia.com/gpumem-percentage" in limits:
            alone = limits["nvidia.com/gpumem-percentage"] == 100
        else:
            alone = "nvidia.com/gpumem" not in limits
        if alone:
            limits["nvidia.com/gpucores"] = 100
    number, percent = limits.get("nvidia.com/gpumem", 0), 101
    if limits.get("nvidia.com/gpumem-percentage", 0) > 0:
        percent = limits["nvidia.com/gpumem-percentage"]
    if percent == 101 and number == 0:
        percent = 100
    compute = min(limits.get("nvidia.com/gpucores", 0), 100)
    memory: Any = number * MIB if number else ALL if percent == 100 else f"{percent}%"
    return Counter({(memory, compute, compute == 100 or memory == ALL): limits["nvidia.com/gpu"]})


def volcano_scheduler(ask: Dict) -> Charge | None:
    number, memory = ask.get("volcano.sh/vgpu-number"), ask.get("volcano.sh/vgpu-memory")
    if number is None and memory is None:
        return Counter() if not ask else None
    percent = ask.get("volcano.sh/vgpu-memory-percentage", 101)
    if percent == 101 and not memory:
        percent = 100
    compute = ask.get("volcano.sh/vgpu-cores", 0)
    if percent == 0 or compute > 100:
        return None
    taken: Any = (memory or 0) * MIB if percent == 101 else ALL if percent == 100 else f"{percent}%"
    return Counter({(taken, compute, compute == 100 or taken == ALL): 1 if number is None else number})


def elastic_scheduler(ask: Dict) -> Charge:
    core, memory = ask.get("elasticgpu.io/gpu-core", 0), ask.get("elasticgpu.io/gpu-memory", 0)
    if core == 0 and memory == 0:
        return Counter()
    if core >= 100:
        return Counter({(ALL, 100, True): core // 100})
    return Counter({(memory * MIB or MIB, core, False): 1})  # 1Mi is the least that can be said


def alnair_plugin(ask: Dict) -> Charge:
    memory, compute = ask.get("alnair/vgpu-memory", 0), ask.get("alnair/vgpu-compute", 0)
    if not memory and not compute:
        return Counter()
    return Counter({(memory * GIB or ALL, compute if compute < 100 else 0, not memory): 1})


def tke_scheduler(ask: Dict) -> Charge | None:
    core, blocks = ask.get("tencent.com/vcuda-core", 0), ask.get("tencent.com/vcuda-memory", 0)
    if not core and not blocks:
        return Counter()
    if core <= 0 or (core < 100 and blocks <= 0) or (core > 100 and core % 100):
        return None
    if core < 100:
        return Counter({(blocks * 256 * MIB, core, False): 1})
    return Counter({(ALL, 100, True): core // 100})


def each(scheduler: Callable[[Dict], Charge | None]) -> Callable[[list[Dict]], Charge | None]:
    """Dialects that charge container by container."""

    def whole(asked: list[Dict]) -> Charge | None:
        parts = [scheduler(ask) for ask in asked]
        if any(part is None for part in parts):
            return None
        found: Charge = Counter()
        for part in parts:
            found += part or Counter()
        return found

    return whole


def koordinator_scheduler(asked: list[Dict]) -> Charge | None:
    """Webhook, sum, ValidateDeviceRequest, calcDesiredRequestsAndCountForGPU."""
    total: Counter[str] = Counter()
    for ask in asked:
        own = {name.removeprefix("koordinator.sh/"): to_int(value) for name, value in ask.items()}
        if "gpu" in own and "gpu.shared" in own:
            return None
        if own:
            if "gpu" in own:
                own["gpu-core"] = own["gpu-memory-ratio"] = own.pop("gpu")
            if "gpu.shared" not in own:
                figure = own.get("gpu-memory-ratio", own.get("gpu-core", 0))
                own["gpu.shared"] = figure // 100 if figure in range(200, 10001, 100) else 1
        total.update(own)
    total = +total
    if not total:
        return Counter()
    n, core, ratio, memory = (
        total.pop(name, 0) for name in ("gpu.shared", "gpu-core", "gpu-memory-ratio", "gpu-memory")
    )
    if bool(ratio) == bool(memory) or core % n or core > 100 * n or ratio % n or ratio > 100 * n:
        return None
    taken: Any = memory // n if memory else ALL if ratio == 100 * n else f"{ratio // n}%"
    return Counter({(taken, core // n, taken == ALL): n})


def aliyun_scheduler(asked: list[Dict]) -> int:
    return sum(ask.get("aliyun.com/gpu-mem", 0) for ask in asked) * GIB


DIALECT_PODS: list[tuple[str, st.SearchStrategy[Dict], Callable[[list[Dict]], Charge | None]]] = [
    ("hami", some(gpu=counts, gpumem=memories, percent=percents, gpucores=cores), each(hami_scheduler)),
    (
        "volcano",
        some(vnumber=counts, vmemory=memories, vpercent=percents, vcores=cores),
        each(volcano_scheduler),
    ),
    (
        "elastic",
        some(ecore=st.sampled_from([0, 1, 50, 99, 100, 250]), ememory=memories),
        each(elastic_scheduler),
    ),
    ("alnair", some(acompute=cores, amemory=st.integers(0, 40)), each(alnair_plugin)),
    (
        "tke",
        some(tcore=st.sampled_from([0, 1, 99, 100, 150, 300]), tmemory=st.integers(0, 8)),
        each(tke_scheduler),
    ),
    ("plain", some(gpu=counts), each(lambda ask: Counter({(ALL, 0, True): ask.get("nvidia.com/gpu", 0)}))),
    (
        "koordinator",
        st.one_of(
            some(kgpu=st.sampled_from([1, 50, 100, 150, 200, 400])),
            some(
                kcore=st.sampled_from([30, 100, 150, 200]),
                kratio=st.sampled_from([30, 100, 101, 200]),
                kshared=st.integers(1, 3),
            ),
            some(
                kcore=st.sampled_from([30, 100, 200]),
                kmemory=st.sampled_from([1024, "8Gi", 1000]),
                kshared=st.integers(1, 3),
            ),
        ),
        koordinator_scheduler,
    ),
]


@pytest.mark.parametrize(
    ("asked", "scheduler"), [row[1:] for row in DIALECT_PODS], ids=[row[0] for row in DIALECT_PODS]
)
def test_a_claim_asks_for_what_the_scheduler_would_have_charged(
    asked: st.SearchStrategy[Dict], scheduler: Any
) -> None:
    @given(st.lists(asked, min_size=1, max_size=3))
    def exactly(asks: list[Dict]) -> None:
        if scheduler is DIALECT_PODS[0][2] and not any(
            set(ask) - {"nvidia.com/gpu"} and any(ask.values()) for ask in asks
        ):
            return  # nvidia.com/gpu alone is plain
        manifest = apps(*asks)
        if not any(any(value not in (0, "0") for value in ask.values()) for ask in asks):
            assert charged(manifest) == Counter()
            return
        expected = scheduler(asks)
        found = charged(manifest)
        assert (found is None) == (expected is None), asks
        assert +(found or Counter()) == +(expected or Counter()), asks

    exactly()


@given(st.lists(st.integers(0, 8), min_size=1, max_size=4), st.lists(st.integers(0, 30), max_size=2))
def test_aliyuns_sum_lies_on_one_card(amounts: list[int], before: list[int]) -> None:
    inits = tuple(
        container(f"i{number}", ask={"aliyun.com/gpu-mem": amount}) for number, amount in enumerate(before)
    )
    asks = [{"aliyun.com/gpu-mem": amount} for amount in amounts]
    manifest = {**apps(*asks)}
    if inits:
        manifest["spec"] = {**manifest["spec"], "initContainers": list(inits)}
    conversion = converted(manifest)
    if not any(amounts):
        assert bool(conversion.refused) == any(before)
        return
    devices = conversion.objects[1]["spec"]["spec"]["devices"]
    names = [request["name"] for request in devices["requests"]]
    total = sum(
        to_int(request["exactly"]["capacity"]["requests"]["memory"]) for request in devices["requests"]
    )
    assert total == aliyun_scheduler(asks)
    same = [{"requests": names, "matchAttribute": "koordra.io/uuid"}]
    assert devices.get("constraints", []) == (same if len(names) > 1 else [])


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
    st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.integers(0, 3), max_size=1),
)
def test_whole_cards_with_init_containers_are_what_the_kubelet_counts(
    after: list[int], before: list[int], beside: list[int]
) -> None:
    ask = [{"nvidia.com/gpu": count} for count in after]
    manifest = apps(*ask)
    first = [
        container(f"s{number}", ask={"nvidia.com/gpu": count}, restartPolicy="Always")
        for number, count in enumerate(beside)
    ]
    manifest["spec"]["initContainers"] = [
        *(container(f"i{number}", ask={"nvidia.com/gpu": count}) for number, count in enumerate(before)),
        *first,
    ]
    cards = max(sum(after) + sum(beside), max(before, default=0))
    if cards:
        assert charged(manifest) == Counter({(ALL, 0, True): cards})


@given(
    st.integers(1, 3),
    st.tuples(st.sampled_from([0, 100, 900]), st.sampled_from([0, 40, 100])),
    st.lists(st.tuples(st.sampled_from([0, 200, 1000]), st.sampled_from([0, 50, 100])), max_size=3),
)
def test_hamis_cards_are_charged_the_larger_of_containers_and_init_containers(
    count: int, app: tuple[int, int], before: list[tuple[int, int]]
) -> None:
    def ask(figures: tuple[int, int]) -> Dict:
        return {"nvidia.com/gpu": count, "nvidia.com/gpumem": figures[0], "nvidia.com/gpucores": figures[1]}

    manifest = apps(ask(app))
    manifest["spec"]["initContainers"] = [
        container(f"i{number}", ask=ask(figures)) for number, figures in enumerate(before)
    ]
    everyone = [app, *before]
    memory: Any = (
        ALL if any(not figures[0] for figures in everyone) else max(figures[0] for figures in everyone) * MIB
    )
    compute = max(figures[1] for figures in everyone)
    assert charged(manifest) == Counter({(memory, compute, compute == 100 or memory == ALL): count})


@given(any_pods())
def test_equal_content_has_equal_names_and_other_content_others(manifest: Dict) -> None:
    one = converted(manifest)
    other = copy.deepcopy(manifest)
    other["metadata"]["name"] = "q"
    two = converted(other)
    assert [json.dumps(obj) for obj in one.objects[1:]] == [json.dumps(obj) for obj in two.objects[1:]]


# --- stored -------------------------------------------------------------------------------------------------

DRESS: Dict = {"volumes": [{"name": "token-x1"}], "hostname": "h", "affinity": {"nodeAffinity": {}}, "nodeSelector": {"a": "b"}}  # fmt: skip


def dressed(manifest: Dict, number: int) -> Dict:
    """The pod as the API server sends one of many of a workload: with what differs from pod to pod."""
    made = copy.deepcopy(manifest)
    made["metadata"]["name"] = f"web-{number}"
    made["metadata"].setdefault("labels", {})["apps.kubernetes.io/pod-index"] = str(number)
    made["spec"].update(copy.deepcopy(DRESS), hostname=f"web-{number}")
    for entry in (*made["spec"].get("initContainers", ()), *made["spec"]["containers"]):
        entry["volumeMounts"] = [{"name": f"token-{number}", "mountPath": "/t"}]
        entry["ports"] = [{"containerPort": 80 + number}]
    return made


def stored(sent: Dict) -> tuple[Dict, tuple[object, ...]]:
    """The pod as it is stored, and all else that came of it."""
    notes = Notes("Pod team/p")
    try:
        found = translated(sent, SETTINGS, notes, classes=None)
    except InvalidInput as error:
        return sent, (str(error), notes.found)
    return found.pod, (found.template, found.dialect, found.entry, found.problems, notes.found)


@given(any_pods(), st.integers(0, 3), st.integers(4, 9))
def test_pods_of_a_workload_share_a_template_and_keep_their_own(
    manifest: Dict, first: int, second: int
) -> None:
    outcomes = []
    for number in (first, second):
        sent = dressed(manifest, number)
        before = copy.deepcopy(sent)
        pod, outcome = stored(sent)
        outcomes.append(outcome)
        assert sent == before
        assert pod["metadata"]["name"] == f"web-{number}"
        assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == str(number)
        assert {key: pod["spec"][key] for key in DRESS} == {**DRESS, "hostname": f"web-{number}"}
        for entry in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            assert entry["volumeMounts"] == [{"name": f"token-{number}", "mountPath": "/t"}]
            assert entry["ports"] == [{"containerPort": 80 + number}]
    assert outcomes[0] == outcomes[1]


def all_of(work: Callable[[Notes], Rewritten]) -> tuple[object, ...]:
    notes = Notes("Pod team/p")
    try:
        return work(notes), notes.found
    except InvalidInput as error:
        return str(error), notes.found


@given(any_pods(), st.integers(0, 3), st.integers(4, 9))
def test_what_is_remembered_is_what_would_be_worked_out(manifest: Dict, first: int, second: int) -> None:
    translations = Translations(SETTINGS)
    for number in (first, second, first):
        sent = dressed(manifest, number)
        before = copy.deepcopy(sent)
        remembered = all_of(lambda notes, sent=sent: translations.of(sent, notes))  # type: ignore[misc]
        worked_out = all_of(lambda notes, sent=sent: translated(sent, SETTINGS, notes, classes=None))  # type: ignore[misc]
        assert remembered == worked_out
        assert sent == before
