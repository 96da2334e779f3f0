"""What is held for gangs counts in quotas as the pods did that were lost, and never beside them; what is
reserved counts as what it is, and its owners' pods not beside it.

    a DeviceHold's seat    `chargedAs`: what quotas look at of the pod that had it
        its pod lives             the pod is charged, and the seat is not
        it is gone, or has ended  the seat is charged, until the hold is over
        another pod is there in   that pod is charged, before everybody who waits, and of the seat what is
        its place                 beyond that: the same position of the job, or any pod of the gang without a
                                  seat where that has none

    a reservation's seat   `chargedAs.amounts`: what claims like its own are charged under koordra's own
                           names, less what the pods are charged whose claims take from it

Counted by the leader, which gives out the devices: a pod for which the quota has no room beside what is held
is let in, and waits (`quota`). So the webhook never refuses the pod that is made in a lost one's place.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.tables import set_or_drop
from koordra.compat.quota_charges import Amounts
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.controller.gangs.declared.member_index import member_indexes
from koordra.controller.legacy.quota import Charge
from koordra.placement.holders.device_hold import DeviceHold, Seat

_OF_GANG: Final = "gang "


class Held(NamedTuple):
    """`charges` of the seats, by a name that no pod has; `back`: pods (by name) that are in the place of one,
    and ask no more than it has."""

    charges: dict[str, Charge]
    back: frozenset[str] = frozenset()


class HeldSeats:
    """Follows the DeviceHolds of a cluster. `amounts`: what a template of ours amounts to, None where nobody
    knows. Thread-safe."""

    def __init__(self, amounts: Callable[[str], Amounts | None]) -> None:
        self._amounts = amounts
        self._lock = threading.Lock()
        self._holds: dict[str, dict[str, DeviceHold]] = {}
        """By namespace and name: those with seats that are charged."""

    def on_hold(self, event: str, obj: Object, /) -> None:
        hold = None if event == "DELETED" else DeviceHold.of(obj)
        if hold is not None and not any(seat.charged for seat in hold.seats):
            hold = None
        with self._lock:
            here = self._holds.setdefault(objects.namespace(obj), {})
            set_or_drop(here, objects.name(obj), hold)
            set_or_drop(self._holds, objects.namespace(obj), here)

    def pods(self) -> list[Object]:
        """For each seat a pod that names its templates, which are kept for as long."""
        with self._lock:
            holds = [hold for here in self._holds.values() for hold in here.values()]
        return [_as_pod(hold, at, seat) for hold in holds for at, seat in _charged(hold)]

    def charges(self, namespace: str, pods: Mapping[str, Charge]) -> Held:
        """Of the seats of the namespace. `pods`: what its pods are charged."""
        with self._lock:
            holds = list(self._holds.get(namespace, {}).values())
        if not holds:
            return Held({})
        of_gang = defaultdict[str, list[Charge]](list)
        for charge in pods.values():
            if (ref := gang_of(charge.pod)) is not None:
                of_gang[f"{_OF_GANG}{ref.key}"].append(charge)
        by_owner = defaultdict[str, list[DeviceHold]](list)
        for hold in holds:
            by_owner[hold.owner].append(hold)
        users = _users(holds, pods)
        found = [self._of_owner(by_owner[owner], of_gang.get(owner, ()), users) for owner in sorted(by_owner)]
        charges = {name: charge for one in found for name, charge in one.charges.items()}
        return Held(charges, frozenset().union(*(one.back for one in found)))

    def _of_owner(
        self,
        holds: Sequence[DeviceHold],
        pods: Iterable[Charge],
        users: Mapping[tuple[str, int], list[Charge]],
    ) -> Held:
        by_uid = {objects.uid(one.pod): one for one in pods}
        seats = [(hold, at, seat) for hold in holds for at, seat in _charged(hold)]
        lost = [one for one in seats if one[2].pod not in by_uid]
        seated = {seat.pod for _, _, seat in seats}
        new = {uid: charge for uid, charge in by_uid.items() if uid not in seated}
        indexes = member_indexes([charge.pod for charge in new.values()])
        named = {str(indexes[uid]): uid for uid in new if uid in indexes}
        instead = {(hold.key, at): new.pop(named[seat.name]) for hold, at, seat in lost if seat.name in named}
        for hold, at, seat in lost:
            if new and (hold.key, at) not in instead and not (seat.name and seat.pod):
                instead[hold.key, at] = new.pop(next(iter(new)))
        charges, back = dict[str, Charge](), set[str]()
        for hold, at, seat in lost:
            amounts, pod = self._of(seat), instead.get((hold.key, at))
            for charge in users.get((hold.key, at), ()):
                amounts = _beyond(amounts, charge)
            charges[f"held {hold.key} {at}"] = Charge(_as_pod(hold, at, seat), _beyond(amounts, pod))
            if pod is not None and not any(_beyond(pod.amounts, Charge({}, amounts)).values()):
                back.add(objects.name(pod.pod))
        return Held(charges, frozenset(back))

    def _of(self, seat: Seat) -> Amounts:
        found = {name: int(amount) for name, amount in objects.fields(seat.charged.get("amounts")).items()}
        for entry in seat.charged.get("resourceClaims") or ():
            for name, amount in (self._amounts(str(entry.get("resourceClaimTemplateName"))) or {}).items():
                found[name] = found.get(name, 0) + (amount or 0)
        return found


def _users(holds: Sequence[DeviceHold], pods: Mapping[str, Charge]) -> dict[tuple[str, int], list[Charge]]:
    """By hold and seat: the charges of pods whose claims take from it."""
    by_claim = {
        name: one for one in pods.values() for name in objects.pod_claim_names(one.pod).values() if name
    }
    return {
        (hold.key, at): [by_claim[name] for name, _ in seat.claims if name in by_claim]
        for hold in holds
        if hold.owners
        for at, seat in _charged(hold)
    }


def _charged(hold: DeviceHold) -> list[tuple[int, Seat]]:
    return [(at, seat) for at, seat in enumerate(hold.seats) if seat.charged]


def _as_pod(hold: DeviceHold, at: int, seat: Seat) -> Object:
    namespace = objects.namespace(hold.obj)
    metadata = {"namespace": namespace, "name": f"held {hold.key} {at}", "creationTimestamp": ""}
    return {"metadata": metadata, "spec": {**seat.charged}}


def _beyond(seat: Amounts, pod: Charge | None) -> Amounts:
    if pod is None:
        return seat
    return {name: max(0, (amount or 0) - (pod.amounts.get(name) or 0)) for name, amount in seat.items()}
