"""The cluster's capacity in figures, kept by the nodes that changed.

    index ── nodes that were settled ──▶ NodeFigures of each ──▶ sums of all; how often each "most" occurs

The figures of a node's devices are those of all nodes that publish and use the same, and are worked out once
for them. How near a claim's devices are to each other is worked out once for each allocation. So a pass costs
what changed, and equals a full count (tests/property/test_capacity.py).

Of models there are as many as nodes publish. MODELS of them are told apart, those with the most devices; the
others are `other` together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from koordra.allocator.devices.gpu_nic_distance import scope_of
from koordra.api import names
from koordra.api.allocation import Allocation
from koordra.api.opaque.configuration import configuration, covers
from koordra.api.opaque.parameters import JointAllocation, Pairing, Scope
from koordra.errors import InvalidInput
from koordra.placement.free_amounts.capacity import Amounts, Measure, NodeCapacity, node_capacity
from koordra.placement.index import ClusterIndex, NodeInfo

MODELS: Final = 64
MOST_NODES: Final = 1000
"""Whose figures are worked out after one pass: half a second at most, when a leader begins."""
OTHER: Final = "other"
NOT_ASKED: Final = "none"
_SCOPES: Final = tuple(Scope)
READY: Final = "ready"
NOT_READY: Final = "not_ready"

_Key = TypeVar("_Key")

Aligned = tuple[str, str]
"""The scope that a claim asks for, or NOT_ASKED, and the one that it has."""


class NodeFigures(NamedTuple):
    capacity: NodeCapacity
    aligned: Mapping[Aligned, int]
    ready: bool


_NOTHING: Final = NodeFigures(NodeCapacity({}, {}), {}, False)


class ClusterCapacity:
    """Not thread-safe. `nodes` by name: those that publish devices."""

    def __init__(self, index: ClusterIndex) -> None:
        self._index = index
        self._touched = index.follow()
        self.nodes: dict[str, NodeFigures] = {}
        self.changed: set[str] = set()
        """Nodes whose figures are others since the caller emptied this."""
        self._sums = Counter[tuple[str, ...]]()
        self._nodes_with = Counter[tuple[str, ...]]()
        self._most: dict[tuple[str, ...], Counter[int]] = {}
        self._aligned = Counter[Aligned]()
        self._ready = Counter[bool]()
        self._claims: dict[str, dict[str, tuple[Allocation, object, Aligned]]] = {}
        """By node and claim: what was worked out, for this allocation and these pools."""

    def update(self, *, most: int = MOST_NODES) -> bool:
        """Take over what changed since the last time, of so many nodes; whether that was all. Before it was,
        the sums are of no moment that there was."""
        for _ in range(min(most, len(self._touched))):
            name = self._touched.pop()
            info = self._index.nodes.get(name)
            self._replace(name, None if info is None or info.state is None else self._figures(info))
        return not self._touched

    def _replace(self, name: str, now: NodeFigures | None) -> None:
        if now is not None and not now.capacity.amounts and not now.aligned:
            now = None
        before = self.nodes.pop(name, None)
        if now is None:
            self._claims.pop(name, None)
        else:
            self.nodes[name] = now
        if before != now:
            self.changed.add(name)
            self._exchange(before or _NOTHING, now or _NOTHING)
            for figures, sign in ((before, -1), (now, 1)):
                if figures is not None:
                    self._ready[figures.ready] += sign

    def _exchange(self, before: NodeFigures, now: NodeFigures) -> None:
        """Of a node few figures change at a time; the others cost a comparison."""
        for key, was, amount in _differences(before.capacity.amounts, now.capacity.amounts):
            self._sums[key] += (amount or 0) - (was or 0)
            self._nodes_with[key] += (amount is not None) - (was is not None)
            if not self._nodes_with[key]:
                del self._sums[key], self._nodes_with[key]
        for key, was, most in _differences(before.capacity.most, now.capacity.most):
            of_key = self._most.get(key)
            if of_key is None:
                of_key = self._most[key] = Counter()
            if most is not None:
                of_key[most] += 1
            if was is not None:
                of_key[was] -= 1
                if not of_key[was]:
                    del of_key[was]
            if not of_key:
                del self._most[key]
        for aligned, was, number in _differences(before.aligned, now.aligned):
            self._aligned[aligned] += (number or 0) - (was or 0)

    # one node

    def _figures(self, info: NodeInfo) -> NodeFigures:
        ready = is_ready(info)
        found = self._capacity(info)
        return NodeFigures(found if ready else found.withheld(), self._alignment(info), ready)

    def _capacity(self, info: NodeInfo) -> NodeCapacity:
        alike = info.devices
        if alike.node_class is None:
            return node_capacity(info.pools, self._index.taken)
        if alike.capacity is None:
            alike.capacity = node_capacity(info.pools, self._index.taken)
        return alike.capacity

    def _alignment(self, info: NodeInfo) -> Counter[Aligned]:
        held = self._index.allocations.on(pool.id for pool in info.pools)
        known = self._claims.get(info.name, {})
        now: dict[str, tuple[Allocation, object, Aligned]] = {}
        plain: dict[Any, Mapping[str, Any]] = {}
        for key, claim in held.items():
            before = known.get(key)
            if before is not None and before[0] is claim.allocation and before[1] is info.pools:
                now[key] = before
                continue
            plain = plain or {one.id: one.plain for pool in info.pools for one in pool.devices}
            if (aligned := alignment_of(claim.allocation, plain)) is not None:
                now[key] = claim.allocation, info.pools, aligned
        if now:
            self._claims[info.name] = now
        else:
            self._claims.pop(info.name, None)
        return Counter(aligned for _, _, aligned in now.values())

    # all nodes

    def sums(self) -> dict[tuple[str, ...], int]:
        """By measure and labels."""
        return told_apart(self._sums)

    def most(self) -> dict[tuple[str, ...], int]:
        """The most that a node has, by what and labels."""
        others = _others(self._sums)
        found: dict[tuple[str, ...], int] = {}
        for key, of_key in self._most.items():
            shown = (key[0], OTHER, *key[2:]) if key[1] in others else key
            found[shown] = max(found.get(shown, 0), *of_key)
        return found

    def aligned(self) -> dict[tuple[str, ...], int]:
        """Number of claims, by Aligned."""
        return {key: number for key, number in self._aligned.items() if number}

    def ready(self) -> dict[str, int]:
        return {READY: self._ready[True], NOT_READY: self._ready[False]}


def _differences(
    before: Mapping[_Key, int], now: Mapping[_Key, int]
) -> Iterator[tuple[_Key, int | None, int | None]]:
    """The keys whose numbers differ, with both."""
    for key in before.keys() | now.keys():
        was, number = before.get(key), now.get(key)
        if was != number:
            yield key, was, number


_NAMED_AT: Final[Mapping[str, tuple[int, ...]]] = {
    Measure.DEVICES: (2,),
    Measure.SHARES: (2,),
    Measure.MEMORY: (2,),
    Measure.CORES: (2,),
    Measure.BANDWIDTH: (1,),
    Measure.MIG: (1, 2),
}
"""Where labels stand that nodes choose the values of: models, and profiles."""


def told_apart(amounts: Amounts) -> dict[tuple[str, ...], int]:
    """With the models and profiles beyond MODELS together."""
    others = _others(amounts) if len(amounts) > MODELS else ()
    if not others:
        return dict(amounts)
    found: dict[tuple[str, ...], int] = {}
    for key, amount in amounts.items():
        at = _NAMED_AT[key[0]]
        shown = tuple([OTHER if place in at and part in others else part for place, part in enumerate(key)])
        found[shown] = found.get(shown, 0) + amount
    return found


def _others(amounts: Amounts) -> frozenset[str]:
    """Models, and profiles, that are not told apart: those with the fewest devices."""
    devices, profiles = Counter[str](), Counter[str]()
    for key, amount in amounts.items():
        if key[0] == Measure.DEVICES:
            devices[key[2]] += amount
        elif key[0] == Measure.MIG:
            profiles[key[2]] += amount
    return frozenset(
        name
        for of in (devices, profiles)
        if len(of) > MODELS
        for name in sorted(of, key=lambda name: (-of[name], name))[MODELS:]
    )


def is_ready(info: NodeInfo) -> bool:
    """Whether pods can be placed there at all: ready, not cordoned, and every allocation can be read."""
    _, unschedulable, ready, *_ = info.predicate_inputs
    return not unschedulable and not info.trouble and all(status == "True" for status in ready)


def alignment_of(allocation: Allocation, plain: Mapping[Any, Mapping[str, Any]]) -> Aligned | None:
    """Of a claim that has GPUs and NICs, each device counted once; None for any other, and where its devices
    are not published any more."""
    results = [result for result in allocation.results if result.device.driver == names.DRIVER]
    kinds = {plain.get(one.device, {}).get(names.ATTR_TYPE) for one in results}
    if None in kinds or not (kinds & names.GPU_TYPES and kinds & names.NIC_TYPES):
        return None
    scope, pairing, requests = _asked(allocation)
    devices = {one.device: plain[one.device] for one in results if covers(requests, one.request)}
    return scope, scope_of([*devices.values()], pairing).value


def _asked(allocation: Allocation) -> tuple[str, Pairing | None, Sequence[str]]:
    """The narrowest scope that the claim, or else its class, asks for, its pairing, and of which requests."""
    try:
        entries = configuration(allocation.config, claim="", holds=True).entries
    except InvalidInput:
        entries = ()
    joints = [
        (entry.of_class, _SCOPES.index(entry.parameters.scope), entry.parameters.pairing, entry.requests)
        for entry in entries
        if isinstance(entry.parameters, JointAllocation)
    ]
    if not joints:
        return NOT_ASKED, None, ()
    _, scope, pairing, requests = min(joints, key=lambda joint: joint[:2])
    return _SCOPES[scope].value, pairing, requests
