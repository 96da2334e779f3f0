"""An attack as one value: who tries what, what comes of it, and how an operator gets to see it.

refused    what was asked for is not made; who asked is told why
denied     it is made, and does not get what it wanted
detected   it works, or nothing works meanwhile, and somebody is told without having looked
bounded    it works, at the expense of its own namespace or by an amount that does not grow
repaired   what broke is put right again without anybody's doing
open       it works; the row says why, and what to set up against it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["refused", "denied", "detected", "bounded", "repaired", "open"]
Where = Literal["answer", "Event", "condition", "taint", "metric", "log"]


@dataclass(frozen=True, slots=True)
class Seen:
    """One place to look, and the word that stands there: a part of the answer to who asked, an Event's
    reason, a condition (`Type: Status`), a device's taint, a metric's sample that grows, the name of a line
    of the log."""

    where: Where
    word: str

    def __str__(self) -> str:
        return f"{self.where} `{self.word}`"


def answer(part: str) -> Seen:
    return Seen("answer", part)


def event(reason: str) -> Seen:
    return Seen("Event", reason)


def condition(text: str) -> Seen:
    return Seen("condition", text)


def taint(key: str) -> Seen:
    return Seen("taint", key)


def metric(sample: str) -> Seen:
    return Seen("metric", sample)


def log(name: str) -> Seen:
    return Seen("log", name)


@dataclass(frozen=True, slots=True)
class Attack:
    """One row. `newer`: the outcome where containerd 2.2 and later differ; `seen` is of the others.
    `own_cluster`: it takes a cluster whose API server, or koordra, it may stop or slow down.

    Who runs a row compares its outcome and looks for all of `seen`. `tests`: where else it is tried, each of
    which then names every word of `seen`; `not_run`: why nowhere.
    """

    name: str
    how: str
    outcome: Outcome
    by: str
    seen: tuple[Seen, ...] = ()
    newer: Outcome | None = None
    own_cluster: bool = False
    tests: tuple[str, ...] = ()
    not_run: str = ""

    @property
    def runs(self) -> bool:
        """In the table's own runner."""
        return not self.tests and not self.not_run

    @property
    def needs_own_cluster(self) -> bool:
        """Whose programs may be stopped, or run in this process, which has their log."""
        return self.own_cluster or any(seen.where == "log" for seen in self.seen)
