"""What the controller counts: for Prometheus, and for its readiness.

koordra_controller_leading                        1 while this replica holds the lease
koordra_controller_events_total{reason}       what was reported in Events, conflicts included
koordra_controller_claims{state}                  waiting, allocated, in_doubt
koordra_controller_gangs{phase}                   gangs by phase (gangs/phase.py)
koordra_controller_pass_seconds                   one pass of the reconciler
koordra_controller_plan_seconds                   its planning step
koordra_controller_allocation_seconds             from a claim's creation (known to the second) to its allocation
koordra_controller_stage_seconds{part}            from its arrival to its allocation: watch, decide, encode, write
koordra_controller_write_seconds{verb,resource}   requests to the API server that change something
koordra_controller_write_errors_total{resource,code}
koordra_controller_conflicts{reason}                 what nobody but koordra should do, now (see conflict_rules.py)
koordra_controller_index_differences_total{found_in}  what a full read found to differ from what changes had led to (cache/cluster_cache.py)
koordra_controller_refused_nodes                  nodes whose GPUs somebody else gives out too; koordra gives out none there

The latency of an allocation, by part: what the controller did while a claim waited for it: the time from a claim's arrival to its allocation, by part.

    watch    from the last event of the claim and its pods, as their caches took it, to the pass that takes it up
    decide   that pass's own work until the claim was allocated
    encode   the JSON of what was written in that time
    write    the API server's answers in that time

There is one worker, so every moment of the way belongs to one part, and the four add up. Claims that come before this
one in the same pass count: their writes are what it waited for. A claim that waited for more than the controller (for
room, say, or because somebody else wrote first) is not counted here; `koordra_controller_allocation_seconds` has it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from koordra.api import objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.reporting.claim_events import ALLOCATED, CONFLICTS, ClaimEvent
from koordra.controller.writes import WritingApi
from koordra.errors import ApiError
from koordra.kube import MERGE_PATCH, encoded
from koordra.metrics import Metrics

_LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class ControllerMetrics:
    """The controller's instruments; itself a sink of claim events."""

    def __init__(self, metrics: Metrics) -> None:
        part = "koordra_controller_"
        self.leading = metrics.gauge(part + "leading", "1 while this replica holds the lease")
        self._events = metrics.counter(part + "events", "What was told in Events", ["reason"])
        self._conflicts = metrics.counter(
            part + "conflicts", "What only koordra may do, done by others", ["reason"]
        )
        for reason in CONFLICTS:
            self._conflicts.labels(reason)
        self.refused_nodes = metrics.gauge(
            part + "refused_nodes", "Nodes whose GPUs another device plugin or driver gives out too"
        )
        self._claims = metrics.gauge(part + "claims", "Claims that concern koordra", ["state"])
        self._gangs = metrics.gauge(part + "gangs", "Gangs by phase", ["phase"])
        self._differences = metrics.counter(
            part + "index_differences",
            "What a full read found to differ from what changes had led to",
            ["found_in"],
        )
        self._pass = metrics.histogram(part + "pass_seconds", "One pass of the reconciler")
        self._plan = metrics.histogram(part + "plan_seconds", "The planning step of a pass")
        self._allocation = metrics.histogram(
            part + "allocation_seconds", "From a claim's creation to its allocation", buckets=_LATENCY
        )
        stage = metrics.histogram(
            part + "stage_seconds", "From a claim's arrival to its allocation, by part", ["part"]
        )
        self._latency = {name: stage.labels(name) for name in PARTS}
        self.latency = LatencyBreakdown(clock=time.perf_counter, observe=self._through_stages)
        self._writes = metrics.histogram(
            part + "write_seconds", "Requests that change something", ["verb", "resource"]
        )
        self._errors = metrics.counter(part + "write_errors", "Requests that failed", ["resource", "code"])

    def __call__(self, claim_event: ClaimEvent, /) -> None:
        self._events.labels(claim_event.reason).inc()
        if claim_event.reason in CONFLICTS:
            self._conflicts.labels(claim_event.reason).inc()
        if claim_event.reason == ALLOCATED:
            waited = _seconds_since(
                str(objects.metadata(claim_event.about[0]).get("creationTimestamp") or "")
            )
            if waited is not None:
                self._allocation.observe(waited)

    def _through_stages(self, seconds: Mapping[str, float]) -> None:
        for part, spent in seconds.items():
            self._latency[part].observe(spent)

    def count_claims(self, *, waiting: int, allocated: int, in_doubt: int) -> None:
        for state, number in (("waiting", waiting), ("allocated", allocated), ("in_doubt", in_doubt)):
            self._claims.labels(state).set(number)

    def count_gangs(self, by_phase: Mapping[str, int]) -> None:
        for phase, number in by_phase.items():
            self._gangs.labels(phase).set(number)

    def count_differences(self, found: Counter[str]) -> None:
        """And begin to count anew."""
        for where, number in found.items():
            self._differences.labels(where).inc(number)
        found.clear()

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        with self._pass.time():
            yield

    def planned(self, seconds: float) -> None:
        self._plan.observe(seconds)

    def counting(self, api: WritingApi) -> WritingApi:
        """The same API (a KubeClient), with its writes counted and timed."""
        return _CountingApi(api, self._writes, self._errors, self.latency)


