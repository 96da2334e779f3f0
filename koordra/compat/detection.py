"""Which dialect a pod speaks: every resource, annotation and label that some dialect has is a sign.

A name that one dialect alone has decides. Names that several have (`nvidia.com/gpu`: plain, HAMi, Koordinator) go along with the
decision, or narrow it down where nothing decides; `nvidia.com/gpu` that stays open is the operator's default dialect. Names of
the same project about other things (a QoS label of Koordinator) decide last and contradict nobody, and so do amounts of 0.

Signs of two dialects are refused naming both: no stack says what that would mean. A pod that asks for no device has no dialect,
whatever its annotations say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api.classic.notes import Notes
from koordra.compat.dialect import Dialect, PodView
from koordra.compat.dialect.vocabulary import Name, Place
from koordra.compat.settings import Settings


@dataclass(frozen=True, slots=True)
class Sign:
    """`field` is where it stands; `dialects` are those that have the name."""

    field: str
    dialects: frozenset[str]
    soft: bool = False


def asks(view: PodView, dialects: Sequence[Dialect], settings: Settings) -> bool:
    """Whether some container asks for a device under a name of a dialect, or an annotation does by itself."""
    return any(not sign.soft for sign in _resources(view, dialects, settings)) or asks_by_annotation(
        view.annotations, dialects
    )


def asks_by_annotation(annotations: Iterable[str], dialects: Sequence[Dialect]) -> bool:
    beginnings = tuple(beginning for dialect in dialects for beginning in dialect.asking)
    return any(key.startswith(beginnings) for key in annotations)


def dialect_of(view: PodView, dialects: Sequence[Dialect], settings: Settings, notes: Notes) -> Dialect:
    """Raises Refused where the signs are of two. The pod has to ask for something."""
    signs = [*_resources(view, dialects, settings), *_metadata(view, dialects)]
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
            first = deciding[0] if deciding else firm[0]
            raise _two(first, sign, dialects, notes)
    name = _narrowed(chosen, firm, settings, dialects, notes)
    return next(dialect for dialect in dialects if dialect.name == name)


def _narrowed(
    chosen: frozenset[str],
    firm: Sequence[Sign],
    settings: Settings,
    dialects: Sequence[Dialect],
    notes: Notes,
) -> str:
    if not chosen:
        raise _two(firm[0], firm[-1], dialects, notes)
    if len(chosen) == 1:
        return next(iter(chosen))
    if settings.default_dialect in chosen:
        return settings.default_dialect
    return next(dialect.name for dialect in dialects if dialect.name in chosen)


def _two(one: Sign, other: Sign, dialects: Sequence[Dialect], notes: Notes) -> Exception:
    first, second = (
        " or ".join(dialect.vocabulary.title for dialect in dialects if dialect.name in sign.dialects)
        for sign in (one, other)
    )
    return notes.refuse(
        other.field,
        f"is of {second}, while {one.field} is of {first}; a pod speaks one dialect",
        "take the names of one of them out",
    )


def _resources(view: PodView, dialects: Sequence[Dialect], settings: Settings) -> Iterator[Sign]:
    for container in view.containers:
        for key in container.resources():
            nothing = all(_is_zero(container.asked(side).get(key)) for side in ("limits", "requests"))
            found = frozenset(dialect.name for dialect in dialects if has_resource(dialect, key, settings))
            if found:
                yield Sign(container.field(key), found, soft=nothing)


def has_resource(dialect: Dialect, key: str, settings: Settings) -> bool:
    """Asked about every name of every pod, so the answers are remembered with the settings, a bounded number of them."""
    found = settings.known.get((dialect.name, key))
    if found is None:
        found = any(
            _named(name, dialect.name, settings).covers(key) for name in dialect.vocabulary.of(Place.RESOURCE)
        )
        if len(settings.known) >= MOST_KNOWN:
            settings.known.clear()
        settings.known[dialect.name, key] = found
    return found


MOST_KNOWN: Final = 4096


def _named(name: Name, dialect: str, settings: Settings) -> Name:
    called = settings.name(name.key, dialect)
    return name if called == name.key else Name(called, name.place, name.meaning, name.becomes)


def _is_zero(value: object) -> bool:
    return value in (None, 0, "0")


def _metadata(view: PodView, dialects: Sequence[Dialect]) -> Iterator[Sign]:
    for place, kind, found in (
        (Place.ANNOTATION, "annotations", view.annotations),
        (Place.LABEL, "labels", view.labels),
    ):
        for key in found:
            exact, soft = _of(key, place, dialects)
            if exact:
                yield Sign(f"{view.meta}.{kind}[{key}]", exact)
            elif soft:
                yield Sign(f"{view.meta}.{kind}[{key}]", soft, soft=True)


def _of(key: str, place: Place, dialects: Sequence[Dialect]) -> tuple[frozenset[str], frozenset[str]]:
    exact, soft = set(), set()
    for dialect in dialects:
        names = dialect.vocabulary.covering(key, place)
        if not names:
            continue
        if any(name.result for name in names):
            continue  # schedulers write those of their friends too
        if any(not name.soft and name.sign for name in names):
            exact.add(dialect.name)
        elif any(name.soft for name in names):
            soft.add(dialect.name)
    return frozenset(exact), frozenset(soft)
