"""The reconciler of ResourceClasses, in the leader's term.

    ResourceClass ──> the DeviceClass it means, or ClassRefused
                          │
        no such DeviceClass       create
        ours, different           update (drift put back, a changed class carried over)
        ours, the same            nothing
        somebody else's           NameTaken: never overwritten
        the API server refuses    RefusedByServer, with its words

and a condition `Ready` with a reason and what to do, plus `NodesHonoured` where suitableNodes is given. A class that is
refused keeps the DeviceClass it had: claims that name it go on as before, and the condition says that it is the old one.

ResourceClasses, their parameters and DeviceClasses are watched. ConfigMaps are read one by one, since koordra may read those of
its own namespace only: a change of one is seen by the pass of every half minute.

suitableNodes is an annotation on the DeviceClass and becomes required node affinity of the pod, so that the allocator, and in native
mode kube-scheduler, see one rule they know: a pod goes only to nodes that serve every class its claims name. A class that is only an
alternative (`firstAvailable`) restricts the pod all the same: never a wrong node, though a claim may wait that the other alternative
would have served.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.classic import suitable_nodes
from koordra.api.kinds import DEVICE_CLASSES, Kind
from koordra.api.objects import Object
from koordra.api.resource_class import (
    CLASS_PARAMETERS,
    CONFIG_MAPS,
    RESOURCE_CLASSES,
    ClassRefused,
    Lookup,
    device_class,
    driver_of,
)
from koordra.cel.selectors import admission_error
from koordra.controller import claims as claims_of
from koordra.controller.reconcile_loop import Caches, start_reconcile_loop
from koordra.errors import (
    ApiUnreachable,
    Conflict,
    Forbidden,
    Invalid,
    InvalidInput,
    InvalidManifest,
    NotFound,
)
from koordra.kube import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)

READY: Final = "Ready"
NAME_TAKEN: Final = "NameTaken"
NODES_HONOURED: Final = "NodesHonoured"
LONGEST_MESSAGE: Final = 32768


class ClassReconciler:
    """`selector_problem` answers why the API server would not store a CEL selector, None where it would."""

    def __init__(
        self,
        client: KubeClient,
        *,
        own_namespace: str,
        now: Callable[[], str],
        may_write: Callable[[], bool],
        selector_problem: Callable[[str], str | None],
    ) -> None:
        self._client = client
        self._own_namespace = own_namespace
        self._now = now
        self._may_write = may_write
        self._selector_problem = selector_problem

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
            if not self._may_write():
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
        current = device_classes.get(objects.name(obj))
        try:
            wanted = device_class(obj, lookup=self._lookup(parameters), own_namespace=self._own_namespace)
            self._check_selectors(wanted)
            apply_device_class(self._client, wanted, current, obj)
        except ClassRefused as refused:
            log.warning(
                "class_refused", resource_class=objects.name(obj), reason=refused.reason, error=str(refused)
            )
            kept = "; the DeviceClass stays as it was" if current is not None and owns(obj, current) else ""
            self._tell(obj, ready("False", refused.reason, f"{refused}{kept}"))
        else:
            self._tell(
                obj, ready("True", "Reconciled", f"DeviceClass {objects.name(obj)} is as this class says")
            )

    def _lookup(self, parameters: Mapping[str, Object]) -> Lookup:
        def find(kind: Kind, namespace: str, name: str) -> Object | None:
            if kind != CONFIG_MAPS:
                return parameters.get(f"{namespace}/{name}")
            try:
                return self._client.get(kind, name, namespace=namespace)
            except NotFound:
                return None

        return find

    def _check_selectors(self, wanted: Object) -> None:
        for entry in wanted["spec"]["selectors"]:
            expression = entry["cel"]["expression"]
            problem = self._selector_problem(expression)
            if problem is not None:
                raise ClassRefused(
                    "InvalidSelector",
                    f"{expression[:200]!r} is no selector: {problem}",
                    object=f"ResourceClass {objects.name(wanted)}",
                    field="selectors",
                    remedy="correct the expression, or the filter of the parameters that it comes from",
                )

    def _tell(self, obj: Object, condition: Object) -> None:
        wanted = [condition, *nodes_honoured(obj)]
        old = (obj.get("status") or {}).get("conditions") or []
        generation = int(objects.metadata(obj).get("generation") or 0)
        conditions = with_conditions(old, wanted, now=self._now(), generation=generation)
        if conditions != old:
            status = {**objects.status_of(obj), "conditions": conditions}
            self._client.update(RESOURCE_CLASSES, {**obj, "status": status}, subresource="status")


def apply_device_class(client: KubeClient, wanted: Object, current: Object | None, obj: Object) -> None:
    """Makes the DeviceClass of `obj` what it means. Raises ClassRefused, and ApiError where it has changed meanwhile."""
    try:
        if current is None:
            client.create(DEVICE_CLASSES, wanted)
            log.info("device_class_created", device_class=objects.name(wanted))
        elif not owns(obj, current):
            raise ClassRefused(
                NAME_TAKEN,
                f"there is a DeviceClass {objects.name(wanted)} that does not belong to this class",
                object=objects.describe(obj),
                field="metadata.name",
                remedy="delete that DeviceClass, or choose another name",
            )
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
    return {"type": READY, "status": status, "reason": reason, "message": message[:LONGEST_MESSAGE]}


def nodes_honoured(obj: Object) -> list[Object]:
    """Whether suitableNodes can be kept: only the driver whose controller reads it can."""
    if obj.get("suitableNodes") is None:
        return []
    try:
        driver = driver_of(obj)
    except InvalidInput:
        return []
    if driver == names.DRIVER:
        message = "pods with claims of this class go only to these nodes"
        return [{"type": NODES_HONOURED, "status": "True", "reason": "Honoured", "message": message}]
    message = f"driver {driver} does not read suitableNodes; give the pods node affinity"
    return [{"type": NODES_HONOURED, "status": "False", "reason": "ForeignDriver", "message": message}]


def owns(obj: Object, current: Object) -> bool:
    """Whether the DeviceClass belongs to this very ResourceClass."""
    return any(
        owner.get("controller") and owner.get("uid") == objects.uid(obj)
        for owner in objects.metadata(current).get("ownerReferences") or ()
    )


def merged(wanted: Object, current: Object) -> Object | None:
    """`current` with everything that the class decides; None where it is so already. Foreign labels stay."""
    metadata = dict(current["metadata"])
    for part in ("labels", "annotations"):
        ours = wanted["metadata"].get(part) or {}
        kept = {
            name: value
            for name, value in (metadata.get(part) or {}).items()
            if not name.startswith(names.DOMAIN)
        }
        if kept or ours:
            metadata[part] = {**kept, **ours}
        else:
            metadata.pop(part, None)
    changed = {**current, "metadata": metadata, "spec": wanted["spec"]}
    return None if changed == current else changed


def with_conditions(
    old: Sequence[Mapping[str, Any]], wanted: Sequence[Object], *, now: str, generation: int
) -> list[Object]:
    """Conditions in the order of `wanted`; the transition time moves only with the status."""
    before = {str(entry.get("type")): entry for entry in old}
    found = []
    for condition in wanted:
        earlier = before.get(condition["type"])
        same = earlier is not None and earlier.get("status") == condition["status"]
        moved = earlier["lastTransitionTime"] if earlier is not None and same else now
        found.append({**condition, "lastTransitionTime": moved, "observedGeneration": generation})
    return found


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
    reconciler = ClassReconciler(
        client,
        own_namespace=own_namespace,
        now=now,
        may_write=may_write,
        selector_problem=admission_error,
    )

    def reconcile(caches: Caches) -> None:
        reconciler.reconcile(
            caches[RESOURCE_CLASSES].objects(),
            {objects.name(obj): obj for obj in caches[DEVICE_CLASSES].objects()},
            {objects.key(obj): obj for obj in caches[CLASS_PARAMETERS].objects()},
        )

    return start_reconcile_loop(
        client,
        reconcile,
        name="resource-classes",
        kinds=(RESOURCE_CLASSES, CLASS_PARAMETERS, DEVICE_CLASSES),
        crds=(RESOURCE_CLASSES, CLASS_PARAMETERS),
        gather=GATHER,
        stop=stop,
    )


def restrictions(claims: Iterable[Mapping[str, Any]], classes: Mapping[str, Object]) -> list[Object]:
    """The node selectors of the classes that the claims name, each once. A broken annotation selects no node."""
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


def on_suitable_nodes(
    pod: Object, claims: Iterable[Mapping[str, Any]], classes: Mapping[str, Object]
) -> Object:
    """The pod with the affinity its classes demand; the very same pod where they demand none."""
    selectors = restrictions(claims, classes)
    if not selectors:
        return pod
    return {**pod, "spec": suitable_nodes.require(pod.get("spec") or {}, selectors)}
