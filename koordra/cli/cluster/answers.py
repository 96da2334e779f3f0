"""Answers of `koordra explain`, and who may have been meant where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from koordra.api import kinds, objects
from koordra.api.objects import Fields
from koordra.cli.output import Document
from koordra.controller.explain.question import Question, Subject, not_there
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.errors import NotFound
from koordra.spelling import meant

Answers = list[tuple[Subject, Document]]

DEFAULT_NAMESPACE: Final = "default"
KINDS: Final = {
    Subject.CLAIM: kinds.RESOURCE_CLAIMS,
    Subject.POD: kinds.PODS,
    Subject.GANG: kinds.PODS,
    Subject.NODE: kinds.NODES,
}
"""Where the names of each are found."""

_MOST_REPLICAS: Final = 8


class ToldLater(Protocol):
    """`controller.explain.forecast.later.Later`, which a start of the command does not import."""

    @property
    def at(self) -> float | None: ...

    def to_dict(self) -> Document: ...


def place(word: str) -> tuple[str, str]:
    namespace, _, name = word.rpartition("/")
    return namespace, name


def question_about(obj: Fields, subject: Subject = Subject.CLAIM) -> Question:
    return Question(subject, objects.namespace(obj), objects.name(obj))


def nobody(question: Question, known: Iterable[Fields]) -> NotFound:
    """With the name that may have been meant."""
    kind = KINDS[question.subject].kind
    there = [obj for obj in known if obj.get("kind") == kind]
    named = [(_name_of(question.subject, obj), objects.namespace(obj)) for obj in there]
    elsewhere = sorted({namespace for name, namespace in named if name == question.name})
    close = meant(question.name, sorted({name for name, _ in named if name}))
    text = not_there(question)
    if elsewhere and question.namespace:
        text += f"; one of that name is in namespace {', '.join(elsewhere)} (-n)"
    elif replicas := [name for name, _ in named if name.startswith(f"{question.name}:")]:
        text += f"; its replicas are gangs of their own: {', '.join(sorted(set(replicas))[:_MOST_REPLICAS])}"
    elif close:
        text += f"; did you mean {close}?"
    return NotFound(text)


def _name_of(subject: Subject, obj: Fields) -> str:
    if subject is not Subject.GANG:
        return objects.name(obj)
    gang = gang_of(obj)
    return "" if gang is None else gang.name


def with_later(entry: Document, subject: Subject, later: Mapping[str, ToldLater]) -> Document:
    """The answer with when it will fit: of a claim, of the claims of a pod, of the claims that a gang's
    members wait for, of which the last one decides. `later`: by key of the claims that wait."""
    if subject is Subject.CLAIM:
        found = later.get(f"{entry['namespace']}/{entry['name']}")
        return {**entry, "later": found.to_dict()} if found is not None else entry
    if subject is Subject.POD:
        return {**entry, "claims": [with_later(one, Subject.CLAIM, later) for one in entry["claims"]]}
    if subject is Subject.GANG:
        namespace = entry["gang"].partition("/")[0]
        names = [f"{namespace}/{name}" for member in entry["pods"] for name in member["claims"]]
        members = [later[name] for name in names if name in later]
        if members:
            latest = max(members, key=lambda one: (one.at is None, one.at or 0.0))
            return {**entry, "later": latest.to_dict()}
    return entry
