"""ResourceQuotas under legacy names hold for pods that do not carry those names any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import PODS
from koordra.compat import quota_charges
from koordra.compat.rewrite import template_name
from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document
from koordra.controller.legacy.admission import LegacyWebhook
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.quota.bounds import in_scope, overdrawn
from koordra.controller.quota.usage import ADMITTED, RESERVED_FOR, legacy_entries
from koordra.controller.quota.webhook import QuotaWebhook
from koordra.controller.webhook.lookups import Lookups
from koordra.controller.webhook.review import AdmissionRequest
from koordra.metrics import Metrics
from tests.unit.legacy.cluster import Cluster, Object, a_quota, container, of_kind, pod

GPU = {"nvidia.com/gpu": 1}


def amount(limits: Object, name: str, *, more: Object | None = None, **settings: Object) -> int | None:
    cluster = Cluster(settings=with_document(Settings(), settings, source="s") if settings else None)
    containers = [container("main", limits)] + ([container("more", more)] if more else [])
    cluster.admitted(pod(containers=containers))
    (template,) = of_kind(cluster)
    dialect = quota_charges.dialect_of(objects.name(template))
    return quota_charges.amounts(dialect, template["spec"]["spec"], cluster.settings)[name]


@pytest.mark.parametrize(
    ("limits", "name", "expected"),
    [
        ({"nvidia.com/gpu": 3}, "nvidia.com/gpu", 3),
        ({"nvidia.com/gpu": 3}, "koordra.io/gpu", 3),
        ({"nvidia.com/gpu": 3}, "koordra.io/gpu-cores", 300),
        ({"nvidia.com/mig-1g.10gb": 2}, "nvidia.com/mig-1g.10gb", 2),
        ({"nvidia.com/mig-1g.10gb": 2}, "nvidia.com/gpu", 0),
        ({"nvidia.com/mig-1g.10gb.me": 1}, "nvidia.com/mig-1g.10gb.me", 1),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 30}, "nvidia.com/gpu", 2),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 30}, "nvidia.com/gpumem", 2000),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 30}, "nvidia.com/gpucores", 60),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000}, "koordra.io/gpu-memory", 2000 << 20),
        ({"nvidia.com/gpumem-percentage": 30}, "nvidia.com/gpumem-percentage", 30),
        ({"nvidia.com/gpumem-percentage": 30}, "nvidia.com/gpumem", None),
        ({"koordinator.sh/gpu": 50}, "koordinator.sh/gpu-core", 50),
        ({"koordinator.sh/gpu": 50}, "koordinator.sh/gpu-memory-ratio", 50),
        ({"koordinator.sh/gpu": 200}, "koordinator.sh/gpu", 200),
        ({"koordinator.sh/gpu": 100, "koordinator.sh/rdma": 100}, "koordinator.sh/rdma", 100),
        ({"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory": "8Gi"}, "koordinator.sh/gpu-memory", 8 << 30),
        ({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 500}, "volcano.sh/vgpu-memory", 1000),
        ({"volcano.sh/gpu-number": 2}, "volcano.sh/gpu-number", 2),
        ({"volcano.sh/gpu-memory": 700}, "volcano.sh/gpu-memory", 700),
        ({"aliyun.com/gpu-mem": 7}, "aliyun.com/gpu-mem", 7),
        ({"alnair/vgpu-memory": 7, "alnair/vgpu-compute": 30}, "alnair/vgpu-memory", 7),
        ({"alnair/vgpu-memory": 7, "alnair/vgpu-compute": 30}, "alnair/vgpu-compute", 30),
        ({"elasticgpu.io/gpu-core": 200}, "elasticgpu.io/gpu-core", 200),
        ({"elasticgpu.io/gpu-core": 20, "elasticgpu.io/gpu-memory": 512}, "elasticgpu.io/gpu-memory", 512),
        ({"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 8}, "tencent.com/vcuda-memory", 8),
        ({"tencent.com/vcuda-core": 200}, "tencent.com/vcuda-core", 200),
    ],
)  # fmt: skip
def test_a_claim_amounts_to_what_its_pod_asked(limits: Object, name: str, expected: int | None) -> None:
    assert amount(limits, name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("nvidia.com/gpu", 8), ("nvidia.com/gpumem", 40000), ("nvidia.com/gpumem-percentage", None)],
)
def test_migs_that_hami_gives_out_count_under_its_names(name: str, expected: int | None) -> None:
    """Else an annotation would lead past the quota."""
    cluster = Cluster()
    asks = {"nvidia.com/gpu": 8, "nvidia.com/gpumem": 5000}
    cluster.admitted(pod(asks, annotations={"nvidia.com/vgpu-mode": "mig"}))
    (template,) = of_kind(cluster)
    assert "mig.koordra.io" in str(template)
    assert quota_charges.amounts("hami", template["spec"]["spec"], cluster.settings)[name] == expected


def test_units_and_names_are_those_of_the_cluster() -> None:
    assert amount({"aliyun.com/gpu-mem": 700}, "aliyun.com/gpu-mem", aliyun={"memoryUnit": "MiB"}) == 700
    renamed = {"nvidia.com/gpu": "corp.example/gpu"}
    assert amount({"corp.example/gpu": 2}, "corp.example/gpu", names=renamed) == 2


def test_containers_add_up() -> None:
    assert amount(GPU, "nvidia.com/gpu", more={"nvidia.com/gpu": 2}) == 3


def test_one_too_many_is_refused_in_kubernetes_words() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "2"})]
    for number in range(2):
        cluster.store(cluster.admitted(pod(GPU, name=f"p{number}"), uid=f"u{number}"))
    answer = cluster.ask(pod(GPU, name="p2"), uid="u2")
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert str(answer.problems[0]) == (
        'pods "p2" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, '
        "used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2"
    )
    assert cluster.counted[-1] == ("plain", "over_quota")


def test_pods_that_the_watch_does_not_show_yet_count() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    first = cluster.admitted(pod(GPU), uid="u1")
    assert "exceeded quota" in cluster.refused(pod(GPU, name="q"), uid="u2")
    stored = cluster.store(first)
    assert stored["metadata"]["annotations"][ADMITTED] == "u1"
    assert "used: requests.nvidia.com/gpu=1" in cluster.refused(pod(GPU, name="q"), uid="u3"), (
        "once, not twice"
    )


def test_a_pod_that_was_never_stored_counts_for_a_minute() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    cluster.admitted(pod(GPU), uid="u1")
    cluster.now += 61
    cluster.admitted(pod(GPU), uid="u2")


def test_reviews_that_are_over_are_forgotten_where_no_quota_counts_them() -> None:
    """The quota is about other pods, so that nobody asks what the namespace adds up to."""
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"}, scopes=["Terminating"])]
    for number in range(3):
        cluster.now += 61
        cluster.admitted(pod(GPU), uid=f"u{number}")
    place = cluster.usage._places["team"]
    assert list(place.charged) == ["review u2"]
    assert place.over.next == cluster.now + RESERVED_FOR


def test_a_dry_run_is_told_and_counts_nothing() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    cluster.admitted(pod(GPU), uid="u1", dry_run=True)
    cluster.admitted(pod(GPU), uid="u2")
    assert "exceeded quota" in cluster.refused(pod(GPU), uid="u3", dry_run=True)


def test_a_pod_refused_for_its_template_does_not_count() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    cluster.away = True
    cluster.refused(pod(GPU), uid="u1")
    cluster.away = False
    cluster.admitted(pod(GPU), uid="u2")


@pytest.mark.parametrize("how", ["deleted", "finished"])
def test_what_has_gone_does_not_count(how: str) -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    stored = cluster.store(cluster.admitted(pod(GPU), uid="u1"))
    if how == "deleted":
        cluster.usage.on_pod("DELETED", stored)
    else:
        cluster.usage.on_pod("MODIFIED", {**stored, "status": {"phase": "Succeeded"}})
    cluster.admitted(pod(GPU), uid="u2")


def test_annotations_that_were_edited_away_do_not_help() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    stored = cluster.store(cluster.admitted(pod(GPU), uid="u1"))
    cluster.usage.on_pod("MODIFIED", {**stored, "metadata": {**stored["metadata"], "annotations": {}}})
    assert "exceeded quota" in cluster.refused(pod(GPU), uid="u2")


def replica_that_starts_now(cluster: Cluster) -> Cluster:
    """It sees what is stored, and remembers nothing."""
    fresh = Cluster(*cluster.known.values())
    fresh.quotas = cluster.quotas
    for template in of_kind(fresh):
        fresh.usage.on_template("ADDED", template)
    return fresh


def test_deleting_the_template_of_a_running_pod_does_not_help() -> None:
    """A replica that starts later knows what the pod amounts to by its claim."""
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    status = {"resourceClaimStatuses": [{"name": "koordra-devices", "resourceClaimName": "p-1"}]}
    stored = cluster.store(cluster.admitted(pod(GPU), uid="u1"), **status)
    (template,) = of_kind(cluster)
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "p-1", "namespace": "team"},
        "spec": template["spec"]["spec"],
    }
    cluster.known = {("ResourceClaim", "team/p-1"): claim}
    later = replica_that_starts_now(cluster)
    later.usage.on_pod("ADDED", stored)
    assert "used: requests.nvidia.com/gpu=1" in later.refused(pod(GPU, name="q"), uid="u2")
    later.usage.on_pod("DELETED", stored)
    later.admitted(pod(GPU, name="q"), uid="u3")


def named_as_ours(**exactly: Any) -> Object:
    """A template of a user's, under the name that koordra would give to its content."""
    asked = {"deviceClassName": "of.somebody.else", "count": 1, **exactly}
    spec = {"devices": {"requests": [{"name": "main", "exactly": asked}]}}
    name = template_name("plain", quota_charges.canonical_spec(spec))
    return {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"spec": spec},
    }


