"""A forecast is what the controller does, and why it does not."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.controller.explain.forecast.forecast import Forecast, forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.explain.forecast.refusals import refusals
from koordra.controller.reporting import claim_events
from tests.fakes.joint_cluster import JointCluster, claim, pod

NOW = datetime(2026, 11, 21, 0, 10, 0, tzinfo=UTC)


def foretold(cluster: JointCluster, **terms: Any) -> Forecast:
    cluster.caches.deliver()
    return forecast(cluster.caches.cluster(), Terms(NOW, **terms))


def why(found: Forecast, name: str) -> Any:
    return found.reasons_of(f"default/{name}").reasons[f"default/{name}"][0]


@pytest.mark.parametrize("seed", range(12))
def test_the_controller_does_what_was_foretold(seed: int) -> None:
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
    ahead = foretold(cluster, starves_after=0)
    assert foretold(cluster, starves_after=0).planned == ahead.planned, "looking changes nothing"
    cluster.settle()
    for name in map(objects.name, cluster.api.all(RESOURCE_CLAIMS)):
        key, given = f"default/{name}", cluster.allocation(name)
        planned = ahead.planned.get(key)
        assert (planned and planned.allocation) == (given and objects.without(given, "allocationTimestamp"))
        assert planned or ahead.reasons_of(key).reasons[key]


def test_obstacles_between_pods_are_told() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    ports = [{"name": "main", "image": "x", "ports": [{"containerPort": 1, "hostPort": 80}]}]
    for name in ("first", "second"):
        cluster.claim(name)
        cluster.pod(name, name, containers=ports, created=f"2026-11-21T00:00:0{len(name) - 5}Z")
    ahead = foretold(cluster)
    assert ahead.planned["default/first"].node == "n0"
    reason = why(ahead, "second")
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
    reason = why(foretold(cluster, refused=refusals([event], NOW)), "c")
    assert "kube-scheduler refused the node for pod default/c: 0/1 nodes: no. room" in reason.detail
    assert foretold(cluster).planned["default/c"].node == "n0"


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
    reason = why(foretold(cluster), "later")
    assert "the node is kept free" in reason.detail
    assert "pod default/large" in reason.detail
    assert foretold(cluster, starves_after=3600).planned["default/later"].node == "n0"


@pytest.mark.parametrize(("gpus", "told"), [(2, 0), (1, 2)])
def test_a_gang_is_all_or_none(gpus: int, told: int) -> None:
    cluster = JointCluster(nodes=1, gpus=gpus)
    for name in ("a", "b"):
        cluster.claim(name)
        made = cluster.pod(name, name, gates=[names.JOINT_GATE])
        made["metadata"]["annotations"] = {"koordra.io/gang": "g", "koordra.io/gang-min": "2"}
        cluster.api.update(PODS, made)
    found = foretold(cluster)
    assert len(found.planned) == 2 - told
    for name in ("a", "b") if told else ():
        assert "gang default/g" in why(found, name).detail
