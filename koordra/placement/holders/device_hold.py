"""Devices that nobody has, and that are kept for somebody: DeviceHolds, objects of koordra's own
(deploy/kustomize/crds). Pure.

    spec.owner        for whom, in words: `gang default/train`
    spec.priority     whoever is more urgent may take what is held
    spec.seconds      for how long a seat is held once nobody has it
    spec.owners[]     of a reservation: whose pods may take from the seats (reservation)
    spec.seats[]      `name` (position in the job, empty where there is none), `role`, `node`, `devices`
                      (results as an allocation has them), `pod` and `claims` that have or had them, `until`,
                      `givenUp`, `heldBefore`, `chargedAs`; of a reservation `whole`: all that is kept, of
                      which `devices` are what its claims have not taken; of a claim whose shares were resized
                      `limits`, `revision`, `refused` (koordra.api.opaque.share_limits)

A seat without `until` is in use: its claims take what it takes. One with `until` is held, and counts like an
allocated claim for everything that reads the index: placements, explanations, figures, plans. Who a hold is
for is placed as if it were not there (`ClusterIndex.release`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from koordra.allocator.explain.rejection import HELD_FOR
from koordra.api import objects
from koordra.api.allocation import Allocation
from koordra.api.devices import DeviceID
from koordra.api.objects import Fields, Object
from koordra.api.opaque.share_limits import ALWAYS
from koordra.errors import InvalidManifest
from koordra.placement.holders.allocations import AllocatedClaim

HOLD: Final = "DeviceHold"


@dataclass(frozen=True, slots=True)
class Seat:
    """`pod`: uid of who has it, or had it last; `role`: its part of the gang; `claims`: name and uid of those
    with the devices. `until`: RFC 3339 in UTC, empty while it is in use. `given_up`: it is not held once
    nobody has it. `before`: until when it was held, before who has it now. `charged`: what quotas look at of
    the pod."""

    name: str
    node: str
    pod: str
    claims: tuple[tuple[str, str], ...]
    devices: tuple[Fields, ...]
    until: str = ""
    given_up: bool = False
    before: str = ""
    charged: Fields = field(default_factory=dict)
    role: str = ""
    whole: tuple[Fields, ...] = ()
    limits: tuple[Fields, ...] = ()
    revision: int = 0
    refused: str = ""

    @classmethod
    def read(cls, said: Fields) -> Seat:
        return cls(
            str(said.get("name") or ""),
            str(said.get("node") or ""),
            str(said.get("pod") or ""),
            tuple(
                (str(one.get("name")), str(one.get("uid"))) for one in objects.mappings(said.get("claims"))
            ),
            tuple(objects.mappings(said.get("devices"))),
            str(said.get("until") or ""),
            said.get("givenUp") is True,
            str(said.get("heldBefore") or ""),
            objects.fields(said.get("chargedAs")),
            str(said.get("role") or ""),
            tuple(objects.mappings(said.get("whole"))),
            tuple(objects.mappings(said.get("limits"))),
            _number(said.get("revision")),
            str(said.get("refused") or ""),
        )

    @property
    def device_ids(self) -> frozenset[DeviceID]:
        return frozenset(
            DeviceID(str(one.get("driver")), str(one.get("pool")), str(one.get("device")))
            for one in self.devices
        )

    def to_dict(self) -> Object:
        found: Object = {
            "node": self.node,
            "pod": self.pod,
            "claims": [{"name": name, "uid": uid} for name, uid in self.claims],
            "devices": list(self.devices),
        }
        return {
            **({"name": self.name} if self.name else {}),
            **({"role": self.role} if self.role else {}),
            **found,
            **({"until": self.until} if self.until else {}),
            **({"givenUp": True} if self.given_up else {}),
            **({"heldBefore": self.before} if self.before else {}),
            **({"chargedAs": dict(self.charged)} if self.charged else {}),
            **({"whole": list(self.whole)} if self.whole else {}),
            **({"limits": list(self.limits)} if self.limits else {}),
            **({"revision": self.revision} if self.revision else {}),
            **({"refused": self.refused} if self.refused else {}),
        }

    def held(self, until: str) -> Seat:
        return replace(self, until=until)


@dataclass(frozen=True, slots=True)
class DeviceHold:
    """The object as it was read; `spec` is what is written of it."""

    obj: Fields
    owner: str
    priority: int
    seconds: int
    seats: tuple[Seat, ...]
    owners: tuple[Fields, ...] = ()

    @classmethod
    def of(cls, obj: Fields) -> DeviceHold:
        spec = objects.spec_of(obj)
        return cls(
            obj,
            str(spec.get("owner") or ""),
            _number(spec.get("priority")),
            _number(spec.get("seconds")),
            tuple(map(Seat.read, objects.mappings(spec.get("seats")))),
            tuple(objects.mappings(spec.get("owners"))),
        )

    @property
    def key(self) -> str:
        return objects.key(self.obj)

    def spec(self) -> Object:
        return {
            "owner": self.owner,
            "priority": self.priority,
            "seconds": self.seconds,
            "seats": [seat.to_dict() for seat in self.seats],
            **({"owners": list(self.owners)} if self.owners else {}),
        }


def held_key(owner: str, seat: Seat) -> str:
    """The held seat's key among those that hold devices: the words that others are told."""
    if seat.until == ALWAYS:
        return f"{HELD_FOR}{owner}, beyond its allocation"
    return f"{HELD_FOR}{owner} until {seat.until} (seat {seat.name or seat.pod})"


def held_uid(obj: Fields, seat: Seat) -> str:
    """By which it is left out, as a claim is by its uid."""
    return f"{objects.uid(obj) or objects.key(obj)}/{seat.name}/{seat.pod}"


def held_seats(obj: Fields) -> dict[str, AllocatedClaim]:
    """What the object holds: each seat as a claim with an allocation, by its key. What cannot be read was
    not written by koordra, and holds nothing."""
    hold, found = DeviceHold.of(obj), dict[str, AllocatedClaim]()
    for seat in hold.seats:
        if seat.until and seat.devices:
            claim = _as_claim(obj, seat)
            try:
                allocation = Allocation.of_claim(claim)
            except InvalidManifest:
                continue
            if allocation is not None:
                found[held_key(hold.owner, seat)] = AllocatedClaim(claim, allocation)
    return found


def _as_claim(obj: Fields, seat: Seat) -> Object:
    metadata = {"namespace": objects.namespace(obj), "name": objects.name(obj), "uid": held_uid(obj, seat)}
    status = {"allocation": {"devices": {"results": list(seat.devices)}}}
    return {"kind": HOLD, "metadata": metadata, "status": status}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
