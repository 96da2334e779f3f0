"""`koordra explain` on a cluster foretells what the controller's next pass does, and why it does not."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import PODS
from koordra.controller.allocation.placer import GroupPlacement
from koordra.controller.reconcile.dry_run import DryRun, refusals
from koordra.controller.reporting import claim_events
from tests.fakes.joint_cluster import JointCluster, claim, pod

NOW = datetime(2026, 11, 21, 0, 10, 0, tzinfo=UTC)


def dry_run(cluster: JointCluster, **more: Any) -> dict[str, GroupPlacement]:
    cluster.caches.deliver()
    refused = more.pop("refused", {})
    return DryRun(cluster.caches.cluster(), refused).claims(now=NOW, **more)


@pytest.mark.parametrize("seed", range(12))
def test_the_next_pass_does_what_was_foretold(seed: int) -> None:
    chance = random.Random(seed)
    cluster = JointCluster(nodes=3, gpus=3)
    for number in range(chance.randint(4, 9)):
        asked: dict[str, Any] = chance.choice(
            [{}, {"count": 2}, {"memory": "30Gi"}, {"count": 3}, {"memory": "70Gi"}]
        )
        cluster.claim(f"c{number}", **asked)
        ports = [{"name": "main", "image": "x", "ports": [{"containerPort": 1, "hostPort": 80}]}]
        more: dict[str, Any] = {"containers": ports} if chance.random() < 0.3 else {}
        cluster.pod(f"c{number}", f"c{number}", created=f"2026-11-21T00:00:{number:02}Z", **more)
    cluster.caches.deliver()
    run = DryRun(cluster.caches.cluster(), {})
    ahead = run.claims(now=NOW, starves_after=0)
    assert run.claims(now=NOW, starves_after=0) == ahead, "looking changes nothing"
    cluster.reconciler.reconcile()
    cluster.caches.deliver()
    assert {key: one.node for key, one in ahead.items()} == {
        key: cluster.node_of(key.partition("/")[2]) for key in ahead
    }
    assert all(one.node or one.reasons for one in ahead.values())


def test_obstacles_between_pods_are_told() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    ports = [{"name": "main", "image": "x", "ports": [{"containerPort": 1, "hostPort": 80}]}]
    for name in ("first", "second"):
        cluster.claim(name)
        cluster.pod(name, name, containers=ports, created=f"2026-11-21T00:00:0{len(name) - 5}Z")
    ahead = dry_run(cluster)
    assert ahead["default/first"].node == "n0"
    (reason,) = ahead["default/second"].reasons["default/second"]
    assert (reason.node, reason.reason) == ("n0", "NodeUnsuitable")
    assert "80" in reason.detail


def test_a_node_that_kube_scheduler_refused_is_left_out_while_the_event_says_so() -> None:
    """The text that is read here is the one that the controller writes."""
    cluster = JointCluster(nodes=1)
    cluster.claim("c")
    made = cluster.pod("c", "c")
    told = claim_events.allocation_refused(
        pod("c", ["c"]), claim("c"), node="n0", why="0/1 nodes: no. room", pause=20
    )
    event = {
        "reason": told.reason,
        "message": told.message,
        "involvedObject": {"kind": "Pod", "uid": objects.uid(made)},
        "lastTimestamp": "2026-11-21T00:09:50Z",
    }
    assert refusals([event], NOW) == {objects.uid(made): {"n0": "0/1 nodes: no. room"}}
    assert refusals([event], NOW + timedelta(seconds=11)) == {}
    (reason,) = dry_run(cluster, refused=refusals([event], NOW))["default/c"].reasons["default/c"]
    assert "kube-scheduler refused the node for pod default/c: 0/1 nodes: no. room" in reason.detail
    assert dry_run(cluster)["default/c"].node == "n0"


def test_a_node_is_kept_free_for_a_claim_that_waited_long() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    cluster.claim("small")
    cluster.pod("small", "small", created="2026-11-21T00:00:00Z")
    cluster.settle()
    cluster.scheduler_binds("small", "small")
    cluster.claim("large", count=2)
    cluster.pod("large", "large", created="2026-11-21T00:01:00Z")
    cluster.claim("later")
    cluster.pod("later", "later", created="2026-11-21T00:09:00Z")
    (reason,) = dry_run(cluster)["default/later"].reasons["default/later"]
    assert "the node is kept free" in reason.detail
    assert "pod default/large" in reason.detail
    assert dry_run(cluster, starves_after=3600)["default/later"].node == "n0"


def test_members_of_gangs_are_not_foretold() -> None:
    cluster = JointCluster(nodes=1)
    cluster.claim("c")
    made = cluster.pod("c", "c")
    made["metadata"]["annotations"] = {"koordra.io/gang": "g"}
    cluster.api.update(PODS, made)
    assert dry_run(cluster) == {}
