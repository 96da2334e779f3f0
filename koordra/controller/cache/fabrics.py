"""The levels of the network between nodes, in an order that somebody wrote: the operator of koordra, or the
objects of other systems.

    setting --topology-levels     wide to narrow: zone=topology.kubernetes.io/zone,row=example.com/row,rack
    Topology (Kueue, KAI)         levels[].nodeLabel, wide to narrow
    ClusterNetworkTopology        networkTopologySpec[]: layers, each with its parent and its labels
    HyperNode (Volcano)           nodes by tier; tier 1 is the narrowest
    nobody                        what koordra finds by itself (`topology.network_topology`)

A gang is placed by the first of these that knows every level which it names. The node itself is always the
last level; it is left out here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from koordra.allocator.predicates import requirement_matches
from koordra.api import objects
from koordra.api.objects import Object
from koordra.errors import InvalidInput
from koordra.topology.network_topology import DISCOVERED, NODE_WORDS, Level, Levels

_NODE_LAYER: Final = "NodeTopologyLayer"
_LONGEST_PATTERN: Final = 500


class Fabrics:
    """Kept by the changes of a cache: `on_fabric` and `on_node` are told of them. Not thread-safe."""

    def __init__(self, table: Mapping[str, Object], nodes: Mapping[str, Object]) -> None:
        self.written: Levels | None = None
        """By the operator."""
        self._table, self._nodes = table, nodes
        self._known: list[Levels] | None = None
        self._widened: dict[tuple[str, str], Levels] = {}
        self._labels: frozenset[str] | None = None
        """Keys of all nodes' labels."""

    def on_fabric(self, _key: str, _before: Object | None, _now: Object | None) -> None:
        self._known = None
        self._widened.clear()

    def on_node(self, name: str, before: Object | None, now: Object | None) -> None:
        if before is None or now is None or objects.labels_of(before) != objects.labels_of(now):
            self.on_fabric(name, before, now)
            self._labels = None

    def levels_for(self, words: Collection[str], labels: Collection[str] = ()) -> Levels:
        """Those that know the words; where none do, the first there are, which say so. `labels`: those of the
        words that need not be known; one that nodes have is wider than all other levels then."""
        for known in self._candidates() if words else ():
            unknown = {word for word in words if known.position(word) is None}
            if not unknown:
                return known
            if len(unknown) == 1 and unknown <= self._label_keys().intersection(labels):
                return self._widest(min(unknown), known)
        return self.written or DISCOVERED

    @property
    def usual(self) -> Levels:
        """Where nobody names a level: the operator's, else those of the first object, else what koordra
        finds."""
        return next(self._candidates())

    def _label_keys(self) -> frozenset[str]:
        if self._labels is None:
            self._labels = frozenset().union(*map(objects.labels_of, self._nodes.values()))
        return self._labels

    def _widest(self, label: str, known: Levels) -> Levels:
        """The same object for as long as nothing changes: trees are kept by it."""
        key = label, known.source
        if key not in self._widened:
            self._widened[key] = replace(known, levels=(Level(label, (label,)), *known.levels))
        return self._widened[key]

    def _candidates(self) -> Iterator[Levels]:
        if self.written is not None:
            yield self.written
        if self._known is None:
            self._known = list(_levels_of(self._table, self._nodes))
        yield from self._known
        yield DISCOVERED


def _levels_of(table: Mapping[str, Object], nodes: Mapping[str, Object]) -> Iterator[Levels]:
    hypernodes = list[Object]()
    for key in sorted(table):
        obj = table[key]
        match obj.get("kind"):
            case "Topology":
                yield levels_of_topology(obj)
            case "ClusterNetworkTopology":
                yield levels_of_layers(obj)
            case "HyperNode":
                hypernodes.append(obj)
    if hypernodes:
        labels = {name: objects.labels_of(node) for name, node in nodes.items()}
        yield levels_of_hypernodes(hypernodes, labels)


def written_levels(text: str) -> Levels:
    """What the operator wrote: names, each with its label; a name alone is a level that koordra knows, or the
    label itself. Raises InvalidInput."""
    found: list[Level] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, label = map(str.strip, entry.partition("="))
        known = next((level for level in DISCOVERED.levels if level.name == name and not label), None)
        found.append(known or Level(name, (label or name,)))
        if NODE_WORDS & {name, label}:
            raise InvalidInput(
                f"{entry} is the node, which is the last level anyhow",
                field="--topology-levels",
                remedy="leave it out",
            )
    names = [level.name for level in found]
    if not found or "" in names or len(set(names)) < len(names):
        raise InvalidInput(
            f"{text[:80]!r} is no order of levels",
            field="--topology-levels",
            remedy="write each level once, wide to narrow: row=example.com/row,rack=example.com/rack",
        )
    return _spared(found, "--topology-levels")


