"""Filters and claim rules of the scheduler double, as pure functions."""

from __future__ import annotations

from typing import Any

import pytest

from koordra_devcluster.scheduler import claims, filters, nodes, requests
from tests.unit.devcluster.manifests import allocation, claim, claiming_pod, node, pod


def placed(body: dict[str, Any], uid: str = "u", **metadata: Any) -> dict[str, Any]:
    body["metadata"] |= {"uid": uid, **metadata}
    return body


def needs(cpu: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "a", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return placed(pod(**{"containers": [container], **spec}))


def allocated(node_name: str | None = "n1", reserved: tuple[str, ...] = ()) -> dict[str, Any]:
    found = placed(claim(), "c")
    found["status"] = {
        "allocation": allocation(node_name),
        "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in reserved],
    }
    return found


def reasons(body: dict[str, Any], one: dict[str, Any], *residents: dict[str, Any]) -> list[str]:
    outcome = filters.run(body, [one], {"n1": residents}, [])
    return outcome.reasons.get("n1", [])


@pytest.mark.parametrize(
    ("body", "one", "expected"),
    [
        (needs("1"), node(), []),
        (needs("9"), node(), ["Insufficient cpu"]),
        (needs("1"), node(unschedulable=True), ["node(s) were unschedulable"]),
        (
            needs("1"),
            node(taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]),
            ["node(s) had untolerated taint {k: v}"],
        ),
        (needs("1"), node(taints=[{"key": "k", "effect": "PreferNoSchedule"}]), []),
        (needs("1", tolerations=[{"key": "k", "operator": "Exists"}]), node(taints=[{"key": "k", "effect": "NoExecute"}]), []),
        (needs("1", nodeSelector={"zone": "a"}), node(), ["node(s) didn't match Pod's node affinity/selector"]),
        (needs("1", nodeSelector={"zone": "a"}), node(labels={"zone": "a"}), []),
    ],
)  # fmt: skip
def test_one_filter_each(body: dict[str, Any], one: dict[str, Any], expected: list[str]) -> None:
    assert reasons(body, one) == expected


def test_an_earlier_filter_hides_the_later_ones() -> None:
    both = needs("9", nodeSelector={"zone": "a"})
    assert reasons(both, node(unschedulable=True)) == ["node(s) were unschedulable"]
    assert reasons(both, node()) == ["node(s) didn't match Pod's node affinity/selector"]


def test_residents_take_room() -> None:
    assert reasons(needs("5"), node(), placed(needs("4"), "r")) == ["Insufficient cpu"]
    ended = placed(needs("4"), "r") | {"status": {"phase": "Succeeded"}}
    assert reasons(needs("5"), node(), ended) == []


def test_host_ports_collide() -> None:
    port = {"containerPort": 80, "hostPort": 80}
    body = placed(pod(containers=[{"name": "a", "image": "x", "ports": [port]}]))
    assert reasons(body, node(), placed(dict(body), "r")) == [
        "node(s) didn't have free ports for the requested pod ports"
    ]


def test_init_containers_count_by_their_largest() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": "x", "image": "x", "resources": {"requests": {"cpu": cpu}}, **more}

    body = pod(containers=[container("1"), container("2")], initContainers=[container("5"), container("4")])
    assert requests.of_pod(body)["cpu"] == 5
    sidecar = pod(containers=[container("3")], initContainers=[container("1", restartPolicy="Always")])
    assert requests.of_pod(sidecar)["cpu"] == 4


def test_the_emptier_node_comes_first() -> None:
    outcome = filters.run(needs("1"), [node("n1"), node("n2")], {"n1": [placed(needs("4"), "r")]}, [])
    assert [one["metadata"]["name"] for one in outcome.feasible] == ["n2", "n1"]


def test_the_message_counts_reasons() -> None:
    outcome = filters.run(needs("9"), [node("n1"), node("n2", unschedulable=True)], {}, [])
    assert outcome.message() == "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable."


