"""A cluster whose groups of nodes can grow: what an autoscaler and kube-scheduler would do with placeholders,
step by step."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.autoscale.asking import NodeAsking
from koordra.controller.autoscale.left_out import NAME
from koordra.controller.autoscale.node_groups import NodeGroup, node_with_slices
from koordra.controller.autoscale.settings import AutoscaleSettings
from koordra.controller.cache.placeholders import GROUP, NAMESPACE
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.reporting.autoscale_metrics import AutoscaleMetrics
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.metrics import Metrics
from tests.fakes.joint_cluster import JointCluster, gpu_slice

START = datetime(2026, 11, 21, 0, 5, tzinfo=UTC)


def group(name: str = "g", gpus: int = 2, most: int = 8, **more: Any) -> NodeGroup:
    own = {"labels": {"pool": name}, "resources": {"cpu": "7", "memory": "60Gi", "pods": "100"}, **more}
    return NodeGroup(name, f"{gpus} GPUs", [gpu_slice("n", gpus)], most, **own)


class World:
    """`ask` is the loop of a term; `cluster` has the controller that allocates."""

    def __init__(self, *groups: NodeGroup, nodes: int = 0, **settings: Any) -> None:
        self.cluster = JointCluster(nodes=nodes, gpus=2)
        self.api = self.cluster.api
        self.groups = {one.name: one for one in groups}
        self.settings = AutoscaleSettings(groups, **settings)
        self.now, self.leading = START, True
        self.api.stamp = lambda: self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.told: list[ClaimEvent] = []
        self.metrics = Metrics()
        self.figures = AutoscaleMetrics(self.metrics)
        self.terms = Terms(START)
        self.api.create(
            CONFIG_MAPS, {"metadata": {"name": NAME, "namespace": NAMESPACE}}, namespace=NAMESPACE
        )
        self.start_again()

    def start_again(self) -> None:
        """A new leader."""
        self.asking = NodeAsking(
            self.api,  # type: ignore[arg-type]
            self.settings,
            observe=self.cluster.caches.cluster,
            terms=self.terms,
            clock=lambda: self.now.timestamp(),  # noqa: PLW0108  at each call
            now=lambda: self.now,
            may_write=lambda: self.leading,
            report=self.told.append,
            metrics=self.figures,
        )

    def wants(self, *counts: int, name: str = "c") -> None:
        """A claim for so many GPUs each, and its pod."""
        for number, count in enumerate(counts):
            self.cluster.claim(f"{name}{number}", count=count)
            self.cluster.pod(f"{name}{number}", f"{name}{number}", created="2026-11-21T00:00:00Z")

    def look(self, after: float = 20.0) -> None:
        """The loop's next look, and the controller's passes around it."""
        self.cluster.settle()
        self.now += timedelta(seconds=after)
        self.cluster.caches.deliver()
        self.asking.sync()
        self.cluster.settle()

    def placeholders(self) -> list[Object]:
        return self.api.list(PODS, namespace=NAMESPACE)[0]

    def asked(self) -> dict[str, list[str]]:
        """Placeholders by group."""
        found: dict[str, list[str]] = {}
        for pod in self.placeholders():
            found.setdefault(objects.labels_of(pod)[GROUP], []).append(objects.name(pod))
        return found

    def nodes_come(self, number: int = 100) -> list[str]:
        """For placeholders without a node, which are bound."""
        made = []
        for pod in self.placeholders()[:number]:
            if not objects.spec_of(pod).get("nodeName"):
                of = self.groups[objects.labels_of(pod)[GROUP]]
                name = f"{of.name}-node-{len(self.api.all(NODES))}"
                self.node(of, name)
                self.bind(pod, name)
                made.append(name)
        return made

    def node(self, of: NodeGroup, name: str) -> None:
        node = next(node_with_slices(name, of))
        self.api.create(NODES, node)

    def bind(self, pod: Object, node: str) -> None:
        self.api.edit(
            PODS, objects.name(pod), lambda one: one["spec"].update(nodeName=node), namespace=NAMESPACE
        )

    def publish(self, nodes: Iterable[str], gpus: int = 2) -> None:
        for name in nodes:
            self.api.create(RESOURCE_SLICES, gpu_slice(name, gpus))

    def events(self) -> list[str]:
        return [f"{one.reason}: {one.message}" for one in self.told]

    def gang(self, number: int) -> None:
        for at in range(number):
            self.cluster.claim(f"m{at}", count=2)
            made = self.cluster.pod(
                f"m{at}", f"m{at}", gates=[names.JOINT_GATE], created="2026-11-21T00:00:00Z"
            )
            made["metadata"]["annotations"] = {"koordra.io/gang": "gang", "koordra.io/gang-min": str(number)}
            self.api.update(PODS, made)
