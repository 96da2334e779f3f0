"""Nodes that an autoscaler is about to take away."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from koordra.api.kinds import NODES
from koordra.cli.what_if.manifests import Assumed, what_if
from koordra.controller.autoscale.scale_up import scale_up
from koordra.controller.explain.forecast.intake import Terms
from tests.fakes.joint_cluster import JointCluster
from tests.unit.allocator.machines import claim, device_classes, machine, request
from tests.unit.autoscale.world import group

NOW = datetime(2026, 11, 21, 0, 10, tzinfo=UTC)
ABOUT_TO_GO = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted")


def tainted(key: str) -> dict[str, Any]:
    return {"key": key, "value": "1", "effect": "NoSchedule"}


@pytest.mark.parametrize("key", ABOUT_TO_GO)
def test_nobody_is_placed_there(key: str) -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    cluster.api.edit(NODES, "n0", lambda node: node["spec"].update(taints=[tainted(key)]))
    cluster.claim("c")
    cluster.pod("c", "c", created="2026-11-21T00:00:00Z")
    cluster.settle()
    assert cluster.node_of("c") is None
    found = scale_up(cluster.caches.cluster(), Terms(NOW), [group()])
    assert found.counts == {"g": 1}, "another node is wanted"


@pytest.mark.parametrize("key", [*ABOUT_TO_GO, "DeletionCandidateOfClusterAutoscaler"])
def test_a_plan_gives_it_to_nobody(key: str) -> None:
    """Also not to claims that no pod uses, which tolerate what operators put on nodes."""
    node, *slices = machine(1, 1)
    node["spec"] = {"taints": [tainted(key)]}
    found = what_if([*device_classes(), node, *slices, claim("c", request("gpu"))], Assumed(), NOW).plan()
    assert not found.allocations
    assert key in str(found.unsatisfiable["default/c"])


def test_a_candidate_may_still_be_used() -> None:
    """It stays where somebody is placed there; its taint is PreferNoSchedule."""
    cluster = JointCluster(nodes=1, gpus=2)
    taint = {**tainted("DeletionCandidateOfClusterAutoscaler"), "effect": "PreferNoSchedule"}
    cluster.api.edit(NODES, "n0", lambda node: node["spec"].update(taints=[taint]))
    cluster.claim("c")
    cluster.pod("c", "c", created="2026-11-21T00:00:00Z")
    cluster.settle()
    assert cluster.node_of("c") == "n0"
