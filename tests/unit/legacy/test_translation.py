"""Pods of one workload share a template; what differs between them stays their own."""

from __future__ import annotations

from koordra.api import objects
from koordra.api.classic.notes import Notes
from koordra.compat.settings import Settings
from koordra.controller.legacy.settings import in_a_cluster
from koordra.controller.legacy.translation import translated
from tests.unit.legacy.cluster import Cluster, Object, of_kind, pod

SETTINGS = in_a_cluster(Settings())
HAMI = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000}


def of_a_workload(number: int) -> Object:
    made = pod(HAMI, name=f"web-{number}", labels={"app": "web", "apps.kubernetes.io/pod-index": str(number)})
    made["spec"]["volumes"] = [{"name": f"token-{number}"}]
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": f"token-{number}", "mountPath": "/t"}]
    return made


def test_the_pods_of_a_workload_share_a_template_and_each_keeps_its_own() -> None:
    cluster = Cluster()
    found = [cluster.admitted(of_a_workload(number)) for number in range(5)]
    assert len(of_kind(cluster)) == 1
    assert len({str(one["spec"]["resourceClaims"]) for one in found}) == 1
    for number, one in enumerate(found):
        assert objects.labels_of(one)["apps.kubernetes.io/pod-index"] == str(number)
        assert one["spec"]["volumes"] == [{"name": f"token-{number}"}]
        assert one["spec"]["containers"][0]["volumeMounts"][0]["name"] == f"token-{number}"


def test_another_namespace_has_a_template_of_its_own() -> None:
    made = pod(HAMI)
    elsewhere = {**made, "metadata": {**made["metadata"], "namespace": "other"}}
    for one, namespace in ((made, "team"), (elsewhere, "other")):
        template = translated(one, SETTINGS, Notes("a"), classes=None)[0].template
        assert template is not None
        assert objects.namespace(template) == namespace


def test_a_warning_names_the_pod_that_hears_it() -> None:
    for name in ("Pod team/one", "Pod team/two"):
        notes = Notes(name)
        translated(pod(HAMI, annotations={"nvidia.com/use-gputpye": "A100"}), SETTINGS, notes, classes=None)
        assert [note.object for note in notes.found] == [name]
