"""The nodes as places where claims can go, each with what takes room there.

A `Site` is what has to be known to judge one node by itself: the node, the slices of its pool, the claims that
hold its devices, and the sum of what its pods ask for. One node's answer depends on nothing else (koordra publishes
one pool per node), so a change on one node makes one site new and leaves all others as they are; `changes` tells
which. Slices without a node's name (another layout than koordra's own) are part of every site, as are the claims
that hold devices of theirs.

Clusters consist of many nodes of few kinds. The `likeness` of a site says what its devices are and how much of each
is taken, without the names of nodes and claims and without what identifies a single device (uuid, interface names:
of those it keeps only which devices share a value). Sites of equal likeness have the same answer from the
allocator, device by device. What stands on a node is known to the cache's node index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

from koordra.allocator.devices.nvlink_fabric import honors_partitions
from koordra.allocator.predicates import requests_of
from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache

Inventory = Any
"""What `read_inventory` answers; only the allocator looks inside."""

_EVERYWHERE: Final = ""
IDENTITIES: Final = frozenset(
    name.removeprefix(names.DOMAIN) for name in (names.ATTR_UUID, names.ATTR_IB_DEVICE, names.ATTR_NETDEV)
)
"""Attributes that name a single device; requests that speak of one are asked site by site."""

Load = dict[str, Decimal]


@dataclass(slots=True)
class Site:
    """`holders` are claims with devices here, `guests` the pods that take room, `load` what those ask for together;
    `kind` is the likeness of what is published; `version` goes up with every change."""

    name: str
    node: Object
    slices: tuple[Object, ...] = ()
    holders: tuple[Object, ...] = ()
    guests: tuple[Object, ...] = ()
    version: int = 0
    inventory: Inventory = None
    load: Load = field(default_factory=dict)
    kind: int | None = None
    likeness: Hashable = None

    def shown(self, *, without: frozenset[str] = frozenset()) -> list[Object]:
        """The node (its room for pods is judged elsewhere) and the holders, for the allocator. `without`: uids of
        claims as if they were gone."""
        bare = {"kind": "Node", "metadata": self.node.get("metadata")}
        return [bare, *(claim for claim in self.holders if objects.uid(claim) not in without)]

    def load_without(self, gone: frozenset[str]) -> Load:
        """What the pods ask for together, as if these (by uid) were gone."""
        if not gone or not any(objects.uid(pod) in gone for pod in self.guests):
            return dict(self.load)
        load: Load = {}
        for pod in self.guests:
            if objects.uid(pod) not in gone:
                add_load(load, requests_of(pod))
        return load


class Sites:
    """All sites, brought up to date by `look`. Not thread-safe."""

    def __init__(self, read_inventory: Callable[[Iterable[Object]], Inventory]) -> None:
        self.by_name: dict[str, Site] = {}
        self.changes: list[str] = []
        """Names of sites in the order in which they changed (or appeared, or went)."""
        self.numbering = 0
        """Goes up when kinds get other numbers."""
        self._read_inventory = read_inventory
        self._versions = 0
        """Counted over all sites, so that a node that went and came back has no version that it had before."""
        self._rules: Sequence[Object] = ()
        self._cache: ClusterCache | None = None
        self._touched: set[str] = set()
        self._asked: dict[str, tuple[object, Load]] = {}
        self._kinds: dict[bytes, int] = {}
        self._numbered = 0
        self._holdings: dict[str, tuple[Object, tuple[Any, ...]]] = {}

    def look(self, cache: ClusterCache) -> None:
        """Everything as it is now: the nodes on which anything has changed since the last call."""
        if self._cache is not cache:
            self._cache, self._touched = cache, cache.node_index.follow(self.by_name)
        rules = [cache.taint_rules[name] for name in sorted(cache.taint_rules)]
        new_rules = not _alike(self._rules, rules)
        self._rules = rules
        nodes = cache.node_index
        for name in sorted(self._touched):
            node = cache.nodes.get(name)
            if node is not None:
                self._settle(
                    name,
                    node,
                    slices=nodes.slices(name),
                    holders=nodes.holders(name),
                    guests=nodes.guests(name),
                    new_rules=new_rules,
                )
            elif self.by_name.pop(name, None) is not None:
                self.changes.append(name)
        self._touched.clear()
        self._forget(cache)

    def given_out(self, claim: Object, pods: Iterable[Object]) -> None:
        """An allocation was written: it holds devices, and its pods will come."""
        assert self._cache is not None
        places = self._cache.node_index.places_of(claim)
        here, uid = claims_of.node_of(claim), objects.uid(claim)
        everywhere = _EVERYWHERE in places
        touched = self.by_name if everywhere else [name for name in {*places, here} if name in self.by_name]
        for name in touched:
            site = self.by_name[name]
            others = (entry for entry in site.holders if objects.uid(entry) != uid)
            holders = (*others, claim) if everywhere or name in places else None
            self._change(site, holders=holders, guests=_joined(site, pods) if name == here else None)

    def put_back(self, name: str, *, holders: tuple[Object, ...], guests: tuple[Object, ...]) -> None:
        """The site has these holders and guests (again): what was given out to try something is undone."""
        site = self.by_name.get(name)
        if site is not None and not (_alike(site.holders, holders) and _alike(site.guests, guests)):
            self._change(site, holders=holders, guests=guests)

    def _settle(
        self,
        name: str,
        node: Object,
        *,
        slices: tuple[Object, ...],
        holders: tuple[Object, ...],
        guests: tuple[Object, ...],
        new_rules: bool,
    ) -> None:
        site = self.by_name.get(name)
        if site is None:
            site = self.by_name[name] = Site(name, node)
            new_rules = True
            self._change(site)
        if new_rules or not _alike(site.slices, slices):
            site.slices = slices
            site.inventory = None
            site.kind = self._kind_of(slices)
            self._change(site)
        if site.node is not node:
            before, site.node = site.node, node
            if _face(before) != _face(node):
                self._change(site)
        if not _alike(site.holders, holders):
            self._change(site, holders=holders)
        if not _alike(site.guests, guests):
            self._change(site, guests=guests)

    def _change(
        self,
        site: Site,
        *,
        holders: tuple[Object, ...] | None = None,
        guests: tuple[Object, ...] | None = None,
    ) -> None:
        """Take over what is new; a change that the site's answer cannot depend on makes no new version."""
        devices = (holders is None and guests is None) or (
            holders is not None and not self._hold_alike(site.holders, holders)
        )
        room = False
        if holders is not None:
            site.holders = holders
        if guests is not None:
            load = self._load(site, guests)
            room = load != site.load
            site.guests, site.load = guests, load
        if devices:
            site.likeness = self._likeness(site)
        if devices or room:
            self._versions += 1
            site.version = self._versions
            self.changes.append(site.name)

    def _hold_alike(self, before: Sequence[Object], after: Sequence[Object]) -> bool:
        return len(before) == len(after) and all(
            self._held(mine) == self._held(theirs) for mine, theirs in zip(before, after, strict=True)
        )

    def _load(self, site: Site, guests: Sequence[Object]) -> Load:
        """What the guests ask for together; those that only came are added to what was there."""
        stayed = len(site.guests)
        grown = stayed <= len(guests) and _alike(site.guests, guests[:stayed])
        load = dict(site.load) if grown else {}
        for pod in guests[stayed:] if grown else guests:
            add_load(load, self._requests(pod))
        return load

    def _likeness(self, site: Site) -> Hashable:
        """None where it cannot be told: slices that are not one node's own."""
        if site.kind is None:
            return None
        held = [
            ("" if pool == site.name else pool, device, shared, consumed)
            for claim in site.holders
            for pool, device, shared, consumed in self._held(claim)
        ]
        return (site.kind, honors_partitions(objects.labels_of(site.node)), tuple(sorted(held)))

    def _kind_of(self, slices: Sequence[Object]) -> int | None:
        """A number for what is published; sites of the same number publish the same."""
        own = all(
            (spec := objects.spec_of(entry)).get("nodeName")
            and (spec.get("pool") or {}).get("name") == spec.get("nodeName")
            for entry in slices
        )
        if not own:
            return None
        likeness = sha256(published_likeness(slices, self._rules).encode()).digest()
        found = self._kinds.get(likeness)
        if found is None:
            # A number is never used again: answers are kept by it, longer than kinds are.
            found = self._kinds[likeness] = self._numbered
            self._numbered += 1
        return found

    def _held(self, claim: Object) -> tuple[Any, ...]:
        uid = objects.uid(claim)
        before = self._holdings.get(uid)
        if before is not None and before[0] is claim:
            return before[1]
        found = _held_of(claim)
        self._holdings[uid] = (claim, found)
        return found

    def inventory_of(self, site: Site) -> Inventory:
        """The site's slices and the taint rules, read when first asked for."""
        if site.inventory is None:
            site.inventory = self._read_inventory([*site.slices, *self._rules])
        return site.inventory

    def _requests(self, pod: Object) -> Load:
        uid, generation = objects.uid(pod), objects.metadata(pod).get("generation")
        before = self._asked.get(uid)
        if before is not None and generation is not None and before[0] == generation:
            return before[1]
        found = requests_of(pod)
        if uid:
            self._asked[uid] = (generation, found)
        return found

    def _forget(self, cache: ClusterCache) -> None:
        if len(self._asked) > 2 * len(cache.pods) + 100:
            living = {objects.uid(pod) for pod in cache.pods.values()}
            self._asked = {uid: entry for uid, entry in self._asked.items() if uid in living}
        if len(self._holdings) > 2 * len(cache.claims) + 100:
            kept = {objects.uid(claim) for claim in cache.claims.values()}
            self._holdings = {uid: entry for uid, entry in self._holdings.items() if uid in kept}
        if len(self._kinds) > 4 * len(self.by_name) + 100:
            self._kinds.clear()
            self.numbering += 1
            for site in self.by_name.values():
                site.kind = self._kind_of(site.slices)
                self._change(site)


