"""What stands on each node: slices of its pool, claims with devices there, and the pods that take its room.

Slices without a node's name (another layout than koordra's own) count for every node, as do the claims that hold devices of
theirs. Pods count for the node they are bound to, or that their allocated claims will bring them to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.pod_index import PodEntry, PodIndex

_EVERYWHERE: Final = ""
_Objects = dict[str, Object]


@dataclass
class NodeIndex:
    """Not thread-safe."""

    STATE: ClassVar[tuple[str, ...]] = (
        "repelling", "_slices", "_published", "_holders", "_guests", "_node_of_guest", "_places", "_sites_of_pool", "_claims_of_pool",
    )  # fmt: skip

    nodes: Mapping[str, Object]
    taint_rules: Mapping[str, Object]
    claim_table: Mapping[str, Object]
    pod_index: PodIndex
    repelling: dict[str, str] = field(default_factory=dict)
    """uid -> node of the pods with required anti-affinity of their own."""
    repelling_version: int = 0
    _slices: dict[str, _Objects] = field(default_factory=dict)
    _published: dict[str, _Objects] = field(default_factory=dict)
    _holders: dict[str, _Objects] = field(default_factory=dict)
    _guests: dict[str, _Objects] = field(default_factory=dict)
    _node_of_guest: dict[str, str] = field(default_factory=dict)
    _places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _sites_of_pool: dict[str, dict[str, str]] = field(default_factory=dict)
    """Pool -> slice key -> the node that the slice is for."""
    _claims_of_pool: dict[str, set[str]] = field(default_factory=dict)
    _followers: list[set[str]] = field(default_factory=list)

    def follow(self, more: Iterable[str] = ()) -> set[str]:
        """Names of the nodes there are (and `more`), and of those on which anything changes: a set that the caller empties."""
        touched = {*self.nodes, *more}
        self._followers.append(touched)
        return touched

    def slices(self, name: str) -> tuple[Object, ...]:
        """koordra's slices, with the devices that the controller gives out."""
        found = {**self._slices.get(_EVERYWHERE, {}), **self._slices.get(name, {})}
        return tuple(found[key] for key in sorted(found))

    def published(self, name: str) -> tuple[Object, ...]:
        """Everybody's slices for the node, as they are; "": those that name none."""
        found = self._published.get(name, {})
        return tuple(found[key] for key in sorted(found))

    def slices_of_pool(self, pool: str) -> list[Object]:
        """koordra's slices of a pool, as they are."""
        sites = self._sites_of_pool.get(pool, {})
        return [self._published[sites[key]][key] for key in sorted(sites)]

    def claims_of_pool(self, pool: str) -> list[Object]:
        """Claims that hold devices of koordra's pool, by key."""
        return [self.claim_table[key] for key in sorted(self._claims_of_pool.get(pool, ()))]

    def holders(self, name: str) -> tuple[Object, ...]:
        """Claims with devices on the node, in the order in which they came."""
        wide, own = self._holders.get(_EVERYWHERE, {}), self._holders.get(name, {})
        return tuple({**wide, **own}.values()) if wide else tuple(own.values())

    def guests(self, name: str) -> tuple[Object, ...]:
        """Pods on the node or on their way to it, in the order in which they came."""
        return tuple(self._guests.get(name, {}).values())

    def places_of(self, claim: Object) -> list[str]:
        """The nodes whose devices the claim holds, "" for those of all nodes; a pool that is not published now counts by its own
        name, which is the node's."""
        return sorted({self._site_of(pool) for pool in claims_of.pools(claim)})

    # changes

    def on_node(self, name: str, _before: Object | None, _now: Object | None) -> None:
        self._touch(name)

    def on_taint_rule(self, _name: str, _before: Object | None, _now: Object | None) -> None:
        self._touch(_EVERYWHERE)

    def on_slice(self, key: str, before: Object | None, now: Object | None) -> None:
        for entry in (before, now):
            if entry is None:
                continue
            place, pool = _place_of(entry)
            if entry is now:
                self._published.setdefault(place, {})[key] = entry
            else:
                _drop(self._published, place, key)
            if objects.spec_of(entry).get("driver") != names.DRIVER:
                continue
            was = self._site_of(pool)
            if entry is now:
                self._slices.setdefault(place, {})[key] = joint_slice(entry)
                self._sites_of_pool.setdefault(pool, {})[key] = place
            else:
                _drop(self._slices, place, key)
                _drop(self._sites_of_pool, pool, key)
            self._touch(place)
            if self._site_of(pool) != was:
                for claim in sorted(self._claims_of_pool.get(pool, ())):
                    self._place(claim, self.claim_table.get(claim))

    def on_claim(self, key: str, before: Object | None, now: Object | None) -> None:
        for pool in claims_of.pools(before) if before is not None else ():
            self._claims_of_pool.get(pool, set()).discard(key)
            if not self._claims_of_pool.get(pool):
                self._claims_of_pool.pop(pool, None)
        for pool in claims_of.pools(now) if now is not None else ():
            self._claims_of_pool.setdefault(pool, set()).add(key)
        if before is not None and now is not None and objects.uid(before) != objects.uid(now):
            self._place(key, None)
        self._place(key, now)

    def _place(self, key: str, claim: Object | None) -> None:
        places = tuple(self.places_of(claim)) if claim is not None else ()
        for place in self._places.get(key, ()):
            self._touch(place)
            if place not in places:
                _drop(self._holders, place, key)
        for place in places:
            assert claim is not None
            self._holders.setdefault(place, {})[key] = claim
            self._touch(place)
        if places:
            self._places[key] = places
        else:
            self._places.pop(key, None)

    def on_pod(self, _key: str, before: Object | None, now: Object | None) -> None:
        """Pods with claims come in through `on_pod_touched`, as far as they have no node of their own."""
        if before is not None and (now is None or objects.uid(before) != objects.uid(now)):
            self._guest(objects.uid(before), None, None)
        if now is not None:
            entry = self.pod_index.entries.get(objects.uid(now))
            self._guest(objects.uid(now), now, self._node_of(now, entry))

    def on_pod_touched(self, uid: str, _before: PodEntry | None, now: PodEntry | None) -> None:
        if now is not None:
            self._guest(uid, now.pod, self._node_of(now.pod, now))

    def _node_of(self, pod: Object, entry: PodEntry | None) -> str | None:
        if objects.pod_is_finished(pod):
            return None
        bound = (pod.get("spec") or {}).get("nodeName")
        if bound:
            return str(bound)
        for key in entry.keys if entry is not None else ():
            claim = self.claim_table.get(key)
            if claim is not None and (node := claims_of.node_of(claim)):
                return node
        return None

    def _guest(self, uid: str, pod: Object | None, node: str | None) -> None:
        before = self._node_of_guest.pop(uid, None)
        if before is not None:
            self._touch(before)
            if before != node:
                _drop(self._guests, before, uid)
        repels = False
        if pod is not None and node is not None:
            self._node_of_guest[uid] = node
            self._guests.setdefault(node, {})[uid] = pod
            self._touch(node)
            repels = bool(((pod.get("spec") or {}).get("affinity") or {}).get("podAntiAffinity"))
        if repels and node is not None and self.repelling.get(uid) != node:
            self.repelling[uid] = node
            self.repelling_version += 1
        elif not repels and self.repelling.pop(uid, None) is not None:
            self.repelling_version += 1

    def guest(self, uid: str) -> Object | None:
        """A pod that counts for a node."""
        return self._guests.get(self._node_of_guest.get(uid, ""), {}).get(uid)

    def _site_of(self, pool: str) -> str:
        sites = set(self._sites_of_pool.get(pool, {}).values())
        if not sites:
            return pool
        return sites.pop() if len(sites) == 1 else _EVERYWHERE

    def _touch(self, place: str) -> None:
        touched = self.nodes if place == _EVERYWHERE else (place,)
        for follower in self._followers:
            follower.update(touched)


