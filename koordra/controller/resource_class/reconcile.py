"""The reconciler of ResourceClasses, in the leader's term.

    ResourceClass ──> the DeviceClass it means, or ClassRefused
                          │
        no such DeviceClass       create
        ours, different           update (drift put back, a changed class carried over)
        ours, the same            nothing
        somebody else's           NameTaken: never overwritten
        the API server refuses    RefusedByServer, with its words

and a condition `Ready` with a reason and what to do, plus `NodesHonoured` where suitableNodes is given. A
class that is refused keeps the DeviceClass it had: claims that name it go on as before, and the condition
says that it is the old one.

ResourceClasses, their parameters and DeviceClasses are watched. ConfigMaps are read one by one, since koordra
may read those of its own namespace only: a change of one is seen by the pass of every half minute.

suitableNodes is an annotation on the DeviceClass and becomes required node affinity of the pod, so that the
allocator, and in native mode kube-scheduler, see one rule they know: a pod goes only to nodes that serve
every class its claims name. A class that is only an alternative (`firstAvailable`) restricts the pod all the
same: never a wrong node, though a claim may wait that the other alternative would have served.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from koordra.api import names, objects
from koordra.api.classic import suitable_nodes
from koordra.api.kinds import DEVICE_CLASSES, Kind
from koordra.api.objects import Fields, Object
from koordra.api.resource_class import (
    CLASS_PARAMETERS,
    CONFIG_MAPS,
    RESOURCE_CLASSES,
    ClassRefused,
    driver_of,
)
from koordra.controller import claims as claims_of
from koordra.controller.reconcile.reconcile_loop import Caches, ReconcileLoop
from koordra.controller.resource_class.expansion import meant_by, name_taken
from koordra.errors import (
    ApiUnreachable,
    Conflict,
    Forbidden,
    Invalid,
    InvalidInput,
    InvalidManifest,
    NotFound,
)
from koordra.inert import inert
from koordra.kube.client import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)

READY: Final = "Ready"
NODES_HONOURED: Final = "NodesHonoured"
LONGEST_MESSAGE: Final = 32768


@dataclass(frozen=True, slots=True)
class ClassReconciler:
    client: KubeClient
    own_namespace: str
    now: Callable[[], str]
    may_write: Callable[[], bool]

    def reconcile(
        self,
        resource_classes: Iterable[Object],
        device_classes: Mapping[str, Object],
        parameters: Mapping[str, Object],
    ) -> None:
        """`device_classes` by name, `parameters` (ResourceClassParameters) by namespace/name.

        Raises ApiUnreachable: the pass is repeated.
        """
        for obj in resource_classes:
            if not self.may_write():
                return
            if objects.is_deleting(obj):
                continue
            try:
                self._one(obj, device_classes, parameters)
            except (Conflict, NotFound) as error:
                if isinstance(error, Conflict) and error.reason == "AlreadyExists":
                    raise ApiUnreachable("a DeviceClass appeared that the cache does not show yet") from error
                log.info("class_changed_meanwhile", resource_class=objects.name(obj), error=str(error))

    def _one(
        self, obj: Object, device_classes: Mapping[str, Object], parameters: Mapping[str, Object]
    ) -> None:
        name = objects.name(obj)
        current = device_classes.get(name)
        try:
            wanted = meant_by(obj, lookup=partial(self._find, parameters), own_namespace=self.own_namespace)
            apply_device_class(self.client, wanted, current, obj)
            condition = ready("True", "Reconciled", f"DeviceClass {name} is as this class says")
        except ClassRefused as refused:
            log.warning("class_refused", resource_class=name, reason=refused.reason, error=str(refused))
            kept = "; the DeviceClass stays as it was" if current is not None and owns(obj, current) else ""
            condition = ready("False", refused.reason, f"{refused}{kept}")
        conditions = [condition, *nodes_honoured(obj)]
        write_status(self.client, RESOURCE_CLASSES, obj, conditions, now=self.now())

    def _find(self, parameters: Mapping[str, Object], kind: Kind, namespace: str, name: str) -> Object | None:
        if kind != CONFIG_MAPS:
            return parameters.get(f"{namespace}/{name}")
        try:
            return self.client.get(kind, name, namespace=namespace)
        except NotFound:
            return None


def apply_device_class(client: KubeClient, wanted: Object, current: Object | None, obj: Object) -> None:
    """Makes the DeviceClass of `obj` what it means. Raises ClassRefused, and ApiError where it has changed
    meanwhile."""
    try:
        if current is None:
            client.create(DEVICE_CLASSES, wanted)
            log.info("device_class_created", device_class=objects.name(wanted))
        elif not owns(obj, current):
            raise name_taken(obj)
        elif (changed := merged(wanted, current)) is not None:
            client.update(DEVICE_CLASSES, changed)
            log.info("device_class_put_right", device_class=objects.name(wanted))
    except (Invalid, Forbidden) as error:
        raise ClassRefused(
            "RefusedByServer",
            f"the API server refuses the DeviceClass: {error.message}",
            object=objects.describe(obj),
            remedy="correct the field it names",
        ) from error


def ready(status: str, reason: str, message: str) -> Object:
    return {"type": READY, "status": status, "reason": reason, "message": inert(message)[:LONGEST_MESSAGE]}


def nodes_honoured(obj: Object) -> list[Object]:
    """Whether suitableNodes can be kept: only the driver whose controller reads it can."""
    if obj.get("suitableNodes") is None:
        return []
    try:
        driver = driver_of(obj)
    except InvalidInput:
        return []
    found = {
        "status": "True",
        "reason": "Honoured",
        "message": "pods with claims of this class go only to these nodes",
    }
    if driver != names.DRIVER:
        message = f"driver {driver} does not read suitableNodes; give the pods node affinity"
        found = {"status": "False", "reason": "ForeignDriver", "message": inert(message)}
    return [{"type": NODES_HONOURED, **found}]


def owns(obj: Object, current: Object) -> bool:
    """Whether the DeviceClass belongs to this very ResourceClass."""
    return any(
        owner.get("controller") and owner.get("uid") == objects.uid(obj)
        for owner in objects.metadata(current).get("ownerReferences") or ()
    )


def merged(wanted: Object, current: Object) -> Object | None:
    """`current` with the spec, labels, annotations and finalizers that it should have; None where it is so
    already. What is not of koordra's domain in these stays."""
    foreign: Object = {
        part: {
            name: value
            for name, value in (current["metadata"].get(part) or {}).items()
            if not name.startswith(names.DOMAIN)
        }
        for part in ("labels", "annotations")
    }
    ours = wanted["metadata"]
    marks = {part: kept | (ours.get(part) or {}) for part, kept in foreign.items()}
    marks["finalizers"] = [*foreign_finalizers(current), *objects.finalizers_of(wanted)]
    metadata = objects.without(current["metadata"], *marks) | {
        part: entries for part, entries in marks.items() if entries
    }
    changed = {**current, "metadata": metadata, "spec": wanted["spec"]}
    return None if changed == current else changed


