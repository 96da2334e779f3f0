"""What the claims and legacy pods of each namespace add up to, followed through watches, and what is being
admitted just now.

    pod in the watch, not finished     ──> entries of spec.resourceClaims that name a template of ours
                                       ──> amounts by the name
    pod admitted, not in the watch yet ──> a reservation under the review's uid, which the pod carries; gone
                                           when the pod is seen, or after a minute (it was not stored)

A template's name is a digest of its content, so what it amounts to is worked out once and holds in every
namespace. `spec` and `resourceClaims` of a pod cannot be changed, so nobody edits his way out of a quota. Nor
does he by deleting the template of a running pod: a replica that starts later reads the same content from the
pod's claim, whose spec cannot be changed either.

Charging is one step under a lock: two pods that come to one replica at once cannot both have the last card.
Two replicas can differ by what came to the other within the watch's delay; the leader then gives the pod that
is too much no devices (quota).
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.api.tables import DueKeys, KeySets, set_or_drop
from koordra.compat.quota_charges import Amounts, amounts, canonical_spec, dialect_of
from koordra.compat.rewrite import template_name
from koordra.compat.settings import Settings
from koordra.controller.quota.bounds import Charge, charge_name, in_scope, is_scoped
from koordra.errors import InvalidInput
from koordra.logs import get_logger

log = get_logger(__name__)

ADMITTED: Final = names.DOMAIN + "admitted-as"
"""Annotation: uids of the reviews that charged the pod to a quota, several where another webhook asked for
more in between."""
RESERVED_FOR: Final = 60.0

MALFORMED: Final = (
    InvalidInput,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Users can write what they like, and one object must not end the work on all others. Whoever knows how names
are made can make a template under such a name that koordra would never write (half a byte of memory, for a
class of somebody else's): it counts nothing, as handwritten ones do."""


@dataclass(slots=True)
class _Place:
    """One namespace: what its pods are charged, by name, and reviews of pods that are being admitted, by
    `_review`; when the latter are over; pods of templates that are not known yet, with these; and the totals
    of all charges."""

    charged: dict[str, Charge] = field(default_factory=dict)
    over: DueKeys = field(default_factory=DueKeys)
    waiting: dict[str, tuple[Object, set[str]]] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)

    def charge(self, name: str, charge: Charge | None) -> None:
        """In place of what was charged before."""
        for found, sign in ((self.charged.pop(name, None), -1), (charge, 1)):
            if found is not None:
                for resource, amount in found.amounts.items():
                    self.totals[resource] += sign * (amount or 0)
        if charge is not None:
            self.charged[name] = charge

    def end_reviews(self, now: float) -> None:
        for review in self.over.pop(now):
            self.charge(review, None)


def _review(uid: str) -> str:
    """No pod has such a name."""
    return f"review {uid}"


