"""What the controller counts: for Prometheus, and for its readiness.

koordra_controller_leading                        1 while this replica holds the lease
koordra_controller_events_total{reason}       what was reported in Events, conflicts included
koordra_controller_claims{state}                  waiting, allocated, in_doubt
koordra_controller_gangs{phase}                   gangs by phase (gangs/phase.py)
koordra_controller_pass_seconds                   one pass of the reconciler
koordra_controller_plan_seconds                   its planning step
koordra_controller_allocation_seconds             from a claim's creation (known to the second) to its
                                                  allocation
koordra_controller_stage_seconds{part}            from its arrival to its allocation: watch, decide, encode,
                                                  write
koordra_controller_write_seconds{verb,resource}   requests to the API server that change something
koordra_controller_write_errors_total{resource,code}
koordra_controller_conflicts{reason}                 what nobody but koordra should do, now (see
                                                     conflict_rules.py)
koordra_controller_index_differences_total{found_in}  what a full read found to differ from what changes had
                                                      led to (cache/cluster_cache.py)
koordra_controller_refused_nodes                  nodes whose GPUs somebody else gives out too; koordra gives
                                                  out none there

The latency of an allocation, by part: what the controller did while a claim waited for it: the time from a
claim's arrival to its allocation, by part.

    watch    from the last event of the claim and its pods, as their caches took it, to the pass that takes it
             up
    decide   that pass's own work until the claim was allocated
    encode   the JSON of what was written in that time
    write    the API server's answers in that time

There is one worker, so every moment of the way belongs to one part, and the four add up. Claims that come
before this one in the same pass count: their writes are what it waited for. A claim that waited for more than
the controller (for room, say, or because somebody else wrote first) is not counted here;
`koordra_controller_allocation_seconds` has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from koordra.api import objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.reporting.claim_events import ALLOCATED, CONFLICTS, ClaimEvent
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.wire import encoded
from koordra.metrics import Metrics

_LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class ControllerMetrics:
    """The controller's instruments; itself a sink of claim events."""

    def __init__(self, metrics: Metrics) -> None:
        part = "koordra_controller_"
        self.leading = metrics.gauge(part + "leading", "1 while this replica holds the lease")
        self._events = metrics.counter(part + "events", "What was reported in Events", ["reason"])
        self._conflicts = metrics.counter(
            part + "conflicts", "What only koordra may do, done by others", ["reason"]
        )
        for reason in CONFLICTS:
            self._conflicts.labels(reason)
        self.refused_nodes = metrics.gauge(
            part + "refused_nodes", "Nodes whose GPUs another device plugin or driver gives out too"
        )
        self.claims = metrics.gauge(part + "claims", "Claims that concern koordra", ["state"])
        self.gangs = metrics.gauge(part + "gangs", "Gangs by phase", ["phase"])
        self.differences = metrics.counter(
            part + "index_differences",
            "What a full read found to differ from what changes had led to",
            ["found_in"],
        )
        self.passes = metrics.histogram(part + "pass_seconds", "One pass of the reconciler")
        self.plan = metrics.histogram(part + "plan_seconds", "The planning step of a pass")
        self._allocation = metrics.histogram(
            part + "allocation_seconds", "From a claim's creation to its allocation", buckets=_LATENCY
        )
        stage = metrics.histogram(
            part + "stage_seconds", "From a claim's arrival to its allocation, by part", ["part"]
        )
        self._stages = {name: stage.labels(name) for name in PARTS}
        self.latency = LatencyBreakdown(clock=time.perf_counter, observe=self._observe_stages)
        self._writes = metrics.histogram(
            part + "write_seconds", "Requests that change something", ["verb", "resource"]
        )
        self._errors = metrics.counter(part + "write_errors", "Requests that failed", ["resource", "code"])

    def __call__(self, claim_event: ClaimEvent, /) -> None:
        self._events.labels(claim_event.reason).inc()
        if claim_event.reason in CONFLICTS:
            self._conflicts.labels(claim_event.reason).inc()
        if claim_event.reason == ALLOCATED:
            created = str(objects.metadata(claim_event.about[0]).get("creationTimestamp") or "")
            with suppress(ValueError):
                waited = datetime.now(UTC) - datetime.fromisoformat(created)
                self._allocation.observe(max(0.0, waited.total_seconds()))

    def _observe_stages(self, seconds: Mapping[str, float]) -> None:
        for part, spent in seconds.items():
            self._stages[part].observe(spent)

    def counting(self, api: KubeClient) -> CountingApi:
        return CountingApi(api, self)

    @contextmanager
    def request(self, verb: str, kind: Kind, subresource: str | None) -> Iterator[None]:
        """A request to the API server that changes something."""
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        with self._writes.labels(verb, resource).time(), self.latency.on(WRITE):
            try:
                yield
            except ApiError as error:
                self._errors.labels(resource, str(error.code or "none")).inc()
                raise


