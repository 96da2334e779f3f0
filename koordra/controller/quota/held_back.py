"""Pods that stand beyond a quota of their namespace, and get no devices for now: rewritten pods, which two
replicas of the webhook may have let in at once; those whose claims were there before the bound, or beside
what is held and reserved, of which the webhook knows nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from koordra.api import objects
from koordra.api.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Fields, Object
from koordra.compat.quota_charges import Amounts
from koordra.controller.allocation.reserved.quotas import Gangs
from koordra.controller.cache.pod_index import PodClaims, is_bound, is_living, may_be_planned
from koordra.controller.quota.bounds import (
    Charge,
    CountOf,
    beyond,
    bounded,
    charge_name,
    exceeded,
    in_scope,
    overdrawn,
    to_come,
    used,
)
from koordra.controller.quota.held_seats import Held, HeldSeats
from koordra.controller.quota.usage import MALFORMED, QuotaUsage, legacy_entries, total_of


def waiting_by_namespace(members: Sequence[PodClaims]) -> dict[str, list[PodClaims]]:
    """The pods that wait for devices."""
    found: dict[str, list[PodClaims]] = {}
    for member in members:
        if member.pending:
            found.setdefault(objects.namespace(member.pod), []).append(member)
    return found


def with_their_claims(charges: Mapping[str, Charge], asking: Sequence[PodClaims]) -> dict[str, Charge]:
    """What claims are charged by themselves, charged to the pods that wait for them: of several that share
    one, to the oldest."""
    found = dict(charges)
    for one in sorted(
        asking,
        key=lambda one: (
            str(objects.metadata(one.pod).get("creationTimestamp") or ""),
            objects.name(one.pod),
        ),
    ):
        name = objects.name(one.pod)
        for claim in one.pending:
            if (charge := found.pop(charge_name(claim), None)) is not None:
                before = found[name].amounts if name in found else {}
                found[name] = Charge(one.pod, total_of([before, charge.amounts]))
    return found


@dataclass(frozen=True, slots=True)
class HeldBack:
    """`quotas` of a namespace; `find` an object by its key; `amounts` of a claim's spec."""

    usage: QuotaUsage
    seats: HeldSeats
    quotas: Callable[[str], Sequence[Object]]
    find: Callable[[Kind, str], Object | None]
    amounts: Callable[[Fields], Amounts]

    def is_awaited(self) -> bool:
        return False

    def is_bounding(self) -> bool:
        return True

    def held(self, members: Sequence[PodClaims], gangs: Gangs) -> Mapping[str, str]:
        """As quotas.Quotas has it."""
        found: dict[str, str] = {}
        for namespace, waiting in waiting_by_namespace(members).items():
            quotas = [quota for quota in self.quotas(namespace) if bounded(quota)]
            if quotas:
                served = {
                    objects.name(one.pod)
                    for one in members
                    if objects.namespace(one.pod) == namespace and len(one.pending) < len(one.ours)
                }
                found |= self._beyond(namespace, quotas, waiting, served=served, gangs=gangs)
        return found

    def _beyond(
        self,
        namespace: str,
        quotas: Sequence[Object],
        waiting: Sequence[PodClaims],
        *,
        served: set[str],
        gangs: Gangs,
    ) -> dict[str, str]:
        self.usage.recall(
            namespace,
            template=lambda key: self.find(RESOURCE_CLAIM_TEMPLATES, key),
            claim=lambda where, name: self.find(RESOURCE_CLAIMS, f"{where}/{name}"),
        )
        late = {
            objects.uid(one.pod): ""
            for one in waiting
            if legacy_entries(one.pod) and not self.usage.has_observed(one.pod)
        }
        asking_now = [one for one in waiting if may_be_planned(one)]
        charges = with_their_claims(self.usage.charges(namespace), asking_now)
        planned = {objects.name(one.pod): objects.uid(one.pod) for one in asking_now}
        held_seats = self.seats.charges(namespace, charges, planned.keys())
        gang_of = {name: gangs[uid] for name, uid in planned.items() if uid in gangs}
        expected = to_come(charges, gang_of)
        beside = held_seats.charges | expected.charges
        if not any(overdrawn(quota, self._counting(beside)) for quota in quotas):
            return late
        charges, served = charges | beside, served | held_seats.back
        asking = planned.keys() | expected.charges.keys()
        others = charges.keys() - asking - served
        served |= {name for name in others if self._has_devices(f"{namespace}/{name}")}
        counted = {name: charge for name, charge in charges.items() if name in served | asking}
        held = beyond(quotas, counted, served=served, gangs=gang_of | expected.gangs)
        return late | {planned[name]: text for name, text in held.items() if name in planned}

    def overdrawn(self, quota: Object) -> str:
        """The lines of the quota that are gone beyond; "" where none is."""
        held_seats = self._held_seats(objects.namespace(quota))
        return overdrawn(quota, self._counting(held_seats.charges))

    def ratios(self, quota: Object) -> dict[str, float]:
        """How far each line is used. One that allows nothing is used up by anything, and not by nothing."""
        counted = self._counting(self._held_seats(objects.namespace(quota)).charges)
        found = {line.key: (line.used + counted(quota, line.name), line.hard) for line in bounded(quota)}
        return {key: used / hard if hard else float(used > 0) for key, (used, hard) in found.items()}

    def used(self) -> Mapping[tuple[str, str, str], float]:
        """As quotas.Quotas has it: of a forecast, which shows no metrics, nothing. A leader's is the quota
        controller's."""
        return {}

    def use(self, namespace: str) -> str:
        """As quotas.Quotas has it."""
        quotas = [quota for quota in self.quotas(namespace) if bounded(quota)]
        counted = self._counting(self._held_seats(namespace).charges if quotas else {})
        return "; ".join(f"{objects.name(quota)}: {used(quota, counted)}" for quota in quotas)

    def on_hold(self, event: str, hold: Object, /) -> None:
        """A DeviceHold is new, another, or (`DELETED`) gone."""
        self.seats.on_hold(event, hold)

    def charged(self, claims: Sequence[Fields]) -> Object:
        """As which a reservation's seat with these claims counts, of a DeviceHold's `chargedAs`."""
        found: Counter[str] = Counter()
        for spec in claims:
            try:
                found.update({name: amount or 0 for name, amount in self.amounts(spec).items()})
            except MALFORMED:
                continue
        return {"amounts": {name: amount for name, amount in sorted(found.items()) if amount > 0}}

    def refusal(self, namespace: str, charged: Fields) -> str:
        """Why the namespace's quotas have no room for one more seat; empty where they have."""
        quotas = [quota for quota in self.quotas(namespace) if bounded(quota)]
        counted = self._counting(self._held_seats(namespace).charges if quotas else {})
        asking = Charge({"metadata": {"namespace": namespace}, "spec": {}}, charged["amounts"])
        asked = (exceeded(quota, asking, counted) for quota in quotas if in_scope(quota, asking.pod))
        return next(filter(None, asked), "")

    def _held_seats(self, namespace: str) -> Held:
        return self.seats.charges(namespace, self.usage.charges(namespace))

    def _counting(self, held_seats: Mapping[str, Charge]) -> CountOf:
        """With these beside the pods."""

        def counted(quota: Object, name: str) -> int:
            held = [one.amounts.get(name) or 0 for one in held_seats.values() if in_scope(quota, one.pod)]
            return self.usage.counted(quota, name) + sum(held)

        return counted

    def _has_devices(self, key: str) -> bool:
        """Of a pod of which no claim waits for devices. One without a node has none, for want of a claim or
        behind another gate. It may get there only when others of its namespace end (a quota on the class), so
        nobody is to wait for it."""
        pod = self.find(PODS, key)
        return pod is None or is_bound(pod) or not is_living(pod)