class QuotaUsage:
    """Listener of watches of pods and templates. `clock` is monotonic. Pods that wait are found by the
    templates they wait for: users make both, and each template is learned once."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self.on_charge: Callable[[Object], None] = lambda pod: None
        """Told of each pod whose charge may be another, under `lock`."""
        self.lock = threading.RLock()
        self._amounts: dict[str, Amounts] = {}
        self._places: defaultdict[str, _Place] = defaultdict(_Place)
        self._waiting_for = KeySets()
        self._referring = KeySets()
        """Pods, by the templates of ours that they name."""
        self._stored = KeySets()
        """Templates that there are, by name: one of each namespace."""
        self._named: dict[str, frozenset[str]] = {}
        """The templates that a pod names."""
        self._come = set[str]()
        """Uids of what was seen lately: no record of their admission counts any more."""
        self._forgotten_at = DueKeys()

    def on_pod(self, event: str, pod: Object, /) -> None:
        """Pods of a template that is not known yet are counted when it is; what reserved for them counts
        until then."""
        gone = event == "DELETED" or objects.pod_is_finished(pod)
        templates = [] if gone else list(legacy_entries(pod).values())
        name, namespace = objects.name(pod), objects.namespace(pod)
        with self.lock:
            if not templates and objects.key(pod) not in self._named:
                return
            place = self._places[namespace]
            known = [self._amounts[template] for template in templates if template in self._amounts]
            unknown = {template for template in templates if template not in self._amounts}
            _, before = place.waiting.pop(name, (pod, set[str]()))
            self._waiting_for.move(objects.key(pod), before, unknown)
            if unknown:
                place.waiting[name] = pod, unknown
            else:
                for uid in reviews(pod):
                    self._has_come(place, uid)
            place.charge(name, Charge(pod, total_of(known)) if known else None)
            self._refer(objects.key(pod), frozenset(templates))
            self.on_charge(pod)
            self._drop_if_empty(namespace)

    def _refer(self, pod: str, now: frozenset[str]) -> None:
        """What the pod names from now on. What nobody names, and is not there, is forgotten: users can write
        any number of these."""
        before = self._named.get(pod, frozenset())
        self._referring.move(pod, before, now)
        set_or_drop(self._named, pod, now or None)
        for template in before - now:
            self._forget_if_unused(template)

    def _forget_if_unused(self, template: str) -> None:
        if template not in self._referring and template not in self._stored:
            self._amounts.pop(template, None)

    def _drop_if_empty(self, namespace: str) -> None:
        place = self._places.get(namespace)
        if place is not None and not place.charged and not place.waiting:
            del self._places[namespace]

    def recall(
        self,
        namespace: str,
        *,
        template: Callable[[str], Object | None],
        claim: Callable[[str, str], Object | None],
    ) -> None:
        """Templates that the watch has not shown yet, by key; those that are gone, from the claims, by
        namespace and name, that were made of them."""
        with self.lock:
            place = self._places.get(namespace)
            pods = [] if place is None else [pod for pod, _ in place.waiting.values()]
        for pod in pods:
            made = objects.pod_claim_names(pod)
            for entry, wanted in legacy_entries(pod).items():
                there, name = template(f"{namespace}/{wanted}"), made.get(entry)
                if there is not None:
                    self.on_template("ADDED", there)
                elif name and (found := claim(namespace, name)) is not None:
                    self._learn_if_genuine(wanted, objects.spec_of(found))

    def on_template(self, event: str, template: Object, /) -> None:
        name, key = objects.name(template), objects.key(template)
        if not dialect_of(name):
            return
        with self.lock:
            if event == "DELETED":
                self._stored.move(key, (name,), ())
                self._forget_if_unused(name)
                return
            self._stored.move(key, (), (name,))
        self._learn_if_genuine(name, objects.spec_of(template).get("spec") or {})

    def _learn_if_genuine(self, name: str, stored: Fields) -> None:
        if name in self._amounts:
            return
        spec = canonical_spec(stored)
        if template_name(dialect_of(name), spec) == name:
            try:
                self.learn(name, self.amounts_of(name, spec))
            except MALFORMED:
                log.warning("template_not_countable", template=name)
                self.learn(name, {})

    def learn(self, name: str, found: Amounts) -> None:
        """What a template of ours amounts to, remembered: pods refer to it, or will."""
        with self.lock:
            self._amounts[name] = found
            for key in sorted(self._waiting_for.get(name, ())):
                namespace, _, pod = key.partition("/")
                self.on_pod("MODIFIED", self._places[namespace].waiting[pod][0])

    def amounts_of(self, name: str, spec: Fields) -> Amounts:
        """What a template of ours amounts to, without remembering it: it may never be made."""
        known = self._amounts.get(name)
        return amounts(dialect_of(name), spec, self._settings) if known is None else known

    def on_claim(self, claim: Object, charge: Charge | None) -> None:
        """What a claim that the watch has shown is charged by itself: None where it is gone, or not charged;
        what its admission has reserved is over."""
        uid, namespace = objects.uid(claim), objects.namespace(claim)
        with self.lock:
            place = self._places[namespace]
            self._has_come(place, uid)
            place.charge(charge_name(claim), charge)
            self._drop_if_empty(namespace)

    def _has_come(self, place: _Place, uid: str) -> None:
        """The pod or claim that was charged as `uid` when it was admitted: counted as what it is, or gone."""
        place.charge(_review(uid), None)
        now = self._clock()
        for due in self._forgotten_at.pop(now):
            self._come.discard(due)
        if uid not in self._come:
            self._come.add(uid)
            self._forgotten_at.add(now + 2 * RESERVED_FOR, uid)

    def admitted_elsewhere(self, namespace: str, admitted: Mapping[str, tuple[float, Charge]]) -> None:
        """What other replicas have let in, by uid, each with the seconds for which it counts at the most."""
        with self.lock:
            now, place = self._clock(), self._places[namespace]
            place.end_reviews(now)
            for uid, (lasts, charge) in admitted.items():
                if uid not in self._come and _review(uid) not in place.charged:
                    place.over.add(now + lasts, _review(uid))
                    place.charge(_review(uid), charge)
            self._drop_if_empty(namespace)

    def charge_of_pod(self, namespace: str, name: str) -> Charge | None:
        """What the pod that the watch has shown is charged."""
        with self.lock:
            return self._places.get(namespace, _NOTHING).charged.get(name)

    def known(self, template: str) -> Amounts | None:
        """What a template that was learned amounts to."""
        with self.lock:
            return self._amounts.get(template)

    def counted(self, quota: Object, name: str) -> int:
        """What the namespace's pods, admitted ones among them, add up to in what a quota counts."""
        with self.lock:
            place = self._places.get(objects.namespace(quota))
            if place is None:
                return 0
            place.end_reviews(self._clock())
            if not is_scoped(quota):
                return place.totals[name]
            charges = place.charged.values()
            return sum(charge.amounts.get(name) or 0 for charge in charges if in_scope(quota, charge.pod))

    def has_observed(self, pod: Fields) -> bool:
        with self.lock:
            place = self._places.get(objects.namespace(pod), _NOTHING)
            return objects.name(pod) in place.charged or objects.name(pod) in place.waiting

    def charges(self, namespace: str) -> dict[str, Charge]:
        """Of the pods that the watch has shown, by name, and of claims, where nothing is admitted."""
        with self.lock:
            return dict(self._places.get(namespace, _NOTHING).charged)

    def reserve(self, uid: str, asking: Charge, refused: Callable[[], str], *, keep: bool = True) -> str:
        """Charge the pod to its review unless `refused` says why not, given what is counted. One step."""
        with self.lock:
            why = refused()
            if not why and keep:
                now, place = self._clock(), self._places[objects.namespace(asking.pod)]
                place.end_reviews(now)  # nobody else may count here: quotas of other scopes do not
                place.over.add(now + RESERVED_FOR, _review(uid))
                place.charge(_review(uid), asking)
            return why

    def release(self, uid: str, namespace: str) -> None:
        with self.lock:
            if (place := self._places.get(namespace)) is not None:
                place.charge(_review(uid), None)
                self._drop_if_empty(namespace)