def referring_to(template: Object) -> Object:
    made = pod({"cpu": 1}, name="strange")
    made["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimTemplateName": objects.name(template)}]
    return made


def test_a_template_that_nobody_can_count_hurts_nobody() -> None:
    """Its watch goes on, and so do pods of the namespace; half a byte is a quantity to the API server."""
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    template = named_as_ours(capacity={"requests": {"memory": "500m"}})
    cluster.usage.on_template("ADDED", template)
    cluster.store(referring_to(template), uid="strange")
    cluster.admitted(pod(GPU))


def test_nothing_amounts_to_less_than_nothing() -> None:
    """Otherwise a user would bound himself by more with each pod."""
    cluster = Cluster()
    quota = a_quota({"requests.koordra.io/gpu-memory": "1Gi"})
    template = named_as_ours(capacity={"requests": {"memory": "-64Gi"}})
    cluster.usage.on_template("ADDED", template)
    cluster.store(referring_to(template), uid="strange")
    assert cluster.usage.counted(quota, "koordra.io/gpu-memory") == 0


def test_a_claim_that_says_something_else_teaches_nothing() -> None:
    """Of a planted template: what the name promises is not what is there."""
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    status = {"resourceClaimStatuses": [{"name": "koordra-devices", "resourceClaimName": "p-1"}]}
    stored = cluster.store(cluster.admitted(pod(GPU), uid="u1"), **status)
    (template,) = of_kind(cluster)
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 0
    claim = {"kind": "ResourceClaim", "metadata": {"name": "p-1", "namespace": "team"}}
    cluster.known = {("ResourceClaim", "team/p-1"): {**claim, "spec": template["spec"]["spec"]}}
    later = replica_that_starts_now(cluster)
    later.usage.on_pod("ADDED", stored)
    assert later.ask(pod({"aliyun.com/gpu-mem": 1}, name="q"), uid="u2").problems == ()
    later.usage.recall("team", template=later.known_template, claim=later.claim)
    assert not later.usage._amounts.keys() & {objects.name(template)}


