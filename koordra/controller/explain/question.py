"""What somebody asks of koordra: one object of a kind, by its name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
