"""Which claims may have devices although no pod uses them: Immediate, as classic DRA meant it. Pure.

    every class of the claim says so          granted: classes are the operator's
    the claim's annotation says so            granted where the admission policy koordra-immediate keeps those
                                              from writing it who may not hold devices (`by_annotation`), or
                                              where its classes say Retain
    the annotation says anything else         never: it waits for a pod, whatever its classes say
    it was made from a template               never: it has its pod

Devices without a pod are kept from everybody, so the Immediate claims of a namespace have a number of them
at most: `devices`, or what the Namespace's annotation koordra.io/immediate-devices says, which tenants cannot
write. Claims that have devices count first, used or not, then older ones; a claim that asks for more than is
left is passed over. What is not granted is a claim like every other: it waits for a pod, and gives its
devices back when no pod can use them.

What is granted gives way to pods that wait (eviction/displacement) for as long as no pod has reserved it,
unless it *keeps* its devices: its classes say Retain, or the finalizer koordra.io/retain was put on it while
they did (the same policy guards it). When its last pod ends, kube-controller-manager frees a
claim that does not keep its devices; then it waits again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.claims import ClaimEntry, Owner

MOST_DEVICES: Final = 8


@dataclass(frozen=True, slots=True)
class ImmediateRules:
    """`by_annotation`: whether the annotation of a claim counts; `devices` of a namespace that says nothing
    else."""

    by_annotation: bool = True
    devices: int = MOST_DEVICES


DEFAULT_RULES: Final = ImmediateRules()


@dataclass(frozen=True, slots=True)
class Grants:
    """Of a namespace, by key of the claim. `keeping`: those of the granted that nobody takes devices from;
    `refused`: why not."""

    granted: frozenset[str] = frozenset()
    keeping: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)


NONE: Final = Grants()


def asks(entry: ClaimEntry, classes: Mapping[str, Object]) -> bool:
    """Whether the claim wants devices without a pod, and koordra's."""
    if entry.made_for is not None or (entry.is_deleting and not entry.is_allocated):
        return False
    mode = objects.annotations_of(entry.claim).get(names.MODE_LABEL)
    wants = mode == names.IMMEDIATE or (mode is None and _all(entry, classes, claims_of.is_immediate))
    return wants and (
        bool(entry.pools) or claims_of.owner_of(entry.class_names, classes) is not Owner.FOREIGN
    )


def judge(
    asking: Mapping[str, ClaimEntry],
    classes: Mapping[str, Object],
    namespace: Object | None,
    rules: ImmediateRules,
) -> Grants:
    """`asking`: the claims of one namespace that want devices without a pod."""
    granted, keeping, refused = set[str](), set[str](), dict[str, str]()
    allowed, whose = _allowed(namespace, rules)
    for key, entry in asking.items():
        retained = _all(entry, classes, _retains)
        if not (rules.by_annotation or retained or _all(entry, classes, claims_of.is_immediate)):
            refused[key] = _UNGUARDED
        elif entry.is_allocated and claims_of.is_kept(entry.claim) and (retained or rules.by_annotation):
            keeping.add(key)
    left = allowed - sum(len(asking[key].devices) for key in keeping)
    for key in sorted(asking.keys() - refused.keys() - keeping, key=lambda key: _order(key, asking[key])):
        entry = asking[key]
        number = len(entry.devices) if entry.is_allocated else claims_of.requested_devices(entry.claim)
        if number <= left:
            granted.add(key)
            left -= number
        else:
            refused[key] = _beyond(number, allowed, whose)
    return Grants(frozenset(granted | keeping), frozenset(keeping), refused)


def _all(entry: ClaimEntry, classes: Mapping[str, Object], says: Callable[[Fields], bool]) -> bool:
    """Whether every class that the claim names says it; a claim of another class too would hold its devices
    as well."""
    return bool(entry.class_names) and all(
        name in classes and says(classes[name]) for name in entry.class_names
    )


def _retains(device_class: Fields) -> bool:
    return objects.annotations_of(device_class).get(names.RECLAIM_POLICY) == names.RETAIN


def _order(key: str, entry: ClaimEntry) -> tuple[bool, str, str]:
    created = str(objects.metadata(entry.claim).get("creationTimestamp") or "")
    return not entry.is_allocated, created, key


def _allowed(namespace: Object | None, rules: ImmediateRules) -> tuple[int, str]:
    """How many devices, and who says so. A word that is no number counts as 0: nobody holds more than was
    meant."""
    said = objects.annotations_of(namespace or {}).get(names.IMMEDIATE_DEVICES)
    if said is None:
        return rules.devices, "the controller's --immediate-devices"
    where = f"the annotation {names.IMMEDIATE_DEVICES} of its namespace"
    if said.isascii() and said.isdecimal() and len(said) <= 6:
        return int(said), where
    return 0, f"{where}, {said!r}, which is no number,"


_UNGUARDED: Final = (
    f"the annotation {names.MODE_LABEL}: {names.IMMEDIATE} does not count, since this controller does not know "
    "who may write it (--immediate-annotation and the policy koordra-immediate): it waits for a pod. "
    "Use a class that says Immediate"
)


def _beyond(number: int, allowed: int, whose: str) -> str:
    """What is left is not in it: one claim that comes or goes would have it told of all others anew."""
    return (
        f"it asks for {number} device{'s' if number != 1 else ''} without a pod, and {whose} lets the Immediate claims "
        f"of a namespace have {allowed} in all, which does not do for it and those before it: it waits for a pod. Delete "
        "Immediate claims that nobody needs, or have more allowed"
    )
