"""The reconciler of Elastic GPU's objects, in the leader's term: one pass over all of them after any change.

    classes     each against its DeviceClass
    claims      each against the ResourceClaim of its name (claims.py decides); phase and condition Ready
    left over   ResourceClaims whose ElasticGPUClaim is gone, and those that wait to be freed
    bindings    ElasticGPU objects
    cards       GPU objects

Every step reads the whole state and may be the last one before a crash: the next pass goes on from what is there. What a
cache shows as gone is asked for once more before anything is deleted because of it. A pass reads all slices and claims, so
changes of a quarter of a second share one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.elastic import elastic_gpu
from koordra.api.elastic.elastic_gpu import (
    ELASTIC_CLAIMS,
    ELASTIC_CLASSES,
    ELASTIC_GPUS,
    GPUS,
)
from koordra.api.kinds import RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.api.resource_class import ClassRefused
from koordra.controller import claims as claims_of
from koordra.controller.cache.changes import Cluster
from koordra.controller.elastic import cards
from koordra.controller.elastic.apply import keep, one_object
from koordra.controller.elastic.claims import (
    Act,
    Classes,
    Place,
    Verdict,
    binding_name,
    claim_uid,
    evaluate,
    finalizers,
    identity,
    is_held,
    without_claim,
)
from koordra.controller.reconcile_loop import Caches, start_reconcile_loop
from koordra.controller.reporting.claim_events import ClaimEvent, cut
from koordra.controller.resource_class.reconcile import NAME_TAKEN, apply_device_class, ready, write_status
from koordra.errors import Forbidden, Invalid, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)

KINDS: Final = (ELASTIC_CLASSES, ELASTIC_CLAIMS, ELASTIC_GPUS, GPUS)


@dataclass(slots=True)
class ElasticReconciler:
    """`report` gets what people should know; `now` is the wall clock as RFC 3339. Raises ApiUnreachable."""

    client: KubeClient
    now: Callable[[], str]
    may_write: Callable[[], bool]
    report: Callable[[ClaimEvent], None] = lambda claim_event: None
    _reported: dict[str, str] = field(default_factory=dict)

    def reconcile(self, cluster: Cluster, elastic: Mapping[Kind, Sequence[Object]]) -> None:
        """Everything as the caches have it; `elastic` has the objects of KINDS."""
        living = {
            objects.uid(claim): claim for claim in elastic[ELASTIC_CLAIMS] if not objects.is_deleting(claim)
        }
        self._claims(
            living.values(),
            self._classes(elastic[ELASTIC_CLASSES], cluster.classes),
            {objects.key(obj): obj for obj in cluster.claims},
            frozenset(place for place, _, _ in cards.published_devices(cluster.slices)),
        )
        bindings = {objects.name(obj): obj for obj in elastic[ELASTIC_GPUS]}
        for current in cluster.claims:
            self._leave_over(current, _owner(current, living), bindings.get(binding_name(current)))
        self._bindings_and_cards(cluster, elastic, living)
        uids = {objects.uid(obj) for kind in KINDS[1:] for obj in elastic[kind]}
        self._reported = {uid: text for uid, text in self._reported.items() if uid in uids}

    def _classes(self, classes: Iterable[Object], device_classes: Iterable[Object]) -> Classes:
        """Every class as it could be read, its DeviceClass and its condition put right on the way."""
        current = {objects.name(obj): obj for obj in device_classes}
        found: dict[str, Any] = {}
        for obj in classes:
            name = objects.name(obj)
            if objects.is_deleting(obj):
                continue
            with one_object(obj):
                try:
                    read = elastic_gpu.read_class(obj)
                    found[name] = read
                    wanted = elastic_gpu.device_class(obj)
                    if self.may_write():
                        apply_device_class(self.client, wanted, current.get(name), obj)
                    text = f"DeviceClass {name} is as this class says"
                    if read.ignored:
                        text += f"; parameters that mean nothing to koordra: {', '.join(read.ignored)}"
                    condition = ready("True", "Reconciled", cut(text))
                except ClassRefused as refused:
                    found[name] = refused
                    condition = ready("False", refused.reason, cut(str(refused)))
                self._status(ELASTIC_CLASSES, obj, {}, condition)
        return found

    def _claims(
        self,
        claims: Iterable[Object],
        classes: Classes,
        by_key: Mapping[str, Object],
        published: Set[Place],
    ) -> None:
        for claim in claims:
            current = by_key.get(objects.key(claim))
            verdict = evaluate(claim, classes=classes, current=current, published=published)
            with one_object(claim):
                try:
                    if self.may_write():
                        self._act(claim, current, verdict)
                except (Invalid, Forbidden) as error:
                    verdict = Verdict(
                        "RefusedByServer",
                        f"the API server refuses its ResourceClaim: {error.message}",
                        verdict.phase,
                    )
            self._report_claim(claim, current, verdict)

    def _act(self, claim: Object, current: Object | None, verdict: Verdict) -> None:
        place = objects.namespace(claim)
        if verdict.act is Act.MAKE and verdict.body is not None:
            self.client.create(RESOURCE_CLAIMS, verdict.body, namespace=place)
            log.info("elastic_claim_served", claim=objects.key(claim))
        elif verdict.act is Act.CORRECT and verdict.body is not None:
            self.client.patch(
                RESOURCE_CLAIMS, objects.name(claim), {"metadata": verdict.body}, namespace=place
            )
            log.info("elastic_marks_put_right", claim=objects.key(claim))
        elif verdict.act is Act.REMOVE and current is not None:
            self._remove(current)

    def _report_claim(self, claim: Object, current: Object | None, verdict: Verdict) -> None:
        has_devices = current is not None and verdict.phase != "Pending"
        binding = binding_name(current) if current is not None and has_devices else None
        condition = ready("True" if verdict.ready else "False", verdict.reason, cut(verdict.message))
        self._status(ELASTIC_CLAIMS, claim, {"phase": verdict.phase, "elasticGPUName": binding}, condition)
        if verdict.phase == "Bound" or not (verdict.ready or verdict.reason in _TRANSIENT_REASONS):
            self._report_once(claim, verdict.reason, verdict.message, warning=not verdict.ready)

    def _leave_over(self, current: Object, owner: Object | None, binding: Object | None) -> None:
        """A ResourceClaim left over from a claim that is gone."""
        uid, deleting = claim_uid(current), objects.is_deleting(current)
        if not uid and not (is_held(current) and deleting):
            return
        act = without_claim(current) if owner is None or deleting else Act.NOTHING
        if act is Act.NOTHING and not deleting and cards.is_freed(binding, current, owner):
            act = Act.REMOVE
        if act is Act.NOTHING or not self.may_write():
            return
        with one_object(current):
            if act is Act.REMOVE and self._is_really_gone(current, uid):
                self._remove(current)
            elif act is Act.FREE:
                self._free(current)

    def _is_really_gone(self, current: Object, uid: str) -> bool:
        try:
            found = self.client.get(
                ELASTIC_CLAIMS, objects.name(current), namespace=objects.namespace(current)
            )
        except NotFound:
            return True
        return objects.uid(found) != uid or objects.is_deleting(found)

    def _remove(self, current: Object) -> None:
        """As it was looked at: a new claim may have taken it over meanwhile."""
        self.client.delete(
            RESOURCE_CLAIMS,
            objects.name(current),
            namespace=objects.namespace(current),
            uid=objects.uid(current),
            resource_version=objects.resource_version(current),
        )
        log.info("elastic_leftover_removed", claim=objects.key(current))

    def _free(self, current: Object) -> None:
        """The allocation first, then the finalizer: in between the devices are free and the claim is still there."""
        name, place = objects.name(current), objects.namespace(current)
        if claims_of.holds_koordra_devices(current):
            status: Object = {"allocation": None}
            if objects.status_of(current).get("devices"):
                status["devices"] = None
            body: Object = {"metadata": identity(current), "status": status}
            current = self.client.patch(RESOURCE_CLAIMS, name, body, namespace=place, subresource="status")
        kept = [entry for entry in finalizers(current) if entry != names.RETAIN_FINALIZER]
        body = {"metadata": {**identity(current), "finalizers": kept}}
        self.client.patch(RESOURCE_CLAIMS, name, body, namespace=place)
        log.info("elastic_claim_freed", claim=objects.key(current))

    def _bindings_and_cards(
        self, cluster: Cluster, elastic: Mapping[Kind, Sequence[Object]], living: Mapping[str, Object]
    ) -> None:
        published = cards.cards_of(cluster.slices)
        wanted = {
            ELASTIC_GPUS: [
                cards.elastic_gpu(claim, _owner(claim, living), published)
                for claim in cluster.claims
                if claim_uid(claim) and claims_of.holds_koordra_devices(claim)
            ],
            GPUS: cards.gpus(published, cluster.claims, cluster.pods),
        }
        for kind, objs in wanted.items():
            for clash in keep(self.client, kind, objs, elastic[kind], may_write=self.may_write):
                text = f"{objects.describe(clash)} was not made by koordra and has the name of one that is to be made"
                self._report_once(clash, NAME_TAKEN, f"{text}; delete it", warning=True)

    def _status(self, kind: Kind, obj: Object, fields: Object, condition: Object) -> None:
        if self.may_write():
            with one_object(obj):
                write_status(self.client, kind, obj, [condition], now=self.now(), fields=fields)

    def _report_once(self, obj: Object, reason: str, message: str, *, warning: bool) -> None:
        if self._reported.get(objects.uid(obj)) != message:
            self._reported[objects.uid(obj)] = message
            self.report(ClaimEvent(reason, cut(message), (obj,), warning=warning))


def _owner(current: Object, living: Mapping[str, Object]) -> Object | None:
    """The ElasticGPUClaim of a ResourceClaim; a label that names one of another name or namespace is a forgery."""
    found = living.get(claim_uid(current))
    return found if found is not None and objects.key(found) == objects.key(current) else None


_TRANSIENT_REASONS: Final = frozenset(
    {"BeingMade", "BeingDeleted", "EarlierClaim", "WaitForFirstConsumer", "WaitForDevices"}
)
"""Reasons that pass by themselves; everything else becomes an Event."""


GATHER: Final = 0.25


def start_elastic(
    client: KubeClient,
    *,
    observe: Callable[[], Cluster],
    changed: threading.Event,
    now: Callable[[], str],
    may_write: Callable[[], bool],
    report: Callable[[ClaimEvent], None],
    stop: threading.Event,
) -> threading.Thread:
    """Until `stop`, in a thread of its own. `observe`: the term's caches; `changed` is set when they change."""
    reconciler = ElasticReconciler(client, now=now, may_write=may_write, report=report)

    def reconcile(caches: Caches) -> None:
        reconciler.reconcile(observe(), {kind: caches[kind].objects() for kind in KINDS})

    return start_reconcile_loop(
        client,
        reconcile,
        name="elastic-gpu",
        kinds=KINDS,
        crds=KINDS,
        gather=GATHER,
        changed=changed,
        stop=stop,
    )
