"""The cluster as the engine sees it, kept by the changes of its objects.

    Change ─▶ apply ─▶ slices, rules    the allocator's inventory
                       claims           what is taken of each pool (`Usage`), and by whom
                       pods, nodes      what pods ask for of each node
                     ─▶ nodes that changed ─▶ settle ─▶ NodeState of each ─▶ `changes`, which readers walk from where they were

`apply` costs what one object touches; nothing is derived before somebody asks (`settle`). An allocation that was decided and not
yet seen in the API is `assume`d: it counts like any other until a version of the claim arrives that is not the one it was decided
from, or it is forgotten.

Pods count for the node they are bound to, or that their allocated claims will bring them to. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

from koordra.allocator.devices.inventory import Inventory, Pool, PoolID, Usage
from koordra.allocator.devices.nvlink_fabric import honors_partitions
from koordra.allocator.features import Features
from koordra.allocator.predicates import requests_of
from koordra.api import names, objects
from koordra.api.allocation import Allocation, DeviceResult
from koordra.api.claims import DeviceClass
from koordra.api.devices import DeviceID
from koordra.errors import InvalidManifest, PlanError
from koordra.placement.node_class import DeviceState, NodeClasses, NodeState, node_predicate_inputs

Manifest = Mapping[str, Any]
Load = dict[str, Decimal]

NODE: Final = "Node"
SLICE: Final = "ResourceSlice"
RULE: Final = "DeviceTaintRule"
CLASS: Final = "DeviceClass"
CLAIM: Final = "ResourceClaim"
POD: Final = "Pod"
KINDS: Final = (CLASS, RULE, SLICE, NODE, CLAIM, POD)
"""In the order in which a whole cluster is applied."""

_MOST_CHANGES: Final = 1 << 20


class Change(NamedTuple):
    """One object is new, another version, or gone (`new` is None). `key`: `namespace/name`, or the name where there is no namespace.

    Slices that are no objects of a cluster may share a name: `new` is then a list of all of that name. `allocation` is a claim's,
    where the caller knows it, so that it is not parsed again.
    """

    kind: str
    key: str
    new: Manifest | Sequence[Manifest] | None
    allocation: Allocation | None = None


@dataclass(slots=True, eq=False)
class NodeInfo:
    """One node. `load` is what its pods ask for together.

    `generation` goes up with every change that an answer about the node can depend on.
    """

    name: str
    node: Manifest
    index: ClusterIndex
    pools: Sequence[Pool] = ()
    load: Load = field(default_factory=dict)
    state: NodeState | None = None
    predicate_inputs: Hashable = None
    own_predicate_inputs: tuple[Hashable, ...] | None = None
    read: Manifest | None = None
    """The version of the node that `own_predicate_inputs` is of."""
    trouble: str = ""
    """Why nothing may be placed here: an allocation that cannot be read."""
    labels: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0

    @property
    def holders(self) -> tuple[Any, ...]:
        """The claims with devices here."""
        return self.index.holders(self)

    @property
    def guests(self) -> tuple[Any, ...]:
        """The pods that take room."""
        return self.index.guests(self.name)

    @property
    def devices(self) -> DeviceState:
        assert self.state is not None
        return self.state.devices


class Moved(NamedTuple):
    """A node that left one state and entered another."""

    name: str
    before: NodeState | None
    after: NodeState | None


@dataclass(slots=True, eq=False)
class _Held:
    """A claim with an allocation. `seen`: the version of the claim it was decided from, while it is assumed."""

    claim: Manifest
    allocation: Allocation
    by_pool: dict[PoolID, tuple[DeviceResult, ...]]
    seen: Manifest | None = None


@dataclass(slots=True, eq=False)
class _Guest:
    pod: Manifest
    node: str
    requests: Mapping[str, Decimal]
    claims: tuple[str, ...]


class ClusterIndex:
    """`lenient`: nothing is placed beside an allocation that cannot be read, instead of an error."""

    def __init__(self, features: Features, *, lenient: bool = False) -> None:
        self.features = features
        self.inventory = Inventory(features)
        self.nodes: dict[str, NodeInfo] = {}
        self.classes: dict[str, DeviceClass | InvalidManifest] = {}
        self.class_version = 0
        """Goes up when a DeviceClass is another."""
        self.taken = Usage()
        self.known = NodeClasses()
        self.changes: list[Moved] = []
        self.published_version = 0
        """Goes up when a node is new, or publishes, is labelled or tainted otherwise."""
        self.base = 0
        """How many changes were dropped from the beginning of `changes`."""
        self.trouble: dict[str, str] = {}
        """Taint rules that cannot be read: nothing may be planned on without them."""
        self._lenient = lenient
        self._seen: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self._held: dict[str, _Held] = {}
        self._unread: dict[str, str] = {}
        """Claims whose allocation cannot be read, and why."""
        self._of_pool: dict[PoolID, dict[str, tuple[DeviceResult, ...]]] = {}
        self._viewers: dict[PoolID, set[str]] = {}
        self._guests: dict[str, _Guest] = {}
        self._on_node: dict[str, dict[str, _Guest]] = {}
        self._loads: dict[str, Load] = {}
        self._pods_of: dict[str, set[str]] = {}
        self._stale: set[str] = set()
        self._slices: dict[str, tuple[Manifest, ...]] = {}
        self._undo: list[Callable[[], None]] | None = None

    # --- changes ----------------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Raises PlanError for an allocation or a taint rule that cannot be read."""
        kind, key, new, allocation = change
        seen = self._seen[kind]
        before = seen.get(key)
        if before is new:
            return
        if new is None:
            seen.pop(key, None)
        else:
            seen[key] = new
        if kind == NODE:
            self._node(key, new)  # type: ignore[arg-type]
        elif kind == CLAIM:
            self._claim(key, new, allocation)  # type: ignore[arg-type]
        elif kind == POD:
            self._pod(key, new)  # type: ignore[arg-type]
        elif kind == CLASS:
            self._class(key, before, new)  # type: ignore[arg-type]
        elif kind == RULE:
            self._rule(key, before, new)
        else:
            self._slice(key, new)

    def sync(self, objects_of: Mapping[str, Mapping[str, Any]]) -> None:
        """The objects of these kinds are as given, by key; those that are the same values as before are not looked at."""
        for kind in KINDS:
            if kind not in objects_of:
                continue
            given, seen = objects_of[kind], self._seen[kind]
            if len(seen) > len(given) or not seen.keys() <= given.keys():
                for key in seen.keys() - given.keys():
                    self.apply(Change(kind, key, None))
            get = seen.get
            for key in [key for key, new in given.items() if get(key) is not new]:
                self.apply(Change(kind, key, given[key]))

    def assume(
        self, claim: Manifest, allocation: Allocation, *, key: str, node: str, pods: Iterable[Manifest] = ()
    ) -> None:
        """The claim has this allocation, whatever its object says; the pods will come to the node."""
        seen = self._seen[CLAIM].get(key)
        before = self._held.get(key)
        self._hold(key, _Held(claim, allocation, _by_pool(allocation), claim if seen is None else seen))
        if self._undo is not None:
            self._undo.append(partial(self._hold, key, before))
        for pod in pods:
            name = objects.key(pod)
            earlier = self._guests.get(name)
            if earlier is None or not earlier.node:
                claims = () if earlier is None else earlier.claims
                self._come(name, _Guest(pod, node, requests_of(pod), claims))
                if self._undo is not None:
                    self._undo.append(partial(self._come, name, earlier))

    def forget_assumed(self) -> None:
        """All claims are as their objects say."""
        for key in [key for key, held in self._held.items() if held.seen is not None]:
            self.forget(key)

    def forget(self, key: str) -> None:
        """The assumed allocation was not written: the claim is as its object says."""
        seen = self._seen[CLAIM].get(key)
        self._hold(key, None if seen is None else self._read(key, seen))

    @contextmanager
    def overlay(self, without: frozenset[str] = frozenset()) -> Iterator[None]:
        """As if these claims and pods (by uid) were gone; what is assumed inside is forgotten at the end."""
        outer, self._undo = self._undo, []
        try:
            if without:
                self._take_away(without)
                self.settle()
            yield
        finally:
            undo, self._undo = self._undo, outer
            for step in reversed(undo):
                step()
            self.settle()

    def _take_away(self, without: frozenset[str]) -> None:
        assert self._undo is not None
        for key, held in list(self._held.items()):
            if identity(held.claim) in without:
                self._hold(key, None)
                self._undo.append(partial(self._hold, key, held))
        for name, guest in list(self._guests.items()):
            if identity(guest.pod) in without:
                self._come(name, None)
                self._undo.append(partial(self._come, name, guest))

    # --- kinds ------------------------------------------------------------------------------------------------------

    def _node(self, name: str, node: Manifest | None) -> None:
        if node is None:
            gone = self.nodes.pop(name)
            self._view(gone, ())
            self._move(gone, None)
            return
        known = self.nodes.get(name)
        if known is None:
            self.nodes[name] = NodeInfo(name, node, self)
        else:
            known.node = node
        self._stale.add(name)

    def _slice(self, key: str, new: Manifest | Sequence[Manifest] | None) -> None:
        before = self._slices.pop(key, ())
        after: tuple[Manifest, ...] = ()
        if new is not None:
            after = (new,) if isinstance(new, Mapping) else tuple(new)
            self._slices[key] = after
        self._stale |= self.inventory.replace(key, before, after)

    def _rule(self, key: str, before: Any, new: Any) -> None:
        self.trouble.pop(key, None)
        try:
            self.inventory.remove(before) if new is None else self.inventory.put(new)
        except PlanError as error:
            self.trouble[key] = str(error)
        self._stale |= self.nodes.keys()

    def _class(self, name: str, before: Manifest | None, new: Manifest | None) -> None:
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

    def _claim(self, key: str, new: Manifest | None, allocation: Allocation | None) -> None:
        known = self._held.get(key)
        if new is None:
            self._unread.pop(key, None)
            if known is not None:
                self._hold(key, None)
            return
        if known is not None and known.seen is new:
            return
        held = (
            _Held(new, allocation, _by_pool(allocation)) if allocation is not None else self._read(key, new)
        )
        self._hold(key, held)

    def _read(self, key: str, claim: Manifest) -> _Held | None:
        if objects.status_of(claim).get("allocation") is None:
            self._unread.pop(key, None)
            return None
        known = self._held.get(key)
        if known is not None and known.seen is None:
            raw = objects.status_of(known.claim).get("allocation")
            if raw is objects.status_of(claim)["allocation"] or raw == objects.status_of(claim)["allocation"]:
                return _Held(claim, known.allocation, known.by_pool)
        self._unread.pop(key, None)
        try:
            allocation = Allocation.of_claim(claim)
        except InvalidManifest as error:
            if not self._lenient:
                raise PlanError(str(error)) from error
            allocation = _taken_whole(claim)
            self._unread[key] = str(error)
        assert allocation is not None
        return _Held(claim, allocation, _by_pool(allocation))

    def _hold(self, key: str, held: _Held | None) -> None:
        """The claim has this allocation now, or none."""
        before = self._held.get(key)
        if held is None:
            self._held.pop(key, None)
        else:
            self._held[key] = held
        if before is not None and held is not None and before.by_pool == held.by_pool:
            for pool in held.by_pool:
                self._touch(pool)
            if before.allocation.node_selector != held.allocation.node_selector:
                self._repin(key)
            return
        for pool in before.by_pool if before is not None else ():
            of_pool = self._of_pool[pool]
            del of_pool[key]
            self.taken.clear(pool)
            if not of_pool:
                del self._of_pool[pool]
            for other in sorted(of_pool):
                self.taken.add(of_pool[other], holder=other)
            self._touch(pool)
        for pool, results in held.by_pool.items() if held is not None else ():
            self._of_pool.setdefault(pool, {})[key] = results
            self.taken.add(results, holder=key)
            self._touch(pool)
        self._repin(key)

    def _touch(self, pool: PoolID) -> None:
        self._stale |= self._viewers.get(pool, set())
        if pool[1] in self.nodes:
            self._stale.add(pool[1])

    def _repin(self, claim: str) -> None:
        """Pods that are not bound go where their claims are."""
        for name in list(self._pods_of.get(claim, ())):
            pod = self._seen[POD].get(name)
            if pod is not None:
                self._pod(name, pod)

    def _pod(self, key: str, pod: Manifest | None) -> None:
        before = self._guests.get(key)
        for claim in before.claims if before is not None else ():
            self._pods_of[claim].discard(key)
            if not self._pods_of[claim]:
                del self._pods_of[claim]
        guest = None
        if pod is not None and not objects.pod_is_finished(pod):
            node = str(objects.spec_of(pod).get("nodeName") or "")
            claims = () if node else tuple(claim_keys(pod))
            if claims and not node:
                held = (self._held[claim] for claim in claims if claim in self._held)
                node = next((at for one in held if (at := pinned_node(one.allocation))), "")
            same = before is not None and before.pod is pod
            requests = before.requests if before is not None and same else requests_of(pod)
            guest = _Guest(pod, node, requests, claims)
            for claim in claims:
                self._pods_of.setdefault(claim, set()).add(key)
        self._come(key, guest)

    def _come(self, key: str, guest: _Guest | None) -> None:
        before = self._guests.get(key)
        if before is not None and before.node:
            here = self._on_node[before.node]
            del here[key]
            # Summed anew: amounts beyond the digits of a Decimal do not come back by subtraction.
            self._loads[before.node] = _sum(one.requests for one in here.values())
            if not here:
                del self._on_node[before.node], self._loads[before.node]
            self._stale.add(before.node)
        if guest is None:
            self._guests.pop(key, None)
            return
        self._guests[key] = guest
        if guest.node:
            self._on_node.setdefault(guest.node, {})[key] = guest
            self._loads[guest.node] = _sum((self._loads.get(guest.node, {}), guest.requests))
            self._stale.add(guest.node)

    # --- questions --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Work out what the changes since the last time came to."""
        if not self._stale:
            return
        stale, self._stale = self._stale, set()
        for name in sorted(stale):
            info = self.nodes.get(name)
            if info is not None:
                self._settle(info)
        self.known.retain(len(self.nodes))
        if len(self.changes) > _MOST_CHANGES:
            self.base += len(self.changes)
            self.changes.clear()

    def _settle(self, info: NodeInfo) -> None:
        pools = self.inventory.pools(info.node)
        if pools is not info.pools:
            self._view(info, pools)
        info.load = self._loads.get(info.name, {})
        load = tuple(sorted([(name, amount) for name, amount in info.load.items() if amount]))
        labels = objects.labels_of(info.node)
        if info.predicate_inputs is None or info.labels != labels:
            info.labels = labels
            info.generation += 1
            self.published_version += 1
            self.changes.append(Moved(info.name, info.state, info.state))
        info.trouble = self._trouble(info) if self._unread else ""
        if info.read is not info.node:
            before = info.own_predicate_inputs
            info.read, info.own_predicate_inputs = info.node, node_predicate_inputs(info.node)
            self.published_version += before is None or before[0] != info.own_predicate_inputs[0]
        info.predicate_inputs = (info.trouble, info.own_predicate_inputs)
        devices, key = self.known.device_state(pools, self.taken, honors_partitions=honors_partitions(labels))
        self._move(info, self.known.node_state(devices, key, (info.predicate_inputs, load)))

    def _move(self, info: NodeInfo, state: NodeState | None) -> None:
        before = info.state
        if state is before:
            return
        if before is not None:
            before.leave(info.name)
        if state is not None:
            state.enter(info.name)
        info.state = state
        info.generation += 1
        self.changes.append(Moved(info.name, before, state))

    def _view(self, info: NodeInfo, pools: Sequence[Pool]) -> None:
        for pool in info.pools:
            viewers = self._viewers[pool.id]
            viewers.discard(info.name)
            if not viewers:
                del self._viewers[pool.id]
        for pool in pools:
            self._viewers.setdefault(pool.id, set()).add(info.name)
        info.pools = pools
        self.published_version += 1

    def _trouble(self, info: NodeInfo) -> str:
        keys = sorted(
            {key for pool in info.pools for key in self._of_pool.get(pool.id, ()) if key in self._unread}
        )
        return self._unread[keys[0]] if keys else ""

    def guests(self, node: str) -> tuple[Any, ...]:
        """The pods that take room on the node."""
        return tuple([guest.pod for guest in self._on_node.get(node, {}).values()])

    def holders(self, info: NodeInfo) -> tuple[Any, ...]:
        """The claims with devices on the node."""
        pools = dict.fromkeys([*[pool.id for pool in info.pools], (names.DRIVER, info.name)])
        found = dict.fromkeys([key for pool in pools for key in self._of_pool.get(pool, ())])
        return tuple([self._held[key].claim for key in found])

    def allocation(self, key: str) -> Allocation | None:
        """What the claim has."""
        held = self._held.get(key)
        return None if held is None else held.allocation

    @property
    def allocated(self) -> Mapping[str, Any]:
        """The claims that have an allocation, by key."""
        return self._held

    def taken_without(self, info: NodeInfo, without: frozenset[str]) -> Usage:
        """What is taken of the pools that the node sees, as if these claims (by uid) were gone."""
        found = Usage()
        for pool in info.pools:
            for key, results in sorted(self._of_pool.get(pool.id, {}).items()):
                if identity(self._held[key].claim) not in without:
                    found.add(results, holder=key)
        return found

    def load_without(self, info: NodeInfo, without: frozenset[str]) -> Load:
        """What the node's pods ask for together, as if these (by uid) were gone."""
        guests = self._on_node.get(info.name, {}).values()
        if not without or not any(identity(guest.pod) in without for guest in guests):
            return dict(info.load)
        return _sum(guest.requests for guest in guests if identity(guest.pod) not in without)


