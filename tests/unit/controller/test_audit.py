"""A controller that goes by changes finds out when one was lost, says so, and goes on as if it had not
been."""

from __future__ import annotations

import threading

import pytest

from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.controller.cache.changes import Change
from koordra.controller.cache.cluster_cache import AUDIT_PERIOD
from koordra.controller.reconcile.leader_figures import LeaderFigures
from koordra.controller.reporting.metrics import ControllerMetrics
from koordra.metrics import Metrics
from tests.fakes.joint_cluster import JointCluster
from tests.fakes.metric_samples import sample


def with_lost_events(*kinds: str) -> JointCluster:
    """A pod with a claim, of which the events of these kinds never reach the worker."""
    cluster = JointCluster(nodes=1)
    cluster.settle()
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.caches.deliver()
    told = cluster.caches.changes()
    cluster.caches.changes = list  # type: ignore[method-assign]
    cluster.reconciler.cache.apply(change for change in told if change.kind.plural not in kinds)
    cluster.reconciler.reconcile()
    return cluster


@pytest.mark.parametrize("kind", [PODS, RESOURCE_CLAIMS])
def test_a_lost_event_is_found_counted_and_made_good(kind: object) -> None:
    lost = str(getattr(kind, "plural", ""))
    cluster, metrics = with_lost_events(lost), Metrics()
    standing = LeaderFigures(metrics, node_metrics=True)
    assert cluster.node_of("a") is None
    cluster.pass_time(AUDIT_PERIOD)
    assert cluster.reconciler.reconcile() == 0.0, "what is suspected is confirmed at once"
    assert not cluster.reconciler.audit.differences
    cluster.reconciler.reconcile()
    assert cluster.reconciler.audit.differences == {lost: 1}
    assert cluster.node_of("a") == "n0"
    cluster.reconciler.count(ControllerMetrics(metrics), standing, term=threading.Event())
    assert sample(metrics, "koordra_controller_index_differences_total", {"found_in": lost}) == 1.0
    assert not cluster.reconciler.audit.differences, "each is counted once"


def test_an_event_that_is_on_its_way_is_no_difference() -> None:
    cluster = with_lost_events(PODS.plural, RESOURCE_CLAIMS.plural)
    cluster.reconciler.audit.run()
    late = [Change(kind, f"default/{name}", cluster.caches.objects(kind)[name]) for kind, name in LATE]
    cluster.reconciler.cache.apply(late)
    cluster.reconciler.audit.run()
    assert not cluster.reconciler.audit.differences


LATE = ((RESOURCE_CLAIMS, "a"), (PODS, "p"))


@pytest.mark.parametrize("index", ["open", "pending", "lacking"])
def test_an_index_that_is_wrong_is_made_anew(index: str) -> None:
    cluster = JointCluster(nodes=1)
    cluster.claim("a", count=9)
    cluster.pod("p", "a")
    cluster.settle()
    kept = getattr(cluster.reconciler.cache.pod_index, index)
    kept ^= {"uid-of-nobody", *cluster.reconciler.cache.pod_index.entries}
    cluster.reconciler.audit.run()
    assert cluster.reconciler.audit.differences == {f"pods.{index}": 1}
    cluster.reconciler.audit.run()
    assert cluster.reconciler.audit.differences == {f"pods.{index}": 1}


def test_a_full_read_finds_nothing_in_a_controller_that_heard_everything() -> None:
    cluster = JointCluster(nodes=2)
    for name in ("a", "b", "c"):
        cluster.claim(name)
        cluster.pod(f"p-{name}", name)
    cluster.settle()
    cluster.scheduler_binds("p-a", "a")
    cluster.settle()
    cluster.pod_ends("p-a", "a")
    cluster.settle()
    cluster.reconciler.audit.run()
    assert not cluster.reconciler.audit.differences
