"""What is held for gangs counts in quotas as the pods did that were lost, and never beside them; what is
reserved counts as what it is, and its owners' pods not beside it.

    a DeviceHold's seat    `chargedAs`: what quotas look at of the pod that had it; of one whose claims users
                           wrote nothing, and the seat's devices count
        its pod lives             the pod is charged, and the seat is not
        it is gone, or has ended  the seat is charged, until the hold is over
        another pod is there in   that pod is charged, before everybody who waits, and of the seat what is
        its place                 beyond that: the same position of the job, or any pod of the gang without a
                                  seat where that has none

    a reservation's seat   `chargedAs.amounts`: what claims like its own are charged under koordra's own
                           names, less what the pods are charged whose claims take from it, or that it is
                           kept for and wait for it: these come first

Counted by the leader, which gives out the devices: a pod for which the quota has no room beside what is held
is let in, and waits (`quota`). So the webhook never refuses the pod that is made in a lost one's place.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.api.tables import set_or_drop
from koordra.compat.quota_charges import OWN_CORES, OWN_COUNT, OWN_MEMORY, OWN_NIC_SHARE, OWN_NICS, Amounts
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.controller.gangs.declared.member_index import member_indexes
from koordra.controller.quota.bounds import Charge, claim_of
from koordra.placement.holders.device_hold import DeviceHold, Seat
from koordra.placement.holders.reservation import owns
from koordra.quantity import to_int

_OF_GANG: Final = "gang "
_VF: Final = re.compile(r".-vf-.")
_MIG: Final = re.compile(r".-mig-.")
"""In names of devices (kubelet_plugin/publish/devices)."""


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
        if hold is not None and not hold.seats:
            hold = None
        with self._lock:
            here = self._holds.setdefault(objects.namespace(obj), {})
            set_or_drop(here, objects.name(obj), hold)
            set_or_drop(self._holds, objects.namespace(obj), here)

    def pods(self) -> list[Object]:
        """For each seat a pod that names its templates, which are kept for as long."""
        with self._lock:
            holds = [hold for here in self._holds.values() for hold in here.values()]
        return [
            _as_pod(hold, at, seat) for hold in holds for at, seat in enumerate(hold.seats) if seat.charged
        ]

    def charges(
        self, namespace: str, pods: Mapping[str, Charge], asking: Collection[str] = frozenset()
    ) -> Held:
        """Of the seats of the namespace. `pods`: what its pods and claims are charged; `asking`: those of
        them that wait for devices, of which owners of a reservation come in the place of its free seats."""
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
        users, living = _users(holds, pods), {claim_of(name) for name in pods}
        owners = self._owners(namespace, holds, {name: pods[name] for name in asking if name in pods})
        users = {key: [*users.get(key, ()), *owners.get(key, ())] for key in {*users, *owners}}
        found = [
            self._of_owner(by_owner[owner], of_gang.get(owner, ()), users, living)
            for owner in sorted(by_owner)
        ]
        charges = {name: charge for one in found for name, charge in one.charges.items()}
        return Held(charges, frozenset().union(*(one.back for one in found)))

    def _of_owner(
        self,
        holds: Sequence[DeviceHold],
        pods: Iterable[Charge],
        users: Mapping[tuple[str, int], list[Charge]],
        living: Collection[str],
    ) -> Held:
        """`living`: uids of claims that are charged by themselves."""
        by_uid = {objects.uid(one.pod): one for one in pods}
        seats = [(hold, at, seat) for hold in holds for at, seat in enumerate(hold.seats)]
        lost = [
            (hold, at, seat)
            for hold, at, seat in seats
            if seat.pod not in by_uid
            and not (_is_of_gang(hold) and any(uid in living for _, uid in seat.claims))
        ]
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
            amounts, pod = self._of(hold, seat), instead.get((hold.key, at))
            for charge in users.get((hold.key, at), ()):
                if not any(_beyond(charge.amounts, Charge({}, amounts)).values()):
                    back.add(objects.name(charge.pod))
                amounts = _beyond(amounts, charge)
            charges[f"held {hold.key} {at}"] = Charge(_as_pod(hold, at, seat), _beyond(amounts, pod))
            if pod is not None and not any(_beyond(pod.amounts, Charge({}, amounts)).values()):
                back.add(objects.name(pod.pod))
        return Held(charges, frozenset(back))

    def _owners(
        self, namespace: str, holds: Sequence[DeviceHold], asking: Mapping[str, Charge]
    ) -> dict[tuple[str, int], list[Charge]]:
        """By hold and free seat: the pod that it is kept for and that asks no more than it has, the oldest
        first."""
        left = sorted(asking, key=lambda name: (_created(asking[name]), name))
        found: dict[tuple[str, int], list[Charge]] = {}
        for hold in sorted(holds, key=lambda hold: hold.key):
            for at, seat in enumerate(hold.seats) if hold.owners else ():
                if seat.claims:
                    continue
                has = Charge({}, self._of(hold, seat))
                for name in left:
                    one = asking[name]
                    if owns(hold.owners, namespace, one.pod) and not any(_beyond(one.amounts, has).values()):
                        left.remove(name)
                        found[hold.key, at] = [one]
                        break
        return found

    def _of(self, hold: DeviceHold, seat: Seat) -> Amounts:
        if not seat.charged:
            return _of_devices(seat.devices) if _is_of_gang(hold) or hold.owners else {}
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
        for at, seat in enumerate(hold.seats)
    }


def _created(charge: Charge) -> str:
    return str(objects.metadata(charge.pod).get("creationTimestamp") or "")


def _is_of_gang(hold: DeviceHold) -> bool:
    return hold.owner.startswith(_OF_GANG)


def _of_devices(devices: Iterable[Fields]) -> Amounts:
    """What devices amount to by themselves, under koordra's own names: those of pods whose claims users
    wrote. A MIG instance is published with its memory, and does not say it in an allocation: it counts as a
    device."""
    found = Counter[str]()
    for one in devices:
        taken = objects.fields(one.get("consumedCapacity"))
        if one.get("driver") != names.DRIVER:
            continue
        if names.CAPACITY_SHARE in taken or _VF.search(str(one.get("device"))):
            found[OWN_NICS] += 1
            found[OWN_NIC_SHARE] += to_int(str(taken.get(names.CAPACITY_SHARE, 100)))
        elif names.CAPACITY_MEMORY in taken or _MIG.search(str(one.get("device"))):
            found[OWN_COUNT] += 1
            found[OWN_MEMORY] += to_int(str(taken.get(names.CAPACITY_MEMORY, 0)))
            found[OWN_CORES] += to_int(str(taken.get(names.CAPACITY_CORES, 0)))
    return found


def _as_pod(hold: DeviceHold, at: int, seat: Seat) -> Object:
    namespace = objects.namespace(hold.obj)
    metadata = {"namespace": namespace, "name": f"held {hold.key} {at}", "creationTimestamp": ""}
    return {"metadata": metadata, "spec": {**seat.charged}}


def _beyond(seat: Amounts, pod: Charge | None) -> Amounts:
    if pod is None:
        return seat
    return {name: max(0, (amount or 0) - (pod.amounts.get(name) or 0)) for name, amount in seat.items()}
