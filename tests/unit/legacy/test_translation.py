"""Pods of one workload are translated once; what differs between them stays their own."""

from __future__ import annotations

import pytest

from koordra.api import objects
from koordra.api.classic.notes import Notes
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
    other, plain = (translations.of(one, Notes("a"))[0].pod for one in (pod(HAMI, **change), pod(HAMI)))
    assert other != plain


def test_another_namespace_has_a_template_of_its_own() -> None:
    translations = Translations(SETTINGS)
    made = pod(HAMI)
    elsewhere = {**made, "metadata": {**made["metadata"], "namespace": "other"}}
    for one, namespace in ((made, "team"), (elsewhere, "other"), (made, "team")):
        template = translations.of(one, Notes("a"))[0].template
        assert template is not None
        assert objects.namespace(template) == namespace


def test_a_warning_names_the_pod_that_hears_it() -> None:
    translations = Translations(SETTINGS)
    for name in ("Pod team/one", "Pod team/two"):
        notes = Notes(name)
        translations.of(pod(HAMI, annotations={"nvidia.com/use-gputpye": "A100"}), notes)
        assert [note.object for note in notes.found] == [name]


def test_the_memory_is_bounded_and_refusals_are_not_kept(worked_out: list[str]) -> None:
    translations = Translations(SETTINGS, most=2)
    for gigabytes in (1, 2, 3, 1):
        translations.of(pod({"aliyun.com/gpu-mem": gigabytes}), Notes("a"))
    assert len(worked_out) == 4
    translations.of(pod({"aliyun.com/gpu-mem": 1}), Notes("a"))
    assert len(worked_out) == 4


def test_one_user_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch, worked_out: list[str]) -> None:
    """Users write what is in the keys; a dry run is asked for at no cost."""
    monkeypatch.setattr(translation, "MOST_TEXT", 8000)
    monkeypatch.setattr(translation, "LONGEST", 2000)
    translations = Translations(SETTINGS)
    for number in range(40):
        made = container("main", HAMI)
        made["env"] = [{"name": "A", "value": f"{number}" + "x" * 1000}]
        translations.of(pod(containers=[made]), Notes("a"))
    assert sum(map(len, translations._made)) == translations._text <= 8000
    huge = container("main", HAMI)
    huge["env"] = [{"name": "A", "value": "x" * 3000}]
    for _ in range(2):
        translations.of(pod(containers=[huge]), Notes("a"))
    assert len(worked_out) == 42
    assert len(translations._made) >= 4


def test_native_classes_that_changed_are_heeded() -> None:
    cluster = Cluster()
    translations = Translations(SETTINGS)
    first, second = cluster.classes(), cluster.classes()
    plain = pod(containers=[container("main", HAMI)])
    one = translations.of(plain, Notes("a"), classes=first)[0]
    assert translations.of(plain, Notes("a"), classes=first)[0].template is one.template
    assert translations.of(plain, Notes("a"), classes=second)[0].template is not one.template
