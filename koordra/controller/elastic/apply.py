"""Objects that koordra alone writes (ElasticGPU, GPU), held as they are wanted.

    wanted, not there            create, then its status
    there, spec or marks differ  update
    there, status differs        update the status
    there, not wanted            finalizer off, delete
    there, not made by koordra   left alone, whatever its name; reported

A wanted object that is being deleted comes back when it is gone. One object's refusal does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from koordra.api import objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.elastic.claims import CARD, finalizers, managed
from koordra.errors import Conflict, Forbidden, Invalid, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)


@contextmanager
def one_object(obj: Mapping[str, Any]) -> Iterator[None]:
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
        current = client.create(kind, {key: value for key, value in wanted.items() if key != "status"})
        log.info("elastic_object_made", kind=kind.kind, name=objects.name(wanted))
    elif not objects.is_deleting(current):
        metadata = {  # what others add to its marks stays
            **objects.metadata(current),
            "labels": {**objects.labels_of(current), **objects.labels_of(wanted)},
            "finalizers": [*_foreign_finalizers(current), *finalizers(wanted)],
        }
        if (
            objects.spec_of(current) != wanted["spec"]
            or metadata["labels"] != objects.labels_of(current)
            or sorted(metadata["finalizers"]) != sorted(finalizers(current))
        ):
            current = client.update(kind, {**current, "metadata": metadata, "spec": wanted["spec"]})
            log.info("elastic_object_put_right", kind=kind.kind, name=objects.name(wanted))
    if objects.status_of(current) != wanted["status"]:
        client.update(kind, {**current, "status": wanted["status"]}, subresource="status")


def _remove(client: KubeClient, kind: Kind, current: Object) -> None:
    if CARD in finalizers(current):
        metadata = {**objects.metadata(current), "finalizers": _foreign_finalizers(current)}
        current = client.update(kind, {**current, "metadata": metadata})
    if not objects.is_deleting(current):
        client.delete(kind, objects.name(current), uid=objects.uid(current) or None)
    log.info("elastic_object_removed", kind=kind.kind, name=objects.name(current))


def _foreign_finalizers(obj: Object) -> list[str]:
    return [entry for entry in finalizers(obj) if entry != CARD]
