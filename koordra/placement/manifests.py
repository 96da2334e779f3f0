"""The objects that `plan()` is given, by kind, each once, and of its claims what waits.

Reading is forgiving towards single objects: a claim that cannot be read is kept as its error and concerns
only who uses it. What would change the meaning of everything else (an allocation, a taint rule) is an error
of the index.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import lt

from koordra.allocator.devices.inventory import Inventory
from koordra.allocator.features import Features
from koordra.allocator.reasons import Cause, ClaimRefused, refusal
from koordra.api import objects
from koordra.api.claims import ResourceClaim
from koordra.api.objects import Fields
from koordra.errors import InvalidManifest, PlanError
from koordra.placement.holders.device_hold import HOLD
from koordra.placement.index import CLAIM, CLASS, NODE, POD, RULE, SLICE, ClusterIndex


@dataclass(slots=True)
class Manifests:
    """`claims` by key; `pending` are those of them that wait, `refused` those that cannot be read."""

    nodes: dict[str, Fields]
    pods: list[Fields]
    classes: dict[str, Fields]
    rules: dict[str, Fields]
    slices: dict[str, Fields | list[Fields]] = field(default_factory=dict)
    claims: dict[str, Fields] = field(default_factory=dict)
    pending: dict[str, ResourceClaim] = field(default_factory=dict)
    refused: dict[str, ClaimRefused] = field(default_factory=dict)
    holds: dict[str, Fields] = field(default_factory=dict)

    @classmethod
    def of(cls, manifests: Iterable[Fields]) -> Manifests:
        given = _by_kind(manifests)
        nodes, classes, rules = (
            {objects.name(one): one for one in given.get(kind, ())} for kind in (NODE, CLASS, RULE)
        )
        found = cls(nodes, given.get(POD, []), classes, rules)
        for name, same in itertools.groupby(given.get(SLICE, ()), key=objects.name):
            versions = list(same)
            found.slices[name] = versions[0] if len(versions) == 1 else versions
        for claim in given.get(CLAIM, ()):
            found._take(claim)
        found.holds = {objects.key(one): one for one in given.get(HOLD, ())}
        return found

    def _take(self, claim: Fields) -> None:
        key = objects.key(claim)
        while key in self.claims:
            # Manifests of a what-if may share a name (generateName); each is a claim of its own.
            name, _, number = key.partition("#")
            key = f"{name}#{int(number or 1) + 1}"
        self.claims[key] = claim
        if objects.status_of(claim).get("allocation") is not None or objects.is_deleting(claim):
            return
        try:
            self.pending[key] = replace(ResourceClaim.from_dict(claim), name=key.partition("/")[2])
        except InvalidManifest as error:
            self.refused[key] = refusal(key, Cause.CONSTRAINT_VIOLATED, str(error))
            # The pod's other claims must not be placed without it: it stays known, with nothing asked.
            self.pending[key] = ResourceClaim(
                objects.namespace(claim), objects.name(claim), objects.uid(claim)
            )

    def fill(self, index: ClusterIndex) -> None:
        """Everything in the index is as these objects say. Without Node objects, nodes are those that slices
        name.

        Raises PlanError for an allocation or a taint rule that cannot be read.
        """
        index.forget_assumed()
        index.sync({CLASS: self.classes, RULE: self.rules, SLICE: self.slices})
        if index.trouble:
            raise PlanError(index.trouble[min(index.trouble)])
        nodes = self.nodes or {name: {"metadata": {"name": name}} for name in index.inventory.node_names()}
        pods = {objects.key(pod): pod for pod in self.pods}
        if len(pods) < len(self.pods):
            pods = {f"{objects.key(pod)}#{at}": pod for at, pod in enumerate(self.pods)}
        index.sync({NODE: nodes, CLAIM: self.claims, HOLD: self.holds, POD: pods})

    def consumers(self, keys: Iterable[str]) -> dict[str, set[str]]:
        """Of those of the claims that have an allocation: the consumers that `status.reservedFor` names, by
        uid."""
        return {
            key: _consumers(self.claims[key])
            for key in keys
            if key in self.claims and objects.status_of(self.claims[key]).get("allocation") is not None
        }


def _by_kind(manifests: Iterable[Fields]) -> dict[str, list[Fields]]:
    found: dict[str, list[Fields]] = {}
    for manifest in manifests:
        found.setdefault(str(manifest.get("kind")), []).append(manifest)
    return {kind: _ordered(given) for kind, given in found.items()}


def _consumers(claim: Fields) -> set[str]:
    """Raises nothing: what is no entry uses nothing."""
    entries = objects.status_of(claim).get("reservedFor")
    if not isinstance(entries, Sequence):
        return set()
    return {str(entry.get("uid") or entry.get("name")) for entry in entries if isinstance(entry, Mapping)}


def read_inventory(manifests: Iterable[Fields], *, features: str | Iterable[str] | None = None) -> Inventory:
    """The ResourceSlices and DeviceTaintRules among the objects. Raises PlanError."""
    given = _by_kind(manifests)
    return Inventory.of([*given.get(SLICE, ()), *given.get(RULE, ())], features=Features.of(features))


def _ordered(given: list[Fields]) -> list[Fields]:
    """By name. Of an object that is there several times (by uid, or word by word) the newest is kept.

    Claims, pods and slices without a uid may share a name: those are manifests of a what-if, each an object
    of its own. Slices among them stay in the order given, which is all the order they have.
    """
    who = list(map(_identity, given))
    if all(map(lt, who, islice(who, 1, None))):
        return given
    ordered = [given[at] for at in sorted(range(len(given)), key=who.__getitem__)]
    if len(set(who)) == len(who):
        return ordered
    found: list[Fields] = []
    for _, same in itertools.groupby(ordered, key=_identity):
        versions = list(same)
        kind = "" if objects.uid(versions[0]) else versions[0].get("kind")
        if kind != SLICE:
            versions.sort(key=_newness)
        found += versions if kind in (SLICE, CLAIM, POD) else versions[-1:]
    return found


def _identity(obj: Fields) -> tuple[str, str]:
    own = objects.metadata(obj)
    return f"{own.get('namespace') or 'default'}/{own.get('name', '')}", str(own.get("uid", ""))


def _newness(obj: Fields) -> tuple[object, ...]:
    version = objects.resource_version(obj)
    return (
        int(version) if version.isdecimal() else -1,
        "allocation" in objects.status_of(obj),
        json.dumps(obj, sort_keys=True, default=str),
    )
