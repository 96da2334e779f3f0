"""Which GPU models a request may run on: knowledge about the workload, kept by name in the learned table.

A request is kept off a model by what its selectors say of devices (judged by the allocator's own
`eligibility`) and by what its pods say of nodes: selectors, required affinity, taints (judged by
`allocator.predicates`). Only what lasts counts: labels, and taints that somebody has set; not cordons, a node
that is not ready, the taints that Kubernetes sets itself, tainted devices, or what is in use. If some node
with the model may serve, the model counts.

What reads attributes that tell nodes of one class apart (`NodeClasses.identities`), or fails, may be served:
the search has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from koordra.allocator.devices.eligibility import judge
from koordra.allocator.devices.inventory import Pool
from koordra.allocator.features import Features
from koordra.allocator.predicates import unsuitable
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim, ResolvedRequest
from koordra.api import names, objects
from koordra.api.objects import Fields
from koordra.api.tables import BoundedCache
from koordra.cel.selectors import names_read_by
from koordra.placement.index import NodeInfo
from koordra.placement.node_class import NodeClass

_CLASSES: Final = {
    names.TYPE_GPU: names.CLASS_GPU,
    names.TYPE_MIG: names.CLASS_MIG,
    names.TYPE_NIC: names.CLASS_NIC,
    names.TYPE_VF: names.CLASS_VF,
}
_OF_KUBERNETES: Final = "node.kubernetes.io/"


class RequestModels:
    """Judgements by request and node class. `identities`: attributes whose values classes do not keep."""

    def __init__(self, features: Features, identities: set[str]) -> None:
        self._features, self._identities = features, identities
        self._known = BoundedCache[tuple[object, NodeClass], frozenset[str]](1 << 14)

    def models(
        self, asked: Sequence[ResolvedClaim], pods: Sequence[Fields], nodes: Iterable[tuple[NodeInfo, str]]
    ) -> tuple[str, ...]:
        """Of the models of the nodes' GPUs those that the claims may run on, sorted; empty where that is all
        of them, or none."""
        there: set[str] = set()
        able: set[str] = set()
        for info, model in nodes:
            if model not in able:
                there.add(model)
                if all(
                    any(self._types(way, info) for way in one.alternatives)
                    for claim in asked
                    for one in claim.requests
                ):
                    node = stable_node_fields(info)
                    if not any(unsuitable(node, pod, taken={}) for pod in pods):
                        able.add(model)
        return () if able == there else tuple(sorted(able))

    def shipped(self, asked: Sequence[ResolvedClaim], nodes: Iterable[NodeInfo]) -> Sequence[ResolvedClaim]:
        """The claims as if they named koordra's own classes, where a class of somebody else selects devices
        of one type."""
        own = set(_CLASSES.values())
        if all(way.device_class.name in own for claim in asked for way in claim.alternatives):
            return asked
        one_of_each = list({info.devices.node_class or info: info for info in nodes}.values())

        def renamed(way: RequestAlternative) -> RequestAlternative:
            if way.device_class.name in own:
                return way
            classes = {_CLASSES.get(one, "") for info in one_of_each for one in self._types(way, info)}
            name = classes.pop() if len(classes) == 1 else ""
            return replace(way, spec=replace(way.spec, device_class=name)) if name else way

        def shipped(request: ResolvedRequest) -> ResolvedRequest:
            return replace(request, alternatives=tuple(map(renamed, request.alternatives)))

        return [replace(claim, requests=tuple(map(shipped, claim.requests))) for claim in asked]

    def _types(self, way: RequestAlternative, info: NodeInfo) -> frozenset[str]:
        """Types of the node's devices that could serve the request, were they empty and not tainted."""
        of = info.devices.node_class
        if of is None:
            return self._judged(way, info.pools)
        return self._known.get_or_make((way.kind, of), lambda: self._judged(way, info.pools))

    def _judged(self, way: RequestAlternative, pools: Sequence[Pool]) -> frozenset[str]:
        plain, found = self._readable(way), set[str]()
        for one in (one for pool in pools if not pool.trouble for one in pool.devices if one.here):
            if one.type not in found:
                free = replace(one, taints=()) if any(taint.keeps_out for taint in one.taints) else one
                verdict = judge(plain, free, features=self._features)
                if verdict.error or (verdict.demand is not None and verdict.cause is None):
                    found.add(one.type)
        return frozenset(found)

    def _readable(self, way: RequestAlternative) -> RequestAlternative:
        """The request without the expressions that read what nodes of one class do not share."""

        def kept(expressions: tuple[str, ...]) -> tuple[str, ...]:
            read = [(one, names_read_by(one)) for one in expressions]
            return tuple(
                [one for one, name in read if name is not None and name.isdisjoint(self._identities)]
            )

        return replace(
            way,
            spec=replace(way.spec, selectors=kept(way.spec.selectors)),
            device_class=replace(way.device_class, selectors=kept(way.device_class.selectors)),
        )


def stable_node_fields(info: NodeInfo) -> Mapping[str, Any]:
    """What the predicates read of the node, without what passes."""
    taints = objects.spec_of(info.node).get("taints") or ()
    kept = [one for one in taints if not str(one.get("key")).startswith(_OF_KUBERNETES)]
    return {"metadata": {"name": info.name, "labels": info.labels}, "spec": {"taints": kept}}