def identity(obj: Manifest) -> str:
    """The object's uid; the key of a manifest that was never applied."""
    return objects.uid(obj) or objects.key(obj)


def pinned_node(allocation: Allocation) -> str:
    """The one node that an allocation names, empty where it names none."""
    for term in (allocation.node_selector or {}).get("nodeSelectorTerms") or ():
        for entry in term.get("matchFields") or ():
            if entry.get("key") == "metadata.name" and len(entry.get("values") or ()) == 1:
                return str(entry["values"][0])
    return ""


def claim_keys(pod: Manifest) -> list[str]:
    """The pod's claims by `namespace/name`, in the pod's order."""
    if not objects.spec_of(pod).get("resourceClaims"):
        return []
    return [f"{objects.namespace(pod)}/{name}" for name in objects.pod_claim_names(pod).values() if name]


def _by_pool(allocation: Allocation) -> dict[PoolID, tuple[DeviceResult, ...]]:
    found: dict[PoolID, list[DeviceResult]] = {}
    for result in allocation.results:
        found.setdefault((result.device.driver, result.device.pool), []).append(result)
    return {pool: tuple(results) for pool, results in found.items()}


def _taken_whole(claim: Manifest) -> Allocation:
    """What is left of an allocation that cannot be read: whatever devices it names are in use."""
    raw = objects.status_of(claim).get("allocation")
    devices = raw.get("devices") if isinstance(raw, Mapping) else None
    results = devices.get("results") if isinstance(devices, Mapping) else None
    entries = [entry for entry in results or () if isinstance(entry, Mapping)]
    return Allocation(
        tuple(
            DeviceResult("", DeviceID(str(one.get("driver")), str(one.get("pool")), str(one.get("device"))))
            for one in entries
        )
    )


def _sum(many: Iterable[Mapping[str, Decimal]]) -> Load:
    total: Load = {}
    for requests in many:
        for name, amount in requests.items():
            total[name] = total.get(name, Decimal(0)) + amount
    return total
