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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.kinds import RESOURCE_QUOTAS
from koordra.api.objects import Object
from koordra.compat.quota_charges import Amounts, amounts, canonical_spec, dialect_of
from koordra.compat.rewrite import template_name
from koordra.compat.settings import Settings
from koordra.controller.legacy.quota import Charge, in_scope, is_scoped
from koordra.errors import ApiError, InvalidInput, NotFound
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


class _Place:
    """One namespace: its pods, what is being admitted, and the totals of both by name."""

    def __init__(self) -> None:
        self.pods: dict[str, tuple[Charge, ...]] = {}
        self.reserved: dict[str, tuple[float, Charge]] = {}
        self.totals: Counter[str] = Counter()

    def set_pod(self, name: str, charges: tuple[Charge, ...]) -> None:
        self._add(self.pods.pop(name, ()), -1)
        if charges:
            self.pods[name] = charges
            self._add(charges, 1)

    def reserve(self, token: str, until: float, charge: Charge) -> None:
        self.release(token)
        self.reserved[token] = until, charge
        self._add((charge,), 1)

    def release(self, token: str) -> None:
        found = self.reserved.pop(token, None)
        if found is not None:
            self._add((found[1],), -1)

    def expire(self, now: float) -> None:
        """Reservations stand in the order in which they end."""
        while self.reserved:
            token, (until, _) = next(iter(self.reserved.items()))
            if until > now:
                return
            self.release(token)

    def charges(self) -> list[Charge]:
        counted = [charge for charges in self.pods.values() for charge in charges]
        return [*counted, *(charge for _, charge in self.reserved.values())]

    def _add(self, charges: Iterable[Charge], sign: int) -> None:
        for charge in charges:
            for name, amount in charge.amounts.items():
                if amount:
                    self.totals[name] += sign * amount


class Usage:
    """Listener of watches of pods and templates. `clock` is monotonic."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._amounts: dict[str, Amounts] = {}
        self._places: dict[str, _Place] = {}
        self._unknown: dict[str, dict[str, Object]] = {}
        self._waiting: dict[str, dict[str, tuple[str, ...]]] = {}

    def on_pod(self, event: str, pod: Object, /) -> None:
        gone = event == "DELETED" or objects.pod_is_finished(pod)
        templates = () if gone else tuple(legacy_templates(pod))
        with self._lock:
            place = self._places.setdefault(objects.namespace(pod), _Place())
            if not self._waits_for(pod, templates):
                for token in tokens(pod):
                    place.release(token)
            kept = _for_scopes(pod)
            known = (self._amounts[name] for name in templates if name in self._amounts)
            place.set_pod(objects.name(pod), tuple(Charge(kept, amounts) for amounts in known))

    def _waits_for(self, pod: Object, templates: tuple[str, ...]) -> bool:
        """Pods of a template that is not known yet are counted when it is; what reserved for them counts until then."""
        key, waiting = objects.key(pod), self._waiting.setdefault(objects.namespace(pod), {})
        for name in waiting.pop(key, ()):
            others = self._unknown.get(name, {})
            others.pop(key, None)
            if not others:
                self._unknown.pop(name, None)
        missing = tuple(name for name in templates if name not in self._amounts)
        for name in missing:
            self._unknown.setdefault(name, {})[key] = pod
        if missing:
            waiting[key] = missing
        elif not waiting:
            del self._waiting[objects.namespace(pod)]
        return bool(missing)

    def recall(self, namespace: str, *, template: Find, claim: Find) -> None:
        """Templates that the watch has not shown yet; those that are gone, from the claims that were made of them."""
        with self._lock:
            pods = [
                self._unknown[missing[0]][key] for key, missing in self._waiting.get(namespace, {}).items()
            ]
        for pod in pods:
            made = objects.pod_claim_names(pod)
            for entry in objects.spec_of(pod).get("resourceClaims") or ():
                wanted = str(entry.get("resourceClaimTemplateName") or "")
                if not dialect_of(wanted):
                    continue
                there, name = template(namespace, wanted), made.get(str(entry.get("name")))
                if there is not None:
                    self._learn_if_genuine(wanted, objects.spec_of(there).get("spec") or {})
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
        with self._lock:
            known = self._amounts.get(name)
        return amounts(dialect_of(name), spec, self._settings) if known is None else known

    def learn(self, name: str, spec: Mapping[str, Any]) -> Amounts:
        """The same, remembered: pods will refer to it."""
        with self._lock:
            if name not in self._amounts:
                self._remember(name, amounts(dialect_of(name), spec, self._settings))
            return self._amounts[name]

    def _remember(self, name: str, amounts_: Amounts) -> None:
        with self._lock:
            self._amounts[name] = amounts_
            for pod in self._unknown.pop(name, {}).values():
                self.on_pod("MODIFIED", pod)

    def counted(self, quota: Object, name: str) -> int:
        """What the namespace's pods, admitted ones among them, add up to in what a quota counts."""
        with self._lock:
            place = self._places.get(objects.namespace(quota))
            if place is None:
                return 0
            place.expire(self._clock())
            if not is_scoped(quota):
                return place.totals[name]
            return sum(
                charge.amounts.get(name) or 0 for charge in place.charges() if in_scope(quota, charge.pod)
            )

    def has_observed(self, pod: Mapping[str, Any]) -> bool:
        """Whether the watch has shown the pod."""
        place = self._places.get(objects.namespace(pod))
        waiting = self._waiting.get(objects.namespace(pod), {})
        return (place is not None and objects.name(pod) in place.pods) or objects.key(pod) in waiting

    def charges(self, namespace: str) -> dict[str, tuple[Charge, ...]]:
        """Of the pods that the watch has shown, by name."""
        with self._lock:
            place = self._places.get(namespace)
            return dict(place.pods) if place else {}

    def reserve(self, token: str, asking: Charge, refused: Callable[[], str], *, keep: bool = True) -> str:
        """Charge the pod unless `refused` says why not, given what is counted. One step."""
        with self._lock:
            why = refused()
            if not why and keep:
                place = self._places.setdefault(objects.namespace(asking.pod), _Place())
                place.reserve(token, self._clock() + RESERVED_FOR, asking)
            return why

    def release(self, token: str, namespace: str) -> None:
        with self._lock:
            self._places.setdefault(namespace, _Place()).release(token)


