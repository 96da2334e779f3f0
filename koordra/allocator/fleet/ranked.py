"""How `plan()` uses the fleet in a large cluster: the best node is asked first, and what was solved is not solved again.

Up to RANKED_FROM nodes every node is searched and the written score compares their offers. In a larger cluster the fleet's order
decides between nodes (policy `koordra`; claims that ask for Binpack or Spread are compared as before): nodes are asked in that
order, and the first that fits without climbing a rung of a Preferred scope is taken. If the first TRIES say no, the claim wants
something that the fleet does not see, and every node is asked as in a small cluster. So no placement is missed, and what cannot be
placed has the same reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, Final

from koordra.allocator.cluster import Cluster
from koordra.allocator.fleet.rank import NodeRanking
from koordra.allocator.fleet.solved import Solved
from koordra.allocator.inventory import Pool, Taken
from koordra.allocator.placement import NodeAnswer
from koordra.allocator.requests import AskedClaim
from koordra.allocator.score import RUNG
from koordra.api.parameters import NodePolicy, PlacementPolicy

RANKED_FROM: Final = 64
"""Clusters with more nodes than this are ranked."""

TRIES: Final = 16

_Load = Mapping[str, Mapping[str, Decimal]]


class RankedNodes:
    """The ranking of one run of `plan()`. `taken` and `loads` are the run's own, and grow with it."""

    def __init__(self, cluster: Cluster, taken: Taken, loads: _Load) -> None:
        self.taken, self.loads = taken, loads
        self.ranking = NodeRanking.of(cluster.nodes, cluster.slices)
        self.ranking.settle(taken, loads)
        self.solved = Solved(cluster.slices)

    def first(
        self,
        asked: Sequence[AskedClaim],
        pods: Sequence[Mapping[str, Any]],
        ask: Callable[[str], NodeAnswer],
    ) -> dict[str, NodeAnswer] | None:
        """The answer of the first node in order that fits; None where every node has to be asked."""
        for claim in asked:
            if claim.placement.node not in {None, NodePolicy.FRAGMENTATION_AWARE}:
                return None
        order = self.ranking.order(asked, pods)
        for name in islice(order or (), TRIES):
            answer = ask(name)
            if answer.offer is not None and answer.offer.cost < RUNG:
                return {name: answer}
        return None

    def answer(
        self,
        name: str,
        asked: Sequence[AskedClaim],
        siblings: Sequence[frozenset[int]],
        pools: Sequence[Pool],
        search: Callable[[], NodeAnswer],
        *,
        honors_partitions: bool,
    ) -> NodeAnswer:
        """What the node says, from memory where the same was asked of a node like it."""
        key = self.solved.key(asked, siblings, pools, self.taken, honors_partitions=honors_partitions)
        offer = self.solved.offer(key, name, asked, pools, self.taken)
        if offer is not None:
            return NodeAnswer(offer=offer, fits=True)
        found = search()
        if found.offer is not None:
            self.solved.keep(key, found.offer)
        return found

    def took(self, node: str) -> None:
        """Something was placed on the node."""
        self.ranking.changed(node, self.taken, self.loads.get(node, {}))


def ranked_nodes(
    cluster: Cluster, policy: PlacementPolicy | None, taken: Taken, loads: _Load
) -> RankedNodes | None:
    """The ranking, where the cluster is large enough and the policy leaves the choice of node to it."""
    if policy is None or policy.node is not NodePolicy.FRAGMENTATION_AWARE:
        return None
    return RankedNodes(cluster, taken, loads) if len(cluster.nodes) > RANKED_FROM else None
