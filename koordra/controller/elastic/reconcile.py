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
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from koordra.controller.elastic import cards, labels
from koordra.controller.elastic.apply import keep
from koordra.controller.elastic.claims import Act, Classes, Verdict, evaluate, without_claim
from koordra.controller.reconcile_loop import Caches, start_reconcile_loop
from koordra.controller.reporting.claim_events import ClaimEvent, cut
from koordra.controller.resource_class.reconcile import NAME_TAKEN, apply_device_class, ready, with_conditions
from koordra.errors import Conflict, Forbidden, Invalid, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a pass looks at, as the caches have it."""

    classes: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    bindings: Sequence[Object] = ()
    gpus: Sequence[Object] = ()
    device_classes: Sequence[Object] = ()
    resource_claims: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    pods: Sequence[Object] = ()


@dataclass(slots=True)
class ElasticReconciler:
    """`report` gets what people should know; `now` is the wall clock as RFC 3339. Raises ApiUnreachable."""

    client: KubeClient
    now: Callable[[], str]
    may_write: Callable[[], bool]
    report: Callable[[ClaimEvent], None] = lambda claim_event: None
    _reported: dict[str, str] = field(default_factory=dict)

    def reconcile(self, snapshot: Snapshot) -> None:
        classes = self._classes(snapshot)
        by_key = {objects.key(obj): obj for obj in snapshot.resource_claims}
        living = {objects.uid(claim): claim for claim in snapshot.claims if not objects.is_deleting(claim)}
        self._claims(
            living.values(),
            classes,
            by_key,
            frozenset(place for place, _, _ in cards.published_devices(snapshot.slices)),
        )
        self._left_over(snapshot, living)
        self._bindings_and_cards(snapshot, living)
        uids = {objects.uid(obj) for obj in (*snapshot.claims, *snapshot.bindings, *snapshot.gpus)}
        self._reported = {uid: text for uid, text in self._reported.items() if uid in uids}

    # classes

    def _classes(self, snapshot: Snapshot) -> Classes:
        """Every class as it could be read, its DeviceClass and its condition put right on the way."""
        current = {objects.name(obj): obj for obj in snapshot.device_classes}
        found: dict[str, Any] = {}
        for obj in snapshot.classes:
            if objects.is_deleting(obj):
                continue
            try:
                read = elastic_gpu.read_class(obj)
                found[read.name] = read
                wanted = elastic_gpu.device_class(obj)
                if self.may_write():
                    apply_device_class(self.client, wanted, current.get(read.name), obj)
                ignored = (
                    f"; parameters that mean nothing to koordra: {', '.join(read.ignored)}"
                    if read.ignored
                    else ""
                )
                text = f"DeviceClass {read.name} is as this class says{ignored}"
                condition = ready("True", "Reconciled", cut(text))
            except ClassRefused as refused:
                found[objects.name(obj)] = refused
                condition = ready("False", refused.reason, cut(str(refused)))
            except (Conflict, NotFound) as error:
                log.info("elastic_class_changed_meanwhile", name=objects.name(obj), error=str(error))
                continue
            self._status(ELASTIC_CLASSES, obj, {}, condition)
        return found

    # claims

    def _claims(
        self,
        claims: Iterable[Object],
        classes: Classes,
        by_key: Mapping[str, Object],
        published: frozenset[tuple[str, str]],
    ) -> None:
        for claim in claims:
            current = by_key.get(objects.key(claim))
            verdict = evaluate(claim, classes=classes, current=current, published=published)
            try:
                if verdict.act is not Act.NOTHING and self.may_write():
                    self._act(claim, current, verdict)
            except (Conflict, NotFound) as error:
                log.info("elastic_claim_changed_meanwhile", claim=objects.key(claim), error=str(error))
            except (Invalid, Forbidden) as error:
                text = f"the API server refuses its ResourceClaim: {error.message}"
                verdict = Verdict(verdict.phase, False, "RefusedByServer", text)
            self._report_claim(claim, current, verdict)

    def _act(self, claim: Object, current: Object | None, verdict: Verdict) -> None:
        place = objects.namespace(claim)
        if verdict.act is Act.MAKE and verdict.body is not None:
            self.client.create(RESOURCE_CLAIMS, verdict.body, namespace=place)
            log.info("elastic_claim_served", claim=objects.key(claim))
        elif verdict.act is Act.CORRECT and verdict.body is not None:
            body = {"metadata": verdict.body}
            self.client.patch(RESOURCE_CLAIMS, objects.name(claim), body, namespace=place)
            log.info("elastic_marks_put_right", claim=objects.key(claim))
        elif verdict.act is Act.REMOVE and current is not None:
            self._remove(current)

    def _report_claim(self, claim: Object, current: Object | None, verdict: Verdict) -> None:
        fields: Object = {"phase": verdict.phase}
        if current is not None and verdict.phase != "Pending":
            fields["elasticGPUName"] = labels.binding_name(current)
        condition = ready("True" if verdict.ready else "False", verdict.reason, cut(verdict.message))
        self._status(ELASTIC_CLAIMS, claim, fields, condition)
        trouble = not verdict.ready and verdict.reason not in _TRANSIENT_REASONS
        if trouble or verdict.phase == "Bound":
            self._report_once(claim, verdict.reason, verdict.message, warning=not verdict.ready)

    # ResourceClaims left over from claims that are gone

    def _left_over(self, snapshot: Snapshot, living: Mapping[str, Object]) -> None:
        by_name = {objects.name(obj): obj for obj in snapshot.bindings}
        for current in snapshot.resource_claims:
            uid = labels.claim_uid(current)
            if not uid and not (labels.is_held(current) and objects.is_deleting(current)):
                continue
            owner = _owner(current, living)
            act = without_claim(current) if owner is None or objects.is_deleting(current) else Act.NOTHING
            binding = by_name.get(labels.binding_name(current))
            if act is Act.NOTHING and not objects.is_deleting(current):
                act = Act.REMOVE if cards.is_freed(binding, current, owner) else act
            if act is Act.NOTHING or not self.may_write():
                continue
            try:
                if act is Act.REMOVE and self._is_really_gone(current, uid):
                    self._remove(current)
                elif act is Act.FREE:
                    self._free(current)
            except (Conflict, NotFound) as error:
                log.info("elastic_leftover_changed_meanwhile", claim=objects.key(current), error=str(error))
            except (Invalid, Forbidden) as error:
                log.error("elastic_leftover_refused", claim=objects.key(current), error=str(error))

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
        condition = {"uid": objects.uid(current), "resourceVersion": objects.resource_version(current)}
        if claims_of.holds_koordra_devices(current):
            status: Object = {"allocation": None}
            if objects.status_of(current).get("devices"):
                status["devices"] = None
            body = {"metadata": condition, "status": status}
            current = self.client.patch(RESOURCE_CLAIMS, name, body, namespace=place, subresource="status")
            condition = {"uid": objects.uid(current), "resourceVersion": objects.resource_version(current)}
        kept = [entry for entry in labels.finalizers(current) if entry != names.RETAIN_FINALIZER]
        body = {"metadata": {**condition, "finalizers": kept}}
        self.client.patch(RESOURCE_CLAIMS, name, body, namespace=place)
        log.info("elastic_claim_freed", claim=objects.key(current))

    # bindings and cards

    def _bindings_and_cards(self, snapshot: Snapshot, living: Mapping[str, Object]) -> None:
        published = cards.cards_of(snapshot.slices)
        wanted = [
            cards.elastic_gpu(claim, _owner(claim, living), published)
            for claim in snapshot.resource_claims
            if labels.claim_uid(claim) and claims_of.holds_koordra_devices(claim)
        ]
        ours = cards.gpus(published, snapshot.resource_claims, snapshot.pods)
        for kind, objs, there in ((ELASTIC_GPUS, wanted, snapshot.bindings), (GPUS, ours, snapshot.gpus)):
            for clash in keep(self.client, kind, objs, there, may_write=self.may_write):
                text = f"{objects.describe(clash)} was not made by koordra and has the name of one that is to be made"
                self._report_once(clash, NAME_TAKEN, f"{text}; delete it", warning=True)

    # reporting

    def _status(self, kind: Kind, obj: Object, fields: Object, condition: Object) -> None:
        before = objects.status_of(obj)
        old = before.get("conditions") or []
        generation = int(objects.metadata(obj).get("generation") or 0)
        conditions = with_conditions(old, [condition], now=self.now(), generation=generation)
        kept = {key: value for key, value in before.items() if key not in ("phase", "elasticGPUName")}
        status = {**kept, **fields, "conditions": conditions}
        if status == before or not self.may_write():
            return
        try:
            self.client.update(kind, {**obj, "status": status}, subresource="status")
        except (Conflict, NotFound, Invalid, Forbidden) as error:
            log.info("elastic_status_not_written", object=objects.describe(obj), error=str(error))

    def _report_once(self, obj: Object, reason: str, message: str, *, warning: bool) -> None:
        """Once for every new thing to say."""
        if self._reported.get(objects.uid(obj)) != message:
            self._reported[objects.uid(obj)] = message
            self.report(ClaimEvent(reason, cut(message), (obj,), warning=warning))


def _owner(current: Object, living: Mapping[str, Object]) -> Object | None:
    """The ElasticGPUClaim of a ResourceClaim; a label that names one of another name or namespace is a forgery."""
    found = living.get(labels.claim_uid(current))
    return found if found is not None and objects.key(found) == objects.key(current) else None


_TRANSIENT_REASONS: Final = frozenset(
    {"BeingMade", "BeingDeleted", "EarlierClaim", "WaitForFirstConsumer", "WaitForDevices"}
)
"""Reasons that pass by themselves; everything else becomes an Event."""


GATHER: Final = 0.25
KINDS: Final = (ELASTIC_CLASSES, ELASTIC_CLAIMS, ELASTIC_GPUS, GPUS)


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
        cluster = observe()
        reconciler.reconcile(
            Snapshot(
                classes=caches[ELASTIC_CLASSES].objects(),
                claims=caches[ELASTIC_CLAIMS].objects(),
                bindings=caches[ELASTIC_GPUS].objects(),
                gpus=caches[GPUS].objects(),
                device_classes=cluster.classes,
                resource_claims=cluster.claims,
                slices=cluster.slices,
                pods=cluster.pods,
            )
        )

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
