"""What a pod says beside what its dialect has read: nothing of it is passed over in silence.

resources       those of the table that cannot be honoured, before anything is read
annotations,    what the table of names (`compat.keys`) has as warned or refused, unless the dialect has
labels          said something about it; what it lacks, under a dialect's domain
variables       those that a container which asks for devices uses, by name or in its command
labels of       by which the pod selects nodes that have the old stack's programs; one, since users write any
nodes           number of them
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from koordra.compat.detection import DOMAINS, did_you_mean, kept_by_name
from koordra.compat.dialect import Dialect, asking_containers
from koordra.compat.dialect.pod_view import PodView
from koordra.compat.dialects import DIALECTS
from koordra.compat.keys import KEYS, Key, Place, Treatment, key_of, of_peer
from koordra.compat.normalized_request import NormalizedRequest

DRIVER_VARIABLES: Final = next(dialect.name for dialect in DIALECTS if dialect.extended_resources)
"""Whose variables (NVIDIA_...) the runtime read in pods of every dialect."""

known: Final = kept_by_name(key_of)
_NODE_LABELS: Final = {
    key.name.partition("=")[0]: key
    for key in KEYS
    if key.place is Place.NODE and key.treatment is Treatment.WARNED
}
"""By the label; the rows have it alone, or with the value that is meant."""


def refuse_resources(view: PodView) -> None:
    """Raises Refused for a name that cannot be honoured in any dialect."""
    for container in view.containers:
        for name in container.resources:
            if is_refused(name):
                key = known(name, Place.RESOURCE)
                assert key is not None
                raise view.notes.refuse(container.field(name), key.problem, key.remedy)


def is_refused(resource: str) -> bool:
    key = known(resource, Place.RESOURCE)
    return key is not None and key.treatment is Treatment.REFUSED


def tell_rest(view: PodView, normalized: NormalizedRequest, dialect: Dialect) -> None:
    """Raises Refused."""
    for kind, place, found in (
        ("annotations", Place.ANNOTATION, view.annotations),
        ("labels", Place.LABEL, view.labels),
    ):
        told = {note.field for note in view.notes.found}
        for name in found:
            if (field := f"{view.meta}.{kind}[{name}]") not in told:
                _tell(view, field, name, place, dialect)
    _tell_variables(view, normalized, dialect)
    if found_at := selects_by(view.spec):
        field, key = found_at
        view.notes.warn(f"{view.where}.{field}", f"{key.name} {key.problem}", key.remedy)


def _tell(view: PodView, field: str, name: str, place: Place, dialect: Dialect) -> None:
    key = known(name, place, dialect.name)
    if key is None:
        if name.startswith(DOMAINS):
            beside = [each.name for each in KEYS if each.place is place]
            view.notes.warn(
                field, "is no name that koordra reads, and asks for nothing", did_you_mean(name, beside)
            )
    elif key.treatment is Treatment.REFUSED:
        raise view.notes.refuse(field, key.problem, key.remedy)
    elif key.treatment is Treatment.WARNED:
        view.notes.warn(field, key.problem, key.remedy)


def _tell_variables(view: PodView, normalized: NormalizedRequest, dialect: Dialect) -> None:
    table = {
        key.name: key
        for peer in (DRIVER_VARIABLES, dialect.name)
        for key in of_peer(peer, Place.ENVIRONMENT)
        if key.treatment is Treatment.WARNED
    }
    for container in asking_containers(view, normalized):
        for name, key in table.items():
            text = name.rstrip("*")
            # a word without an underscore is too common to be looked for in commands
            if container.mentions(text) if "_" in text else text in container.environment:
                view.notes.warn(container.where, f"uses {text} ({key.meaning})", key.becomes)


def selects_by(spec: Mapping[str, Any]) -> tuple[str, Key] | None:
    """The first field by which a pod is kept to nodes with a label of an old stack. Of the terms of an
    affinity one is enough for a pod, so all of them have to ask for such a label."""
    selector = spec.get("nodeSelector")
    for label, value in selector.items() if isinstance(selector, Mapping) else ():
        if key := _label_of_old_stack(label, [value]):
            return f"nodeSelector[{label}]", key
    path = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    required: Any = spec
    for name in path.split("."):
        required = required.get(name) if isinstance(required, Mapping) else None
    terms = _entries(required, "nodeSelectorTerms")
    found = [
        next(((number, key) for number, one in enumerate(asked) if (key := _demanded(one))), None)
        for asked in (_entries(term, "matchExpressions") for term in terms)
    ]
    if not found or found[0] is None or not all(found):
        return None
    number, key = found[0]
    return f"{path}.nodeSelectorTerms[0].matchExpressions[{number}]", key


def _demanded(expression: Mapping[str, Any]) -> Key | None:
    match expression.get("operator"):
        case "In":
            return _label_of_old_stack(expression.get("key"), _values(expression))
        case "Exists":
            return _label_of_old_stack(expression.get("key"), None)
    return None


def _values(expression: Mapping[str, Any]) -> list[Any]:
    values = expression.get("values")
    return values if isinstance(values, list) else []


def _label_of_old_stack(label: object, values: Collection[object] | None) -> Key | None:
    """The row of the label, if it means one of the values; any where there are none."""
    key = _NODE_LABELS.get(str(label))
    value = key.name.partition("=")[2] if key else ""
    return key if not value or values is None or value in values else None


def _entries(around: Any, name: str) -> list[Mapping[str, Any]]:
    listed = around.get(name) if isinstance(around, Mapping) else None
    return (
        [entry if isinstance(entry, Mapping) else {} for entry in listed] if isinstance(listed, list) else []
    )
