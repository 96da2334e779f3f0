"""Replicas that are gangs of their own: by labels that the pods name, or as it is known of their kind."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest

from koordra.api.objects import Object
from koordra.controller.gangs.declared.admission import problems_of
from koordra.controller.gangs.declared.gang_ref import GangRef, Source, gang_of
from koordra.controller.gangs.declared.terms import terms_of
from tests.unit.gangs.workload_pods import KINDS, job, job_set_job, lws, pod, ray, volcano

KEY, BY, LEAST = "koordra.io/gang", "koordra.io/gang-by", "koordra.io/gang-min"
GROUP, PARTITION = "leaderworkerset.sigs.k8s.io/group-index", "volcano.sh/partition-id"
INDEX, ROLE = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/replicatedjob-name"


def told(one: Object, *, least: int = 2, by: str | None = None, name: str = "g") -> Object:
    found = copy.deepcopy(one)
    said = {KEY: name, LEAST: str(least), **({} if by is None else {BY: by})}
    found["metadata"]["annotations"] = {**found["metadata"].get("annotations", {}), **said}
    return found


def names(pods: list[Object], **said: object) -> list[str]:
    refs = [gang_of(told(one, **said)) for one in pods]  # type: ignore[arg-type]
    return [ref.name for ref in refs if ref is not None]


DEFAULTS: dict[str, list[str]] = {
    "LeaderWorkerSet": ["g:0"] * 3 + ["g:1"] * 3 + ["g:11"] * 3,
    "RayCluster": ["g"] * 4,
    "RayCluster of several hosts": ["g", "g:tp:0", "g:tp:0", "g:tp:1", "g:tp:1"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_is_divided_by(kind: str) -> None:
    """All others are whole: one gang name may span the roles of a JobSet."""
    assert names(KINDS[kind]) == DEFAULTS.get(kind, ["g"] * len(KINDS[kind]))


def test_groups_are_one_gang_where_more_have_to_start_than_one_has() -> None:
    """The groups of 2 that the annotation `size` tells of."""
    assert names([lws(0, 0), lws(1, 0)], least=2) == ["g:0", "g:1"]
    assert names([lws(0, 0), lws(1, 0)], least=4) == ["g", "g"]


def test_the_word_none_joins_replicas() -> None:
    assert names([lws(0, 0), lws(1, 0), ray("tp", 0, 0)], by="none") == ["g", "g", "g"]


@pytest.mark.parametrize(
    ("pods", "by", "expected"),
    [
        ([lws(0, 0), lws(3, 1)], GROUP, ["g:0", "g:3"]),
        ([volcano("w", 0, partition=0), volcano("w", 9, partition=1)], PARTITION, ["g:0", "g:1"]),
        ([job(7), job(8), job(19)], f"{INDEX}:8", ["g:0", "g:1", "g:2"]),
        (
            [job_set_job("a", 0, 0, completion=0), job_set_job("b", 0, 1, completion=9)],
            f"{ROLE}, {INDEX}:8",
            ["g:a:0", "g:b:1"],
        ),
        ([pod("p", {"team": "x"})], "team", ["g:x"]),
    ],
)
def test_labels_that_pods_name(pods: list[Object], by: str, expected: list[str]) -> None:
    assert names(pods, by=by, least=1) == expected
    for one in pods:
        assert problems_of(told(one, by=by)) == []


def test_a_gang_of_somebody_else_is_divided_too_and_says_how_many() -> None:
    member = volcano("w", 9, partition=1)
    member["metadata"]["annotations"] |= {BY: PARTITION}
    ref = gang_of(member)
    assert ref == GangRef(Source.VOLCANO, "team", "train-uid", replica=("1",))
    assert ref.key == "team/train-uid:1 (volcano)"
    groups = {"scheduling.volcano.sh/team/train-uid": {"spec": {"minMember": 8}}}
    terms = terms_of(ref, [member], groups)
    assert terms is not None
    assert "say with koordra.io/gang-min how many" in terms.problems[0]
    member["metadata"]["annotations"][LEAST] = "4"
    terms = terms_of(ref, [member], groups)
    assert terms is not None
    assert (terms.least, terms.problems) == (4, ())


@pytest.mark.parametrize(
    ("by", "problem"),
    [
        ("", "koordra.io/gang-by says ''"),
        ("a,,b", "koordra.io/gang-by says ''"),
        ("a b", "koordra.io/gang-by says 'a b'"),
        ("x/y/z", "koordra.io/gang-by says 'x/y/z'"),
        (f"{INDEX}:0", "each with a block size"),
        (f"{INDEX}:x", "each with a block size"),
        ("a,b,c,d,e", "names 5 labels: 4 at most"),
    ],
)
def test_what_cannot_be_meant_is_refused(by: str, problem: str) -> None:
    member = told(job(0), by=by)
    assert problem in problems_of(member)[0]
    assert gang_of(member) == GangRef(Source.KOORDRA, "team", "g")


def refused(member: Mapping[str, object]) -> str:
    ref = gang_of(member)
    assert ref is not None
    terms = terms_of(ref, [dict(member)], {})
    assert terms is not None
    return "; ".join(terms.problems)


@pytest.mark.parametrize(
    ("member", "by", "problem"),
    [
        (job(0), "team", "names team, and pod train-0-x has no such label"),
        (pod("p", {}, annotations={"team": "a b"}), "team", "has 'a b' there"),
        (pod("p", {}, annotations={"team": "x" * 4000}), "team", "has 'xxx"),
        (pod("p", {"rank": "first"}), "rank:8", "has 'first' there"),
    ],
)
def test_a_label_that_is_not_there_is_told_once_the_pod_is_made(
    member: Object, by: str, problem: str
) -> None:
    """Other webhooks may add labels after koordra's: those of a LeaderWorkerSet do."""
    found = told(member, by=by)
    assert problems_of(found) == []
    assert problem in refused(found)


def test_gang_by_without_a_gang_is_told() -> None:
    assert problems_of(pod("p", {}, annotations={BY: "team"})) == [f"{BY} without {KEY}: name the gang"]


def test_two_gangs_never_share_a_name() -> None:
    keys = [
        gang.key
        for one in (
            told(pod("a", {"team": "x"}), name="g", by="team"),
            told(pod("b", {}), name="g:x"),
            told(pod("c", {}), name="g%3Ax"),
            told(pod("d", {}), name="g"),
        )
        if (gang := gang_of(one)) is not None
    ]
    assert len(set(keys)) == 4
    assert keys[0] == "team/g:x"
