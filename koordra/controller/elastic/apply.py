"""Objects that koordra alone writes (ElasticGPU, GPU), held as they are wanted.

    wanted, not there            create, then its status
    there, spec or marks differ  update
    there, status differs        update the status
    there, not wanted            finalizer off, delete
    there, not made by koordra   left alone, whatever its name; reported

A wanted object that is being deleted comes back when it is gone. One object's refusal does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from koordra.api import objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.elastic import labels
from koordra.errors import Conflict, Forbidden, Invalid, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)


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
    names_wanted = set()
    for obj in wanted:
        names_wanted.add(objects.name(obj))
        found = current.get(objects.name(obj))
        if found is not None and not labels.managed(found):
            clashes.append(found)
        elif may_write():
            _try(partial(_settle, client, kind, obj, found), obj)
    for name, found in current.items():
        if name not in names_wanted and labels.managed(found) and may_write():
            _try(partial(_remove, client, kind, found), found)
    return clashes


def _settle(client: KubeClient, kind: Kind, wanted: Object, current: Object | None) -> None:
    status = wanted["status"]
    if current is None:
        body = {key: value for key, value in wanted.items() if key != "status"}
        current = client.create(kind, body)
        log.info("elastic_object_made", kind=kind.kind, name=objects.name(wanted))
    elif not objects.is_deleting(current):
        changed = _merged(wanted, current)
        if changed is not None:
            current = client.update(kind, changed)
            log.info("elastic_object_put_right", kind=kind.kind, name=objects.name(wanted))
    if objects.status_of(current) != status:
        client.update(kind, {**current, "status": status}, subresource="status")


def _merged(wanted: Object, current: Object) -> Object | None:
    """`current` with our spec, labels and finalizers; None where it has them. What others add to its marks stays."""
    marked = {**objects.labels_of(current), **objects.labels_of(wanted)}
    finalizers = [entry for entry in labels.finalizers(current) if entry != labels.CARD]
    finalizers += labels.finalizers(wanted)
    same = (
        objects.spec_of(current) == wanted["spec"]
        and marked == dict(objects.labels_of(current))
        and sorted(finalizers) == sorted(labels.finalizers(current))
    )
    if same:
        return None
    metadata = {**objects.metadata(current), "labels": marked, "finalizers": finalizers}
    return {**current, "metadata": metadata, "spec": wanted["spec"]}


def _remove(client: KubeClient, kind: Kind, current: Object) -> None:
    kept = [entry for entry in labels.finalizers(current) if entry != labels.CARD]
    if len(kept) != len(labels.finalizers(current)):
        current = client.update(
            kind, {**current, "metadata": {**objects.metadata(current), "finalizers": kept}}
        )
    if not objects.is_deleting(current):
        client.delete(kind, objects.name(current), uid=objects.uid(current) or None)
    log.info("elastic_object_removed", kind=kind.kind, name=objects.name(current))


def _try(step: Callable[[], None], obj: Mapping[str, Any]) -> None:
    try:
        step()
    except (Conflict, NotFound) as error:
        log.info("elastic_object_changed_meanwhile", object=objects.describe(obj), error=str(error))
    except (Invalid, Forbidden) as error:
        log.error("elastic_object_refused", object=objects.describe(obj), error=str(error))