def test_a_pod_counts_while_its_template_is_not_in_the_watch() -> None:
    """Two watches, in any order: what was reserved holds until the pod is counted."""
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    first = cluster.admitted(pod(GPU), uid="u1")
    cluster.usage._amounts.clear()
    cluster.store(first)
    assert cluster.usage.counted(cluster.quotas[0], "nvidia.com/gpu") == 1
    cluster.usage.on_template("ADDED", of_kind(cluster)[0])
    assert cluster.usage.counted(cluster.quotas[0], "nvidia.com/gpu") == 1


def test_a_template_is_learned_without_a_look_at_pods_that_wait_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Users make both: a hundred pods of templates that never come must not slow down each template that
    does."""
    cluster, looks = Cluster(), []
    quota = a_quota({"requests.koordra.io/gpu-memory": "1Ti"})
    there, absent = (named_as_ours(capacity={"requests": {"memory": size}}) for size in ("1Gi", "2Gi"))
    for number in range(100):
        cluster.store(
            {**referring_to(absent), "metadata": {"name": f"p{number}", "namespace": "team"}}, uid=str(number)
        )
    cluster.store(referring_to(there), uid="strange")

    def looked_at(pod: Object) -> dict[str, str]:
        looks.append(objects.name(pod))
        return legacy_entries(pod)

    monkeypatch.setattr("koordra.controller.quota.usage.legacy_entries", looked_at)
    cluster.usage.on_template("ADDED", there)
    assert set(looks) == {"strange"}
    assert cluster.usage.counted(quota, "koordra.io/gpu-memory") == 1 << 30


def test_a_template_that_the_watch_did_not_tell_of_yet_is_looked_up() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    stored = cluster.store(cluster.admitted(pod(GPU), uid="u1"))
    later = Cluster(*cluster.known.values())
    later.quotas = cluster.quotas
    later.usage.on_pod("ADDED", stored)
    assert "used: requests.nvidia.com/gpu=1" in later.refused(pod(GPU, name="q"), uid="u2")


def test_a_replica_is_ready_when_what_was_listed_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is in before its last pod is counted."""
    stored = [{"metadata": {"name": f"p{number}", "namespace": "team"}} for number in range(2)]
    client: Any = SimpleNamespace(list=lambda kind, **_options: (stored if kind is PODS else [], "1"))
    monkeypatch.setattr("koordra.controller.legacy.admission.PATIENCE", 0.0)
    lookups = Lookups(client)
    quota = QuotaWebhook(client, lookups, None, namespace="koordra-system")
    webhook = LegacyWebhook(client, LegacySettings(), lookups, quota, metrics=Metrics())
    quota._watch._cache._relist()
    quota._slices._relist()
    answers = []

    def answer() -> bool:
        reviewed = webhook.paths()["/mutate/legacy"](
            AdmissionRequest("u", "CREATE", "Pod", "team", pod({"cpu": 1}))
        )
        assert bool(reviewed.problems) is not webhook.is_synced(), "a quota would have room that is taken"
        return webhook.is_synced()

    count = webhook._pods._on_change
    assert count is not None

    def counting(event: str, one: Object, /) -> None:
        answers.append(answer())
        count(event, one)

    monkeypatch.setattr(webhook._pods, "_on_change", counting)
    webhook._pods._relist()
    assert (answers, answer()) == ([False, False], True)


