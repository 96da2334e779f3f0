"""When to look for conflicts (conflict_rules, allocation_audit), without reporting the same one over and over.

Slices are judged node by node, claims one by one, and over-commitment device by device, each when it has changed. A conflict is reported when it is first seen and every REPEAT seconds while it lasts.

Between joint and native allocation a node's devices are in quarantine: published with `allocator: none` and the
taint koordra.io/quarantine, so that nobody gives them out. The plugin waits until the controller has acknowledged that it
has seen that generation of the pool (an annotation on the Node), which it does once all its own writes are settled:
from then on no allocation of the controller's is under way for the node. docs/allocation-modes.md has the whole
protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.cel.selectors import DeviceFacts
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.slice_index import allocator_of, pool_name
from koordra.controller.claims import ClaimEntry
from koordra.controller.conflicts.allocation_audit import (
    Place,
    foreign_manager,
    joint_places,
    overcommitments,
    writer_conflicts,
)
from koordra.controller.conflicts.conflict_rules import (
    DeviceConflict,
    class_conflicts,
    joint_devices,
    set_or_drop,
    slice_conflicts,
)
from koordra.controller.reporting.claim_events import ClaimEvent, cut

REPEAT: Final = 600.0


class ConflictWatch:
    """Follows a cache. Not thread-safe."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._probes: dict[str, tuple[str, DeviceFacts]] = {}
        """Type -> the node and the facts of one joint device."""
        self._of_classes: list[DeviceConflict] = []
        self._of_slices: dict[str, list[DeviceConflict]] = {}
        self._of_claims: dict[str, list[DeviceConflict]] = {}
        self._over_committed: dict[Place, list[DeviceConflict]] = {}
        self._quarantined: dict[str, int] = {}
        """Node -> the highest generation of its pool in which some device changes hands."""
        self._reported: dict[tuple[str, str], float] = {}
        self._classes = cache.follow(DEVICE_CLASSES)
        self._nodes: set[str] = set()
        self._places: set[Place] = set()
        """Devices with other holders than before."""
        self._published: set[str] = set()
        """Pools with other devices."""
        self._claims = set(cache.claims)
        for key, entry in cache.slices.items():
            self._on_slice(key, None, entry)
        cache.listen(RESOURCE_SLICES, self._on_slice)
        cache.claim_index.on_touch.append(self._on_claim)

    def sync(self, *, now: float, also: Sequence[DeviceConflict] = ()) -> list[ClaimEvent]:
        """What is to be reported now; `also`: conflicts that were found elsewhere."""
        self._judge_published()
        self._judge_claims()
        conflicts = {(conflict.reason, conflict.key): conflict for conflict in (*self._conflicts(), *also)}
        due = [place for place in sorted(conflicts) if self._reported.get(place, -REPEAT) + REPEAT <= now]
        self._reported = {place: at for place, at in self._reported.items() if place in conflicts}
        self._reported.update(dict.fromkeys(due, now))
        return [
            ClaimEvent(conflicts[place].reason, cut(conflicts[place].message), conflicts[place].about)
            for place in due
        ]

    def quarantines(self) -> list[tuple[Object, str]]:
        """(node, generation of its pool) for nodes whose quarantine was not confirmed yet."""
        return [
            (node, str(generation))
            for name, generation in sorted(self._quarantined.items())
            if (node := self._cache.nodes.get(name)) is not None
            and objects.annotations_of(node).get(names.QUARANTINE_SEEN) != str(generation)
        ]

    def _conflicts(self) -> Iterable[DeviceConflict]:
        yield from self._of_classes
        for table in (self._of_slices, self._of_claims, self._over_committed):
            for conflicts in table.values():
                yield from conflicts

    # what has changed

    def _on_slice(self, _key: str, before: Object | None, now: Object | None) -> None:
        for entry in (before, now):
            if entry is not None:
                self._nodes.add(str(objects.spec_of(entry).get("nodeName") or ""))
                self._published.add(pool_name(entry))

    def _on_claim(self, key: str, before: ClaimEntry | None, now: ClaimEntry | None) -> None:
        self._claims.add(key)
        for entry in (before, now):
            self._places |= entry.places if entry is not None else frozenset()

    # judging it again

    def _judge_published(self) -> None:
        probed = self._probe()
        for name in self._nodes:
            published = self._cache.slice_index.published(name)
            set_or_drop(self._of_slices, name, slice_conflicts(published, self._cache.nodes))
            generation = _in_quarantine(published)
            if generation is None:
                self._quarantined.pop(name, None)
            else:
                self._quarantined[name] = generation
        self._nodes.clear()
        if probed or self._classes:
            facts = [facts for _, facts in self._probes.values()]
            self._of_classes = class_conflicts(self._cache.classes.values(), facts)
        self._classes.clear()

    def _probe(self) -> bool:
        """Have one joint device of each type; whether it is another one than before."""
        before = dict(self._probes)
        for kind, (name, _) in before.items():
            if name in self._nodes:
                del self._probes[kind]
        lost = before.keys() - self._probes.keys()
        for name in sorted(self._nodes):
            self._probe_node(name)
        if lost - self._probes.keys():
            for name in sorted(self._cache.nodes):
                self._probe_node(name)
        return self._probes != before

    def _probe_node(self, name: str) -> None:
        found = joint_devices(self._cache.slice_index.published(name), self._probes)
        self._probes.update({kind: (name, facts) for kind, facts in found.items()})

    def _judge_claims(self) -> None:
        slices, index = self._cache.slice_index, self._cache.claim_index
        judged = set(self._claims)
        for pool in self._published:
            for entry in index.of_pool(pool):
                judged.add(objects.key(entry.claim))
                self._places |= entry.places
        for place in self._places:
            holders = [entry.claim for entry in index.of_pool(place[0]) if place in entry.places]
            found = overcommitments(place, slices.of_pool(place[0]), holders) if len(holders) > 1 else []
            set_or_drop(self._over_committed, place, found)
        for key in judged:
            held = index.entries.get(key)
            conflicts: list[DeviceConflict] = []
            if held is not None and held.pools and foreign_manager(held.claim):
                joint = joint_places(chain.from_iterable(map(slices.of_pool, held.pools)))
                conflicts = writer_conflicts(held.claim, joint)
            set_or_drop(self._of_claims, key, conflicts)
        self._places.clear()
        self._published.clear()
        self._claims.clear()


def _in_quarantine(slices: Iterable[Object]) -> int | None:
    """The highest generation of a node's pool in which some device changes hands."""
    return max(
        (
            int((objects.spec_of(entry).get("pool") or {}).get("generation") or 0)
            for entry in slices
            if objects.spec_of(entry).get("driver") == names.DRIVER
            and any(
                allocator_of(device) == names.ALLOCATOR_NOBODY
                for device in objects.spec_of(entry).get("devices") or ()
            )
        ),
        default=None,
    )
