"""When to look for what nobody should do (`guards`), and not to tell the same alarm over and over.

Looking is cheap where nothing changed: classes and slices are judged again when one of them is another value than
before, a claim when it is, and over-commitment in the pools of claims that changed. An alarm is told when it is first seen and every REPEAT seconds while it lasts.

Between joint and native allocation a node's devices are in quarantine: published with `allocator: none` and the
taint koordra.io/quarantine, so that nobody gives them out. The plugin waits until the controller has said that it
has seen that generation of the pool (an annotation on the Node), which it says once all its own writes are settled:
from then on no allocation of the controller's is under way for the node. docs/allocation-modes.md has the whole
protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation_guards import joint_places, overcommitments, writer_alarms
from koordra.controller.guards import Alarm, class_alarms, slice_alarms
from koordra.controller.happenings import Happening, cut
from koordra.controller.snapshot import Cluster, allocator_of

REPEAT: Final = 600.0


@dataclass(frozen=True, slots=True)
class _Holder:
    """A claim with devices of koordra's, what is wrong with it alone, and the pools of its devices."""

    claim: Object
    alarms: list[Alarm]
    pools: frozenset[str]


class Lookout:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._published: tuple[Sequence[Object], Sequence[Object], Sequence[Object]] = ((), (), ())
        self._of_published: list[Alarm] = []
        self._joint: frozenset[tuple[str, str]] = frozenset()
        self._claims: dict[str, _Holder] = {}
        self._of_claims: list[Alarm] = []
        self._over_committed: dict[str, list[Alarm]] = {}
        self._slices: Sequence[Object] = ()
        self._quarantined: dict[str, int] = {}
        self._told: dict[tuple[str, str], float] = {}

    def look(self, cluster: Cluster, *, now: float, also: Sequence[Alarm] = ()) -> list[Happening]:
        """What is to be told now; `also`: alarms that were found elsewhere."""
        anew = self._look_at_published(cluster)
        self._look_at_claims(cluster, anew=anew)
        alarms = {
            (alarm.reason, alarm.key): alarm for alarm in (*self._of_published, *self._of_claims, *also)
        }
        due = [place for place in sorted(alarms) if self._told.get(place, -REPEAT) + REPEAT <= now]
        self._told = {place: at for place, at in self._told.items() if place in alarms}
        self._told.update(dict.fromkeys(due, now))
        return [
            Happening(alarms[place].reason, cut(alarms[place].message), alarms[place].about) for place in due
        ]

    def quarantines(self, cluster: Cluster) -> list[tuple[Object, str]]:
        """(node, generation of its pool) for nodes whose quarantine was not confirmed yet."""
        if not _alike(cluster.slices, self._slices):
            self._slices, self._quarantined = cluster.slices, _in_quarantine(cluster.slices)
        seen = self._quarantined
        return [
            (node, str(seen[objects.name(node)]))
            for node in (cluster.nodes if seen else ())
            if objects.name(node) in seen
            and objects.annotations_of(node).get(names.QUARANTINE_SEEN) != str(seen[objects.name(node)])
        ]

    def _look_at_published(self, cluster: Cluster) -> bool:
        published = (cluster.slices, cluster.classes, cluster.nodes)
        if all(_alike(one, other) for one, other in zip(published[:2], self._published[:2], strict=True)):
            return False
        self._published = published
        self._of_published = [*class_alarms(cluster), *slice_alarms(cluster)]
        self._joint = joint_places(cluster.slices)
        return True

    def _look_at_claims(self, cluster: Cluster, *, anew: bool) -> None:
        kept: dict[str, _Holder] = {}
        touched: set[str] = set()
        for claim in cluster.claims:
            if not (claim.get("status") or {}).get("allocation"):
                continue
            uid = objects.uid(claim)
            before = self._claims.get(uid)
            if before is not None and before.claim is claim and not anew:
                kept[uid] = before
            elif claims_of.holds_koordra_devices(claim):
                pools = frozenset(
                    str(result.get("pool"))
                    for result in claims_of.results(claim)
                    if result.get("driver") == names.DRIVER
                )
                kept[uid] = _Holder(claim, writer_alarms(claim, self._joint), pools)
                touched |= pools
        for uid, before in self._claims.items():
            if kept.get(uid) is not before:
                touched |= before.pools
        self._claims = kept
        if touched:
            self._look_at_pools(cluster, touched)
            self._of_claims = [alarm for entry in kept.values() for alarm in entry.alarms]
            self._of_claims += [alarm for pool in self._over_committed.values() for alarm in pool]

    def _look_at_pools(self, cluster: Cluster, touched: set[str]) -> None:
        """Over-commitment in these pools, with all that is held there."""
        for pool in touched:
            self._over_committed.pop(pool, None)
        holders = [entry.claim for entry in self._claims.values() if not touched.isdisjoint(entry.pools)]
        for alarm in overcommitments(cluster, holders):
            pool = alarm.key.rpartition("/")[0]
            if pool in touched:
                self._over_committed.setdefault(pool, []).append(alarm)


def _in_quarantine(slices: Sequence[Object]) -> dict[str, int]:
    """Node -> the highest generation of its pool in which some device changes hands."""
    seen: dict[str, int] = {}
    for entry in slices:
        spec = objects.spec_of(entry)
        if spec.get("driver") != names.DRIVER:
            continue
        if any(allocator_of(device) == names.ALLOCATOR_NOBODY for device in spec.get("devices") or ()):
            generation = int((spec.get("pool") or {}).get("generation") or 0)
            node = str(spec.get("nodeName"))
            seen[node] = max(generation, seen.get(node, 0))
    return seen


def _alike(one: Sequence[Object], other: Sequence[Object]) -> bool:
    return len(one) == len(other) and all(mine is theirs for mine, theirs in zip(one, other, strict=True))