def _joined(site: Site, pods: Iterable[Object]) -> tuple[Object, ...] | None:
    """The site's guests with these pods; None where all of them are there already."""
    known = {objects.uid(pod) for pod in site.guests}
    new = [pod for pod in pods if objects.uid(pod) not in known]
    return (*site.guests, *new) if new else None


def add_load(load: Load, asked: Mapping[str, Decimal]) -> None:
    for name, amount in asked.items():
        load[name] = load.get(name, Decimal(0)) + amount


def _alike(one: Sequence[Object], other: Sequence[Object]) -> bool:
    return len(one) == len(other) and all(mine is theirs for mine, theirs in zip(one, other, strict=True))


def _face(node: Object) -> object:
    """What the predicates look at; heartbeats are left out."""
    spec, status = objects.spec_of(node), objects.status_of(node)
    ready = [entry.get("status") for entry in status.get("conditions") or () if entry.get("type") == "Ready"]
    return (
        objects.labels_of(node),
        spec.get("unschedulable"),
        spec.get("taints"),
        status.get("allocatable"),
        ready,
    )


def _held_of(claim: Object) -> tuple[Hashable, ...]:
    """What a claim holds of koordra's, without its name: (pool, device, shared, consumed) per device."""
    return tuple(
        (
            str(result.get("pool")),
            str(result.get("device")),
            result.get("shareID") is not None,
            tuple(claims_of.consumed(result).items()),
        )
        for result in claims_of.results(claim)
        if result.get("driver") == names.DRIVER and not result.get("adminAccess")
    )


