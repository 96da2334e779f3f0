"""The objects that `plan()` is given, sorted by kind and read as far as planning needs them.

Reading is forgiving towards single objects: a DeviceClass or claim that cannot be read is kept as its error and concerns
only who uses it; an unreadable ResourceSlice makes its pool invalid. What would change the meaning of everything else
(an allocation, a taint rule) is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordra.allocator.features import TAINT_RULES, Features
from koordra.allocator.inventory import Inventory
from koordra.allocator.reasons import Cause, ClaimRefused, refusal
from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.api.claims import DeviceClass, ResourceClaim
from koordra.api.slices import DeviceTaintRule
from koordra.errors import InvalidManifest, PlanError


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

    @classmethod
    def of(
        cls, manifests: Iterable[Mapping[str, Any]], features: Features, *, inventory: Inventory | None = None
    ) -> Cluster:
        """With an `inventory` the manifests hold no slices and no taint rules of their own; PlanError if they do."""
        found = cls()
        by_kind: dict[str, list[Mapping[str, Any]]] = {}
        for manifest in manifests:
            by_kind.setdefault(str(manifest.get("kind")), []).append(manifest)
        for kind, entries in by_kind.items():
            by_kind[kind] = sorted(entries, key=lambda obj: (objects.key(obj), objects.uid(obj)))
        for node in by_kind.get("Node", ()):
            found.nodes[objects.name(node)] = node
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
            allocation = Allocation.of_claim(claim)
        except InvalidManifest as error:
            raise PlanError(str(error)) from error
        if allocation is not None:
            self.allocated[key] = allocation
        elif not objects.is_deleting(claim):
            try:
                self.pending[key] = replace(ResourceClaim.from_dict(claim), name=key.partition("/")[2])
            except InvalidManifest as error:
                self.refused[key] = refusal(key, Cause.CONSTRAINT_VIOLATED, str(error))
                # The pod's other claims must not be placed without it: it stays known, with nothing asked.
                self.pending[key] = ResourceClaim(
                    objects.namespace(claim), objects.name(claim), objects.uid(claim)
                )


def read_inventory(
    manifests: Iterable[Mapping[str, Any]], *, features: str | Iterable[str] | None = None
) -> Inventory:
    """The ResourceSlices and DeviceTaintRules among the objects, for plans with the same `features`. Raises PlanError."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for manifest in manifests:
        by_kind.setdefault(str(manifest.get("kind")), []).append(manifest)
    for kind in _OF_INVENTORY:
        by_kind[kind] = sorted(by_kind.get(kind, ()), key=lambda obj: (objects.key(obj), objects.uid(obj)))
    return _inventory(by_kind, Features.of(features))


_OF_INVENTORY: Final = ("ResourceSlice", "DeviceTaintRule")


def _inventory(by_kind: Mapping[str, Sequence[Mapping[str, Any]]], features: Features) -> Inventory:
    slices, rules = by_kind.get("ResourceSlice", ()), _taint_rules(by_kind, features)
    return Inventory.of(slices, features=features, rules=rules)


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


def _taint_rules(
    by_kind: Mapping[str, Sequence[Mapping[str, Any]]], features: Features
) -> list[DeviceTaintRule]:
    if TAINT_RULES not in features:
        return []
    rules = []
    for manifest in by_kind.get("DeviceTaintRule", ()):
        try:
            rules.append(DeviceTaintRule.from_dict(manifest))
        except InvalidManifest as error:
            # A rule that cannot be read might taint anything; planning on without it would ignore an administrator.
            raise PlanError(str(error)) from error
    return rules