def tokens(pod: Mapping[str, Any]) -> list[str]:
    """What the pod was charged under."""
    return [token for token in objects.annotations_of(pod).get(ADMITTED, "").split(",") if token]


def legacy_templates(pod: Mapping[str, Any]) -> Iterator[str]:
    """Templates of ours that the pod refers to."""
    for entry in objects.spec_of(pod).get("resourceClaims") or ():
        name = str(entry.get("resourceClaimTemplateName") or "") if isinstance(entry, Mapping) else ""
        if dialect_of(name):
            yield name


def counted_part(pod: Object) -> Object:
    """As much of a pod as is looked at here: a replica that only admits need not hold the cluster's pods in memory."""
    metadata = objects.metadata(pod)
    kept = {key: metadata[key] for key in ("name", "namespace", "resourceVersion", "uid") if key in metadata}
    if not any(legacy_templates(pod)):
        return {"metadata": kept}
    spec, status = objects.spec_of(pod), objects.status_of(pod)
    if charged := objects.annotations_of(pod).get(ADMITTED):
        kept["annotations"] = {ADMITTED: charged}
    return {
        "metadata": kept,
        "spec": {key: spec[key] for key in ("resourceClaims", *_SCOPED) if key in spec},
        "status": {key: status[key] for key in ("phase", "resourceClaimStatuses") if key in status},
    }


_SCOPED: Final = ("activeDeadlineSeconds", "affinity", "priorityClassName")


def _for_scopes(pod: Object) -> Object:
    """As much of a pod as the scopes of quotas look at, and who comes first."""
    spec = objects.spec_of(pod)
    kept = {key: spec[key] for key in _SCOPED if key in spec}
    metadata = objects.metadata(pod)
    named = {key: metadata[key] for key in ("name", "namespace", "creationTimestamp") if key in metadata}
    return {"metadata": named, "spec": kept}


PERIOD: Final = 10.0


class QuotaWatch:
    """ResourceQuotas by namespace. A server that does not have them has no quotas. `wake` is called after each change."""

    def __init__(self, client: KubeClient, *, wake: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._wake = wake
        self._cache = WatchCache(client, RESOURCE_QUOTAS, on_change=self._changed)
        self._lock = threading.Lock()
        self._by_namespace: dict[str, dict[str, Object]] = {}
        self._served = True

    def start(self, stop: threading.Event) -> None:
        spawn(lambda: self._run(stop), name="legacy-watch-quotas")

    def is_synced(self) -> bool:
        return not self._served or self._cache.wait_synced(0)

    def of(self, namespace: str) -> list[Object]:
        with self._lock:
            return list(self._by_namespace.get(namespace, {}).values())

    def all(self) -> list[Object]:
        return self._cache.objects()

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._client.list(RESOURCE_QUOTAS)
            except NotFound:
                if self._served:
                    log.info("resource_quotas_not_served", again_in=PERIOD * 6)
                self._served = False
                stop.wait(PERIOD * 6)
                continue
            except ApiError as error:
                log.warning("resource_quotas_not_read", error=str(error), again_in=PERIOD)
                stop.wait(PERIOD)
                continue
            self._served = True
            self._cache.run(stop)

    def _changed(self, event: str, quota: Object, /) -> None:
        with self._lock:
            found = self._by_namespace.setdefault(objects.namespace(quota), {})
            if event == "DELETED":
                found.pop(objects.name(quota), None)
            else:
                found[objects.name(quota)] = quota
        self._wake()