class CountingApi:
    """A client whose writes are counted and timed."""

    def __init__(self, api: KubeClient, metrics: ControllerMetrics) -> None:
        self._api = api
        self._metrics = metrics
        self.get = api.get

    def list(self, kind: Kind, *, namespace: str | None = None) -> tuple[list[Object], str]:
        return self._api.list(kind, namespace=namespace)

    def create(self, kind: Kind, body: Object, *, subresource: str | None = None, **where: Any) -> Object:
        with self._metrics.request("create", kind, subresource):
            return self._api.create(kind, body, subresource=subresource, **where)

    def patch(
        self, kind: Kind, name: str, body: Any, *, subresource: str | None = None, **where: Any
    ) -> Object:
        with self._metrics.latency.on(ENCODE):
            data = encoded(body)
        with self._metrics.request("patch", kind, subresource):
            return self._api.patch(kind, name, data, subresource=subresource, **where)


WATCH: Final = "watch"
DECIDE: Final = "decide"
ENCODE: Final = "encode"
WRITE: Final = "write"
PARTS: Final = (WATCH, DECIDE, ENCODE, WRITE)


class LatencyBreakdown:
    """`observe` may be called by any thread, the rest by the worker. `clock` is monotonic."""

    def __init__(self, *, clock: Callable[[], float], observe: Callable[[Mapping[str, float]], None]) -> None:
        self._clock = clock
        self._observe = observe
        self._arrivals: dict[str, float] = {}
        self._spent = {ENCODE: 0.0, WRITE: 0.0}
        """Since the pass began."""
        self._began = clock()

    def begin_term(self) -> None:
        self._arrivals.clear()

    def observe(self, kind: Kind, event: str, obj: Object) -> None:
        """An event, as its cache took it. A claim counts from its creation, a pod from its last change: it is
        told later what its template's claims are called."""
        if event == "DELETED":
            self._arrivals.pop(objects.uid(obj), None)
        elif kind is PODS or (kind is RESOURCE_CLAIMS and event == "ADDED"):
            self._arrivals[objects.uid(obj)] = self._clock()

    def pass_begins(self) -> None:
        self._began, self._spent = self._clock(), {ENCODE: 0.0, WRITE: 0.0}

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        started = self._clock()
        try:
            yield
        finally:
            self._spent[part] += self._clock() - started

    def allocated(self, claim: Object, pods: Iterable[Object]) -> None:
        """A claim that this pass took up has its devices. `claim` and `pods` as they were when it was
        planned."""
        known = [self._arrivals.get(objects.uid(obj)) for obj in (claim, *pods)]
        arrivals = [at for at in known if at is not None and at <= self._began]
        if arrivals:
            decide = max(0.0, self._clock() - self._began - sum(self._spent.values()))
            self._observe({WATCH: self._began - max(arrivals), DECIDE: decide, **self._spent})