@pytest.mark.parametrize(
    ("operator", "values", "value", "expected"),
    [
        ("In", ["a"], "a", True), ("In", ["a"], None, False), ("NotIn", ["a"], None, True), ("Exists", [], "x", True),
        ("DoesNotExist", [], None, True), ("Gt", ["3"], "4", True), ("Lt", ["3"], "4", False), ("Gt", ["3"], "x", False),
    ],
)  # fmt: skip
def test_node_selector_operators(operator: str, values: list[str], value: str | None, expected: bool) -> None:
    one = node(labels={"key": value} if value is not None else {})
    term = {"matchExpressions": [{"key": "key", "operator": operator, "values": values}]}
    assert nodes.matches({"nodeSelectorTerms": [term]}, one) is expected


def test_no_selector_is_everywhere_and_no_terms_is_nowhere() -> None:
    assert nodes.matches(None, node())
    assert not nodes.matches({"nodeSelectorTerms": []}, node())
    assert not nodes.matches({"nodeSelectorTerms": [{}]}, node())


def test_an_allocated_claim_pins_the_pod_to_its_node() -> None:
    outcome = filters.run(needs("1"), [node("n1"), node("n2")], {}, [allocated("n1")])
    assert [one["metadata"]["name"] for one in outcome.feasible] == ["n1"]
    assert outcome.reasons == {"n2": ["resourceclaim not available on the node"]}


def test_a_claim_without_allocation_fits_nowhere() -> None:
    outcome = filters.run(needs("1"), [node()], {}, [claim()])
    assert outcome.reasons == {"n1": ["cannot allocate all claims"]}
    assert outcome.unavailable == []


def test_only_a_node_that_reached_the_claim_filter_makes_a_claim_unavailable() -> None:
    wrong_node = filters.run(
        needs("1", nodeSelector={"kubernetes.io/hostname": "n2"}),
        [node("n1"), node("n2")],
        {},
        [allocated("n1")],
    )
    assert len(wrong_node.unavailable) == 1
    too_small = filters.run(needs("99"), [node("n1"), node("n2")], {}, [allocated("n1")])
    assert too_small.unavailable == []


def test_a_claim_that_others_hold_is_not_erased() -> None:
    mine = placed(pod(), "me")
    assert claims.to_erase([allocated()], mine) is not None
    assert claims.to_erase([allocated(reserved=("me",))], mine) is not None
    assert claims.to_erase([allocated(reserved=("me", "other"))], mine) is None


def waiting(body: dict[str, Any], known: dict[str, dict[str, Any]]) -> str:
    found = claims.of_pod(body, lambda _namespace, name: known.get(name))
    return found.reason if isinstance(found, claims.Waiting) else ""


def test_a_pod_waits_for_its_claims() -> None:
    body = placed(claiming_pod(claim="a"), "me")
    assert waiting(body, {}) == 'resourceclaim "a" not found'
    assert waiting(body, {"a": claim("a")}) == ""
    going = claim("a")
    going["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    assert waiting(body, {"a": going}) == 'resourceclaim "a" is being deleted'


def test_a_template_claim_must_belong_to_the_pod() -> None:
    body = placed(claiming_pod(template="t"), "me")
    assert "to be created" in waiting(body, {})
    body["status"] = {"resourceClaimStatuses": [{"name": "devices", "resourceClaimName": "a"}]}
    assert "was not created for pod" in waiting(body, {"a": claim("a")})
    owned = claim("a")
    owned["metadata"]["ownerReferences"] = [{"uid": "me"}]
    assert waiting(body, {"a": owned}) == ""


def test_an_unknown_class_is_named_unless_the_claim_is_allocated() -> None:
    message = "request gpu: device class gpu.example.com does not exist"
    assert claims.unknown_class([claim()], lambda _name: False) == message
    assert claims.unknown_class([claim()], lambda _name: True) is None
    assert claims.unknown_class([allocated()], lambda _name: False) is None
    several = claim()
    several["spec"]["devices"]["requests"] = [
        {"name": "gpu", "firstAvailable": [{"name": "big", "deviceClassName": "none"}]}
    ]
    assert (
        claims.unknown_class([several], lambda _name: False)
        == "request gpu/big: device class none does not exist"
    )
