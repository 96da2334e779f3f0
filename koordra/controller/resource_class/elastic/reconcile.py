"""The reconciler of Elastic GPU's objects, in the leader's term: one pass over all of them after any change.

    classes     each against its DeviceClass
    claims      each against the ResourceClaim of its name (claims.py decides); phase and condition Ready
    left over   ResourceClaims whose ElasticGPUClaim is gone, and those that wait to be freed
    bindings    ElasticGPU objects
    cards       GPU objects

The last two are written by koordra alone, and held as they are wanted:

    wanted, not there            create, then its status
    there, spec or marks differ  update
    there, status differs        update the status
    there, not wanted            finalizer off, delete
    there, not made by koordra   left alone, whatever its name; reported

A wanted object being deleted comes back when it is gone. One object's refusal does not stop the others.

Every step reads the whole state and may be the last one before a crash: the next pass goes on from what is
there. What a cache shows as gone is asked for once more before anything is deleted because of it. A pass
reads all slices and claims, so changes of a quarter of a second share one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.elastic import elastic_gpu
from koordra.api.elastic.elastic_gpu import ELASTIC_CLAIMS, ELASTIC_CLASSES, ELASTIC_GPUS, GPUS
from koordra.api.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Kind
from koordra.api.objects import Fields, Object
from koordra.api.resource_class import ClassRefused
from koordra.controller import claims as claims_of
from koordra.controller.allocation.writes import WriteOutcome, Writer
from koordra.controller.cache.changes import Tables
from koordra.controller.reconcile.reconcile_loop import Caches, ReconcileLoop
from koordra.controller.reporting.claim_events import ClaimEvent, cut
from koordra.controller.resource_class.elastic import cards
from koordra.controller.resource_class.elastic.claims import (
    CARD,
    Act,
    Classes,
    Evaluation,
    Place,
    binding_name,
    claim_uid,
    evaluate,
    identity,
    is_held,
    managed,
    without_claim,
)
from koordra.controller.resource_class.expansion import NAME_TAKEN
from koordra.controller.resource_class.reconcile import (
    apply_device_class,
    foreign_finalizers,
    merged,
    ready,
    write_status,
)
from koordra.errors import ApiUnreachable, Conflict, Forbidden, Invalid, NotFound
from koordra.kube.client import KubeClient
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

    def reconcile(self, cluster: Tables, elastic: Mapping[Kind, Sequence[Object]]) -> None:
        """Everything as the caches have it; `elastic` has the objects of KINDS."""
        living = {
            objects.uid(claim): claim for claim in elastic[ELASTIC_CLAIMS] if not objects.is_deleting(claim)
        }
        self._claims(
            living.values(),
            self._classes(elastic[ELASTIC_CLASSES], cluster[DEVICE_CLASSES]),
            cluster[RESOURCE_CLAIMS],
            frozenset(place for place, _, _ in cards.published_devices(cluster[RESOURCE_SLICES].values())),
        )
        bindings = {objects.name(obj): obj for obj in elastic[ELASTIC_GPUS]}
        for current in cluster[RESOURCE_CLAIMS].values():
            self._leave_over(current, _owner(current, living), bindings.get(binding_name(current)))
        self._bindings_and_cards(cluster, elastic, living)
        uids = {objects.uid(obj) for kind in KINDS[1:] for obj in elastic[kind]}
        self._reported = {uid: text for uid, text in self._reported.items() if uid in uids}

    def _classes(self, classes: Iterable[Object], current: Mapping[str, Object]) -> Classes:
        """Every class as it could be read, its DeviceClass and its condition put right on the way."""
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
                    verdict = Evaluation(
                        "RefusedByServer",
                        f"the API server refuses its ResourceClaim: {error.message}",
                        verdict.phase,
                    )
            self._report_claim(claim, current, verdict)

    def _act(self, claim: Object, current: Object | None, verdict: Evaluation) -> None:
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

    def _report_claim(self, claim: Object, current: Object | None, verdict: Evaluation) -> None:
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
        """The allocation first, then the finalizer: in between the devices are free and the claim is still
        there."""
        if claims_of.holds_koordra_devices(current):
            freed = Writer(self.client, may_write=self.may_write, now=self.now).give_back(current)
            if freed.outcome is WriteOutcome.UNREACHABLE:
                raise ApiUnreachable(freed.message)  # the pass is repeated soon
            if not freed.ok or freed.obj is None:
                report = log.error if freed.outcome is WriteOutcome.REFUSED else log.info
                report("elastic_claim_not_freed", claim=objects.key(current), error=freed.message)
                return
            current = freed.obj
        kept = [entry for entry in objects.finalizers_of(current) if entry != names.RETAIN_FINALIZER]
        body = {"metadata": {**identity(current), "finalizers": kept}}
        self.client.patch(RESOURCE_CLAIMS, objects.name(current), body, namespace=objects.namespace(current))
        log.info("elastic_claim_freed", claim=objects.key(current))

    def _bindings_and_cards(
        self, cluster: Tables, elastic: Mapping[Kind, Sequence[Object]], living: Mapping[str, Object]
    ) -> None:
        claims = cluster[RESOURCE_CLAIMS].values()
        published = cards.cards_of(cluster[RESOURCE_SLICES].values())
        wanted = {
            ELASTIC_GPUS: [
                cards.elastic_gpu(claim, _owner(claim, living), published)
                for claim in claims
                if claim_uid(claim) and claims_of.holds_koordra_devices(claim)
            ],
            GPUS: cards.gpus(published, claims, cluster[PODS].values()),
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
    """The ElasticGPUClaim of a ResourceClaim; a label that names one of another name or namespace is a
    forgery."""
    found = living.get(claim_uid(current))
    return found if found is not None and objects.key(found) == objects.key(current) else None


_TRANSIENT_REASONS: Final = frozenset(
    {"BeingMade", "BeingDeleted", "EarlierClaim", "WaitForFirstConsumer", "WaitForDevices"}
)
"""Reasons that pass by themselves; everything else becomes an Event."""


@contextmanager
def one_object(obj: Fields) -> Iterator[None]:
    """What is done about one object: its refusal does not stop the others."""
    try:
        yield
    except (Conflict, NotFound) as error:
        log.info("elastic_object_changed_meanwhile", object=objects.describe(obj), error=str(error))
    except (Invalid, Forbidden) as error:
        log.error("elastic_object_refused", object=objects.describe(obj), error=str(error))


def keep(
    client: KubeClient,
    kind: Kind,
    wanted: Iterable[Object],
    there: Sequence[Object],
    *,
    may_write: Callable[[], bool],
) -> list[Object]:
    """Make it so; the objects of other people that stand in the way."""
    current = {objects.name(obj): obj for obj in there}
    clashes = []
    for obj in wanted:
        found = current.pop(objects.name(obj), None)
        if found is not None and not managed(found):
            clashes.append(found)
        elif may_write():
            with one_object(obj):
                _settle(client, kind, obj, found)
    for found in current.values():
        if managed(found) and may_write():
            with one_object(found):
                _remove(client, kind, found)
    return clashes


def _settle(client: KubeClient, kind: Kind, wanted: Object, current: Object | None) -> None:
    if current is None:
        current = client.create(kind, objects.without(wanted, "status"))
        log.info("elastic_object_made", kind=kind.kind, name=objects.name(wanted))
    elif not objects.is_deleting(current) and (changed := merged(wanted, current)) is not None:
        current = client.update(kind, changed)
        log.info("elastic_object_put_right", kind=kind.kind, name=objects.name(wanted))
    if objects.status_of(current) != wanted["status"]:
        client.update(kind, {**current, "status": wanted["status"]}, subresource="status")


def _remove(client: KubeClient, kind: Kind, current: Object) -> None:
    if CARD in objects.finalizers_of(current):
        metadata = {**objects.metadata(current), "finalizers": foreign_finalizers(current)}
        current = client.update(kind, {**current, "metadata": metadata})
    if not objects.is_deleting(current):
        client.delete(kind, objects.name(current), uid=objects.uid(current) or None)
    log.info("elastic_object_removed", kind=kind.kind, name=objects.name(current))


GATHER: Final = 0.25


def start_elastic(
    client: KubeClient,
    writer: Writer,
    observe: Callable[[], Tables],
    *,
    changed: threading.Event,
    report: Callable[[ClaimEvent], None],
    stop: threading.Event,
) -> threading.Thread:
    """Until `stop`, in its own thread. `observe`: the term's caches; `changed` is set when they change."""
    reconciler = ElasticReconciler(client, now=writer.now, may_write=writer.may_write, report=report)

    def reconcile(caches: Caches) -> None:
        reconciler.reconcile(observe(), {kind: caches[kind].objects() for kind in KINDS})

    return ReconcileLoop(
        client,
        reconcile,
        name="elastic-gpu",
        kinds=KINDS,
        crds=KINDS,
        gather=GATHER,
        changed=changed,
        stop=stop,
    ).start()
