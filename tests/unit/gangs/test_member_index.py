"""Positions of pods in their jobs: in the workload's own order, never two alike, and the same for the pod
that is made instead of another one."""

from __future__ import annotations

import copy
import random

import pytest

from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller.gangs.declared.member_index import member_index_of, member_indexes
from tests.unit.gangs.workload_pods import KINDS, job, lws, pod, ray


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_the_workloads_own(kind: str) -> None:
    pods = KINDS[kind]
    mixed = random.Random(kind).sample(pods, len(pods))
    indexes = member_indexes(mixed)
    assert len({str(index) for index in indexes.values()}) == len(pods)
    assert sorted(mixed, key=lambda one: indexes[objects.uid(one)]) == pods


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_that_is_made_anew_has_the_position_of_the_old_one(kind: str) -> None:
    for old in KINDS[kind]:
        new = copy.deepcopy(old)
        new["metadata"] |= {"name": "another-name", "uid": "another-uid"}
        for owner in new["metadata"]["ownerReferences"]:
            owner["uid"] = "owner-made-anew"
        assert member_index_of(new) == member_index_of(old) is not None
        assert str(member_index_of(new)) == str(member_index_of(old))


@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        ("PyTorchJob", ["master", "worker", "worker", "worker", "worker"]),
        ("LeaderWorkerSet", ["leader", "worker", "worker"] * 3),
        ("MPIJob", ["worker", "worker", "launcher"]),
        ("JobSet, Indexed", ["driver", "workers", "workers", "workers", "workers"]),
        ("RayCluster", ["head", "worker", "worker", "worker"]),
        ("Indexed Job", ["", "", "", ""]),
    ],
)
def test_roles_are_called_as_the_workload_calls_them(kind: str, roles: list[str]) -> None:
    assert [index.role if (index := member_index_of(one)) else None for one in KINDS[kind]] == roles


def test_replicas_of_several_hosts_are_recognised_when_they_are_remade() -> None:
    """KubeRay gives a replica another name each time, and its index again."""
    assert member_index_of(ray("tp", 1, 0, suffix="a")) == member_index_of(ray("tp", 1, 0, suffix="b"))


@pytest.mark.parametrize(
    "stranger",
    [
        pod("w", {"app": "web"}),
        pod("w", {"batch.kubernetes.io/job-completion-index": "first"}),
        pod("w", {"batch.kubernetes.io/job-completion-index": "9" * 4000}),
        pod("w", {"apps.kubernetes.io/pod-index": "-1"}),
    ],
)
def test_who_is_not_numbered_has_no_position(stranger: Object) -> None:
    assert member_index_of(stranger) is None


def test_positions_that_two_pods_claim_are_nobodys() -> None:
    """Workers of a KubeRay that numbers no replicas; two Jobs of one name cannot be, in one namespace."""
    head, one, other = ray("headgroup"), ray("a"), ray("a", suffix="y")
    assert list(member_indexes([head, one, other])) == [objects.uid(head)]


def test_a_row_is_what_one_number_counts() -> None:
    rows = [index.row for one in (lws(0, 0), lws(0, 1), lws(1, 0), job(0)) if (index := member_index_of(one))]
    assert rows[0] == rows[1]
    assert len(set(rows)) == 3
