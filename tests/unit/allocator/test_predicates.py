"""What the scheduler would refuse about a node."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from koordra.allocator.predicates import requests_of, selector_matches, unsuitable
from tests.unit.allocator.machines import node, pod

Dict = dict[str, Any]


def affinity(*expressions: Dict) -> Dict:
    terms = [{"matchExpressions": list(expressions)}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("spec", "node_spec", "why"),
    [
        ({}, {}, ()),
        ({"nodeName": "node-2"}, {}, ("spec.nodeName: the pod is bound to node-2",)),
        ({}, {"unschedulable": True}, ("spec.unschedulable: the node is cordoned",)),
        ({"tolerations": [{"operator": "Exists"}]}, {"unschedulable": True}, ()),
        (
            {},
            {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]},
            ("taint gpu=yes:NoSchedule is not tolerated by the pod",),
        ),
        ({}, {"taints": [{"key": "gpu", "effect": "PreferNoSchedule"}]}, ()),
        (
            {"tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes"}]},
            {"taints": [{"key": "gpu", "value": "yes", "effect": "NoExecute"}]},
            (),
        ),
        (
            {"nodeSelector": {"zone": "z1"}},
            {},
            ("nodeSelector zone: required z1, the node has no such label",),
        ),
        (
            {"affinity": affinity({"key": "zone", "operator": "In", "values": ["z1", "z2"]})},
            {},
            ("required node affinity: no term of (zone In z1,z2) matches",),
        ),
        ({"affinity": affinity({"key": "zone", "operator": "DoesNotExist"})}, {}, ()),
    ],
)
def test_clauses(spec: Dict, node_spec: Dict, why: tuple[str, ...]) -> None:
    assert tuple(map(str, unsuitable(node(spec=node_spec), pod("p", **spec), taken={}))) == why


def test_a_node_that_is_not_ready() -> None:
    down = node()
    down["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert tuple(map(str, unsuitable(down, pod("p"), taken={}))) == (
        "condition Ready: required True, the node has Unknown",
    )


def test_room_counts_what_other_pods_ask() -> None:
    found = node(allocatable={"cpu": "8", "pods": "2"})
    wanted = pod("p", requests={"cpu": "3500m"})
    assert unsuitable(found, wanted, taken={"cpu": Decimal(4), "pods": Decimal(1)}) == ()
    full = unsuitable(found, wanted, taken={"cpu": Decimal(5), "pods": Decimal(2)})
    assert tuple(map(str, full)) == (
        "cpu: requested 3500m, free 3 of 8",
        "pods: requested 1, free 0 of 2",
    )
    unknown = pod("p", requests={"example.com/foo": "1"})
    (lacks,) = unsuitable(found, unknown, taken={})
    assert str(lacks) == "example.com/foo: requested 1, the node has none"


def test_a_bound_pod_is_not_asked_for_room_again() -> None:
    assert (
        unsuitable(
            node(allocatable={"cpu": "1"}), pod("p", nodeName="node-1", requests={"cpu": "3"}), taken={}
        )
        == ()
    )


def test_requests_of_a_pod() -> None:
    def container(cpu: str, **more: Any) -> Dict:
        return {"name": cpu, "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), {"name": "limits", "resources": {"limits": {"cpu": "500m"}}}],
        "initContainers": [container("200m", restartPolicy="Always"), container("3")],
        "overhead": {"cpu": "100m"},
    }
    assert requests_of({"spec": spec}) == {"cpu": Decimal("3.3"), "pods": Decimal(1)}
    pod_level = {"spec": {**spec, "resources": {"requests": {"cpu": "5"}}}}
    assert requests_of(pod_level)["cpu"] == Decimal("5.1")


@pytest.mark.parametrize(
    ("operator", "values", "matches"),
    [
        ("In", ["4", "5"], True),
        ("NotIn", ["4"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["3"], True),
        ("Lt", ["3"], False),
        ("Gt", ["x"], False),
        ("Near", ["4"], False),
    ],
)
def test_selector_operators(operator: str, values: list[str], matches: bool) -> None:
    terms = [{"matchExpressions": [{"key": "gpus", "operator": operator, "values": values}]}]
    assert selector_matches({"nodeSelectorTerms": terms}, node(labels={"gpus": "4"})) is matches


def test_selector_terms_are_alternatives_and_empty_ones_match_nothing() -> None:
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
    other = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    assert selector_matches({"nodeSelectorTerms": [other, by_name]}, node())
    assert not selector_matches({"nodeSelectorTerms": [{**other, **by_name}]}, node())
    assert not selector_matches({"nodeSelectorTerms": [{}]}, node())
    assert not selector_matches({}, node())
