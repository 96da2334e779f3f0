"""The cards of every node, from the rows of `koordra devices`. Pure, but for what it keeps.

A node's cards are worked out again when one of the objects that they come from is another: what a page of the
fleet costs is what has changed since the last one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Fields, Object
from koordra.cli.cluster.dashboard.fleet import NodeCards, cards_of
from koordra.controller import claims as claims_of
from koordra.controller.cache.changes import FABRICS, key_of
from koordra.controller.cache.fabrics import Fabrics
from koordra.controller.explain.device_rows import device_rows
from koordra.errors import KoordraError
from koordra.topology.network_topology import Levels

Listed = Mapping[Kind, Sequence[Object]]
"""Every object of the cluster that matters, by kind."""

_CLIQUE: Final = names.ATTR_CLIQUE.rpartition("/")[2]


class Cells:
    """`levels`: of the network, as somebody wrote them."""

    def __init__(self, levels: Levels | None = None) -> None:
        self._levels = levels
        self._known: dict[str, tuple[Sequence[Object], NodeCards]] = {}

    def nodes(self, listed: Listed) -> list[NodeCards]:
        """Those that publish devices, or are in trouble; by name."""
        slices, holders = _by_node(listed)
        rules = listed.get(kinds.DEVICE_TAINT_RULES, ())
        every = {objects.name(node): node for node in listed.get(kinds.NODES, ())}
        blocks = self._blocks(listed, every, slices)
        found = {}
        for name, node in sorted(every.items()):
            of = [node, *slices.get(name, ()), *holders.get(name, ()), *rules]
            before, cards = self._known.get(name, ((), None))
            if (
                cards is None
                or len(of) != len(before)
                or any(a is not b for a, b in zip(of, before, strict=True))
            ):
                cards = _cards(name, node, of)
            found[name] = (of, NodeCards(name, blocks.get(name, ()), cards.cards, cards.trouble))
        self._known = dict(found)
        return [cards for name, (_, cards) in found.items() if name in slices]

    def _blocks(
        self, listed: Listed, nodes: Mapping[str, Object], slices: Mapping[str, Sequence[Object]]
    ) -> dict[str, tuple[str, ...]]:
        table = {key_of(kind, one): one for kind in FABRICS for one in listed.get(kind, ())}
        fabrics = Fabrics(table, nodes)
        fabrics.written = self._levels
        places = {
            name: {**_clique(slices[name]), **objects.labels_of(nodes[name])}
            for name in slices
            if name in nodes
        }
        paths = fabrics.usual.paths(places)
        return {name: tuple(filter(None, path)) for name, path in paths.items()}


def _cards(name: str, node: Object, of: Sequence[Object]) -> NodeCards:
    """Without a block. What cannot be read is a trouble of that node's alone."""
    try:
        rows = device_rows(of)
    except KoordraError as error:
        return NodeCards(name, (), (), str(error))
    return NodeCards(name, (), cards_of(rows), _trouble(node, rows))


def _by_node(listed: Listed) -> tuple[dict[str, list[Object]], dict[str, list[Object]]]:
    """The slices, and the claims and holds that have something of them."""
    slices, holders = defaultdict[str, list[Object]](list), defaultdict[str, list[Object]](list)
    for one in listed.get(kinds.RESOURCE_SLICES, ()):
        spec = objects.spec_of(one)
        if spec.get("driver") == names.DRIVER and spec.get("nodeName"):
            slices[str(spec["nodeName"])].append(one)
    for claim in listed.get(kinds.RESOURCE_CLAIMS, ()):
        for pool in claims_of.pools(claim):
            holders[pool].append(claim)
    for hold in listed.get(kinds.DEVICE_HOLDS, ()):
        for node in {str(seat.get("node")) for seat in objects.mappings(objects.spec_of(hold).get("seats"))}:
            holders[node].append(hold)
    return dict(slices), dict(holders)


def _clique(slices: Iterable[Object]) -> Mapping[str, str]:
    """The NVLink domain that a node publishes counts as a label."""
    for one in slices:
        for device in objects.spec_of(one).get("devices") or ():
            attributes = device.get("attributes") or {}
            found = attributes.get(names.ATTR_CLIQUE) or attributes.get(_CLIQUE)
            if found and found.get("string"):
                return {names.ATTR_CLIQUE: str(found["string"])}
    return {}


def _trouble(node: Object, rows: Iterable[Fields]) -> str:
    why = [f"pool {row['pool']}: {row['reason']}" for row in rows if row["name"] is None]
    if objects.spec_of(node).get("unschedulable"):
        why.append("cordoned")
    conditions = objects.mappings(objects.status_of(node).get("conditions"))
    if any(one.get("type") == "Ready" and one.get("status") != "True" for one in conditions):
        why.append("not ready")
    return "; ".join(why)
