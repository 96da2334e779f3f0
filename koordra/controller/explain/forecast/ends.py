"""When claims are expected to give their devices back.

    declared   annotation koordra.io/expected-duration of a pod (90m, 24h), from its start; its
               activeDeadlineSeconds, and that of its Job. The first of these counts
    learned    from claims of the namespace that asked the same (placement.policy.durations)

A claim ends with the last of its pods. Of one that nobody declares, and of whose kind too few have ended,
nobody knows. Annotations are a tenant's word: they move a forecast, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.gangs.expected.job_reader import Read
from koordra.controller.gangs.seats.job_owner import JOBS
from koordra.placement.policy.departures import spread
from koordra.placement.policy.durations import Durations, kind_of
from koordra.quantity import seconds_of

ANNOTATION: Final = "koordra.io/expected-duration"
LONGEST: Final = 366 * 86400.0
MOST_JOBS: Final = 200
"""That are read for one forecast."""


class End(NamedTuple):
    """`at`: seconds from now. `how`: what says so."""

    at: float
    how: str


@dataclass(slots=True)
class Ends:
    """Of the claims of a cluster at one moment. Claims are asked about in a fixed order: what is learned is
    spread over them."""

    cache: ClusterCache
    now: datetime
    durations: Durations
    read: Read
    _learned: int = 0
    _jobs: dict[tuple[str, str], Object | None] = field(default_factory=dict)

    def of_running(self, key: str) -> End | None:
        claim = self.cache.claims[key]
        given = claims_of.allocation(claim) or {}
        since = _time(given.get("allocationTimestamp")) or self.now
        pods = [pod for pod in self._pods(key) if not objects.pod_is_finished(pod)]
        ends = [self._declared(pod, _time(objects.status_of(pod).get("startTime")) or since) for pod in pods]
        declared = [end for end in ends if end is not None]
        if pods and len(declared) == len(pods):
            return max(declared)
        return self._expected(claim, (self.now - since).total_seconds())

    def of_new(self, key: str) -> End | None:
        """Of one that gets its devices now, with its times from then on."""
        claim, pods = self.cache.claims[key], self._pods(key)
        ends = [self._declared(pod, self.now) for pod in pods]
        declared = [end for end in ends if end is not None]
        if pods and len(declared) == len(pods):
            return max(declared)
        return self._expected(claim, 0.0)

    def _pods(self, key: str) -> list[Object]:
        return list(self.cache.pod_index.users.get(key, ()))

    def _declared(self, pod: Object, start: datetime) -> End | None:
        found = list(self._said(pod, (self.now - start).total_seconds()))
        return min(found, default=None)

    def _said(self, pod: Object, elapsed: float) -> Iterator[End]:
        name = objects.key(pod)
        said = seconds_of(objects.annotations_of(pod).get(ANNOTATION, ""), longest=LONGEST)
        if said is not None and said > elapsed:  # one that has run longer than it said says nothing any more
            yield End(said - elapsed, f"{ANNOTATION} of pod {name}")
        deadline = objects.spec_of(pod).get("activeDeadlineSeconds")
        if isinstance(deadline, int):
            yield End(max(0.0, deadline - elapsed), f"activeDeadlineSeconds of pod {name}")
        for owner in objects.mappings(objects.metadata(pod).get("ownerReferences")):
            if owner.get("controller") and owner.get("kind") == JOBS.kind:
                yield from self._of_job(objects.namespace(pod), str(owner.get("name")))

    def _of_job(self, namespace: str, name: str) -> Iterator[End]:
        place = namespace, name
        if place not in self._jobs:
            full = len(self._jobs) >= MOST_JOBS
            self._jobs[place] = None if full else self.read(JOBS, name, namespace)
        job = self._jobs[place] or {}
        deadline = objects.spec_of(job).get("activeDeadlineSeconds")
        start = _time(objects.status_of(job).get("startTime")) or self.now
        if isinstance(deadline, int):
            left = deadline - (self.now - start).total_seconds()
            yield End(max(0.0, left), f"activeDeadlineSeconds of Job {namespace}/{name}")

    def _expected(self, claim: Fields, elapsed: float) -> End | None:
        kind = kind_of(claim)
        left = self.durations.left(kind, elapsed, spread(self._learned))
        if left is None:
            return None
        self._learned += 1
        number = self.durations.number(kind, elapsed)
        return End(left, f"as {number} claims of its namespace did that asked the same")


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None
