"""Templates: made again from what pods carry, deleted when nobody needs them, and never from under a pod."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordra.api import objects
from koordra.compat import original_request
from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document
from koordra.controller.legacy import templates
from koordra.controller.legacy.settings import in_a_cluster
from tests.unit.legacy.cluster import Cluster, Object, of_kind, pod

SHARE = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000}


def lost(cluster: Cluster, *pods: Object, settings: Settings | None = None) -> list[templates.Lost]:
    known = {objects.key(one): one for one in of_kind(cluster)}
    return list(templates.lost_templates(pods, known, cluster.classes(), settings or cluster.settings))


def unused(cluster: Cluster, *pods: Object) -> list[str]:
    found = templates.unused(pods, of_kind(cluster), now=cluster.now, grace=600)
    return [objects.name(one) for one in found]


def test_a_template_deleted_by_hand_is_made_again_the_very_same() -> None:
    cluster = Cluster()
    stored = cluster.store(cluster.admitted(pod(SHARE, schedulerName="hami-scheduler", generate=True)))
    (template,) = of_kind(cluster)
    assert lost(cluster, stored) == []
    cluster.known.clear()
    (found,) = lost(cluster, stored, stored)
    assert found.template is not None
    cluster.templates._recent.clear()
    cluster.templates.ensure(found.template)
    assert of_kind(cluster) == [template]


def test_also_where_the_scheduler_that_is_gone_said_something() -> None:
    cluster = Cluster()
    stored = cluster.store(
        cluster.admitted(pod({"alnair/vgpu-memory": 2}, schedulerName="alnair-cost-saving"))
    )
    assert "Binpack" in json.dumps(of_kind(cluster))
    cluster.known.clear()
    assert lost(cluster, stored)[0].template is not None


def test_a_pod_whose_claim_is_made_needs_no_template() -> None:
    cluster = Cluster()
    status = {"resourceClaimStatuses": [{"name": "koordra-devices", "resourceClaimName": "p-1"}]}
    stored = cluster.store(cluster.admitted(pod(SHARE)), **status)
    cluster.known.clear()
    assert lost(cluster, stored) == []


def test_nothing_is_made_that_the_name_does_not_promise() -> None:
    """A user edits what the pod carries, to have a template made that asks for more: the name tells."""
    cluster = Cluster()
    stored = cluster.store(cluster.admitted(pod(SHARE)))
    cluster.known.clear()
    said = json.loads(stored["metadata"]["annotations"][original_request.ANNOTATION])
    said["koordra-devices"]["containers"]["main"]["limits"]["nvidia.com/gpu"] = "8"
    stored["metadata"]["annotations"][original_request.ANNOTATION] = json.dumps(said)
    (found,) = lost(cluster, stored)
    assert found.template is None
    assert "gives another one now" in found.why
    del stored["metadata"]["annotations"][original_request.ANNOTATION]
    (found,) = lost(cluster, stored)
    assert found.template is None
    assert "does not carry what it asked for" in found.why


def test_rubbish_in_the_annotation_is_nothing() -> None:
    cluster = Cluster()
    stored = cluster.store(cluster.admitted(pod(SHARE)))
    cluster.known.clear()
    for rubbish in ("[", "[]", "{}", '{"koordra-devices": 1}', '{"koordra-devices": {"containers": {"main": 1}}}',
                    '{"koordra-devices": {"containers": {"main": {"limits": {"nvidia.com/gpu": {}}}}}}'):  # fmt: skip
        stored["metadata"]["annotations"][original_request.ANNOTATION] = rubbish
        (found,) = lost(cluster, stored)
        assert found.template is None


def test_what_nobody_thought_of_does_not_end_the_upkeep_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    odd = cluster.store(cluster.admitted(pod(SHARE, name="odd")))
    good = cluster.store(cluster.admitted(pod({"aliyun.com/gpu-mem": 4}, name="good")), uid="pod-2")
    cluster.known.clear()
    real = original_request.rewritten_again

    def again(pod: Object, *rest: Any) -> Any:
        if objects.name(pod) == "odd":
            raise IndexError(pod)
        return real(pod, *rest)

    monkeypatch.setattr(original_request, "rewritten_again", again)
    assert [found.template is None for found in lost(cluster, odd, good)] == [True, False]


def test_settings_that_changed_are_told() -> None:
    cluster = Cluster()
    stored = cluster.store(cluster.admitted(pod({"aliyun.com/gpu-mem": 4})))
    cluster.known.clear()
    other = in_a_cluster(with_document(Settings(), {"aliyun": {"memoryUnit": "MiB"}}, source="s"))
    (found,) = lost(cluster, stored, settings=other)
    assert "settings or annotations have changed" in found.why


def test_a_template_that_was_exchanged_is_told() -> None:
    cluster = Cluster()
    stored = cluster.store(cluster.admitted(pod(SHARE)))
    (template,) = of_kind(cluster)
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 8
    (found,) = lost(cluster, stored)
    assert found.template is None
    assert "other content" in found.why


def test_a_native_template_is_made_again_too() -> None:
    cluster = Cluster()
    stored = cluster.store(cluster.admitted(pod(SHARE), native=True))
    cluster.known.clear()
    assert lost(cluster, stored)[0].template is not None


def test_unused_templates_are_deleted_after_the_grace() -> None:
    cluster = Cluster()
    stored = cluster.store(cluster.admitted(pod(SHARE)))
    (template,) = of_kind(cluster)
    cluster.now += 599
    assert unused(cluster) == []
    cluster.now += 2
    assert unused(cluster) == [objects.name(template)]
    assert unused(cluster, stored) == []
    assert unused(cluster, {**stored, "status": {"phase": "Failed"}}) == [objects.name(template)]


def test_a_template_that_a_pod_was_just_admitted_with_stays() -> None:
    """The pod is not in the watch yet; the mark is. A mark after the look makes the deletion conflict
    (resourceVersion)."""
    cluster = Cluster()
    cluster.admitted(pod(SHARE))
    cluster.now += 700
    assert unused(cluster)
    cluster.admitted(pod(SHARE, name="next"))
    assert unused(cluster) == []


def test_a_copy_under_the_users_own_name_is_the_users() -> None:
    """With all its labels; his pods refer to it, and nobody here counts them."""
    cluster = Cluster()
    cluster.admitted(pod(SHARE))
    (template,) = of_kind(cluster)
    template["metadata"]["name"] = "mine"
    cluster.now += 10_000
    assert unused(cluster) == []


def test_templates_of_others_are_never_deleted() -> None:
    cluster = Cluster()
    cluster.admitted(pod(SHARE))
    (template,) = of_kind(cluster)
    del template["metadata"]["labels"]["koordra.io/made-by"]
    cluster.now += 10_000
    assert unused(cluster) == []
