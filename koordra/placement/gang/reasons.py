"""Why a member is on no node, for who asked for the gang.

A cluster of thousands of nodes has few different reasons: nodes whose predicates say the same words are told once, and so is every
kind of node. Words of predicates come first, then room. Only where neither
refuses, the allocator is asked for devices for one lone member.
"""

from __future__ import annotations

from collections.abc import Hashable

from koordra.allocator.predicates import unsuitable
from koordra.allocator.reasons import Cause, Reason
from koordra.placement.gang.member_classes import MemberClass
from koordra.placement.gang.node_fit import Fitting


def refusals_of(fitting: Fitting, one: MemberClass, at: int, *, most: int) -> list[Reason]:
    """Why a member of the class is not on the nodes, each kind of node once."""
    found: list[Reason] = []
    member = one.members[0]
    told: set[Hashable] = set()
    for name in sorted(fitting.nodes):
        kind = fitting.kinds.of[name]
        if len(told) >= most:
            break
        texts = fitting.kinds.refusals[name][at]
        if texts:
            if texts not in told:
                told.add(texts)
                found += [Reason(name, None, None, Cause.NODE_UNSUITABLE.value, text) for text in texts]
            continue
        if kind in told:
            continue
        told.add(kind)
        lone = tuple(int(position == at) for position in range(len(fitting.classes)))
        if not fitting.kinds.roomy(kind, lone):
            node = fitting.nodes[name]
            texts = tuple(text for pod in member.pods for text in unsuitable(node.node, pod, taken=node.load))
            found += [Reason(name, None, None, Cause.NODE_UNSUITABLE.value, text) for text in texts]
        elif one.claims and fitting.told(name, lone) is None:
            found += [reason for _, reason in fitting.searching.ask(name, [member]).reasons()]
    return found
