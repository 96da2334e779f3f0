"""Which gang a pod names, and on what terms."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api.objects import Object
from koordra.controller.gangs.declared.admission import must_be_held, problems_of, refusals
from koordra.controller.gangs.declared.gang_ref import GangRef, Source, gang_of
from koordra.controller.gangs.declared.terms import Shrink, TimeoutPolicy, terms_of


def pod(
    *, annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **spec: Any
) -> Object:
    metadata = {"name": "w0", "namespace": "team", "annotations": annotations or {}, "labels": labels or {}}
    return {"kind": "Pod", "metadata": metadata, "spec": spec}


def group(api: str, **spec: Any) -> dict[str, Object]:
    found = {"apiVersion": api, "metadata": {"name": "train", "namespace": "team"}, "spec": spec}
    return {f"{api.partition('/')[0]}/team/train": found}


GANG_POLICY = {"gang": {"minCount": 4}}
CASES: dict[str, tuple[Object, dict[str, Object], Source]] = {
    "own": (
        pod(annotations={"koordra.io/gang": "train", "koordra.io/gang-min": "4"}),
        {},
        Source.KOORDRA,
    ),
    "own label": (
        pod(labels={"koordra.io/gang": "train"}, annotations={"koordra.io/gang-min": "4"}),
        {},
        Source.KOORDRA,
    ),
    "Kubernetes 1.36": (
        pod(schedulingGroup={"podGroupName": "train"}),
        group("scheduling.k8s.io/v1alpha2", schedulingPolicy=GANG_POLICY),
        Source.KUBERNETES,
    ),
    "Kubernetes 1.37": (
        pod(schedulingGroup={"podGroupName": "train"}),
        group("scheduling.k8s.io/v1beta1", schedulingPolicy=GANG_POLICY),
        Source.KUBERNETES,
    ),
    "Kubernetes 1.35": (
        pod(workloadRef={"name": "train", "podGroup": "workers"}),
        group("scheduling.k8s.io/v1alpha1", podGroups=[{"name": "workers", "policy": GANG_POLICY}]),
        Source.KUBERNETES,
    ),
    "Koordinator": (
        pod(
            annotations={
                "gang.scheduling.koordinator.sh/name": "train",
                "gang.scheduling.koordinator.sh/min-available": "4",
            }
        ),
        {},
        Source.KOORDINATOR,
    ),
    "coscheduling": (
        pod(labels={"scheduling.x-k8s.io/pod-group": "train"}),
        group("scheduling.x-k8s.io/v1alpha1", minMember=4),
        Source.COSCHEDULING,
    ),
    "coscheduling, old": (
        pod(labels={"pod-group.scheduling.sigs.k8s.io": "train"}),
        group("scheduling.sigs.k8s.io/v1alpha1", minMember=4),
        Source.COSCHEDULING,
    ),
    "coscheduling, light": (
        pod(
            labels={
                "pod-group.scheduling.sigs.k8s.io/name": "train",
                "pod-group.scheduling.sigs.k8s.io/min-available": "4",
            }
        ),
        {},
        Source.COSCHEDULING,
    ),
    "Volcano": (
        pod(annotations={"scheduling.k8s.io/group-name": "train"}),
        group("scheduling.volcano.sh/v1beta1", minMember=4),
        Source.VOLCANO,
    ),
    "Kueue": (
        pod(
            labels={"kueue.x-k8s.io/pod-group-name": "train"},
            annotations={"kueue.x-k8s.io/pod-group-total-count": "4"},
        ),
        {},
        Source.KUEUE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_who_says_what(name: str) -> None:
    member, groups, source = CASES[name]
    ref = gang_of(member)
    assert ref is not None
    assert (ref.source, ref.namespace, ref.name) == (source, "team", "train")
    terms = terms_of(ref, [member], groups)
    assert terms is not None
    assert (terms.least, terms.problems) == (4, ())


def test_a_pod_without_any_of_it_is_in_no_gang() -> None:
    assert gang_of(pod(labels={"app": "web"})) is None


def test_the_own_annotation_comes_first() -> None:
    both = pod(
        annotations={"koordra.io/gang": "mine", "koordra.io/gang-min": "2"},
        labels={"scheduling.x-k8s.io/pod-group": "theirs"},
    )
    assert gang_of(both) == GangRef(Source.KOORDRA, "team", "mine")


def test_a_basic_pod_group_is_no_gang() -> None:
    member = pod(schedulingGroup={"podGroupName": "train"})
    groups = group("scheduling.k8s.io/v1alpha2", schedulingPolicy={"basic": {}})
    assert terms_of(gang_of(member) or GangRef(Source.KOORDRA, "", ""), [member], groups) is None


def test_a_pod_group_that_is_not_there_says_nothing_yet() -> None:
    member = pod(labels={"scheduling.x-k8s.io/pod-group": "train"})
    terms = terms_of(gang_of(member) or GangRef(Source.KOORDRA, "", ""), [member], {})
    assert terms is not None
    assert terms.least is None
    assert terms.problems == ()


def test_all_terms_are_read() -> None:
    said = {
        "koordra.io/gang": "train",
        "koordra.io/gang-min": "2",
        "koordra.io/gang-max": "6",
        "koordra.io/gang-timeout": "1h30m",
        "koordra.io/gang-policy": "Keep",
        "koordra.io/gang-shrink": "ForOthers",
        "koordra.io/gang-topology": "block",
    }
    member = pod(annotations=said)
    terms = terms_of(gang_of(member) or GangRef(Source.KOORDRA, "", ""), [member], {})
    assert terms is not None
    assert (terms.least, terms.most, terms.timeout) == (2, 6, 5400.0)
    assert (terms.policy, terms.shrink) == (TimeoutPolicy.KEEP, Shrink.FOR_OTHERS)
    assert terms.topology.required == ("block",)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"koordra.io/gang": "t"}, "koordra.io/gang-min is missing"),
        ({"koordra.io/gang": "t", "koordra.io/gang-min": "0"}, "koordra.io/gang-min is '0'"),
        ({"koordra.io/gang": "t", "koordra.io/gang-min": "-1"}, "koordra.io/gang-min is '-1'"),
        ({"koordra.io/gang": "t", "koordra.io/gang-min": "٣"}, "koordra.io/gang-min is"),
        ({"koordra.io/gang": "t", "koordra.io/gang-min": "4", "koordra.io/gang-max": "2"}, "gang-max is 2"),
        ({"koordra.io/gang": "t", "koordra.io/gang-min": "4", "koordra.io/gang-timeout": "soon"}, "'soon'"),
        (
            {"koordra.io/gang": "t", "koordra.io/gang-min": "4", "koordra.io/gang-policy": "Kill"},
            "Restart or Keep",
        ),
        ({"koordra.io/gang-min": "4"}, "koordra.io/gang-min without koordra.io/gang"),
    ],
)
def test_what_cannot_be_meant_is_refused(said: dict[str, str], complaint: str) -> None:
    assert complaint in "; ".join(problems_of(pod(annotations=said)))
    assert complaint in str(refusals(pod(annotations=said))[0])


def test_who_is_held() -> None:
    own = pod(annotations={"koordra.io/gang": "t", "koordra.io/gang-min": "2"})
    theirs = pod(labels={"scheduling.x-k8s.io/pod-group": "t"})
    assert must_be_held(own, has_ours=False, has_unknown=False)
    assert must_be_held(theirs, has_ours=True, has_unknown=False)
    assert must_be_held(theirs, has_ours=False, has_unknown=True)
    assert not must_be_held(theirs, has_ours=False, has_unknown=False)
    assert not must_be_held(pod(), has_ours=True, has_unknown=True)


@pytest.mark.parametrize(("spec", "timeout"), [({"scheduleTimeoutSeconds": 300}, 300.0), ({}, None)])
def test_members_may_disagree_about_a_time_that_their_group_says(spec: Object, timeout: float | None) -> None:
    members = [
        pod(
            labels={"scheduling.x-k8s.io/pod-group": "train"},
            annotations={"gang.scheduling.koordinator.sh/waiting-time": waiting},
        )
        for waiting in ("30s", "60s")
    ]
    ref = gang_of(members[0])
    assert ref is not None
    terms = terms_of(ref, members, group("scheduling.x-k8s.io/v1alpha1", minMember=4, **spec))
    assert terms is not None
    assert bool(terms.problems) == (timeout is None)
    assert timeout is None or terms.timeout == timeout


def mpi(*roles: str) -> list[Object]:
    found = []
    for number, role in enumerate(roles):
        labels = {
            "training.kubeflow.org/job-name": "train",
            "training.kubeflow.org/job-role": role,
            "scheduling.x-k8s.io/pod-group": "train",
        }
        one = pod(labels=labels)
        one["metadata"]["name"] = f"train-{role}-{number}"
        found.append(one)
    return found


@pytest.mark.parametrize(
    ("roles", "owner", "least"),
    [
        (["worker", "worker"], "MPIJob", 2),
        (["worker", "worker", "launcher"], "MPIJob", 3),
        (["worker", "worker"], "PyTorchJob", 3),
    ],
)
def test_a_launcher_that_comes_after_its_workers_is_not_waited_for(
    roles: list[str], owner: str, least: int
) -> None:
    """mpi-operator's group has a member for it from the start (issue 608)."""
    members = mpi(*roles)
    groups = group("scheduling.x-k8s.io/v1alpha1", minMember=3)
    for one in groups.values():
        one["metadata"]["ownerReferences"] = [{"kind": owner, "name": "train", "controller": True}]
    ref = gang_of(members[0])
    assert ref is not None
    terms = terms_of(ref, members, groups)
    assert terms is not None
    assert terms.least == least


@pytest.mark.parametrize(
    ("role", "counts"),
    [("dataset-initializer", False), ("model-initializer", False), ("node", True), ("launcher", True)],
)
def test_initializers_of_a_trainjob_are_in_no_gang_of_koordras(role: str, *, counts: bool) -> None:
    """They end before the others are made; the gate that the policy wants of them is lifted at once."""
    said = {"koordra.io/gang": "train", "koordra.io/gang-min": "4"}
    labels = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": role}
    member = pod(annotations=said, labels=labels)
    assert (gang_of(member) is not None) == counts
    assert must_be_held(member, has_ours=False, has_unknown=False)
    assert problems_of(member) == []
    theirs = pod(labels={**labels, "scheduling.x-k8s.io/pod-group": "train"})
    assert gang_of(theirs) is not None
