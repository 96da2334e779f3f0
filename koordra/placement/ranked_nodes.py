"""How `plan()` uses the fleet in a large cluster: the best node is asked first, and what was solved is not solved again.

Up to RANKED_FROM nodes, while nothing is known of the workload, every node is searched and the written score compares their offers.
In a larger cluster, and with a learned table, the fleet's order decides between nodes (policy `koordra`; claims that ask for Binpack
or Spread are compared as before): nodes are asked in that order, and the first that fits without climbing a rung of a Preferred
scope or a step down in a firstAvailable list is taken. If TRIES that the pods may use say no, the claim wants something that the
fleet does not see, and every node is asked as in a small cluster: what a place is worth to the claim decides, then the fleet's key. So
no placement is missed, and what cannot be placed has the same reasons. The controller orders its sites by the same two
(controller.leftovers). Which cards of a node: `cards`. What models and nodes a claim may use, the fleet knows (`node_sets`); nodes
that are full of something it does not count (ports, other resources), or excluded, are passed over without a search.

Who plans again and again keeps both from run to run (`KeptFleet`): then a plan costs what its claims, and the nodes that changed
since the last one, cost. It belongs to one kept inventory, and sees by itself what has become of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from koordra.allocator.inventory import Inventory, Pool, PoolID, Taken
from koordra.allocator.offer import Offer
from koordra.allocator.placement import NodeAnswer
from koordra.allocator.requests import AskedClaim
from koordra.allocator.score import ALTERNATIVE, WORTH
from koordra.api import objects
from koordra.api.parameters import NodePolicy, PlacementPolicy
from koordra.errors import PlanError
from koordra.placement.columns.arrays import INFEASIBLE
from koordra.placement.columns.node_devices import NodeDevices, node_devices
from koordra.placement.columns.node_ranking import NodeRanking
from koordra.placement.manifests import Cluster
from koordra.placement.node_filter.cells import seen_of
from koordra.placement.parse_cache import KnownObjects
from koordra.placement.policy.device_selection import Cards
from koordra.placement.policy.workload_table import Table
from koordra.placement.result_cache import Solved

RANKED_FROM: Final = 64
"""Clusters with more nodes than this are ranked."""

TRIES: Final = 16

_Load = Mapping[str, Mapping[str, Decimal]]


class RankedNodes:
    """The ranking of one run of `plan()`. `taken` and `loads` are the run's own, and grow with it."""

    def __init__(
        self, ranking: NodeRanking, solved: Solved, taken: Taken, loads: _Load, *, placed: set[str]
    ) -> None:
        self.taken, self.loads = taken, loads
        self.ranking, self.solved = ranking, solved
        self._placed = placed

    def first(
        self,
        asked: Sequence[AskedClaim],
        pods: Sequence[Mapping[str, Any]],
        ask: Callable[[str], NodeAnswer],
        *,
        among: frozenset[str] | None = None,
    ) -> dict[str, NodeAnswer] | None:
        """The answer of the first node in order (of those `among`) that fits; None where every node has to be asked."""
        if not _ours(asked):
            return None
        tries = 0
        for name in self.ranking.order(asked, pods, among=among) or ():
            answer = ask(name)
            if answer.unsuited:
                continue
            if answer.offer is not None and answer.offer.cost < ALTERNATIVE:
                return {name: answer}
            tries += 1
            if tries == TRIES:
                break
        return None

    def best(
        self, offers: Sequence[Offer], asked: Sequence[AskedClaim], pods: Sequence[Mapping[str, Any]]
    ) -> Offer:
        """The best of these offers, in the order of their nodes' names."""
        request = self.ranking.request(asked, pods) if self.known and _ours(asked) else None
        if request is None:
            return min(offers, key=lambda offer: offer.cost)

        def order(offer: Offer) -> tuple[int, int]:
            key = self.ranking.key(offer.node, request)
            return offer.cost // WORTH, INFEASIBLE if key is None else key

        return min(offers, key=order)

    @property
    def known(self) -> bool:
        """Whether anything is known of the workload."""
        return self.ranking.policy.table.pods > 0

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
        self._placed.add(node)
        self.ranking.changed(node, self.taken, self.loads.get(node, {}))