def published_likeness(slices: Sequence[Object], rules: Sequence[Object]) -> str:
    """Equal for sites that publish the same, whatever nodes and single devices are called."""
    numbers: dict[tuple[str, str], int] = {}
    pools = {
        str((objects.spec_of(entry).get("pool") or {}).get("name")): index
        for index, entry in enumerate(slices)
    }
    found = [_slice_likeness(entry, numbers) for entry in slices]
    ruled = []
    for rule in rules:
        spec = objects.spec_of(rule)
        selector = dict(spec.get("deviceSelector") or {})
        if selector.get("pool") is None or selector["pool"] in pools:
            selector["pool"] = None
            ruled.append([selector, spec.get("taint")])
    return json.dumps([found, ruled], sort_keys=True)


def _slice_likeness(entry: Object, numbers: dict[tuple[str, str], int]) -> object:
    spec = {
        name: value for name, value in objects.spec_of(entry).items() if name not in ("nodeName", "devices")
    }
    pool = {name: value for name, value in (spec.get("pool") or {}).items() if name == "resourceSliceCount"}
    devices = []
    for device in objects.spec_of(entry).get("devices") or ():
        attributes = {
            name: numbers.setdefault((name, json.dumps(value, sort_keys=True)), len(numbers))
            if str(name).rpartition("/")[2] in IDENTITIES
            else value
            for name, value in (device.get("attributes") or {}).items()
        }
        devices.append({**device, "attributes": attributes})
    return [{**spec, "pool": pool}, devices]
