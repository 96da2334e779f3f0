"""What the legacy pods of each namespace add up to, followed through watches, what is being admitted just now, and the ResourceQuotas.

    pod in the watch, not finished ──> entries of spec.resourceClaims that name a template of ours ──> amounts by the name
    pod admitted, not in the watch yet ──> a reservation under the review's uid, which the pod carries; gone when the pod is seen,
                                           or after a minute (it was not stored)

A template's name is a digest of its content, so what it amounts to is worked out once and holds in every namespace. `spec` and
`resourceClaims` of a pod cannot be changed, so nobody edits his way out of a quota. Nor does he by deleting the template of a
running pod: a replica that starts later reads the same content from the pod's claim, whose spec cannot be changed either.

Charging is one step under a lock: two pods that come to one replica at once cannot both have the last card. Two replicas can
differ by what came to the other within the watch's delay; the leader then gives the pod that is too much no devices
(quota).
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.kinds import RESOURCE_QUOTAS
from koordra.api.objects import Object
from koordra.compat.quota_charges import Amounts, amounts, canonical_spec, dialect_of
from koordra.compat.rewrite import template_name
from koordra.compat.settings import Settings
from koordra.controller.legacy.quota import Charge, in_scope, is_scoped
from koordra.errors import InvalidInput
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.process import spawn
from koordra.watch import WatchCache

log = get_logger(__name__)

ADMITTED: Final = names.DOMAIN + "admitted-as"
"""Annotation: uids of the reviews that charged the pod to a quota, several where another webhook asked for more in between."""
RESERVED_FOR: Final = 60.0

Find = Callable[[str, str], Object | None]
"""(namespace, name) -> the object."""

_MALFORMED: Final = (InvalidInput, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Whoever knows how names are made can make a template under such a name that koordra would never write (half a byte of memory, for
a class of somebody else's). It counts nothing, as handwritten ones do, and nobody else may suffer from it."""


@dataclass(slots=True)
class _Place:
    """One namespace: its pods by name, those among them of a template that is not known yet, what is being admitted by the uid of its
    review until when, in the order in which that ends, and the totals of pods and reservations."""

    pods: dict[str, Charge] = field(default_factory=dict)
    waiting: dict[str, Object] = field(default_factory=dict)
    reserved: dict[str, tuple[float, Charge]] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)

    def set_pod(self, name: str, charge: Charge | None) -> None:
        if name in self.pods:
            self._add(self.pods.pop(name), -1)
        if charge is not None:
            self.pods[name] = charge
            self._add(charge, 1)

    def reserve(self, token: str, until: float, charge: Charge) -> None:
        self.release(token)
        self.reserved[token] = until, charge
        self._add(charge, 1)

    def release(self, token: str) -> None:
        if token in self.reserved:
            self._add(self.reserved.pop(token)[1], -1)

    def expire(self, now: float) -> None:
        while self.reserved:
            token, (until, _) = next(iter(self.reserved.items()))
            if until > now:
                return
            self.release(token)

    def _add(self, charge: Charge, sign: int) -> None:
        for name, amount in charge.amounts.items():
            self.totals[name] += sign * (amount or 0)