def foreign_finalizers(obj: Object) -> list[str]:
    return [entry for entry in objects.finalizers_of(obj) if not entry.startswith(names.DOMAIN)]


def write_status(
    client: KubeClient,
    kind: Kind,
    obj: Object,
    conditions: Sequence[Object],
    *,
    now: str,
    fields: Fields | None = None,
) -> None:
    """The object's status with these conditions, in this order, and fields, of which None are taken out. The
    transition time of a condition moves only with its status; what is there already is not written."""
    before = objects.status_of(obj)
    earlier = {entry.get("type"): entry for entry in before.get("conditions") or ()}
    generation = int(objects.metadata(obj).get("generation") or 0)
    found = []
    for condition in conditions:
        old = earlier.get(condition["type"]) or {}
        moved = old["lastTransitionTime"] if old.get("status") == condition["status"] else now
        found.append({**condition, "lastTransitionTime": moved, "observedGeneration": generation})
    status = objects.without_none({**before, **(fields or {}), "conditions": found})
    if status != before:
        client.update(kind, {**obj, "status": status}, subresource="status")


GATHER: Final = 0.05


def start_classes(
    client: KubeClient,
    *,
    own_namespace: str,
    now: Callable[[], str],
    may_write: Callable[[], bool],
    stop: threading.Event,
) -> threading.Thread:
    """Until `stop`, in a thread of its own."""
    reconciler = ClassReconciler(client, own_namespace, now, may_write)

    def reconcile(caches: Caches) -> None:
        reconciler.reconcile(
            caches[RESOURCE_CLASSES].objects(),
            {objects.name(obj): obj for obj in caches[DEVICE_CLASSES].objects()},
            {objects.key(obj): obj for obj in caches[CLASS_PARAMETERS].objects()},
        )

    return ReconcileLoop(
        client,
        reconcile,
        name="resource-classes",
        kinds=(RESOURCE_CLASSES, CLASS_PARAMETERS, DEVICE_CLASSES),
        crds=(RESOURCE_CLASSES, CLASS_PARAMETERS),
        gather=GATHER,
        stop=stop,
    ).start()


def restrictions(claims: Iterable[Fields], classes: Mapping[str, Object]) -> list[Object]:
    """The node selectors of the classes that the claims name, each once. A broken one selects no node."""
    found: list[Object] = []
    for name in dict.fromkeys(name for claim in claims for name in claims_of.class_names(claim)):
        device_class = classes.get(name)
        if device_class is None:
            continue
        try:
            selector = suitable_nodes.of_device_class(device_class)
        except InvalidManifest:
            selector = {"nodeSelectorTerms": [{"matchFields": [_NOWHERE]}]}
        if selector is not None and selector not in found:
            found.append(selector)
    return found


_NOWHERE = {"key": "metadata.name", "operator": "In", "values": ["koordra.io-suitable-nodes-cannot-be-read"]}


def on_suitable_nodes(pod: Object, claims: Iterable[Fields], classes: Mapping[str, Object]) -> Object:
    """The pod with the affinity its classes demand; the very same pod where they demand none."""
    selectors = restrictions(claims, classes)
    if not selectors:
        return pod
    return {**pod, "spec": suitable_nodes.require(pod.get("spec") or {}, selectors)}