class _CountingApi:
    def __init__(self, api: WritingApi, writes: Any, errors: Any, latency: LatencyBreakdown) -> None:
        self._api = api
        self._writes = writes
        self._errors = errors
        self._latency = latency

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        return self._api.get(kind, name, namespace=namespace)

    def create(
        self,
        kind: Kind,
        body: Object,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        what = _resource(kind, subresource)
        return self._timed(
            "create",
            what,
            lambda: self._api.create(kind, body, namespace=namespace, name=name, subresource=subresource),
        )

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        content_type: str = MERGE_PATCH,
    ) -> Object:
        with self._latency.on(ENCODE):
            data = encoded(body)
        return self._timed(
            "patch",
            _resource(kind, subresource),
            lambda: self._api.patch(
                kind, name, data, namespace=namespace, subresource=subresource, content_type=content_type
            ),
        )

    def _timed(self, verb: str, resource: str, send: Callable[[], Object]) -> Object:
        started = time.perf_counter()
        try:
            with self._latency.on(WRITE):
                return send()
        except ApiError as error:
            self._errors.labels(resource, str(error.code or "none")).inc()
            raise
        finally:
            self._writes.labels(verb, resource).observe(time.perf_counter() - started)


def _resource(kind: Kind, subresource: str | None) -> str:
    return f"{kind.plural}/{subresource}" if subresource else kind.plural


def _seconds_since(timestamp: str) -> float | None:
    try:
        created = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    return max(0.0, (datetime.now(UTC) - created).total_seconds())


WATCH: Final = "watch"
DECIDE: Final = "decide"
ENCODE: Final = "encode"
WRITE: Final = "write"
PARTS: Final = (WATCH, DECIDE, ENCODE, WRITE)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A pass began: when, and what had been spent until then."""

    at: float
    encoded: float
    written: float


class LatencyBreakdown:
    """`observe` may be called by any thread, the rest by the worker. `clock` is monotonic."""

    def __init__(self, *, clock: Callable[[], float], observe: Callable[[Mapping[str, float]], None]) -> None:
        self._clock = clock
        self._observe = observe
        self._arrivals: dict[str, float] = {}
        self._spent = {ENCODE: 0.0, WRITE: 0.0}
        self._begun = _Begun(clock(), 0.0, 0.0)

    def begin_term(self) -> None:
        """Nothing has arrived yet."""
        self._arrivals.clear()

    def observe(self, kind: Kind, event: str, obj: Object) -> None:
        """An event, as its cache took it. A claim counts from its creation, a pod from its last change: it is told
        later what its template's claims are called."""
        if event == "DELETED":
            self._arrivals.pop(objects.uid(obj), None)
        elif kind is PODS or (kind is RESOURCE_CLAIMS and event == "ADDED"):
            self._arrivals[objects.uid(obj)] = self._clock()

    def pass_begins(self) -> None:
        self._begun = _Begun(self._clock(), self._spent[ENCODE], self._spent[WRITE])

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """The worker encodes, or waits for an answer."""
        started = self._clock()
        try:
            yield
        finally:
            self._spent[part] += self._clock() - started

    def allocated(self, claim: Object, pods: Iterable[Object]) -> None:
        """A claim that this pass took up has its devices. `claim` and `pods` as they were when it was planned."""
        known = [self._arrivals.get(objects.uid(obj)) for obj in (claim, *pods)]
        arrivals = [at for at in known if at is not None and at <= self._begun.at]
        if not arrivals:
            return
        encode = self._spent[ENCODE] - self._begun.encoded
        write = self._spent[WRITE] - self._begun.written
        decide = max(0.0, self._clock() - self._begun.at - encode - write)
        watch = self._begun.at - max(arrivals)
        self._observe({WATCH: watch, DECIDE: decide, ENCODE: encode, WRITE: write})
