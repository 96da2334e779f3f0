"""The names of a dialect and what becomes of each: the table that code, documentation and messages share.

A `Name` is a resource, annotation, label, environment variable, scheduler name or configuration field. `sign`: whether
it shows which dialect a pod speaks; `result` marks what only the dialect's own scheduler may write: such annotations are
never believed, and are taken out. docs/migrate/<peer>.md prints these tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

MOST_KEPT: Final = 4096


class Place(StrEnum):
    RESOURCE = "resource"
    ANNOTATION = "annotation"
    LABEL = "label"
    ENVIRONMENT = "environment"
    SCHEDULER = "schedulerName"
    SETTING = "setting"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Name:
    """`key` may hold `*`. A `soft` sign decides only where nothing else does, and contradicts nobody (a label of the same
    project about something else). A variable
    that is `warned` is warned about where a container that asks for devices uses it; one that is `provided` is set by koordra's
    plugin, and warned about where the kubelet would have to put it in (`$(NAME)`), which it does before the plugin is asked."""

    key: str
    place: Place
    meaning: str
    becomes: str
    result: bool = False
    sign: bool = True
    soft: bool = False
    warned: bool = False
    provided: bool = False

    def covers(self, key: str) -> bool:
        return key == self.key or ("*" in self.key and fnmatchcase(key, self.key))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`dialect` is the word in messages and templates, `title` the peer's name. Every pod asks the same, so answers are kept."""

    dialect: str
    title: str
    names: tuple[Name, ...]
    _covering: dict[tuple[Place, str], tuple[Name, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def of(self, *places: Place) -> tuple[Name, ...]:
        return tuple(name for name in self.names if name.place in places)

    def covering(self, key: str, place: Place) -> tuple[Name, ...]:
        """The names that mean this one. Users choose what they ask about, so a bounded number of answers is kept."""
        found = self._covering.get((place, key))
        if found is None:
            found = tuple(name for name in self.of(place) if name.covers(key))
            if len(self._covering) >= MOST_KEPT:
                self._covering.clear()
            self._covering[place, key] = found
        return found

    def results(self, annotations: Sequence[str]) -> frozenset[str]:
        """Those of the annotations that only the dialect's scheduler writes."""
        return frozenset(
            key for key in annotations if any(name.result for name in self.covering(key, Place.ANNOTATION))
        )


def resource(key: str, meaning: str, becomes: str) -> Name:
    return Name(key, Place.RESOURCE, meaning, becomes)


def annotation(key: str, meaning: str, becomes: str) -> Name:
    return Name(key, Place.ANNOTATION, meaning, becomes)


def label(key: str, meaning: str, becomes: str) -> Name:
    return Name(key, Place.LABEL, meaning, becomes)


def hint(key: str, place: Place, meaning: str, becomes: str) -> Name:
    """A soft sign."""
    return Name(key, place, meaning, becomes, soft=True)


def written(key: str, meaning: str) -> Name:
    """An annotation that the dialect's scheduler or plugin writes."""
    return Name(
        key, Place.ANNOTATION, meaning, "taken out with a warning; never believed", result=True, sign=False
    )


def environment(key: str, meaning: str, becomes: str, *, warned: bool = True, provided: bool = False) -> Name:
    return Name(
        key,
        Place.ENVIRONMENT,
        meaning,
        becomes,
        sign=False,
        warned=warned and not provided,
        provided=provided,
    )


def scheduler(key: str, meaning: str, becomes: str) -> Name:
    return Name(key, Place.SCHEDULER, meaning, becomes, sign=False)


def setting(key: str, meaning: str, becomes: str) -> Name:
    return Name(key, Place.SETTING, meaning, becomes, sign=False)


def on_nodes(key: str, meaning: str, becomes: str) -> Name:
    return Name(key, Place.NODE, meaning, becomes, sign=False)
