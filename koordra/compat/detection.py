"""Which dialect a pod speaks: every resource, annotation and label that some dialect has is a sign.

A name that one dialect alone has decides. Names that several have (`nvidia.com/gpu`: plain, HAMi, Koordinator) go along with the
decision, or narrow it down where nothing decides; `nvidia.com/gpu` that stays open is the operator's default dialect. Names of
the same project about other things (a QoS label of Koordinator) decide last and contradict nobody, and so do amounts of 0.

Signs of two dialects are refused naming both: no stack says what that would mean. A pod that asks for no device has no dialect,
whatever its annotations say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from koordra.api.classic.notes import Notes
from koordra.api.pods import SIDES
from koordra.compat.dialect import Dialect
from koordra.compat.dialect.pod_view import PodView
from koordra.compat.dialect.vocabulary import Place
from koordra.compat.dialects import DIALECTS
from koordra.compat.settings import Settings


@dataclass(frozen=True, slots=True)
class Sign:
    """`field` is where it stands; `dialects` are those that have the name."""

    field: str
    dialects: frozenset[str]
    soft: bool = False


def asks(view: PodView) -> bool:
    """Whether some container asks for a device under a name of a dialect, or an annotation does by itself."""
    return any(not sign.soft for sign in _resources(view)) or asks_by_annotation(view.annotations)


def asks_by_annotation(annotations: Iterable[object]) -> bool:
    prefixes = tuple(prefix for dialect in DIALECTS for prefix in dialect.asking)
    return any(str(key).startswith(prefixes) for key in annotations)


def dialect_of(view: PodView) -> Dialect:
    """Raises Refused where the signs are of two. The pod has to ask for something."""
    signs = [*_resources(view), *_metadata(view)]
    firm = [sign for sign in signs if not sign.soft]
    deciding = [sign for sign in firm if len(sign.dialects) == 1]
    if deciding:
        chosen = deciding[0].dialects
    else:
        chosen = frozenset.intersection(*(sign.dialects for sign in firm)) if firm else frozenset()
        soft = [sign.dialects & chosen for sign in signs if sign.soft and sign.dialects & chosen]
        chosen = soft[0] if soft else chosen
    for sign in firm:
        if not chosen & sign.dialects or (deciding and not chosen <= sign.dialects):
            raise _two(deciding[0] if deciding else firm[0], sign, view.notes)
    if view.settings.default_dialect in chosen:
        chosen = frozenset({view.settings.default_dialect})
    return next(dialect for dialect in DIALECTS if dialect.name in chosen)


def _two(one: Sign, other: Sign, notes: Notes) -> Exception:
    first, second = (
        " or ".join(dialect.vocabulary.title for dialect in DIALECTS if dialect.name in sign.dialects)
        for sign in (one, other)
    )
    return notes.refuse(
        other.field,
        f"is of {second}, while {one.field} is of {first}; a pod speaks one dialect",
        "take the names of one of them out",
    )


def _resources(view: PodView) -> Iterator[Sign]:
    for container in view.containers:
        for key in container.resources():
            nothing = all(container.asked(side).get(key) in (None, 0, "0") for side in SIDES)
            found = frozenset(
                dialect.name for dialect in DIALECTS if has_resource(dialect, key, view.settings)
            )
            if found:
                yield Sign(container.field(key), found, soft=nothing)


def has_resource(dialect: Dialect, key: str, settings: Settings) -> bool:
    """Asked about every name of every pod, so the answers are cached with the settings, a bounded number of them."""
    found = settings.known.get((dialect.name, key))
    if found is None:
        names = dialect.vocabulary.of(Place.RESOURCE)
        found = any(replace(name, key=settings.name(name.key, dialect.name)).covers(key) for name in names)
        if len(settings.known) >= MOST_KNOWN:
            settings.known.clear()
        settings.known[dialect.name, key] = found
    return found


def is_served(key: str, settings: Settings) -> bool:
    """Whether some dialect has the resource."""
    return any(has_resource(dialect, key, settings) for dialect in DIALECTS)


MOST_KNOWN: Final = 4096


def _metadata(view: PodView) -> Iterator[Sign]:
    for place, kind, found in (
        (Place.ANNOTATION, "annotations", view.annotations),
        (Place.LABEL, "labels", view.labels),
    ):
        for key in found:
            exact, soft = _of(key, place)
            if exact or soft:
                yield Sign(f"{view.meta}.{kind}[{key}]", exact or soft, soft=not exact)


def _of(key: str, place: Place) -> tuple[frozenset[str], frozenset[str]]:
    exact, soft = set(), set()
    for dialect in DIALECTS:
        names = dialect.vocabulary.covering(key, place)
        if any(name.result for name in names):
            continue  # schedulers write those of their friends too
        if any(not name.soft and name.sign for name in names):
            exact.add(dialect.name)
        elif any(name.soft for name in names):
            soft.add(dialect.name)
    return frozenset(exact), frozenset(soft)
