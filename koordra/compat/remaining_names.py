"""What a pod says beside what its dialect has read: nothing of it is passed over in silence.

resources       those of the table that cannot be honoured, before anything is read
annotations,    what the table of names (`compat.keys`) has as warned or refused, unless the dialect has
labels          said something about it; what it lacks, under a dialect's domain
variables       those that a container which asks for devices uses, by name or in its command
"""

from __future__ import annotations

from typing import Final

from koordra.compat.detection import DOMAINS, did_you_mean, kept_by_name
from koordra.compat.dialect import Dialect, asking_containers
from koordra.compat.dialect.pod_view import PodView
from koordra.compat.dialects import DIALECTS
from koordra.compat.keys import KEYS, Place, Treatment, key_of, of_peer
from koordra.compat.normalized_request import NormalizedRequest

DRIVER_VARIABLES: Final = next(dialect.name for dialect in DIALECTS if dialect.extended_resources)
"""Whose variables (NVIDIA_...) the runtime read in pods of every dialect."""

known: Final = kept_by_name(key_of)


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
