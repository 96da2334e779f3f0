"""The cluster as the engine sees it, kept by the changes of its objects.

    ClusterChange ─▶ apply ─▶ slices, rules    the allocator's inventory
                              claims           what is taken of each pool (`Usage`), and by whom
                              pods, nodes      what pods ask for of each node
                            ─▶ nodes that changed ─▶ settle ─▶ EquivalentNodes of each ─▶ `changes`

`apply` costs what one object touches; nothing is derived before somebody asks (`settle`). An allocation that
was decided and not yet seen in the API is `assume`d: it counts like any other until a version of the claim
arrives that is not the one it was decided from, or it is forgotten.

Pods count for the node they are bound to, or that their allocated claims will bring them to. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from koordra.allocator.devices.inventory import Inventory, Pool, Usage
from koordra.allocator.devices.nvlink_fabric import honors_partitions
from koordra.allocator.features import Features
from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.claims import DeviceClass
from koordra.api.objects import Fields
from koordra.api.tables import KeySets, set_or_drop
from koordra.errors import InvalidManifest, PlanError
from koordra.placement.holders.allocations import AllocatedClaim, Allocations
from koordra.placement.holders.device_hold import HOLD
from koordra.placement.holders.node_pods import Load, NodePods, PlacedPod
from koordra.placement.holders.reserved_seats import ReservedSeats
from koordra.placement.node_class import EquivalentNodes, NodeClasses, NodeClassUsage, node_predicate_inputs

NODE: Final = "Node"
SLICE: Final = "ResourceSlice"
RULE: Final = "DeviceTaintRule"
CLASS: Final = "DeviceClass"
CLAIM: Final = "ResourceClaim"
POD: Final = "Pod"
KINDS: Final = (CLASS, RULE, SLICE, NODE, CLAIM, HOLD, POD)
"""In the order in which a whole cluster is applied."""

_MOST_CHANGES: Final = 1 << 20


class ClusterChange(NamedTuple):
    """One object is new, another version, or gone (`new` is None). `key`: `namespace/name`, or the name where
    there is no namespace.

    Slices that are no objects of a cluster may share a name: `new` is then a list of all of that name.
    `allocation` is a claim's, where the caller knows it, so that it is not parsed again.
    """

    kind: str
    key: str
    new: Any
    allocation: Allocation | None = None


@dataclass(slots=True, eq=False)
class NodeInfo:
    """One node. `load` is what its pods ask for together, `trouble` why nothing may be placed here: an
    allocation that cannot be read.

    `generation` goes up with every change that an answer about the node can depend on, `settled` also where
    the same is in use by somebody else.
    """

    name: str
    node: Fields
    index: ClusterIndex
    labels: Mapping[str, str] = field(default_factory=dict)
    predicate_inputs: tuple[Any, ...] = ()
    pools: Sequence[Pool] = ()
    load: Load = field(default_factory=dict)
    state: EquivalentNodes | None = None
    trouble: str = ""
    generation: int = 0
    settled: int = 0

    @property
    def holders(self) -> tuple[Any, ...]:
        """The claims with devices here."""
        pools = dict.fromkeys([*(pool.id for pool in self.pools), (names.DRIVER, self.name)])
        return tuple([held.claim for held in self.index.allocations.on(pools).values()])

    @property
    def devices(self) -> NodeClassUsage:
        assert self.state is not None
        return self.state.devices


class Moved(NamedTuple):
    """A node that left one state and entered another."""

    name: str
    before: EquivalentNodes | None
    after: EquivalentNodes | None


class ClusterIndex:
    """`lenient`: nothing is placed beside an allocation that cannot be read, instead of an error."""

    def __init__(self, features: Features, *, lenient: bool = False) -> None:
        self.features = features
        self.inventory = Inventory(features)
        self.nodes: dict[str, NodeInfo] = {}
        self.classes: dict[str, DeviceClass | InvalidManifest] = {}
        self.class_version = 0
        """Goes up when a DeviceClass is another, or namespaces begin or cease to matter (`request_class`)."""
        self.allocations = Allocations(lenient=lenient)
        self.allocated: Mapping[str, AllocatedClaim] = self.allocations.allocated
        self.taken = self.allocations.taken
        self.pods = NodePods()
        self.known = NodeClasses()
        self.changes: list[Moved] = []
        self.published_version = 0
        """Goes up when a node is new, or publishes, is labelled or tainted otherwise."""
        self.base = 0
        """How many changes were dropped from the beginning of `changes`."""
        self.trouble: dict[str, str] = {}
        """Taint rules that cannot be read: nothing may be planned on without them."""
        self._seen: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self.reserved = ReservedSeats()
        self._viewers = KeySets()
        self._stale = set[str]()
        self._loaded = set[str]()  # of these only what pods ask for is another
        self._followers: list[set[str]] = []
        self._undo: list[Callable[[], None]] | None = None

    def allocation(self, key: str) -> Allocation | None:
        """What the claim has."""
        return None if (held := self.allocated.get(key)) is None else held.allocation

    @property
    def listeners(self) -> list[list[Any]]:
        """Who hears of changes: who takes himself out of these is told no more."""
        return [self._followers, self.pods.on_put]

    def follow(self) -> set[str]:
        """Nodes that were settled, that are gone, and that there are: a set that the caller empties."""
        self._followers.append(followed := set(self.nodes))
        return followed

    def apply(self, change: ClusterChange) -> None:
        """Raises PlanError for an allocation or a taint rule that cannot be read."""
        kind, key, new, allocation = change
        if (before := self._seen[kind].get(key)) is new:
            return
        set_or_drop(self._seen[kind], key, new)
        if kind == NODE:
            self._node(key, new)
        elif kind == CLAIM:
            self._claim(key, new, allocation)
        elif kind == POD:
            self._pod(key, new)
        elif kind == HOLD:
            self._hold(key, new)
        elif kind == CLASS:
            self._class(key, before, new)
        elif kind == RULE:
            self._rule(key, new)
        else:
            self._slice(key, new)

    def sync(self, objects_of: Mapping[str, Fields]) -> None:
        """The objects of these kinds are as given, by key; those that are the same values as before are not
        looked at."""
        for kind in [kind for kind in KINDS if kind in objects_of]:
            given, seen = objects_of[kind], self._seen[kind]
            for key in seen.keys() - given.keys():
                self.apply(ClusterChange(kind, key, None))
            for key in [key for key, new in given.items() if seen.get(key) is not new]:
                self.apply(ClusterChange(kind, key, given[key]))

    def assume(
        self, claim: Fields, allocation: Allocation, *, key: str, node: str, pods: Iterable[Fields] = ()
    ) -> None:
        """The claim has this allocation, whatever its object says; the pods will come to the node."""
        self._put_claim(key, AllocatedClaim(claim, allocation, self._seen[CLAIM].get(key, claim)))
        for pod in pods:
            name = objects.key(pod)
            earlier = self.pods.placed.get(name)
            if earlier is None or not earlier.node:
                claims = () if earlier is None else earlier.claims
                self._put_pod(name, PlacedPod(pod, node, self.pods.requests_of(pod), claims))

    def forget_assumed(self) -> None:
        """All claims are as their objects say."""
        for key in [key for key, held in self.allocated.items() if held.seen is not None]:
            self.forget(key)

    def forget(self, key: str) -> None:
        """The assumed allocation was not written: the claim is as its object says."""
        seen = self._seen[CLAIM].get(key)
        self._put_claim(key, None if seen is None else self.allocations.read(key, seen))

    @contextmanager
    def switched(self, nodes: Iterable[str]) -> Iterator[None]:
        """As if the cards of these nodes could be had in either MIG mode."""
        found = {
            name: [pool.switched() if pool.switchable else pool for pool in self.nodes[name].pools]
            for name in nodes
        }
        before = self.inventory.as_if(found)
        try:
            self._stale |= before.keys()
            self.settle()
            yield
        finally:
            self.inventory.as_if(before)
            self._stale |= before.keys()
            self.settle()

    def release(self, held: str) -> None:
        """As if what is held under this key were free, in an overlay."""
        self._put_claim(held, None)

    @contextmanager
    def overlay(self, without: frozenset[str] = frozenset()) -> Iterator[None]:
        """As if these claims and pods (by uid) were gone; what is assumed inside is forgotten at the end."""
        outer, self._undo = self._undo, []
        versions = self.pods.repelling_version, self.pods.room_version
        try:
            if without:
                held, placed = self.allocated.items(), self.pods.placed.items()
                for key in [key for key, one in held if objects.identity(one.claim) in without]:
                    self._put_claim(key, None)
                for key in [key for key, one in placed if objects.identity(one.pod) in without]:
                    self._put_pod(key, None)
                self.settle()
            yield
        finally:
            undo, self._undo = self._undo, None
            for step in reversed(undo):
                step()
            self._undo, (self.pods.repelling_version, self.pods.room_version) = outer, versions
            self.settle()

    def _node(self, name: str, node: Fields | None) -> None:
        if node is None:
            gone = self.nodes.pop(name)
            self._view(gone, ())
            self._move(gone, None)
            self._stale.add(name)
            gone.node = {}  # Lists of candidates may know the entry for long; the object goes at once.
            return
        info, labels, inputs = self.nodes.get(name), objects.labels_of(node), node_predicate_inputs(node)
        known = info is not None
        info = self.nodes[name] = info or NodeInfo(name, node, self)
        if not known or info.labels != labels:
            info.generation += 1
            self.changes.append(Moved(name, info.state, info.state))
        if not known or (info.labels, info.predicate_inputs[0]) != (labels, inputs[0]):
            self.published_version += 1
        info.node, info.labels, info.predicate_inputs = node, labels, inputs
        self._stale.add(name)

    def _slice(self, key: str, new: Any) -> None:
        apart = bool(self.inventory.kept_apart)
        self._stale |= self.inventory.put_slices(key, [new] if isinstance(new, Mapping) else new or ())
        self.class_version += apart is not bool(self.inventory.kept_apart)

    def _rule(self, key: str, new: Any) -> None:
        self.trouble.pop(key, None)
        try:
            self.inventory.put_rule(key, new)
        except PlanError as error:
            self.trouble[key] = str(error)
        self._stale |= self.nodes.keys()

    def _class(self, name: str, before: Fields | None, new: Fields | None) -> None:
        if new is None:
            del self.classes[name]
        elif before is not None and before.get("spec") == new.get("spec") and name in self.classes:
            return
        else:
            try:
                self.classes[name] = DeviceClass.from_dict(new)
            except InvalidManifest as error:
                self.classes[name] = error
        self.class_version += 1

    def _claim(self, key: str, new: Fields | None, allocation: Allocation | None) -> None:
        known = self.allocated.get(key)
        if new is None:
            self._put_claim(key, None)
        elif known is None or known.seen is not new:
            read = self.allocations.read
            self._put_claim(key, read(key, new) if allocation is None else AllocatedClaim(new, allocation))

    def _put_claim(self, key: str, allocated: AllocatedClaim | None) -> None:
        """The claim has this allocation now, or none; its pods that are not bound go where it is."""
        before = self.allocated.get(key)
        if self._undo is not None:
            self._undo.append(partial(self._put_claim, key, before))
        for pool in self.allocations.put(key, allocated):
            self._stale |= self._viewers.get(pool, set())
            if pool[1] in self.nodes:
                self._stale.add(pool[1])
        for name in list(self.pods.of_claim.get(key, ())):
            self._pod(name, self._seen[POD].get(name))

    def _hold(self, key: str, new: Fields | None) -> None:
        gone, found = self.reserved.put(key, new)
        for held in gone:
            self._put_claim(held, None)
        for held, allocated in found.items():
            self._put_claim(held, allocated)

    def _pod(self, key: str, pod: Fields | None) -> None:
        self._put_pod(key, self.pods.read(pod, self.allocation))

    def _put_pod(self, key: str, placed: PlacedPod | None) -> None:
        before = self.pods.placed.get(key)
        if self._undo is not None:
            self._undo.append(partial(self._put_pod, key, before))
        self.pods.put(key, placed)
        self._loaded.update(one.node for one in (before, placed) if one is not None and one.node)

    def settle(self) -> None:
        """Work out what the changes since the last time came to."""
        if not (self._stale or self._loaded):
            return
        others, loaded, self._stale, self._loaded = self._stale, self._loaded, set(), set()
        for name in sorted((others | loaded) & self.nodes.keys()):
            self._settle(self.nodes[name], load_only=name not in others)
        for follower in self._followers:
            follower.update(others, loaded)
        self.known.retain(len(self.nodes))
        if len(self.changes) > _MOST_CHANGES:
            self.base += len(self.changes)
            self.changes.clear()

    def _settle(self, info: NodeInfo, *, load_only: bool) -> None:
        info.settled += 1
        info.load = self.pods.load.get(info.name, {})
        devices = info.state.devices if load_only and info.state is not None else None
        if devices is None or devices.node_class is None:
            pools = self.inventory.pools(info.node)
            if pools is not info.pools:
                self._view(info, pools)
            info.trouble = self.allocations.unread([pool.id for pool in pools])
            devices = self.known.usage_of(pools, self.taken, honors_partitions=honors_partitions(info.labels))
        inputs = info.predicate_inputs, tuple(sorted([one for one in info.load.items() if one[1]]))
        self._move(info, self.known.nodes_alike(devices, (info.trouble, *inputs)))

    def _move(self, info: NodeInfo, state: EquivalentNodes | None) -> None:
        before, info.state = info.state, state
        if state is before:
            return
        if before is not None:
            before.leave(info.name)
        if state is not None:
            state.enter(info.name)
        info.generation += 1
        self.changes.append(Moved(info.name, before, state))

    def _view(self, info: NodeInfo, pools: Sequence[Pool]) -> None:
        self._viewers.move(info.name, [pool.id for pool in info.pools], [pool.id for pool in pools])
        info.pools = pools
        self.published_version += 1

    def taken_without(self, info: NodeInfo, without: frozenset[str]) -> Usage:
        """What is in use of the pools that the node sees, as if these claims (by uid) were gone."""
        return self.allocations.taken_without([pool.id for pool in info.pools], without)

    def load_without(self, info: NodeInfo, without: frozenset[str]) -> Load:
        """What the node's pods ask for together, as if these (by uid) were gone."""
        return self.pods.load_without(info.name, without) if without else info.load
