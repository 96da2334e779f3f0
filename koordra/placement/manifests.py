"""The objects that `plan()` is given, sorted by kind and read as far as planning needs them.

Reading is forgiving towards single objects: a DeviceClass or claim that cannot be read is kept as its error and concerns
only who uses it; an unreadable ResourceSlice makes its pool invalid. What would change the meaning of everything else
(an allocation, a taint rule) is an error.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import lt
from typing import Any, Final

from koordra.allocator.features import Features
from koordra.allocator.inventory import Inventory
from koordra.allocator.reasons import Cause, ClaimRefused, refusal
from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.api.claims import DeviceClass, ResourceClaim
from koordra.errors import InvalidManifest, PlanError
from koordra.placement.parse_cache import KnownObjects


@dataclass(slots=True)
class Cluster:
    """The objects by kind, read as far as planning needs them."""

    nodes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    pods: list[Mapping[str, Any]] = field(default_factory=list)
    classes: dict[str, DeviceClass | InvalidManifest] = field(default_factory=dict)
    slices: Inventory = field(default_factory=lambda: Inventory(Features()))
    pending: dict[str, ResourceClaim] = field(default_factory=dict)
    refused: dict[str, ClaimRefused] = field(default_factory=dict)
    allocated: dict[str, Allocation] = field(default_factory=dict)
    consumers: dict[str, set[str]] = field(default_factory=dict)
    """Of claims that somebody uses: the consumers that `status.reservedFor` names, by uid."""
    known: KnownObjects = field(default_factory=KnownObjects)

    @classmethod
    def of(
        cls,
        manifests: Iterable[Mapping[str, Any]],
        features: Features,
        *,
        inventory: Inventory | None = None,
        known: KnownObjects | None = None,
    ) -> Cluster:
        """With an `inventory` the manifests hold no slices and no taint rules of their own; PlanError if they do.

        `known`: what was read of them before.
        """
        found = cls() if known is None else cls(known=known)
        found.known.begin()
        by_kind: dict[str, list[Mapping[str, Any]]] = {}
        for manifest in manifests:
            by_kind.setdefault(str(manifest.get("kind")), []).append(manifest)
        found.nodes = found.known.nodes(by_kind.pop("Node", []), _by_name)
        for kind, entries in by_kind.items():
            by_kind[kind] = _ordered(entries)
        found.pods = by_kind.get("Pod", [])
        for entry in by_kind.get("DeviceClass", ()):
            try:
                found.classes[objects.name(entry)] = DeviceClass.from_dict(entry)
            except InvalidManifest as error:
                found.classes[objects.name(entry)] = error
        found.slices = _inventory(by_kind, features) if inventory is None else inventory
        if inventory is not None:
            _refuse_twice(by_kind, inventory, features)
        for claim in by_kind.get("ResourceClaim", ()):
            found.take_claim(claim)
        if not found.nodes:
            found.nodes = {name: {"metadata": {"name": name}} for name in found.slices.node_names()}
        return found

    def take_claim(self, claim: Mapping[str, Any]) -> None:
        key = objects.key(claim)
        while key in self.pending or key in self.allocated:
            # Manifests of a what-if may share a name (generateName); each is a claim of its own.
            name, _, number = key.partition("#")
            key = f"{name}#{int(number or 1) + 1}"
        try:
            allocation = self.known.allocation(claim)
        except InvalidManifest as error:
            raise PlanError(str(error)) from error
        if allocation is not None:
            self.allocated[key] = allocation
            self.consumers[key] = _consumers(claim)
        elif not objects.is_deleting(claim):
            try:
                self.pending[key] = replace(ResourceClaim.from_dict(claim), name=key.partition("/")[2])
            except InvalidManifest as error:
                self.refused[key] = refusal(key, Cause.CONSTRAINT_VIOLATED, str(error))
                # The pod's other claims must not be placed without it: it stays known, with nothing asked.
                self.pending[key] = ResourceClaim(
                    objects.namespace(claim), objects.name(claim), objects.uid(claim)
                )


def _by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {objects.name(node): node for node in _ordered(entries)}


def _consumers(claim: Mapping[str, Any]) -> set[str]:
    """Raises nothing: what is no entry uses nothing."""
    entries = objects.status_of(claim).get("reservedFor")
    if not isinstance(entries, Sequence):
        return set()
    return {str(entry.get("uid") or entry.get("name")) for entry in entries if isinstance(entry, Mapping)}


def read_inventory(
    manifests: Iterable[Mapping[str, Any]], *, features: str | Iterable[str] | None = None
) -> Inventory:
    """The ResourceSlices and DeviceTaintRules among the objects, for plans with the same `features`. Raises PlanError."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for manifest in manifests:
        by_kind.setdefault(str(manifest.get("kind")), []).append(manifest)
    return _inventory(
        {kind: _ordered(by_kind.get(kind, [])) for kind in _OF_INVENTORY}, Features.of(features)
    )


_OF_INVENTORY: Final = ("ResourceSlice", "DeviceTaintRule")


def _inventory(by_kind: Mapping[str, Sequence[Mapping[str, Any]]], features: Features) -> Inventory:
    found = [entry for kind in _OF_INVENTORY for entry in by_kind.get(kind, ())]
    return Inventory.of(found, features=features)


def _refuse_twice(
    by_kind: Mapping[str, Sequence[Mapping[str, Any]]], inventory: Inventory, features: Features
) -> None:
    found = [kind for kind in _OF_INVENTORY if by_kind.get(kind)]
    if found:
        raise PlanError(
            f"objects hold {found[0]}s although an inventory is given; leave them out of one of the two"
        )
    if inventory.features != features:
        raise PlanError("the inventory was read for other feature gates; read it with those of the plan")


def _ordered(entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """By name. Of an object that is there several times (by uid, or word by word) the newest is kept.

    Claims, pods and slices without a uid may share a name: those are manifests of a what-if, each an object of its own. Slices
    among them stay in the order given, which is all the order they have.
    """
    given = list(entries)
    who = list(map(_identity, given))
    if all(map(lt, who, islice(who, 1, None))):
        return given
    ordered = [given[at] for at in sorted(range(len(given)), key=who.__getitem__)]
    if len(set(who)) == len(who):
        return ordered
    found: list[Mapping[str, Any]] = []
    for _, same in itertools.groupby(ordered, key=_identity):
        versions = list(same)
        kind, one = versions[0].get("kind"), bool(objects.uid(versions[0]))
        if kind == "ResourceSlice" and not one:
            found += versions
            continue
        versions.sort(key=_newness)
        found += versions if kind in _MADE_OFTEN and not one else versions[-1:]
    return found


_MADE_OFTEN: Final = ("ResourceClaim", "Pod")


def _identity(obj: Mapping[str, Any]) -> tuple[str, str]:
    own = objects.metadata(obj)
    return f"{own.get('namespace') or 'default'}/{own.get('name', '')}", str(own.get("uid", ""))


def _newness(obj: Mapping[str, Any]) -> tuple[object, ...]:
    version = objects.resource_version(obj)
    return (
        int(version) if version.isdecimal() else -1,
        "allocation" in objects.status_of(obj),
        json.dumps(obj, sort_keys=True, default=str),
    )
