"""Whom a gang awaits, by what may be read in this pass."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.gangs.expected.job_reader import MOST_READS, Answer, JobReader
from koordra.controller.gangs.expected.leader_first import Known, awaiting, lacking
from koordra.controller.gangs.membership import Gang
from koordra.controller.gangs.seats.recorded import Kept

_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Awaiting:
    """Not thread-safe."""

    context: PassContext
    jobs: JobReader

    @classmethod
    def of_context(cls, context: PassContext) -> Awaiting:
        return cls(context, JobReader(context.writer.find, context.clock, MOST_READS))

    def begin(self) -> None:
        """A pass begins."""
        self.jobs.begin()

    def of(self, gang: Gang, kept: Kept) -> tuple[Gang, float | None]:
        """The gang with the members that come later, and what is kept for them; when that is to be asked
        again, by the clock. Raises ApiUnreachable."""
        clock, cache = self.context.clock(), self.context.cache
        answer = self.jobs.job_of(gang) if lacking(gang) else Answer()
        if answer.later:
            return gang, clock + _PAUSE
        now = datetime.fromisoformat(self.context.writer.now()).timestamp()
        found, at = awaiting(gang, kept, now, Known(answer.job, cache.classes, cache.pod_groups))
        return found, None if at is None else clock + at - now
