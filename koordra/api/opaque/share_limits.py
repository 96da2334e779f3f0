"""What a resized share is held to, as the controller writes it into a DeviceHold and the plugin of the node
reads it. Pure.

    metadata.labels   koordra.io/resized-on: the node
    spec.owner        claim NAMESPACE/NAME
    spec.seats[0]     claims    the claim
                      devices   what is held for it beyond its allocation
                      limits    what its shares are held to, all of them or none
                      revision  counts the changes of `limits`
                      refused   why the last wish is not among them: `Infeasible: ...`, `Deferred: ...`

What is in `limits` is within allocation and `devices`; the plugin does not trust that, and takes the smaller.
It says in the claim's status, condition Resized, which revision all processes act by (`observedGeneration`);
only then may the controller let go of `devices`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.errors import InvalidQuantity
from koordra.quantity import canonical, parse

RESIZED_ON: Final = "koordra.io/resized-on"
"""Label on a DeviceHold: the node on which a claim's shares were changed."""
ALWAYS: Final = "9999-12-31T23:59:59Z"
"""The seat's `until`: it is held as long as the claim is there."""
RESIZED: Final = "Resized"
RESIZE_PENDING: Final = "ResizePending"
"""Conditions of the claim's devices; the second while a wish is refused."""
_OWNER: Final = "claim "
_LONGEST_LABEL: Final = 63

Amounts = Mapping[str, Decimal]
ShareKey = tuple[str, str | None]
"""A device of the node, and the claim's share of it."""
AMOUNTS: Final = (names.CAPACITY_MEMORY, names.CAPACITY_CORES)


def owner_of(claim_key: str) -> str:
    return f"{_OWNER}{claim_key}"


def claim_of_owner(owner: str) -> str | None:
    """The key of the claim whose shares were resized; None of another DeviceHold."""
    return owner.removeprefix(_OWNER) if owner.startswith(_OWNER) else None


def label_of(node: str) -> str:
    """A label's value has 63 characters, a node's name up to 253."""
    return node if len(node) <= _LONGEST_LABEL else hashlib.sha256(node.encode()).hexdigest()[:_LONGEST_LABEL]


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """One share: `amounts` of memory and cores, None where it has none of its own. `policy`, `priority`: of
    its cores, None where nothing enforces them."""

    device: str
    share_id: str | None
    amounts: Amounts
    policy: str | None = None
    priority: int | None = None

    @property
    def key(self) -> ShareKey:
        return self.device, self.share_id

    def to_dict(self) -> Object:
        said = {
            "device": self.device,
            "shareID": self.share_id,
            **{name: canonical(self.amounts[name]) for name in AMOUNTS if name in self.amounts},
            "coresPolicy": self.policy,
            "priority": self.priority,
        }
        return objects.without_none(said)

    @classmethod
    def read(cls, said: Fields) -> ShareLimits:
        priority, policy = said.get("priority"), said.get("coresPolicy")
        return cls(
            str(said.get("device") or ""),
            str(said["shareID"]) if said.get("shareID") else None,
            {name: parse(said[name]) for name in AMOUNTS if name in said},
            str(policy) if policy else None,
            priority if isinstance(priority, int) and not isinstance(priority, bool) else None,
        )

    def within(self, most: Amounts) -> ShareLimits:
        """With no more of anything than `most`; what the share has none of stays away."""
        return replace(
            self, amounts={name: min(self.amounts.get(name, has), has) for name, has in most.items()}
        )

    def words(self, allocated: Amounts) -> str:
        """For people: `memory 20Gi (allocated 16Gi), cores 40%`."""
        found = []
        for name, unit in zip(AMOUNTS, ("", "%"), strict=True):
            if name in self.amounts:
                text = f"{name} {canonical(self.amounts[name])}{unit}"
                has = allocated.get(name)
                beside = has is not None and has != self.amounts[name]
                found.append(f"{text} (allocated {canonical(has)}{unit})" if beside and has else text)
        if self.policy:
            found.append(
                self.policy if self.priority is None else f"{self.policy} of priority {self.priority}"
            )
        return ", ".join(found)


@dataclass(frozen=True, slots=True)
class ResizedClaim:
    """What a DeviceHold says of a claim, by its uid. `held`: beyond the allocation."""

    uid: str
    revision: int
    limits: Mapping[ShareKey, ShareLimits]
    held: Mapping[ShareKey, Amounts]
    refused: str = ""

    def most(self, key: ShareKey, allocated: Amounts) -> dict[str, Decimal]:
        """All that the share may ever have: its allocation, and what is held for it."""
        beyond = self.held.get(key, {})
        return {name: amount + beyond.get(name, Decimal(0)) for name, amount in allocated.items()}

    def of(self, key: ShareKey, allocated: Amounts) -> ShareLimits:
        """What the share may have: what is said, within that."""
        said = self.limits.get(key)
        return ShareLimits(*key, allocated) if said is None else said.within(self.most(key, allocated))


def resized_claim(hold: Fields) -> ResizedClaim | None:
    """None of a hold that is none of a claim, or cannot be read: koordra did not write it."""
    spec = objects.spec_of(hold)
    seats = spec.get("seats")
    if claim_of_owner(str(spec.get("owner") or "")) is None or not isinstance(seats, list) or not seats:
        return None
    try:
        seat = seats[0]
        limits = [ShareLimits.read(one) for one in seat.get("limits") or ()]
        held: dict[ShareKey, dict[str, Decimal]] = {}
        for key, amounts in map(_held, seat.get("devices") or ()):
            there = held.setdefault(key, {})
            there.update({name: there.get(name, Decimal(0)) + amount for name, amount in amounts.items()})
        uid = str(seat["claims"][0]["uid"])
        revision, refused = int(seat.get("revision") or 0), str(seat.get("refused") or "")
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, InvalidQuantity):
        return None
    return ResizedClaim(uid, revision, {one.key: one for one in limits}, held, refused)


def _held(result: Fields) -> tuple[ShareKey, dict[str, Decimal]]:
    consumed = objects.fields(result.get("consumedCapacity"))
    share = result.get("shareID")
    amounts = {name: parse(text) for name, text in consumed.items() if name in AMOUNTS}
    return (str(result.get("device") or ""), str(share) if share else None), amounts


def own_amounts(consumed: Mapping[str, Decimal], whole: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """Of what a share consumes that which can be changed: not memory where it has all of the card's, nor
    cores where it has none, or all. `whole`: of the card."""
    return {
        name: consumed[name]
        for name in AMOUNTS
        if 0 < consumed.get(name, Decimal(0)) < whole.get(name, Decimal("Infinity"))
    }


def by_uid(holds: Iterable[Fields]) -> dict[str, ResizedClaim]:
    return {found.uid: found for found in map(resized_claim, holds) if found is not None}
