"""The gangs' model world with Reservations: cards are kept for the pods of some jobs, for a while.

What must hold beside everything else: what is reserved is given to nobody but its owners, or who is more
urgent; when all is quiet and no Reservation is left, nothing is kept for one. A hold that reaches the server
after its sender's time is known to no successor who listed before it: nobody is blamed for what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from koordra.api import names
from koordra.api.kinds import DEVICE_HOLDS, RESERVATIONS
from koordra.api.objects import Object
from tests.fakes.gang_world import GangWorld
from tests.fakes.model_api import Request
from tests.fakes.model_planner import CARD
from tests.fakes.model_world import TIMES, Controller, InFlight, use_of


class ReservedWorld(GangWorld):
    watched = (*GangWorld.watched, RESERVATIONS)

    def __init__(self, seed: int, planner: Callable[..., Any]) -> None:
        self.reservations = 0
        """Reservations that were made."""
        self.unfenced: set[str] = set()
        """Holds (by uid) that were written after the time of who wrote them."""
        super().__init__(seed, planner)
        self.api.history.setdefault(RESERVATIONS.plural, [])

    def weighted(self) -> list[tuple[Callable[[], None], int]]:
        return [*super().weighted(), (self.make_reservation, 4), (self.delete_reservation, 1)]

    def make_reservation(self) -> None:
        """For a job that is there, or the next one."""
        if len(self.api.table(RESERVATIONS)) > 1:
            return
        self.reservations += 1
        job = self.random.choice([*sorted(self.jobs), f"j{self.made + 1}"])
        exactly: Object = {"deviceClassName": names.CLASS_GPU, "count": 1}
        if self.random.random() < 0.3:
            exactly["capacity"] = {"requests": {"memory": "50Gi"}}
        spec: Object = {
            "owners": [{"labelSelector": {"matchLabels": {"replica": job}}}],
            "claims": [{"name": "gpu", "devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}],
            "seats": self.random.choice((1, 1, 2)),
            "ttl": self.random.choice(("20s", "60s", "1h")),
        }
        if self.random.random() < 0.3:
            spec["priority"] = 5
        body = {"metadata": {"name": f"r{self.reservations}"}, "spec": spec}
        self.api.create(RESERVATIONS, body, created=self.timestamp())

    def delete_reservation(self) -> None:
        there = self.names_of_reservations()
        if there:
            self.api.remove(RESERVATIONS, self.random.choice(there))
            self.collect_garbage()

    def names_of_reservations(self) -> list[str]:
        return sorted(one["metadata"]["name"] for one in self.api.table(RESERVATIONS).values())

    def owners(self) -> set[str]:
        return super().owners() | {one["metadata"]["uid"] for one in self.api.table(RESERVATIONS).values()}

    def land(self, sender: Controller, request: Request, what: str) -> Object:
        if what == DEVICE_HOLDS.plural:
            is_in_time = sender.lease.may_write() and not sender.is_beyond()
            request = partial(self.hold_arrives, request, math.inf if is_in_time else -math.inf)
        return super().land(sender, request, what)

    def sent(self, sender: Controller, request: Request, what: str) -> InFlight:
        if what == DEVICE_HOLDS.plural:
            until = -math.inf if sender.is_beyond() else self.now + TIMES.timeout
            request = partial(self.hold_arrives, request, until)
        return super().sent(sender, request, what)

    def hold_arrives(self, request: Request, until: float) -> Object:
        """`until`: when the time of its sender is over."""
        before = self.api.table(DEVICE_HOLDS).copy()
        answer = request()
        after = self.api.table(DEVICE_HOLDS)
        if self.now > until:
            self.unfenced |= {
                obj["metadata"]["uid"] for key, obj in after.items() if before.get(key) is not obj
            }
        return answer

    def kept_seats(self) -> list[tuple[Object, dict[tuple[str, str], int]]]:
        """The hold and the GiB by card of each seat of a Reservation."""
        return [
            (hold, use_of([{"status": {"allocation": {"devices": {"results": seat["devices"]}}}}]))
            for hold in self.api.table(DEVICE_HOLDS).values()
            if not hold["spec"]["owner"].startswith("gang ")
            for seat in hold["spec"]["seats"]
            if seat.get("until")
        ]

    def check_taker(self, claim: Object, claims: dict[str, Object]) -> None:
        super().check_taker(claim, claims)
        if self.beyond:
            return
        pod, used = self.pod_of(claim), use_of(claims.values())
        labels = {} if pod is None else pod["metadata"].get("labels") or {}
        priority = 0 if pod is None else pod["spec"].get("priority", 0)
        kept = [entry for entry in self.kept_seats() if entry[0]["metadata"]["uid"] not in self.unfenced]
        for card, amount in use_of([claim]).items():
            reserved = sum(cards.get(card, 0) for _, cards in kept)
            for hold, cards in kept if used.get(card, 0) + reserved > CARD else ():
                whose = self.owners_of(hold)
                told = f"{claim['metadata']['name']} ({amount}) was given {card}, reserved for {whose}"
                is_owner = labels.get("replica") in whose
                assert card not in cards or is_owner or priority > hold["spec"].get("priority", 0), told

    def check_claims(self) -> None:
        super().check_claims()
        for hold in self.api.table(DEVICE_HOLDS).values():
            if hold["spec"]["owner"].startswith("gang "):
                continue
            whose = self.owners_of(hold)
            for claim in (one["name"] for seat in hold["spec"]["seats"] for one in seat.get("claims") or ()):
                pod = self.pod_of({"metadata": {"name": claim}})
                replica = "" if pod is None else (pod["metadata"].get("labels") or {}).get("replica")
                assert pod is None or replica in whose, f"{claim} takes what is reserved for {whose}"

    def owners_of(self, hold: Object) -> list[str]:
        """The jobs whose pods a Reservation is for."""
        return [one["labelSelector"]["matchLabels"]["replica"] for one in hold["spec"]["owners"]]

    def settle_down(self) -> None:
        super().settle_down()
        for name in self.names_of_reservations():
            self.api.remove(RESERVATIONS, name)
        self.collect_garbage()

    def check_quiet(self) -> None:
        assert not self.kept_seats(), "what was reserved is kept for nobody"
        super().check_quiet()
