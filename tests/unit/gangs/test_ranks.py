"""Ranks beside members that have theirs: a pod that is made again gets its position's, wherever the others
are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.opaque.gang_member import GangMember
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.gangs.declared.gang_ref import GangRef, Source
from koordra.controller.gangs.declared.member_index import member_indexes
from koordra.controller.gangs.declared.terms import Terms
from koordra.controller.gangs.live.ranks import known_ranks
from koordra.controller.gangs.membership import Gang, Member
from tests.unit.gangs.workload_pods import KINDS, job, mpi


def gang(pods: Sequence[Object], told: Mapping[int, int], *, size: int, least: int = 1) -> Gang:
    """`told`: place in `pods` -> the rank that it was told with its devices."""
    indexes = member_indexes(pods)
    members = []
    for at, pod in enumerate(pods):
        entry = GangMember("g", told.get(at, 0), size).entry()
        claim: Object = {"metadata": {"name": objects.name(pod), "namespace": "team"}, "status": {}}
        if at in told:
            claim["status"] = {"allocation": {"devices": {"results": [], "config": [entry]}}}
        ours = (claim,) if objects.spec_of(pod).get("resourceClaims") else ()
        members.append(Member(pod, PodClaims(pod, ours=ours), indexes.get(objects.uid(pod))))
    return Gang(GangRef(Source.KOORDRA, "team", "g"), Terms(least), tuple(members))


def known(pods: Sequence[Object], told: Mapping[int, int], *, size: int, least: int = 1) -> list[int | None]:
    found = known_ranks(gang(pods, told, size=size, least=least))
    return [found.get(objects.uid(pod)) for pod in pods]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Koordinator"])
def test_a_pod_that_is_made_again_gets_the_rank_of_the_one_before_it(kind: str) -> None:
    pods = KINDS[kind]
    for lost in range(len(pods)):
        told = {at: at for at in range(len(pods)) if at != lost}
        assert known(pods, told, size=len(pods)) == list(range(len(pods)))


@pytest.mark.parametrize(
    ("kind", "lost"), [("LeaderWorkerSet", [4, 5]), ("PyTorchJob", [0, 2]), ("JobSet, Indexed", [2, 4])]
)
def test_several_that_are_lost_at_once_do_not_swap(kind: str, lost: list[int]) -> None:
    """They come back one by one, the last one first."""
    pods = KINDS[kind]
    told = {at: at for at in range(len(pods)) if at not in lost}
    for back in (lost[1:], lost):
        there = sorted([*told, *back])
        found = known([pods[at] for at in there], {there.index(at): at for at in told}, size=len(pods))
        assert found == there


def test_a_number_beyond_the_members_is_no_rank() -> None:
    """Of an Indexed Job of 8, 4 at a time: 0 has ended, 4 comes, and takes a rank that is free."""
    assert known([job(1), job(2), job(3), job(4)], {0: 1, 1: 2, 2: 3}, size=4) == [1, 2, 3, None]
    assert known([job(1), job(2), job(3), job(4)], {0: 1, 1: 2, 2: 3}, size=5) == [1, 2, 3, 4]


def test_a_number_that_others_have_is_not_given_twice() -> None:
    assert known([job(0), job(1), job(2)], {0: 0, 2: 1}, size=3) == [0, None, 1]


def test_a_launcher_that_was_told_nothing_comes_last() -> None:
    pods = [mpi("worker", 0, claims=True), mpi("worker", 1, claims=True), mpi("launcher", None, claims=False)]
    assert known(pods, {0: 0, 1: 1}, size=3) == [0, 1, 2]


def test_nothing_is_known_beside_nobody() -> None:
    assert known([job(0), job(1)], {}, size=0) == [None, None]