def test_a_pod_of_the_same_name_is_another() -> None:
    """What waited for the first one's template must not come back in the place of the second."""
    cluster = Cluster()
    first = cluster.admitted(pod({"nvidia.com/gpu": 4}, name="web-0"), uid="u1")
    second = cluster.admitted(pod(GPU, name="web-0"), uid="u2")
    four, one = (
        next(t for t in of_kind(cluster) if f"'count': {count}" in str(t["spec"])) for count in (4, 1)
    )
    later = Cluster()
    later.usage.on_template("ADDED", one)
    later.store(first)
    later.usage.on_pod("MODIFIED", {**second, "metadata": {**second["metadata"], "uid": "pod-2"}})
    later.usage.on_template("ADDED", four)
    assert later.usage.counted(a_quota({}), "nvidia.com/gpu") == 1
    assert not later.usage._places["team"].waiting


def test_a_pod_that_was_rewritten_twice_counts_once() -> None:
    """Another webhook adds a container; the second review has a uid of its own."""
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "2"})]
    first = cluster.admitted(pod(GPU), uid="u1")
    containers = [*first["spec"]["containers"], container("injected", GPU)]
    both = cluster.admitted({**first, "spec": {**first["spec"], "containers": containers}}, uid="u2")
    stored = cluster.store(both)
    assert cluster.usage.counted(cluster.quotas[0], "nvidia.com/gpu") == 2
    cluster.usage.on_pod("DELETED", stored)
    assert cluster.usage.counted(cluster.quotas[0], "nvidia.com/gpu") == 0


def test_what_is_refused_or_asked_in_a_dry_run_is_not_remembered() -> None:
    """A user can ask for any number of different things."""
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "1"})]
    cluster.refused(pod({"nvidia.com/gpu": 2}), uid="u1")
    cluster.admitted(pod(GPU), uid="u2", dry_run=True)
    assert not cluster.usage._amounts


def test_pods_that_kept_the_name_count_as_the_api_server_counts_them() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.nvidia.com/gpu": "2"}, used={"requests.nvidia.com/gpu": "2"})]
    assert "used: requests.nvidia.com/gpu=2" in cluster.refused(pod(GPU))


