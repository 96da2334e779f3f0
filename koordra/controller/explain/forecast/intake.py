"""A cluster as it is read, page by page: what can be worked out of a part is, before the next part comes.

objects ─▶ ClusterCopy ─ changes ─▶ the indices of a Reconciler, which has made no pass yet
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from koordra.allocator.reasons import Reason
from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.reservations import STARVES_AFTER
from koordra.controller.allocation.reserved.quotas import NO_QUOTAS, Quotas
from koordra.controller.allocation.waiting_reasons import GroupPlacement
from koordra.controller.allocation.writes import Writer
from koordra.controller.cache.changes import Tables
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group, UseReader
from koordra.controller.cache.ungate_tracker import UngateTracker
from koordra.controller.explain.forecast.cluster_copy import ClusterCopy
from koordra.controller.explain.forecast.refusals import Refusals
from koordra.controller.gangs.expected.job_reader import Read
from koordra.controller.gangs.membership import GangIndex
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.placement.candidates.cost_bound import most_free
from koordra.placement.candidates.node_scoring import ScoringStrategy
from koordra.placement.decide import Excluded
from koordra.placement.policy.durations import Durations
from koordra.placement.policy.learned_order import InUse, Learned
from koordra.topology.network_topology import Levels


def _nobody(_kind: Kind, _name: str, _namespace: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Terms:
    """What a forecast goes by: `now`; what kube-scheduler `refused` lately; `read` finds objects of jobs that
    gangs belong to; the rest as the Reconciler and the Placer have it. Without what the controller has
    `learned` it begins with what is in use, as a controller does that starts without a table. `durations`:
    how long claims have had their devices."""

    now: datetime
    refused: Refusals = field(default_factory=dict)
    quotas: Quotas = NO_QUOTAS
    starves_after: float = STARVES_AFTER
    policy: str = names.DEFAULT_POLICY
    features: str | None = None
    levels: Levels | None = None
    scoring: ScoringStrategy | None = None
    learned: Learned | None = None
    durations: Durations = field(default_factory=Durations)
    read: Read = _nobody


class Intake:
    """`take` the kinds in the order of `changes.in_order`. `gangs`: those that there are, whatever was let go
    since; `told`: why claims wait, by key, as the passes tell it; `clock`: seconds since `terms.now`;
    `stand_ins`: pods that come when the others have what they get; `reconciler`: has made no pass yet."""

    reconciler: Reconciler
    clock: float
    told: dict[str, tuple[Reason, ...]]

    def __init__(self, terms: Terms) -> None:
        """Raises PlanError for an unknown policy or gate."""
        self.terms = terms
        self.stand_ins: Sequence[Object] = ()
        self.besides: Tables = {}
        self.copy = ClusterCopy(terms.read)
        self.placer = Scores(terms)
        cache = ClusterCache()
        self.placer.follow(cache)
        self.gangs = GangIndex(cache, UngateTracker())
        self._listeners = [*cache.listeners, *self.placer.engine.index.listeners]
        self._staying = [len(each) for each in self._listeners]
        self._begin(cache)

    def _begin(self, cache: ClusterCache) -> None:
        self.clock, self.told = 0.0, {}
        self.reconciler = Reconciler(
            self.copy.source,
            Writer(self.copy, may_write=lambda: True, now=self._wall_clock),
            clock=lambda: self.clock,
            reasons=self._note,
            starves_after=self.terms.starves_after,
            placer=self.placer,
            quotas=self.terms.quotas,
            levels=self.terms.levels,
            cache=cache,
        )

    def begin_again(self, besides: Tables) -> None:
        """The cluster as it was given, and these objects in place of others that came besides. The indices
        stay, and nobody remembers a decision."""
        for listeners, staying in zip(self._listeners, self._staying, strict=True):
            del listeners[staying:]
        for pod in self.stand_ins:
            self.copy.lose(PODS, pod)
        self.copy.begin_again(besides)
        self._apply()
        self.besides = besides
        self._begin(self.reconciler.cache)

    def take(self, kind: Kind, some: Collection[Object]) -> None:
        """Objects of the kind; more of it may come."""
        self.copy.take(kind, some)
        self._apply()
        if kind == PODS:
            self.reconciler.cache.claim_index.settle()
            self.placer.count(self.reconciler.cache, map(objects.uid, some))

    def complete(self, kind: Kind, taken: Collection[Object], every: Collection[Object]) -> None:
        """All of the kind were taken. Those that are not among `every` one are gone: the list was begun
        anew."""
        if len(taken) > len(every):
            there = set(map(objects.key, every))
            for obj in taken:
                if objects.key(obj) not in there:
                    self.copy.lose(kind, obj)
            self._apply()
            self.placer.reader = None
        if kind == RESOURCE_CLAIMS:  # the last that nodes are told of, but for the pods
            self.placer.read_nodes()
            conflicts = self.reconciler.allocation.conflicts
            conflicts.sync()
            conflicts.over_committed()

    def _apply(self) -> None:
        self.reconciler.cache.apply(self.copy.source.changes())

    def _wall_clock(self) -> str:
        return f"{(self.terms.now + timedelta(seconds=self.clock)).strftime('%Y-%m-%dT%H:%M:%S')}Z"

    def _note(self, claim: Object, reasons: Sequence[Reason]) -> None:
        if reasons:
            self.told[objects.key(claim)] = tuple(reasons)


class Scores(Placer):
    """`scores` of what was placed last, by claim key."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(
            learned=terms.learned,
            policy=terms.policy,
            features=terms.features,
            scoring=terms.scoring,
            explains=False,
        )
        self.scores: dict[str, int] = {}
        self.reader: UseReader | None = None
        """Has counted what is in use while the pods came."""

    def count(self, cache: ClusterCache, pods: Iterable[str]) -> None:
        """What these pods, by uid, run with: claims and classes are there."""
        self.reader, entries = self.reader or self.use_reader(cache), cache.pod_index.entries
        self.reader.read([entries[uid] for uid in pods if uid in entries])

    def in_use(self, cache: ClusterCache) -> Iterable[InUse]:
        return super().in_use(cache) if self.reader is None else self.reader.in_use

    def read_nodes(self) -> None:
        """What is left of the devices, before anybody asks."""
        self.engine.settle()
        index = self.engine.index
        for info in index.nodes.values():
            if info.devices.most_free is None:
                info.devices.most_free = most_free(info, index.taken)

    def place(self, group: Group, excluded: Excluded, *, why: bool = True) -> GroupPlacement:
        found = super().place(group, excluded, why=why)
        if found.score is not None:
            self.scores.update(dict.fromkeys(found.allocations, found.score))
        return found
