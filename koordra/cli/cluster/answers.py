"""Answers of `koordra explain`, and who may have been meant where there is none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
