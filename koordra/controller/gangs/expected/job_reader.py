"""Objects of jobs, and the claim templates of their pods: read from the API server when a gang lacks members,
and kept for a while.

Every read is a round trip in a pass, and tenants make as many gangs as they like: a pass reads MOST_READS
objects, and gangs beyond them are looked at again in the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from koordra.api.kinds import RESOURCE_CLAIM_TEMPLATES, Kind
from koordra.api.objects import Object
from koordra.api.tables import BoundedCache
from koordra.controller.gangs.expected.job_object import JobRef, job_ref
from koordra.controller.gangs.expected.job_pods import Job, claim_templates, pods_of
from koordra.controller.gangs.membership import Gang

READ_AGAIN: Final = 30.0
MOST_READS: Final = 20
MOST_TEMPLATES: Final = 8
"""Of one job."""

Read = Callable[[Kind, str, str], Object | None]
"""(kind, name, namespace). Raises ApiUnreachable."""


class Answer(NamedTuple):
    """`job`: None where nobody says what pods the gang's job is to have, or where it may not be read.
    `later`: this pass may not read any more."""

    job: Job | None = None
    later: bool = False


class _Kept(NamedTuple):
    until: float
    obj: Object | None


@dataclass(slots=True)
class JobReader:
    """Not thread-safe."""

    read: Read
    clock: Callable[[], float]
    most: int
    _left: int = 0
    _known: BoundedCache[JobRef, _Kept] = field(default_factory=lambda: BoundedCache(4096))

    def begin(self) -> None:
        """A pass begins."""
        self._left = self.most

    def job_of(self, gang: Gang) -> Answer:
        """Raises ApiUnreachable."""
        there = [member.pod for member in gang.members]
        ref = job_ref(there)
        if ref is None:
            return Answer()
        if not self._may_read(ref):
            return Answer(later=True)
        obj = self._one(ref)
        if obj is None:
            return Answer()
        job: Object = {**obj, "kind": ref.kind.kind}
        specs = {id(one.pod["spec"]): one.pod for one in pods_of(job, there, least=gang.terms.least or 0)}
        names = dict.fromkeys(name for pod in specs.values() for name in claim_templates(pod).values())
        few = list(names)[:MOST_TEMPLATES]
        wanted = [JobRef(RESOURCE_CLAIM_TEMPLATES, ref.namespace, name) for name in few]
        if not self._may_read(*wanted):
            return Answer(later=True)
        found = {key.name: self._one(key) for key in wanted}
        return Answer(Job(job, {name: template for name, template in found.items() if template}))

    def _may_read(self, *keys: JobRef) -> bool:
        now = self.clock()
        unknown = [key for key in keys if (kept := self._known.get(key)) is None or kept.until <= now]
        return len(unknown) <= self._left

    def _one(self, key: JobRef) -> Object | None:
        known, now = self._known.get(key), self.clock()
        if known is None or known.until <= now:
            self._left -= 1
            known = self._known[key] = _Kept(now + READ_AGAIN, self.read(key.kind, key.name, key.namespace))
        return known.obj
