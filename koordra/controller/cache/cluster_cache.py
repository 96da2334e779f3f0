"""The objects of the cluster by kind, with our own writes laid over the claims, and the indices over them.

Everything comes in through `apply` (what the watches tell) and through `assume`, `doubt` and `lose` (what our
own writes have shown). Both end in `_put`, which changes one table and tells the listeners of that kind: the
indices. So an index costs what changed, and every step of a pass sees what the steps before it wrote.

When is it worth deciding again for a claim that waits? When something that could make room has changed.

The `epoch` goes up when a slice, class, taint rule or volume is not the same any more, when what a node's
scheduling depends on changed (labels, taints, cordon, allocatable, readiness; not its heartbeats), and when a
claim lost its devices. (Room that pods make is counted where they are, in placement/holders.) It does not go
up when devices are given out: what did not fit before does not fit after. So a claim that waits costs nothing
while others are placed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from koordra.api import objects
from koordra.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_HOLDS,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESERVATIONS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from koordra.api.objects import Fields, Object
from koordra.api.tables import set_or_drop
from koordra.controller.cache.assume_cache import AssumeCache, is_older
from koordra.controller.cache.capacity_epoch import CapacityEpoch
from koordra.controller.cache.changes import (
    FABRIC,
    KINDS,
    POD_GROUP,
    Change,
    ChangeQueue,
    Table,
    Tables,
)
from koordra.controller.cache.claim_index import ClaimIndex
from koordra.controller.cache.fabrics import Fabrics
from koordra.controller.cache.immediate_claims import DEFAULT_RULES, ImmediateRules
from koordra.controller.cache.pod_index import PodIndex
from koordra.controller.cache.slice_index import SliceIndex
from koordra.controller.claims import ClaimEntry
from koordra.errors import KoordraError
from koordra.logs import get_logger
from koordra.process.lifecycle import count_failure
from koordra.process.progress import step

log = get_logger(__name__)

AUDIT_PERIOD: Final = 900.0
INDICES: Final = ("pods", "claims", "slices")

OnChange = Callable[[str, Object | None, Object | None], None]
"""(key, before, now); one of the two may be None, and both may be different objects of one name."""


class ClusterCache:
    """Not thread-safe: the worker owns it. `version` goes up with every change."""

    def __init__(self, rules: ImmediateRules = DEFAULT_RULES) -> None:
        self.version = 0
        self._rules = rules
        self.assume_cache = AssumeCache()
        self._cached: dict[Kind, Table] = {RESOURCE_CLAIMS: {}, DEVICE_HOLDS: {}}
        """What is written here, as the watches have it."""
        self._tables: dict[Kind, Table] = {kind: {} for kind in KINDS}
        self._listeners: dict[Kind, list[OnChange]] = {kind: [] for kind in KINDS}
        self._not_taken: dict[str, Exception] = {}
        """Claims that an index could not take in, until they change."""
        self.nodes = self._tables[NODES]
        self.slices = self._tables[RESOURCE_SLICES]
        self.classes = self._tables[DEVICE_CLASSES]
        self.taint_rules = self._tables[DEVICE_TAINT_RULES]
        self.namespaces = self._tables[NAMESPACES]
        self.volume_claims = self._tables[PERSISTENT_VOLUME_CLAIMS]
        self.volumes = self._tables[PERSISTENT_VOLUMES]
        self.claims = self._tables[RESOURCE_CLAIMS]
        self.holds = self._tables[DEVICE_HOLDS]
        self.reservations = self._tables[RESERVATIONS]
        self.pods = self._tables[PODS]
        self.pod_groups = self._tables[POD_GROUP]
        self.fabrics = Fabrics(self._tables[FABRIC], self.nodes)
        entries = dict[str, ClaimEntry]()
        self.pod_index = PodIndex(entries, self.classes)
        self.claim_index = ClaimIndex(self.pod_index, rules, self.namespaces, entries)
        self.slice_index = SliceIndex(self.slices)
        self.capacity_epoch = CapacityEpoch()
        pods, claims, epoch = self.pod_index, self.claim_index, self.capacity_epoch
        pods.on_touch.append(claims.on_pod_touched)
        claims.on_touch += (epoch.on_claim, pods.on_claim)
        self.listen(NODES, epoch.on_node)
        self.listen(NODES, self.fabrics.on_node)
        self.listen(FABRIC, self.fabrics.on_fabric)
        self.listen(RESOURCE_SLICES, self.slice_index.on_slice)
        for kind in (RESOURCE_SLICES, DEVICE_CLASSES, DEVICE_TAINT_RULES, PERSISTENT_VOLUMES, FABRIC):
            self.listen(kind, epoch.on_published)
        self.listen(DEVICE_CLASSES, pods.on_class)
        self.listen(DEVICE_CLASSES, claims.on_class)
        self.listen(NAMESPACES, claims.on_namespace)
        self.listen(RESOURCE_CLAIMS, claims.on_claim)
        for on_pod in (pods.on_pod, claims.on_pod):
            self.listen(PODS, on_pod)

    @classmethod
    def of(cls, cluster: Tables, rules: ImmediateRules = DEFAULT_RULES) -> ClusterCache:
        cache = cls(rules)
        cache.adopt(cluster)
        return cache

    def listen(self, kind: Kind, on_change: OnChange, *, replay: bool = False) -> None:
        """Be told of every change of a kind, after those who listened before. `replay`: of the objects that
        there are, too."""
        for key, obj in list(self._tables[kind].items()) if replay else ():
            self._tell(on_change, kind, key, None, obj)
        self._listeners[kind].append(on_change)

    @property
    def listeners(self) -> list[list[Any]]:
        """Who hears of changes, here and in the indices: who takes himself out of these is told no more."""
        return [*self._listeners.values(), self.pod_index.on_touch, self.claim_index.on_touch]

    def on_gone(self, kind: Kind, *forget: Callable[[str], object]) -> None:
        """Have each of `forget` called with the uid of an object that is gone."""

        def on_change(_key: str, before: Object | None, now: Object | None) -> None:
            if before is not None and (now is None or objects.uid(now) != objects.uid(before)):
                for each in forget:
                    each(objects.uid(before))

        self.listen(kind, on_change)

    def follow(self, kind: Kind) -> set[str]:
        """The keys that have changed and those there are: a set that the caller empties."""
        touched = set(self._tables[kind])
        self.listen(kind, lambda key, _before, _now: touched.add(key))
        return touched

    # what the watches tell

    def apply(self, changes: Iterable[Change]) -> None:
        """Every change, whatever is met with one of them. Raises KoordraError while a claim is not taken in:
        nothing may be given out as long as nobody knows what that one holds."""
        for change in changes:
            if change.kind is RESOURCE_CLAIMS:
                self._put_cached(change.key, change.obj)
            elif change.kind is not DEVICE_HOLDS or self._is_news(change):
                self._put(change.kind, change.key, change.obj)
        for key, defect in self._not_taken.items():
            raise KoordraError(
                f"ResourceClaim {key} was not taken in, and what it holds must be known: {defect!r}"
            )

    def adopt(self, cluster: Tables) -> None:
        self.apply(self.differences(cluster))

    def differences(self, cluster: Tables) -> list[Change]:
        """The changes that lead from here to what a full read has."""
        found: list[Change] = []
        for kind in KINDS:
            listed = cluster.get(kind, {})
            table = self._cached.get(kind, self._tables[kind])
            found += (Change(kind, key, obj) for key, obj in listed.items() if table.get(key) is not obj)
            found += (Change(kind, key, None) for key in table.keys() - listed.keys())
        return found

    # what our own writes show

    def assume(self, claim: Object) -> None:
        self.assume_cache.assume(claim)
        self._refresh(claim)

    def doubt(self, claim: Object, allocation: Fields) -> None:
        self.assume_cache.doubt(claim, allocation)
        self._refresh(claim)

    def lose(self, claim: Object) -> None:
        self.assume_cache.lose(objects.uid(claim))
        self._refresh(claim)

    def put_hold(self, key: str, hold: Object | None) -> None:
        self._put(DEVICE_HOLDS, key, hold)

    def _is_news(self, change: Change) -> bool:
        """Whether it tells of no earlier state of the DeviceHold than what was written since."""
        set_or_drop(self._cached[DEVICE_HOLDS], change.key, change.obj)
        known = self.holds.get(change.key)
        return known is None or change.obj is None or not is_older(change.obj, known)

    def _refresh(self, claim: Object) -> None:
        cached = self._cached[RESOURCE_CLAIMS].get(objects.key(claim))
        if cached is not None and objects.uid(cached) == objects.uid(claim):
            self._put(RESOURCE_CLAIMS, objects.key(claim), self.assume_cache.current(cached))

    def _put_cached(self, key: str, claim: Object | None) -> None:
        before = self._cached[RESOURCE_CLAIMS].get(key)
        if before is not None and (claim is None or objects.uid(before) != objects.uid(claim)):
            self.assume_cache.forget(objects.uid(before))
        set_or_drop(self._cached[RESOURCE_CLAIMS], key, claim)
        if claim is None or not self.assume_cache.has_caught_up_with(claim):
            self._put(RESOURCE_CLAIMS, key, None if claim is None else self.assume_cache.current(claim))

    def _put(self, kind: Kind, key: str, obj: Object | None) -> None:
        step()
        table = self._tables[kind]
        before = table.get(key)
        if before is obj:
            return
        set_or_drop(table, key, obj)
        self.version += 1
        if kind is RESOURCE_CLAIMS:
            self._not_taken.pop(key, None)
        for on_change in self._listeners.get(kind, ()):
            self._tell(on_change, kind, key, before, obj)

    def _tell(
        self, on_change: OnChange, kind: Kind, key: str, before: Object | None, obj: Object | None
    ) -> None:
        try:
            on_change(key, before, obj)
        except AssertionError:
            raise
        except Exception as defect:  # met with one object, which keeps no other from being taken in
            count_failure(defect)
            log.exception("object_not_taken", kind=str(kind), object=key)
            if kind is RESOURCE_CLAIMS and obj is not None:  # one that is gone holds nothing
                self._not_taken[key] = defect

    # for the audit

    def rebuilt(self) -> ClusterCache:
        fresh = ClusterCache(self._rules)
        for kind, table in self._tables.items():
            for key, obj in table.items():
                fresh._put(kind, key, obj)
        return fresh

    def indices(self) -> tuple[PodIndex | ClaimIndex | SliceIndex, ...]:
        self.claim_index.settle()
        return self.pod_index, self.claim_index, self.slice_index

    def touch_all(self) -> None:
        for kind, table in self._tables.items():
            for on_change in self._listeners.get(kind, ()):
                for key, obj in list(table.items()):
                    step()
                    self._tell(on_change, kind, key, obj, obj)


class Audit:
    """The full read, the safety net of a controller that goes by changes. `differences` counts by table or
    index. Not thread-safe.

    Every AUDIT_PERIOD seconds all objects are read from the watches' tables and compared with those that the
    changes led to, and every index is made anew and compared with the one that was kept. A difference is
    counted by what it was found in, logged, and repaired; and everything is told once more to whoever follows
    the indices, so that a lost wake-up ends here at the latest.

    An event may be on its way between a watch's table and the worker when the tables are read. So an object
    counts as different only when the next full read finds the same difference again; that one is made at
    once.
    """

    def __init__(self, cache: ClusterCache, source: ChangeQueue, *, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._source = source
        self._clock = clock
        self._due = clock() + AUDIT_PERIOD
        self._suspects: set[tuple[str, str, int]] = set()
        self.differences: Counter[str] = Counter()

    def run_if_due(self) -> float:
        now = self._clock()
        if now >= self._due:
            self._due = now if self.run() else now + AUDIT_PERIOD
        return self._due

    def run(self) -> bool:
        """One full read; whether another one has to confirm a suspicion."""
        found = self._cache.differences(self._source.cluster())
        suspects = {(str(change.kind), change.key, id(change.obj)): change for change in found}
        missed = [change for suspect, change in suspects.items() if suspect in self._suspects]
        for change in missed:
            self._count(change.kind.plural, change.key)
        self._cache.apply(missed)
        self._suspects = suspects.keys() - self._suspects
        self.compare()
        self._cache.touch_all()
        return bool(self._suspects)

    def compare(self) -> None:
        for name, kept, made in zip(
            INDICES, self._cache.indices(), self._cache.rebuilt().indices(), strict=True
        ):
            for state in kept.STATE:
                if getattr(kept, state) != getattr(made, state):
                    self._count(f"{name}.{state.removeprefix('_')}", "")
                    setattr(kept, state, getattr(made, state))

    @property
    def places(self) -> Iterator[str]:
        """Where a difference may be found."""
        yield from (kind.plural for kind in KINDS)
        for name, kept in zip(INDICES, self._cache.indices(), strict=True):
            yield from (f"{name}.{state.removeprefix('_')}" for state in kept.STATE)

    def _count(self, where: str, key: str) -> None:
        self.differences[where] += 1
        log.error("index_difference", found_in=where, object=key)
