"""What `koordra explain` would answer of a cluster at one moment, and what pages take from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.cli.cluster.dashboard.cells import Listed
from koordra.cli.cluster.dashboard.waiting import Trouble, troubles_of
from koordra.controller.cache.changes import tables_of
from koordra.controller.explain.forecast.forecast import Forecast, forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.explain.forecast.refusals import refusals
from koordra.controller.gangs.expected.job_reader import Read
from koordra.errors import KoordraError
from koordra.topology.network_topology import Levels
from koordra.topology.pictures.job import Job, jobs_of


@dataclass(frozen=True)
class Snapshot:
    """Not thread-safe: questions move the forecast."""

    at: datetime
    listed: Listed
    forecast: Forecast

    @classmethod
    def of(cls, listed: Listed, now: datetime, *, levels: Levels | None, read: Read) -> Snapshot:
        terms = Terms(now, refusals(listed.get(kinds.EVENTS, ()), now), levels=levels, read=read)
        tables = tables_of(one for kind, every in listed.items() if kind != kinds.EVENTS for one in every)
        return cls(now, listed, forecast(tables, terms))

    @cached_property
    def troubles(self) -> list[Trouble]:
        return troubles_of(self.forecast)

    @cached_property
    def jobs(self) -> list[Job]:
        """Without the claims of which nobody can read what they are in."""
        claims = self.listed.get(kinds.RESOURCE_CLAIMS, ())
        try:
            return jobs_of(claims)
        except KoordraError:
            return jobs_of([one for one in claims if _is_readable(one)])


def _is_readable(claim: Object) -> bool:
    try:
        jobs_of([claim])
    except KoordraError:
        return False
    return True
