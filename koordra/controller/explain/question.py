"""What somebody asks of koordra: one object of a kind, by its name; how the question travels, and the words
that command and controller have in common. Imports nothing that allocates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote, unquote

from koordra.errors import NotFound

PREFIX: Final = "/explain/"
TOKEN_HEADER: Final = "X-Koordra-Authorization"
"""`Bearer TOKEN`: one that the API server lets its owner in by. `Explain TOKEN`: one for AUDIENCE alone."""
AUDIENCE: Final = "koordra-explain"
ACCOUNT: Final = "koordra-explain"
"""The ServiceAccount beside the controller whose tokens for AUDIENCE are for those who have none of their
own."""
NOT_ALLOWED: Final = "NotAllowed"
"""The reason of a refusal by koordra, which the API server never gives."""
NOT_LEADING: Final = "NotLeading"
"""The reason of a replica that decides nothing."""


class Subject(StrEnum):
    """The first words that are no namespaces."""

    CLAIM = "claim"
    POD = "pod"
    GANG = "gang"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Question:
    """`namespace` is empty for a node."""

    subject: Subject
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return f"{self.subject} {self.key}"


def question_of(word: str, namespace: str) -> Question | None:
    """`claim/NAME`, `pod/NAME`, `gang/NAME` or `node/NAME`; None for a word that begins otherwise."""
    first, slash, name = word.partition("/")
    if not slash or first not in [*Subject]:
        return None
    subject = Subject(first)
    return Question(subject, "" if subject is Subject.NODE else namespace, name)


def not_there(question: Question) -> str:
    return f"{question} is not there"


def question_in(path: str) -> Question:
    """Raises NotFound for a path that is none."""
    parts = [unquote(part) for part in path.removeprefix(PREFIX).split("/")]
    match parts:
        case [Subject.NODE, name] if name:
            return Question(Subject.NODE, "", name)
        case [Subject.CLAIM | Subject.POD | Subject.GANG as subject, namespace, name] if namespace and name:
            return Question(Subject(subject), namespace, name)
    raise NotFound("nothing is served here", code=404, reason="NotFound")


def path_of(question: Question) -> str:
    parts = filter(None, (question.subject, question.namespace, question.name))
    return PREFIX + "/".join(quote(part, safe="") for part in parts)
