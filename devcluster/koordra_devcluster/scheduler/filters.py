"""All filters for one pod over all nodes, in the order of kube-scheduler's default plugins.

    NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit, then
    DynamicResources.

A node that fails one filter is not shown to the next. That order decides whether a refused claim is erased
(the claim filter saw the node) or left alone (the node failed before it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from koordra.api.objects import Object, name, pod_is_finished, spec_of, uid
from koordra_devcluster.scheduler import claims as dynamic_resources
from koordra_devcluster.scheduler import nodes as node_rules
from koordra_devcluster.scheduler import requests


@dataclass(slots=True)
class Outcome:
    """`feasible`: nodes that fit, best first. `reasons`: per refused node. `unavailable`: claims some node
    asked in vain."""

    feasible: list[Object] = field(default_factory=list)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    unavailable: list[Object] = field(default_factory=list)

    def message(self) -> str:
        """`0/2 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims.`"""
        counts = Counter(reason for reasons in self.reasons.values() for reason in reasons)
        listed = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
        return f"0/{len(self.reasons)} nodes are available: {listed}."

    def preemption(self) -> str:
        total = len(self.reasons)
        return f"preemption: 0/{total} nodes are available: {total} Preemption is not helpful for scheduling."


def run(
    pod: Object,
    nodes: Sequence[Object],
    pods_by_node: Mapping[str, Sequence[Object]],
    claims: Sequence[Object],
) -> Outcome:
    """Every node through every filter; of those that fit, the emptiest comes first."""
    outcome = Outcome()
    wanted = requests.of_pod(pod)
    scored: list[tuple[float, str, Object]] = []
    for node in sorted(nodes, key=name):
        residents = pods_by_node.get(name(node), ())
        taken = requests.used(residents)
        reasons = _earlier_filters(pod, node, residents) or requests.shortfalls(
            wanted, requests.of_node(node), taken
        )
        if not reasons and (refusal := dynamic_resources.refusal(claims, node)):
            reasons = [refusal]
            known = {uid(claim) for claim in outcome.unavailable}
            missing = dynamic_resources.unavailable_on(claims, node)
            outcome.unavailable += [claim for claim in missing if uid(claim) not in known]
        if reasons:
            outcome.reasons[name(node)] = reasons
        else:
            scored.append((_load(requests.of_node(node), taken), name(node), node))
    outcome.feasible = [node for _, _, node in sorted(scored, key=lambda one: one[:2])]
    return outcome


def _earlier_filters(pod: Object, node: Object, residents: Iterable[Object]) -> list[str]:
    if spec_of(node).get("unschedulable") and not node_rules.tolerated(
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        spec_of(pod).get("tolerations") or (),
    ):
        return ["node(s) were unschedulable"]
    if spec_of(pod).get("nodeName") not in (None, "", name(node)):
        return ["node(s) didn't match the requested node name"]
    taint = node_rules.untolerated(pod, node)
    if taint is not None:
        return [f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value', '')}}}"]
    if not node_rules.selected_by_pod(pod, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    if _ports(pod) & {port for one in residents if not pod_is_finished(one) for port in _ports(one)}:
        return ["node(s) didn't have free ports for the requested pod ports"]
    return []


def _ports(pod: Object) -> set[tuple[str, int]]:
    return {
        (str(port.get("protocol", "TCP")), int(port["hostPort"]))
        for container in spec_of(pod).get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }


def _load(available: requests.Amounts, taken: requests.Amounts) -> float:
    """The mean of the used shares of cpu and memory (LeastAllocated prefers the smallest)."""
    shares = [float(taken.get(one, 0) / available[one]) for one in ("cpu", "memory") if available.get(one)]
    return sum(shares) / len(shares) if shares else 0.0
