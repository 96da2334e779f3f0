"""What the converter reports about an object: warnings and refusals, each with object, field, problem and
remedy.

A warning stands beside a converted object; a refusal stands in place of one. Both read like the errors of
errors.py, so that a person finds object and field the same way everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Object
from koordra.api.reader import Reader
from koordra.errors import InvalidManifest


@dataclass(frozen=True, slots=True)
class Note:
    """`refused`: the object is not in the result."""

    object: str
    field: str
    problem: str
    remedy: str = ""
    refused: bool = False

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.object, self.field) if part)
        text = f"{where}: {self.problem}"
        return f"{text}; {self.remedy}" if self.remedy else text


@dataclass(slots=True)
class Notes:
    """Collects the notes of one object. `refuse` ends its conversion; `warn` goes on."""

    object: str
    found: list[Note] = field(default_factory=list)

    @classmethod
    def about(cls, obj: Object) -> Notes:
        return cls(objects.describe(obj))

    def within(self, part: Object) -> Notes:
        """Notes on what stands in another object that this one refers to; they name both."""
        return Notes(f"{self.object} ({objects.describe(part)})", self.found)

    def read(self, data: Any, field: str = "") -> Reader:
        """Of the object, or of what stands at a field of it."""
        return Reader(data, object=self.object, field=field)

    def warn(self, field: str, problem: str, remedy: str = "") -> None:
        note = Note(self.object, field, problem, remedy)
        if note not in self.found:
            self.found.append(note)

    def refuse(self, field: str, problem: str, remedy: str = "") -> Refused:
        """The exception to raise: nothing of this object can be converted."""
        return Refused(problem, object=self.object, field=field, remedy=remedy)


class Refused(InvalidManifest):
    """Ends the conversion of one object; caught by the converter, never seen outside."""


# What an API server wrote, and what a new object must not carry.
_SERVER_FIELDS: Final = frozenset(
    {
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "managedFields",
        "selfLink",
        "finalizers",
    }
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def fresh_metadata(obj: Object) -> Object:
    """The metadata as a person would have written it."""
    kept = objects.without(objects.metadata(obj), "annotations", *_SERVER_FIELDS)
    annotations = objects.without(objects.annotations_of(obj), _LAST_APPLIED)
    return {**kept, "annotations": annotations} if annotations else kept


def is_made_anew(claim: Object, notes: Notes) -> bool:
    """Whether a template makes the claim again; what is lost of one that is converted is a warning."""
    if any(owner.get("kind") == "Pod" for owner in objects.metadata(claim).get("ownerReferences") or ()):
        notes.warn(
            "metadata.ownerReferences", "was made for a pod and is left out", "the template makes it again"
        )
        return True
    if objects.status_of(claim).get("allocation"):
        notes.warn("status.allocation", "is not carried over: the devices are allocated anew")
    return False
