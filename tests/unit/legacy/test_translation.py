"""Pods of one workload are translated once; what differs between them stays their own."""

from __future__ import annotations

import gc
import sys

import pytest

from koordra.api import objects
from koordra.api.classic.notes import Notes
from koordra.compat.rewrite import has_dialect
from koordra.compat.settings import Settings
from koordra.controller.legacy import translation
from koordra.controller.legacy.settings import in_a_cluster
from koordra.controller.legacy.translation import Translations
from tests.unit.legacy.cluster import Cluster, Object, container, pod

SETTINGS = in_a_cluster(Settings())
HAMI = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000}


def of_a_workload(number: int) -> Object:
    made = pod(HAMI, name=f"web-{number}", labels={"app": "web", "apps.kubernetes.io/pod-index": str(number)})
    made["spec"]["volumes"] = [{"name": f"token-{number}"}]
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": f"token-{number}", "mountPath": "/t"}]
    return made


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A line for every rewriting that was worked out."""
    found: list[str] = []
    plain = translation.rewrite

    def counted(*args: object, **more: object) -> object:
        found.append("once")
        return plain(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(translation, "rewrite", counted)
    return found


def test_a_workload_is_translated_once_and_each_pod_keeps_its_own(worked_out: list[str]) -> None:
    cluster = Cluster()
    found = [cluster.admitted(of_a_workload(number)) for number in range(5)]
    assert worked_out == ["once"]
    assert len({str(one["spec"]["resourceClaims"]) for one in found}) == 1
    for number, one in enumerate(found):
        assert objects.labels_of(one)["apps.kubernetes.io/pod-index"] == str(number)
        assert one["spec"]["volumes"] == [{"name": f"token-{number}"}]
        assert one["spec"]["containers"][0]["volumeMounts"][0]["name"] == f"token-{number}"


def test_what_the_rewriting_leaves_is_not_copied() -> None:
    """Such parts are not looked into for the patch (webhook/review.patch)."""
    main = container("main", HAMI)
    main["env"] = [{"name": "A", "value": "b"}]
    made = pod(containers=[main])
    (after,) = Translations(SETTINGS).of(made, Notes("a")).pod["spec"]["containers"]
    assert after["env"] is made["spec"]["containers"][0]["env"]


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": {"nvidia.com/use-gputype": "A100"}},
        {"labels": {"hami.io/webhook": "ignore"}},
        {"runtimeClassName": "gvisor"},
        {"schedulerName": "hami-scheduler"},
    ],
    ids=str,
)
def test_what_the_rewriting_reads_is_never_mixed_up(change: Object, worked_out: list[str]) -> None:
    translations = Translations(SETTINGS)
    for _ in range(2):
        translations.of(pod(HAMI), Notes("a"))
        translations.of(pod(HAMI, **change), Notes("b"))
    assert len(worked_out) >= 2
    other, plain = (translations.of(one, Notes("a")).pod for one in (pod(HAMI, **change), pod(HAMI)))
    assert other != plain


@pytest.mark.parametrize("kept_to", [{"gpu": "on"}, None], ids=["selector", "affinity"])
def test_a_label_of_the_old_stack_is_told_of_each_pod_of_a_workload(kept_to: dict[str, str] | None) -> None:
    term = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["on"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    where = {"nodeSelector": kept_to} if kept_to else {"affinity": {"nodeAffinity": required}}
    translations = Translations(SETTINGS)
    translations.of(pod(HAMI), Notes("a"))
    for called in ("b", "c"):
        notes = Notes(called)
        made = translations.of(pod(HAMI, **where), notes).pod
        assert [(note.object, note.problem.partition(" ")[0]) for note in notes.found] == [(called, "gpu=on")]
        assert where.items() <= made["spec"].items()


@pytest.mark.parametrize("kept_to", [{}, {"nodeSelector": {"gpu": "on"}}], ids=["anywhere", "selector"])
def test_pods_of_a_daemon_set_are_translated_once_and_keep_their_nodes(kept_to: dict[str, object]) -> None:
    translations = Translations(SETTINGS)
    for node in ("gpu-1", "gpu-2"):
        own = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [own]}}
        affinity = {"nodeAffinity": required}
        made = translations.of(pod(HAMI, **kept_to, affinity=affinity), Notes(node)).pod
        assert made["spec"]["affinity"] == affinity
    assert translations._remembered.cache_info().misses == 1


def test_another_namespace_has_a_template_of_its_own() -> None:
    translations = Translations(SETTINGS)
    made = pod(HAMI)
    elsewhere = {**made, "metadata": {**made["metadata"], "namespace": "other"}}
    for one, namespace in ((made, "team"), (elsewhere, "other"), (made, "team")):
        template = translations.of(one, Notes("a")).template
        assert template is not None
        assert objects.namespace(template) == namespace


def test_a_warning_names_the_pod_that_hears_it() -> None:
    translations = Translations(SETTINGS)
    for name in ("Pod team/one", "Pod team/two"):
        notes = Notes(name)
        translations.of(pod(HAMI, annotations={"nvidia.com/use-gputpye": "A100"}), notes)
        assert [note.object for note in notes.found] == [name]


def test_the_memory_is_bounded_and_refusals_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, worked_out: list[str]
) -> None:
    monkeypatch.setattr(translation, "REMEMBERED", 2)
    translations = Translations(SETTINGS)
    for gigabytes in (1, 2, 3, 1):
        translations.of(pod({"aliyun.com/gpu-mem": gigabytes}), Notes("a"))
    assert len(worked_out) == 4
    translations.of(pod({"aliyun.com/gpu-mem": 1}), Notes("a"))
    assert len(worked_out) == 4


def test_one_user_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch, worked_out: list[str]) -> None:
    """Users write what is in the keys; a dry run is asked for at no cost."""
    monkeypatch.setattr(translation, "LONGEST", 2000)
    monkeypatch.setattr(translation, "REMEMBERED", 4)
    translations = Translations(SETTINGS)
    for number in range(40):
        made = container("main", HAMI)
        made["env"] = [{"name": "A", "value": f"{number}" + "x" * 1000}]
        translations.of(pod(containers=[made]), Notes("a"))
    huge = container("main", HAMI)
    huge["env"] = [{"name": "A", "value": "x" * 3000}]
    for _ in range(2):
        translations.of(pod(containers=[huge]), Notes("a"))
    assert len(worked_out) == 42
    assert translations._remembered.cache_info().currsize == 4
    translations.of(pod(containers=[made]), Notes("a"))
    assert len(worked_out) == 42, "the last one of the small ones is still known"


def test_names_that_are_too_long_for_kubernetes_are_not_kept() -> None:
    """The API server refuses them, but asks the webhook first: a few thousand such pods would fill the
    replica's memory."""
    names = [f"example.com/{place}" + "x" * 400 for place in ("annotation", "label", "resource")]
    annotation, label, resource = names
    before = [sys.getrefcount(name) for name in names]
    asking = pod({**HAMI, resource: 1}, annotations={annotation: ""}, labels={label: ""})
    assert has_dialect(asking, SETTINGS)
    Translations(SETTINGS).of(asking, Notes("a"))
    del asking
    gc.collect()
    assert [sys.getrefcount(name) for name in names] == before


def test_in_native_mode_the_classes_of_now_are_heeded(worked_out: list[str]) -> None:
    cluster, translations = Cluster(), Translations(SETTINGS)
    for _ in range(2):
        translations.of(pod(containers=[container("main", HAMI)]), Notes("a"), classes=cluster.classes())
    assert len(worked_out) == 2