def levels_of_topology(obj: Object) -> Levels:
    labels = [str(level.get("nodeLabel") or "") for level in objects.spec_of(obj).get("levels") or ()]
    levels = [Level(label, (label,)) for label in labels if label and label not in NODE_WORDS]
    return _spared(levels, f"Topology {objects.name(obj)}")


def levels_of_layers(obj: Object) -> Levels:
    """Koordinator's: layers in the order of their parents."""
    layers = {
        str(layer.get("topologyLayer")): layer
        for layer in objects.spec_of(obj).get("networkTopologySpec") or ()
    }

    def depth(name: str) -> int:
        passed = list[str]()
        while name in layers and name not in passed:
            passed.append(name)
            name = str(layers[name].get("parentTopologyLayer") or "")
        return len(passed)

    levels, node_words = [], set(NODE_WORDS)
    for name in sorted(layers, key=lambda name: (depth(name), name)):
        labels = tuple(map(str, layers[name].get("labelKey") or ()))
        if name == _NODE_LAYER or NODE_WORDS.intersection(labels):
            node_words.add(name)
        else:
            levels.append(Level(name, labels))
    return _spared(levels, f"ClusterNetworkTopology {objects.name(obj)}", frozenset(node_words))


def levels_of_hypernodes(hypernodes: Iterable[Object], nodes: Mapping[str, Mapping[str, str]]) -> Levels:
    """Volcano's: `tier-2`, `tier-1`, by the tier's own name too. `nodes`: their labels, by name."""
    by_tier: dict[int, dict[str, str]] = {}
    names: dict[int, str] = {}
    ordered = sorted(hypernodes, key=lambda one: (_tier(one), objects.name(one)))
    inside: dict[str, set[str]] = {}
    for one in ordered:
        own, tier = objects.name(one), _tier(one)
        members = objects.spec_of(one).get("members") or ()
        found = set[str]()
        for member in members:
            selector = member.get("selector") or {}
            if member.get("type") == "HyperNode":
                for name in filter(_matcher(selector, {}), inside):
                    found |= inside[name]
            else:
                found.update(filter(_matcher(selector, nodes), nodes))
        inside[own] = found
        names.setdefault(tier, str(objects.spec_of(one).get("tierName") or ""))
        for name in found:
            by_tier.setdefault(tier, {}).setdefault(name, own)
    levels = [
        Level(f"tier-{tier}", (names[tier],) if names[tier] else (), by_tier[tier])
        for tier in sorted(by_tier, reverse=True)
    ]
    return _spared(levels, "HyperNodes")


def _tier(hypernode: Object) -> int:
    tier = objects.spec_of(hypernode).get("tier")
    return tier if isinstance(tier, int) else 0


def _matcher(selector: Mapping[str, Any], labels: Mapping[str, Mapping[str, str]]) -> Callable[[str], bool]:
    if exact := (selector.get("exactMatch") or {}).get("name"):
        return lambda name: name == exact
    if pattern := (selector.get("regexMatch") or {}).get("pattern"):
        compiled = _compiled(str(pattern))
        return lambda name: compiled is not None and compiled.search(name) is not None
    wanted = selector.get("labelMatch")
    if not wanted:
        return lambda name: False
    exactly, rest = wanted.get("matchLabels") or {}, wanted.get("matchExpressions") or ()
    return lambda name: (
        name in labels
        and all(labels[name].get(key) == value for key, value in exactly.items())
        and all(requirement_matches(one, labels[name]) for one in rest)
    )


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """None for what Python cannot read: it matches nothing."""
    try:
        return re.compile(pattern) if len(pattern) <= _LONGEST_PATTERN else None
    except (re.error, RecursionError):
        return None


def _spared(levels: list[Level], source: str, node_words: frozenset[str] = NODE_WORDS) -> Levels:
    """The narrowest domains are those that are better left whole."""
    last = [Level(one.name, one.labels, one.nodes, is_spared=True) for one in levels[-1:]]
    return Levels((*levels[:-1], *last), source, node_words)
