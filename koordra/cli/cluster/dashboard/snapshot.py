"""What `koordra explain` would answer of a cluster at one moment, and what pages take from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

from koordra.api import kinds, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.cluster.answers import with_later
from koordra.cli.cluster.dashboard.cells import Listed
from koordra.cli.cluster.dashboard.waiting import Trouble, troubles_of
from koordra.controller.allocation.learned.leftover_store import durations_of
from koordra.controller.cache.changes import tables_of
from koordra.controller.explain.forecast.forecast import Forecast, forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.explain.forecast.later import Later, fits_later
from koordra.controller.explain.forecast.refusals import refusals
from koordra.controller.explain.question import Question
from koordra.controller.gangs.seats.job_owner import JOBS
from koordra.errors import KoordraError
from koordra.placement.candidates.node_scoring import ScoringStrategy
from koordra.placement.policy.durations import Durations
from koordra.topology.network_topology import Levels
from koordra.topology.pictures.job import Job, jobs_of

MOST_TRIED: Final = 4_000
"""As fits_later counts: less than a command that somebody waits for."""


@dataclass(frozen=True)
class Snapshot:
    """Not thread-safe: questions move the forecast. `later`: when claims that wait will fit, by key."""

    at: datetime
    listed: Listed
    forecast: Forecast
    later: Mapping[str, Later]

    @classmethod
    def of(
        cls, listed: Listed, now: datetime, *, levels: Levels | None, scoring: ScoringStrategy | None
    ) -> Snapshot:
        refused = refusals(listed.get(kinds.EVENTS, ()), now)
        jobs = {objects.key(job): job for job in listed.get(JOBS, ())}

        def read(kind: Kind, name: str, namespace: str) -> Object | None:
            return jobs.get(f"{namespace}/{name}") if kind == JOBS else None

        learned = _durations(listed)
        terms = Terms(now, refused, levels=levels, scoring=scoring, durations=learned, read=read)
        tables = tables_of(one for kind, every in listed.items() if kind != kinds.EVENTS for one in every)
        found = forecast(tables, terms)
        return cls(now, listed, found, fits_later(found, MOST_TRIED))

    @cached_property
    def troubles(self) -> list[Trouble]:
        return troubles_of(self.forecast)

    def answer(self, question: Question) -> Object:
        """As `koordra explain --when` gives it. Raises NotFound."""
        found = self.forecast.answer(question)[question.subject]
        return with_later(found, question.subject, self.later)

    @cached_property
    def jobs(self) -> list[Job]:
        """Without the claims of which nobody can read what they are in."""
        claims = self.listed.get(kinds.RESOURCE_CLAIMS, ())
        try:
            return jobs_of(claims)
        except KoordraError:
            return jobs_of([one for one in claims if _is_readable(one)])


def _durations(listed: Listed) -> Durations:
    """What the controller has learned; nothing where that cannot be read."""
    for one in listed.get(CONFIG_MAPS, ()):
        try:
            return durations_of(one.get("data") or {})
        except KoordraError:
            break
    return Durations()


def _is_readable(claim: Object) -> bool:
    try:
        jobs_of([claim])
    except KoordraError:
        return False
    return True