def _place_of(entry: Object) -> tuple[str, str]:
    """(the node that a slice is for, its pool)."""
    spec = objects.spec_of(entry)
    return str(spec.get("nodeName") or _EVERYWHERE), str((spec.get("pool") or {}).get("name"))


def _drop(table: dict[str, dict[str, Object]] | dict[str, dict[str, str]], place: str, key: str) -> None:
    found = table.get(place)
    if found is not None:
        found.pop(key, None)
        if not found:
            del table[place]


def joint_slice(entry: Object) -> Object:
    """A slice of koordra's with the devices that the controller gives out."""
    spec = objects.spec_of(entry)
    devices = spec.get("devices") or []
    joint = [device for device in devices if allocator_of(device) in {"", names.ALLOCATOR_CONTROLLER}]
    return entry if len(joint) == len(devices) else {**entry, "spec": {**spec, "devices": joint}}


def allocator_of(device: Mapping[str, Any]) -> str:
    """Who gives the device out, in its own words; empty when it does not say. Short attribute names mean the
    driver's domain."""
    attributes = device.get("attributes") or {}
    value = (
        attributes.get(names.ATTR_ALLOCATOR)
        or attributes.get(names.ATTR_ALLOCATOR.removeprefix(names.DOMAIN))
        or {}
    )
    return str(value.get("string") or "")


def joint_slices(slices: Iterable[Object]) -> list[Object]:
    """koordra's slices without the devices of native nodes, and without those in quarantine between the modes;
    slices of other drivers are left out.

    A slice none of whose devices is ours stays, empty, because a pool is complete only with all its slices.
    """
    return [joint_slice(entry) for entry in slices if objects.spec_of(entry).get("driver") == names.DRIVER]
