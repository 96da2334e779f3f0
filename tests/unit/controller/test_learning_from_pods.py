"""Only pods that ran teach the controller what is asked for, each once, and no namespace drowns the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordra.api.kinds import PODS
from koordra.controller.allocation.learned import leftover_store
from koordra.controller.allocation.learned.leftover_store import data_of, learned_of
from koordra.errors import InvalidManifest
from koordra.placement.free_amounts.state import Request
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload import _ALWAYS, _MOST_CLASSES, Online, Workload, together
from tests.fakes.joint_cluster import JointCluster


def counted(cluster: JointCluster) -> dict[str, int]:
    return {name: one.count for name, one in cluster.reconciler.allocation.placer.order.online.of.items()}


def phase(cluster: JointCluster, pod: str, phase: str) -> None:
    cluster.api.edit(PODS, pod, lambda found: found.setdefault("status", {}).update(phase=phase))
    cluster.settle(passes=1)


def one_pod(cluster: JointCluster) -> None:
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()


def test_a_pod_counts_when_it_begins_to_run_and_once() -> None:
    cluster = JointCluster()
    one_pod(cluster)
    assert cluster.allocation("a") is not None
    assert counted(cluster) == {}
    cluster.scheduler_binds("p", "a")
    phase(cluster, "p", "Pending")
    assert counted(cluster) == {}
    phase(cluster, "p", "Running")
    assert counted(cluster) == {"default": 1}
    phase(cluster, "p", "Succeeded")
    phase(cluster, "p", "Running")
    assert counted(cluster) == {"default": 1}


@pytest.mark.parametrize("ends", ["Failed", "Unknown"])
def test_a_pod_that_never_ran_teaches_nothing(ends: str) -> None:
    cluster = JointCluster()
    one_pod(cluster)
    phase(cluster, "p", ends)
    assert counted(cluster) == {}


def test_claims_made_by_the_hundred_and_taken_away_teach_nothing() -> None:
    cluster = JointCluster(nodes=1)
    for number in range(40):
        cluster.claim(f"c{number}")
        cluster.pod(f"p{number}", f"c{number}")
        cluster.settle(passes=1)
        cluster.api.delete(PODS, f"p{number}")
    cluster.settle()
    assert counted(cluster) == {}
    assert cluster.reconciler.allocation.placer.order.table.pods == 0


def test_a_successor_counts_no_pod_again() -> None:
    cluster = JointCluster()
    one_pod(cluster)
    cluster.scheduler_binds("p", "a")
    phase(cluster, "p", "Running")
    kept = learned_of(data_of(cluster.reconciler.allocation.placer.order.learned))
    assert kept is not None
    cluster.start_again(learned=kept)
    cluster.settle()
    phase(cluster, "p", "Running")
    assert counted(cluster) == {"default": 1}


def test_what_is_in_use_counts_for_a_first_controller_where_it_runs() -> None:
    cluster = JointCluster(nodes=2)
    for name in ("a", "b"):
        cluster.claim(name)
        cluster.pod(f"p-{name}", name)
    cluster.settle()
    cluster.scheduler_binds("p-a", "a")
    phase(cluster, "p-a", "Running")
    cluster.start_again()
    cluster.settle()
    assert counted(cluster) == {"default": 1}


def request(milli: int) -> Request:
    return Request(0, 0, 1, milli)


def test_no_namespace_counts_for_more_than_all_others_together() -> None:
    of = {
        "tenant": Workload([(request(10), 30_000), (request(20), 2)]),
        "a": Workload([(request(500), 2_000)]),
        "b": Workload([(request(1000), 1_000)]),
    }
    assert together(of).counts == {request(10): 2_999, request(500): 2_000, request(1000): 1_000}
    assert together({"only": of["tenant"]}).counts == of["tenant"].counts
    few = {"tenant": of["tenant"], "a": Workload([(request(500), 3)])}
    assert together(few).counts == {request(10): _ALWAYS - 1, request(500): 3}


def test_classes_are_bounded_and_the_namespace_with_the_most_forgets() -> None:
    online = Online({})
    for _ in range(40):
        online.observe(request(500), "steady")
    for number in range(_MOST_CLASSES + 500):
        online.observe(Request(number, 0, 1, 100), "varied")
    assert sum(len(one.counts) for one in online.of.values()) <= _MOST_CLASSES
    assert online.of["steady"].counts == {request(500): 40}


def test_what_is_kept_is_bounded_and_every_namespace_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftover_store, "MOST_BYTES", 20_000)
    varied = Workload([(Request(number, 0, 1, 100), 1 + number) for number in range(2_000)])
    kept = data_of(Learned(of={"varied": varied, "steady": Workload([(request(500), 40)])}))
    assert sum(map(len, kept.values())) <= 20_000
    again = learned_of(kept)
    assert again is not None
    assert again.of["steady"].counts == {request(500): 40}
    assert max(again.of["varied"].counts.values()) == 2_000, "the most frequent stay"


def test_counts_of_an_earlier_version_are_read() -> None:
    plain = data_of(Learned(of={"": Workload([(request(500), 40)])}))
    older = {**plain, "workload.json": json.dumps(json.loads(plain["workload.json"])[""])}
    again = learned_of(older)
    assert again is not None
    assert again.workload.counts == {request(500): 40}


@pytest.mark.parametrize("counts", [{"a": 1}, {"a": [1]}, {"a": None}, {"a": {"b": []}}, 7])
def test_damaged_counts_of_namespaces_are_learned_anew(counts: Any) -> None:
    with pytest.raises(InvalidManifest):
        learned_of({**data_of(Learned()), "workload.json": json.dumps(counts)})