_NOTHING: Final = _Place()
"""Of a namespace without legacy pods; never written."""


def total_of(parts: Sequence[Amounts]) -> Amounts:
    """Of a pod that has several claims; what one of them does not say counts nothing."""
    if len(parts) == 1:
        return parts[0]
    total: Counter[str] = Counter()
    for part in parts:
        total.update({name: amount or 0 for name, amount in part.items()})
    return total


def reviews(pod: Fields) -> list[str]:
    """Uids of those that charged the pod."""
    return [uid for uid in objects.annotations_of(pod).get(ADMITTED, "").split(",") if uid]


def legacy_entries(pod: Fields) -> dict[str, str]:
    """Entry of spec.resourceClaims -> the template of ours that it refers to."""
    entries = objects.spec_of(pod).get("resourceClaims") or ()
    found = {
        str(entry.get("name")): str(entry.get("resourceClaimTemplateName") or "")
        for entry in entries
        if isinstance(entry, Mapping)
    }
    return {entry: template for entry, template in found.items() if dialect_of(template)}


def counted_part(pod: Object) -> Object:
    """As much of a pod as is looked at here: a replica that only admits need not hold the cluster's pods in
    memory."""
    kept: Object = {"metadata": _only(pod, "metadata", "name", "namespace", "resourceVersion", "uid")}
    if legacy_entries(pod):
        if charged := objects.annotations_of(pod).get(ADMITTED):
            kept["metadata"]["annotations"] = {ADMITTED: charged}
        kept["spec"] = _only(
            pod, "spec", "resourceClaims", "activeDeadlineSeconds", "affinity", "priorityClassName"
        )
        kept["status"] = _only(pod, "status", "phase", "resourceClaimStatuses")
    return kept


def _only(pod: Object, part: str, *fields: str) -> Object:
    found = pod.get(part) or {}
    return {name: found[name] for name in fields if name in found}