class KeptFleet:
    """Ranking and solved answers from one run of `plan()` to the next, for one inventory. Not thread-safe.

    `table` is what is known of the workload; `ranking.know` gives it another one later.
    """

    def __init__(self, inventory: Inventory, table: Table | None = None) -> None:
        self.inventory = inventory
        self.ranking = NodeRanking((), table, features=inventory.features)
        self._seen: dict[str, tuple[Mapping[str, Any], Sequence[Pool], NodeDevices]] = {}
        self.known_objects = KnownObjects()
        self._nodes: Mapping[str, Mapping[str, Any]] = {}
        self._version = -1
        self._of_pool: dict[PoolID, set[str]] = {}
        self._busy: set[str] = set()
        self._solved: tuple[object, object, object, object, Solved] | None = None
        self._cards: Cards | None = None

    def begin(self, cluster: Cluster, policy: PlacementPolicy, taken: Taken, loads: _Load) -> RankedNodes:
        """Everything as it is now. Raises PlanError for another inventory than the one that this is for."""
        if cluster.slices is not self.inventory:
            raise PlanError("the kept fleet is of another inventory; keep one fleet beside each inventory")
        if cluster.nodes is not self._nodes or self.inventory.version != self._version:
            self._look(cluster, taken, loads)
        before, self._busy = self._busy, set(loads) & self._seen.keys()
        for pool in taken.pools:
            self._busy |= self._of_pool.get(pool, set())
        for name in self._busy | before & self._seen.keys():
            self.ranking.changed(name, taken, loads.get(name, {}))
        return RankedNodes(self.ranking, self._answers(cluster, policy), taken, loads, placed=self._busy)

    def _look(self, cluster: Cluster, taken: Taken, loads: _Load) -> None:
        """Nodes or slices are others than in the plan before."""
        for name in self._seen.keys() - cluster.nodes.keys():
            self.ranking.gone(name)
            self._tell_pools(name, self._seen.pop(name)[2].pools, gone=True)
        for name, node in cluster.nodes.items():
            pools = self.inventory.pools(node)
            known = self._seen.get(name)
            if known is not None and known[1] is pools and _same(known[0], node):
                continue
            devices = node_devices(name, node, self.inventory)
            if known is not None:
                self._tell_pools(name, known[2].pools, gone=True)
            self._tell_pools(name, devices.pools)
            self._seen[name] = (node, pools, devices)
            self.ranking.put(devices, taken, loads.get(name, {}))
        self._nodes, self._version = cluster.nodes, self.inventory.version

    def _tell_pools(self, name: str, pools: Iterable[PoolID], *, gone: bool = False) -> None:
        for pool in pools:
            users = self._of_pool.setdefault(pool, set())
            users.discard(name) if gone else users.add(name)
            if not users:
                del self._of_pool[pool]

    @property
    def cards(self) -> Cards | None:
        """What the table says about cards; None while nothing is known."""
        table = self.ranking.policy.table
        if not table.pods:
            return None
        if self._cards is None or self._cards.table is not table:
            self._cards = Cards(table)
        return self._cards

    def _answers(self, cluster: Cluster, policy: PlacementPolicy) -> Solved:
        """The solved answers, while they speak of the same classes, policy, table and kinds of pools."""
        about, table = (cluster.classes, policy), self.ranking.policy.table
        known = self._solved
        same = known is not None and known[0] is self.inventory.kinds and known[1] is table
        if known is None or not same or known[2:4] != about:
            known = self._solved = (self.inventory.kinds, table, *about, Solved(self.inventory))
        return known[4]


def ranked_nodes(
    cluster: Cluster,
    policy: PlacementPolicy | None,
    taken: Taken,
    loads: _Load,
    kept: KeptFleet | None = None,
) -> RankedNodes | None:
    """The ranking, where the cluster is large enough and the policy leaves the choice of node to it."""
    if policy is None or policy.node is not NodePolicy.FRAGMENTATION_AWARE:
        return None
    known = kept is not None and kept.ranking.policy.table.pods > 0
    if len(cluster.nodes) <= RANKED_FROM and not known:
        return None
    return (kept or KeptFleet(cluster.slices)).begin(cluster, policy, taken, loads)


def _same(before: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether the node says what it said: size, labels, taints, cordon, readiness."""
    return before is node or (
        objects.status_of(before).get("allocatable") == objects.status_of(node).get("allocatable")
        and objects.labels_of(before) == objects.labels_of(node)
        and seen_of(before, frozenset()) == seen_of(node, frozenset())
    )


def _ours(asked: Sequence[AskedClaim]) -> bool:
    """Whether the claims leave the choice of the node to the default policy."""
    return all(claim.placement.node in {None, NodePolicy.FRAGMENTATION_AWARE} for claim in asked)