def test_an_amount_that_is_bounded_has_to_be_said() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"limits.nvidia.com/gpumem": "8000"})]
    cluster.admitted(pod({"nvidia.com/gpumem": 4000}), uid="u1")
    assert "failed quota: gpus: must specify nvidia.com/gpumem" in cluster.refused(
        pod({"nvidia.com/gpumem-percentage": 10}), uid="u2"
    )
    text = cluster.refused(pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}), uid="u3")
    assert "requested: limits.nvidia.com/gpumem=6000, used: limits.nvidia.com/gpumem=4000" in text


def test_koordras_own_names_hold_for_every_dialect() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.koordra.io/gpu-memory": "10Gi", "requests.koordra.io/gpu": "5"})]
    cluster.store(cluster.admitted(pod({"aliyun.com/gpu-mem": 6}), uid="u1"))
    text = cluster.refused(pod({"nvidia.com/gpumem": 5120}), uid="u2")
    assert "requested: requests.koordra.io/gpu-memory=5Gi, used: requests.koordra.io/gpu-memory=6Gi" in text
    assert "limited: requests.koordra.io/gpu-memory=10Gi" in text


def test_another_dialects_quota_does_not_bound_this_one() -> None:
    cluster = Cluster()
    cluster.quotas = [a_quota({"requests.aliyun.com/gpu-mem": "1", "requests.cpu": "1", "pods": "3"})]
    found = cluster.admitted(pod(GPU))
    assert ADMITTED not in found["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("spec", "obj", "inside"),
    [
        ({"scopes": ["Terminating"]}, pod(GPU, activeDeadlineSeconds=5), True),
        ({"scopes": ["Terminating"]}, pod(GPU), False),
        ({"scopes": ["NotTerminating"]}, pod(GPU), True),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}]
                }
            },
            pod(GPU, priorityClassName="a"),
            True,
        ),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "NotIn", "values": ["a"]}]
                }
            },
            pod(GPU, priorityClassName="a"),
            False,
        ),
        (
            {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}},
            pod(GPU),
            False,
        ),
        ({"scopes": ["CrossNamespacePodAffinity"]}, pod(GPU), False),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"}]
                }
            },
            pod(
                GPU,
                affinity={
                    "podAntiAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 1, "podAffinityTerm": {"topologyKey": "z", "namespaceSelector": {}}}
                        ]
                    }
                },
            ),
            True,
        ),
        (
            {"scopes": ["CrossNamespacePodAffinity"]},
            pod(
                GPU,
                affinity={
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": "z", "namespaces": []},
                            {"topologyKey": "z", "namespaces": ["other"]},
                        ]
                    }
                },
            ),
            True,
        ),
        ({"scopes": ["SomethingNew"]}, pod(GPU), True),
    ],
)
def test_scopes(spec: Object, obj: Object, inside: bool) -> None:
    assert in_scope(a_quota({}, **spec), obj) is inside


def test_what_went_beyond_is_counted_by_what_is_there() -> None:
    """Two replicas of the webhook let in one each: the leader's count tells."""
    cluster = Cluster()
    for number in range(2):
        cluster.store(cluster.admitted(pod(GPU, name=f"p{number}"), uid=f"u{number}"))
    found = overdrawn(a_quota({"requests.nvidia.com/gpu": "1"}), cluster.usage.counted)
    assert found == "requests.nvidia.com/gpu: 2 used, 1 allowed"
    assert not overdrawn(a_quota({"requests.nvidia.com/gpu": "2"}), cluster.usage.counted)


def test_a_pod_with_two_claims_of_one_template_is_counted_twice_once_it_is_known() -> None:
    cluster = Cluster()
    template = named_as_ours(capacity={"requests": {"memory": "1Gi"}})
    stored = referring_to(template)
    (entry,) = stored["spec"]["resourceClaims"]
    stored["spec"]["resourceClaims"].append({**entry, "name": "second"})
    cluster.store(stored)
    assert cluster.usage.counted(a_quota({}), "koordra.io/gpu-memory") == 0
    cluster.usage.on_template("ADDED", template)
    assert cluster.usage.counted(a_quota({}), "koordra.io/gpu-memory") == 2 << 30
    assert not cluster.usage._waiting_for