class Usage:
    """Listener of watches of pods and templates. `clock` is monotonic. Pods that wait are found by the templates they wait for: users
    make both, and each template is learned once."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._amounts: dict[str, Amounts] = {}
        self._places: defaultdict[str, _Place] = defaultdict(_Place)
        self._waiting_for: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)

    def on_pod(self, event: str, pod: Object, /) -> None:
        """Pods of a template that is not known yet are counted when it is; what reserved for them counts until then."""
        gone = event == "DELETED" or objects.pod_is_finished(pod)
        templates = () if gone else tuple(legacy_templates(pod))
        name = objects.name(pod)
        with self._lock:
            place = self._places[objects.namespace(pod)]
            known = [self._amounts[template] for template in templates if template in self._amounts]
            self._wait_no_more(place, pod)
            if len(known) < len(templates):
                place.waiting[name] = pod
                for template in templates:
                    if template not in self._amounts:
                        self._waiting_for[template].add((objects.namespace(pod), name))
            else:
                for token in tokens(pod):
                    place.release(token)
            place.set_pod(name, Charge(pod, _sum(known)) if known else None)

    def _wait_no_more(self, place: _Place, pod: Object) -> None:
        for template in legacy_templates(place.waiting.pop(objects.name(pod), {})):
            if template in self._waiting_for:
                self._waiting_for[template].discard((objects.namespace(pod), objects.name(pod)))
                if not self._waiting_for[template]:
                    del self._waiting_for[template]

    def recall(self, namespace: str, *, template: Find, claim: Find) -> None:
        """Templates that the watch has not shown yet; those that are gone, from the claims that were made of them."""
        with self._lock:
            pods = list(self._places[namespace].waiting.values())
        for pod in pods:
            made = objects.pod_claim_names(pod)
            for entry in objects.spec_of(pod).get("resourceClaims") or ():
                wanted = str(entry.get("resourceClaimTemplateName") or "")
                if not dialect_of(wanted):
                    continue
                there, name = template(namespace, wanted), made.get(str(entry.get("name")))
                if there is not None:
                    self.on_template("ADDED", there)
                elif name and (found := claim(namespace, name)) is not None:
                    self._learn_if_genuine(wanted, objects.spec_of(found))

    def on_template(self, event: str, template: Object, /) -> None:
        if event != "DELETED" and dialect_of(objects.name(template)):
            self._learn_if_genuine(objects.name(template), objects.spec_of(template).get("spec") or {})

    def _learn_if_genuine(self, name: str, stored: Mapping[str, Any]) -> None:
        spec = canonical_spec(stored)
        if template_name(dialect_of(name), spec) == name:
            try:
                self.learn(name, spec)
            except _MALFORMED:
                log.warning("template_not_countable", template=name)
                self._remember(name, {})

    def amounts_of(self, name: str, spec: Mapping[str, Any]) -> Amounts:
        """What a template of ours amounts to, without remembering it: it may never be made."""
        known = self._amounts.get(name)
        return amounts(dialect_of(name), spec, self._settings) if known is None else known

    def learn(self, name: str, spec: Mapping[str, Any]) -> None:
        """The same, remembered: pods will refer to it."""
        if name not in self._amounts:
            self._remember(name, self.amounts_of(name, spec))

    def _remember(self, name: str, amounts_: Amounts) -> None:
        with self._lock:
            self._amounts[name] = amounts_
            for namespace, pod in sorted(self._waiting_for.pop(name, ())):
                self.on_pod("MODIFIED", self._places[namespace].waiting[pod])

    def counted(self, quota: Object, name: str) -> int:
        """What the namespace's pods, admitted ones among them, add up to in what a quota counts."""
        with self._lock:
            place = self._places[objects.namespace(quota)]
            place.expire(self._clock())
            if not is_scoped(quota):
                return place.totals[name]
            charges = [*place.pods.values(), *(charge for _, charge in place.reserved.values())]
            return sum(charge.amounts.get(name) or 0 for charge in charges if in_scope(quota, charge.pod))

    def has_observed(self, pod: Mapping[str, Any]) -> bool:
        with self._lock:
            place = self._places[objects.namespace(pod)]
            return objects.name(pod) in place.pods or objects.name(pod) in place.waiting

    def charges(self, namespace: str) -> dict[str, Charge]:
        """Of the pods that the watch has shown, by name."""
        with self._lock:
            return dict(self._places[namespace].pods)

    def reserve(self, token: str, asking: Charge, refused: Callable[[], str], *, keep: bool = True) -> str:
        """Charge the pod unless `refused` says why not, given what is counted. One step."""
        with self._lock:
            why = refused()
            if not why and keep:
                self._places[objects.namespace(asking.pod)].reserve(
                    token, self._clock() + RESERVED_FOR, asking
                )
            return why

    def release(self, token: str, namespace: str) -> None:
        with self._lock:
            self._places[namespace].release(token)


def _sum(parts: list[Amounts]) -> Amounts:
    """Of a pod that has several claims; what one of them does not say counts nothing."""
    if len(parts) == 1:
        return parts[0]
    total: Counter[str] = Counter()
    for part in parts:
        total.update({name: amount or 0 for name, amount in part.items()})
    return total


def tokens(pod: Mapping[str, Any]) -> list[str]:
    return [token for token in objects.annotations_of(pod).get(ADMITTED, "").split(",") if token]


def legacy_templates(pod: Mapping[str, Any]) -> Iterator[str]:
    """Templates of ours that the pod refers to."""
    for entry in objects.spec_of(pod).get("resourceClaims") or ():
        name = str(entry.get("resourceClaimTemplateName") or "") if isinstance(entry, Mapping) else ""
        if dialect_of(name):
            yield name


def counted_part(pod: Object) -> Object:
    """As much of a pod as is looked at here: a replica that only admits need not hold the cluster's pods in memory."""
    kept: Object = {"metadata": _only(pod, "metadata", "name", "namespace", "resourceVersion", "uid")}
    if any(legacy_templates(pod)):
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


class QuotaWatch:
    """ResourceQuotas by namespace. `wake` is called after each change."""

    def __init__(self, client: KubeClient, *, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._cache = WatchCache(client, RESOURCE_QUOTAS, on_change=self._changed)
        self._lock = threading.Lock()
        self._by_namespace: defaultdict[str, dict[str, Object]] = defaultdict(dict)

    def start(self, stop: threading.Event) -> None:
        spawn(partial(self._cache.run, stop), name="legacy-watch-quotas")

    def is_synced(self) -> bool:
        return self._cache.wait_synced(0)

    def of(self, namespace: str) -> list[Object]:
        with self._lock:
            return list(self._by_namespace.get(namespace, {}).values())

    def all(self) -> list[Object]:
        return self._cache.objects()

    def _changed(self, event: str, quota: Object, /) -> None:
        with self._lock:
            found = self._by_namespace[objects.namespace(quota)]
            if event == "DELETED":
                found.pop(objects.name(quota), None)
            else:
                found[objects.name(quota)] = quota
        self._wake()
