"""Which conflicts (conflict_rules) there are now, what follows from them for placing, and when they are
reported.

Nodes with their slices are judged one by one, claims too, and over-commitment device by device, each when it
has changed. A conflict is reported when it is first seen and every REPEAT seconds while it lasts.

Nodes on which somebody else gives out the same GPUs are left out for claims that may take GPUs, with the
reason ForeignDriver; claims for NICs alone go there, and what is allocated already stays. It is over as soon
as the other one is gone, and the claims that wait are planned again. Events are gone after an hour, so the
Node has the reason too, in the annotation koordra.io/no-gpus, for as long as it holds. On native nodes
kube-scheduler allocates; there the kubelet plugin taints the cards (koordra.io/foreign-plugin).

Nodes whose devices an operator hands over to another stack are left out the same way, and told of it
(handed_over).

Between joint and native allocation a node's devices are in quarantine: published with `allocator: none` and
the taint koordra.io/quarantine, so that nobody gives them out. The plugin waits until the controller has
acknowledged that it has seen that generation of the pool (an annotation on the Node), which it does once all
its own writes are settled: from then on no allocation of the controller's is under way for the node.
docs/allocation-modes.md has the whole protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, KeysView
from itertools import chain
from typing import Final

from koordra.allocator.reasons import Cause, Reason
from koordra.api import names, objects
from koordra.api.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.api.tables import set_or_drop
from koordra.cel.selectors import DeviceFacts
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.controller.cache.slice_index import allocator_of, is_ours, node_name, pool_name
from koordra.controller.claims import ClaimEntry
from koordra.controller.reconcile.conflicts.conflict_rules import (
    DeviceConflict,
    Place,
    class_conflicts,
    contests,
    devices_of,
    foreign_manager,
    foreign_plugin,
    joint_devices,
    joint_places,
    overcommitments,
    strange_slices,
    writer_conflicts,
)
from koordra.controller.reconcile.conflicts.handed_over import (
    GPUS,
    KINDS,
    OwnedKind,
    is_free,
    owner_of,
    peers_resource,
    why_not,
)
from koordra.controller.reporting.claim_events import FOREIGN_PLUGIN, TWO_DRIVERS, ClaimEvent, cut
from koordra.placement.decide import Excluded

REPEAT: Final = 600.0


class ConflictWatch:
    """Follows a cache. Not thread-safe. `version` goes up whenever other nodes are left out, or for other
    reasons."""

    def __init__(self, cache: ClusterCache) -> None:
        self.version = 0
        self._cache = cache
        self._probes: dict[str, tuple[str, DeviceFacts]] = {}
        """Type -> the node and the facts of one joint device."""
        self._of_classes: list[DeviceConflict] = []
        self._of_nodes: dict[str, list[DeviceConflict]] = {}
        self._of_claims: dict[str, list[DeviceConflict]] = {}
        self._over_committed: dict[Place, list[DeviceConflict]] = {}
        self._refused: dict[str, Reason] = {}
        """Why no GPU of a node is given out; `_annotated` is what the Node says about that."""
        self._annotated: dict[tuple[str, str], str] = {}
        self._handed_over: dict[str, dict[OwnedKind, Reason]] = {}
        self._given: dict[tuple[str, str], str] = {}
        """Node and annotation -> the stack that may give its devices out."""
        self._pods: dict[str, dict[str, str]] = {}
        """Node -> pods that have cards of another stack, and under which name."""
        self._quarantined: dict[str, str] = {}
        """Node -> the highest generation of its pool in which some device changes hands."""
        self._reported: dict[tuple[str, str], float] = {}
        self._changed_classes = cache.follow(DEVICE_CLASSES)
        self._changed_nodes = cache.follow(NODES)
        self._changed_places: set[Place] = set()
        self._changed_pools: set[str] = set()
        self._changed_claims = set(cache.claims)
        cache.listen(RESOURCE_SLICES, self._on_slice, replay=True)
        cache.listen(PODS, self._on_pod, replay=True)
        cache.claim_index.on_touch.append(self._on_claim)

    def _on_slice(self, _key: str, before: Object | None, now: Object | None) -> None:
        for entry in filter(None, (before, now)):
            self._changed_nodes.add(node_name(entry))
            self._changed_pools.add(pool_name(entry))

    def _on_claim(self, key: str, before: ClaimEntry | None, now: ClaimEntry | None) -> None:
        self._changed_claims.add(key)
        places = {place for entry in (before, now) if entry is not None for place in entry.places}
        self._changed_places |= places
        self._changed_nodes |= {pool for pool, _ in places} & self._handed_over.keys()

    def _on_pod(self, key: str, before: Object | None, now: Object | None) -> None:
        had = peers_resource(before) if before is not None else ""
        has = peers_resource(now) if now is not None else ""
        for pod, resource in ((before, ""), (now, has)):
            if pod is not None and (had or has):
                node = str(objects.spec_of(pod).get("nodeName") or "")
                set_or_drop(self._pods.setdefault(node, {}), key, resource)
                self._changed_nodes.add(node)
                if not self._pods[node]:
                    del self._pods[node]

    # before planning

    def sync(self) -> None:
        """Judge again the nodes and classes that have changed."""
        probed = self._probe()
        for name in self._changed_nodes:
            self._judge_node(name)
        self._changed_nodes.clear()
        if probed or self._changed_classes:
            facts = [facts for _, facts in self._probes.values()]
            self._of_classes = class_conflicts(self._cache.classes.values(), facts)
        self._changed_classes.clear()

    def _judge_node(self, name: str) -> None:
        node, slices = self._cache.nodes.get(name), self._cache.slice_index.published(name)
        contested, offering = contests(name, slices) if name else [], ""
        about = () if node is None else (node,)
        conflicts = strange_slices(slices)
        conflicts += (
            DeviceConflict(TWO_DRIVERS, one.key, (one.entry, *about), f"node {name}: {one.text}")
            for one in contested
        )
        self._judge_owners(name, node, slices)
        if node is not None and (offering := foreign_plugin(node, slices, self._pods.get(name, {}))):
            text = f"node {name}: {offering}"
            conflicts.append(DeviceConflict(FOREIGN_PLUGIN, name, (node,), text))
        set_or_drop(self._of_nodes, name, conflicts)
        set_or_drop(self._quarantined, name, _in_quarantine(slices))
        text = "; ".join(sorted(one.text for one in contested if one.is_gpu)) or offering
        before = self._refused.get(name)
        reason = Reason(name, None, None, Cause.FOREIGN_DRIVER.value, text) if text else None
        set_or_drop(self._refused, name, reason)
        self.version += before != reason

    def _judge_owners(self, name: str, node: Object | None, slices: Collection[Object]) -> None:
        """Whether the operator hands the node's devices over, and whether the other stack may start."""
        claims, found = self._cache.claim_index.of_pool(name), {}
        written = objects.annotations_of(node) if node is not None else {}
        for key in (names.NO_GPUS, *(kind.given_to for kind in KINDS)):
            set_or_drop(self._annotated, (name, key), written.get(key, ""))
        for kind in KINDS:
            owner = owner_of(node, kind) if node is not None else ""
            set_or_drop(self._given, (name, kind.given_to), owner if is_free(kind, slices, claims) else "")
            if owner and slices:
                text = why_not(owner, kind)
                found[kind] = Reason(name, None, None, Cause.FOREIGN_DRIVER.value, text)
        self.version += self._handed_over.get(name, {}) != found
        set_or_drop(self._handed_over, name, found)

    def _probe(self) -> bool:
        """Have one joint device of each type; whether it is another one than before."""
        before = self._probes
        self._probes = {kind: probe for kind, probe in before.items() if probe[0] not in self._changed_nodes}
        self._probe_nodes(self._changed_nodes)
        if before.keys() - self._probes.keys():
            self._probe_nodes(self._cache.nodes)
        return self._probes != before

    def _probe_nodes(self, nodes: Iterable[str]) -> None:
        for name in sorted(nodes):
            found = joint_devices(self._cache.slice_index.published(name), self._probes)
            self._probes.update({kind: (name, facts) for kind, facts in found.items()})

    def excluded(self, group: Group) -> Excluded:
        if not (self._refused or self._handed_over):
            return {}
        named = {name for claim in group.pending for name in claims_of.class_names(claim)}
        may_take = [kind for kind in KINDS if not (named and named <= kind.others)]
        found = dict(self._refused) if GPUS in may_take else {}
        for node, reasons in self._handed_over.items():
            found.update((node, reasons[kind]) for kind in may_take if kind in reasons)
        return found

    @property
    def refused(self) -> int:
        return len(self._refused)

    def over_committed(self) -> KeysView[Place]:
        """Devices that are given out beyond what they have."""
        self._judge_claims()
        return self._over_committed.keys()

    # after all writes of a pass

    def report(self, *, now: float) -> list[ClaimEvent]:
        self.sync()
        self._judge_claims()
        of_objects = (*self._of_nodes.values(), *self._of_claims.values(), *self._over_committed.values())
        conflicts = {(one.reason, one.key): one for one in chain(self._of_classes, *of_objects)}
        due = [place for place in sorted(conflicts) if self._reported.get(place, -REPEAT) + REPEAT <= now]
        self._reported = {place: at for place, at in self._reported.items() if place in conflicts}
        self._reported.update(dict.fromkeys(due, now))
        return [
            ClaimEvent(one.reason, cut(one.message), one.about) for one in map(conflicts.__getitem__, due)
        ]

    def quarantines(self) -> list[tuple[Object, str]]:
        """(node, generation of its pool) for nodes whose quarantine was not confirmed yet."""
        return [
            (node, generation)
            for name, generation in sorted(self._quarantined.items())
            if (node := self._cache.nodes.get(name)) is not None
            and objects.annotations_of(node).get(names.QUARANTINE_SEEN) != generation
        ]

    def annotations(self) -> list[tuple[Object, str, str | None]]:
        """(node, annotation, what it is to say; None for nothing) where a Node says something else."""
        wanted = {
            (name, names.NO_GPUS): reason.detail for name, reason in self._refused.items()
        } | self._given
        return [
            (self._cache.nodes[name], key, wanted.get((name, key)))
            for name, key in sorted(wanted.keys() | self._annotated.keys())
            if name in self._cache.nodes and wanted.get((name, key)) != self._annotated.get((name, key))
        ]

    def _judge_claims(self) -> None:
        slices, index = self._cache.slice_index, self._cache.claim_index
        for entry in chain.from_iterable(map(index.of_pool, self._changed_pools)):
            self._changed_claims.add(objects.key(entry.claim))
            self._changed_places |= entry.places
        for place in self._changed_places:
            holders = [entry.claim for entry in index.of_pool(place[0]) if place in entry.places]
            found = overcommitments(place, slices.of_pool(place[0]), holders) if len(holders) > 1 else []
            set_or_drop(self._over_committed, place, found)
        for key in self._changed_claims:
            held = index.entries.get(key)
            conflicts: list[DeviceConflict] = []
            if held is not None and held.pools and foreign_manager(held.claim):
                joint = joint_places(chain.from_iterable(map(slices.of_pool, held.pools)))
                conflicts = writer_conflicts(held.claim, joint)
            set_or_drop(self._of_claims, key, conflicts)
        self._changed_places.clear()
        self._changed_pools.clear()
        self._changed_claims.clear()


def _in_quarantine(slices: Iterable[Object]) -> str:
    """The highest generation of a node's pool in which some device changes hands; empty where none does."""
    generations = [
        int((objects.spec_of(entry).get("pool") or {}).get("generation") or 0)
        for entry in slices
        if is_ours(entry)
        and any(allocator_of(device) == names.ALLOCATOR_NOBODY for device in devices_of(entry))
    ]
    return str(max(generations)) if generations else ""
