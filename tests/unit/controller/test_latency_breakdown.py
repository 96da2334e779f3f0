"""How long a claim took, by part: every moment belongs to one, and only the controller's own time counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.controller.allocation.writes import Writer
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.controller.reporting.metrics import ControllerMetrics, LatencyBreakdown
from koordra.metrics import Metrics
from tests.fakes.joint_cluster import JointCluster
from tests.fakes.metric_samples import sample


class Clock:
    """Every request takes 2 seconds, every encoding 0.5, every report of a happening 1 (as if deciding took
    it)."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TimedApi:
    def __init__(self, cluster: JointCluster, clock: Clock, latency: LatencyBreakdown) -> None:
        self.cluster, self.clock, self.latency = cluster, clock, latency

    def patch(self, kind: Kind, name: str, body: Any, **how: Any) -> Any:
        with self.latency.on("encode"):
            self.clock.now += 0.5
        with self.latency.on("write"):
            self.clock.now += 2.0
            return self.cluster.api.patch(kind, name, body, **how)

    def get(self, kind: Kind, name: str, **where: Any) -> Any:
        return self.cluster.api.get(kind, name, **where)

    def create(self, kind: Kind, body: Any, **where: Any) -> Any:
        return self.cluster.api.create(kind, body, **where)


class Timed(JointCluster):
    def start_again(self) -> None:
        super().start_again()
        self.clock = Clock()
        self.ways: list[Mapping[str, float]] = []
        self.latency = LatencyBreakdown(clock=self.clock, observe=self.ways.append)
        api = TimedApi(self, self.clock, self.latency)
        self.reconciler = Reconciler(
            self.caches,
            Writer(api, may_write=lambda: True, now=self.timestamp),  # type: ignore[arg-type]
            clock=self.clock,
            report=self.takes_a_second,
            latency=self.latency,
        )

    def takes_a_second(self, happening: ClaimEvent) -> None:
        del happening
        self.clock.now += 1.0

    def arrive(self, name: str) -> None:
        self.latency.observe(RESOURCE_CLAIMS, "ADDED", self.claim(name))
        self.latency.observe(PODS, "ADDED", self.pod(f"pod-of-{name}", name))


def test_each_moment_belongs_to_one_part() -> None:
    cluster = Timed()
    cluster.arrive("a")
    cluster.clock.now += 7.0
    cluster.settle(passes=1)
    assert cluster.ways == [{"watch": 7.0, "decide": 0.0, "encode": 1.0, "write": 4.0}]


def test_what_comes_first_in_a_pass_is_waited_for() -> None:
    cluster = Timed()
    for name in ("a", "b"):
        cluster.arrive(name)
    cluster.settle(passes=1)
    assert cluster.ways[1] == {"watch": 0.0, "decide": 1.0, "encode": 2.0, "write": 8.0}


def test_waiting_for_room_is_not_counted() -> None:
    cluster = Timed(nodes=1, gpus=1)
    for name in ("a", "b"):
        cluster.arrive(name)
    cluster.settle()
    cluster.scheduler_binds("pod-of-a", "a")
    cluster.pod_ends("pod-of-a", "a")
    cluster.settle()
    assert cluster.node_of("b") == "n0"
    assert len(cluster.ways) == 1


def test_what_has_gone_is_forgotten() -> None:
    cluster = Timed()
    claim = cluster.claim("a")
    cluster.latency.observe(RESOURCE_CLAIMS, "ADDED", claim)
    cluster.latency.observe(RESOURCE_CLAIMS, "DELETED", claim)
    cluster.pod("p", "a")
    cluster.settle(passes=1)
    assert cluster.node_of("a")
    assert cluster.ways == []


@pytest.mark.parametrize("part", ["watch", "decide", "encode", "write"])
def test_the_parts_are_metrics(part: str) -> None:
    cluster, metrics = JointCluster(), Metrics()
    figures = ControllerMetrics(metrics)
    sent: list[bytes] = []

    class Api(TimedApi):
        def patch(self, kind: Kind, name: str, body: Any, **how: Any) -> Any:
            sent.append(body)
            return self.cluster.api.patch(kind, name, json.loads(body), **how)

    api = Api(cluster, Clock(), figures.latency)
    writer = Writer(figures.counting(api), may_write=lambda: True, now=cluster.timestamp)  # type: ignore[arg-type]
    reconciler = Reconciler(cluster.caches, writer, clock=lambda: cluster.now, latency=figures.latency)
    figures.latency.observe(RESOURCE_CLAIMS, "ADDED", cluster.claim("a"))
    cluster.pod("p", "a")
    cluster.caches.deliver()
    reconciler.reconcile()
    assert len(sent) == 2
    assert sample(metrics, "koordra_controller_stage_seconds_count", {"part": part}) == 1.0
    assert sample(metrics, "koordra_controller_stage_seconds_sum", {"part": part}) is not None
