"""The gangs: how far each is, and where in the network its members are."""

from __future__ import annotations

from typing import Final

from koordra.cli.cluster.dashboard.markup import Html, link, page, table, tag, words_of
from koordra.cli.cluster.dashboard.snapshot import Snapshot
from koordra.cli.cluster.object_text import gang_text
from koordra.controller.explain.question import Question, Subject
from koordra.errors import NotFound
from koordra.topology.pictures import job as pictures
from koordra.topology.pictures.job import Job

ROOT: Final = "../../"
MOST_GANGS: Final = 500
MOST_MEMBERS: Final = 1024
"""Of a gang that are drawn."""


def gangs_page(snapshot: Snapshot) -> bytes:
    jobs = {(job.namespace, job.name): job for job in snapshot.jobs}
    view = snapshot.forecast.view
    stages = {tuple(key.split("/", 1)): view.statuses[key].phase.value for key in view.gangs}
    every = sorted({*jobs, *stages})
    rows = [_row(place, jobs.get(place), stages.get(place)) for place in every[:MOST_GANGS]]  # type: ignore[arg-type]
    more = len(every) - MOST_GANGS
    return page(
        "Gangs",
        table(("Gang", "Stage", "Where its members are"), rows)
        if rows
        else tag("p", "There is no gang.", class_="empty"),
        tag("p", f"{more:,} more are not shown", class_="faint") if more > 0 else "",
        root="",
        at="Gangs",
        moment=snapshot.at,
        refresh=True,
    )


def _row(place: tuple[str, str], job: Job | None, stage: str | None) -> tuple[object, ...]:
    where = "no member has devices" if job is None else pictures.summary(job)
    return link("", "/".join(place), "gang", *place), stage or "-", where


def gang_page(snapshot: Snapshot, namespace: str, name: str) -> bytes:
    """Raises NotFound."""
    found = [one for one in snapshot.jobs if (one.namespace, one.name) == (namespace, name)]
    try:
        entry = snapshot.answer(Question(Subject.GANG, namespace, name))
    except NotFound:
        if not found:
            raise
        told = Html("")
    else:
        told = words_of(gang_text(entry, wide=True))
    return page(
        f"Gang {namespace}/{name}",
        told,
        *map(_picture, found),
        root=ROOT,
        at="Gangs",
        moment=snapshot.at,
    )


def _picture(job: Job) -> Html:
    if len(job.members) > MOST_MEMBERS:
        return words_of(pictures.summary(job))
    return tag("div", Html(pictures.svg([job])), class_="picture")
