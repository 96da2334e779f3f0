"""What the controller counts, for Prometheus (docs/metrics.md); how things stand is told by
reconcile/leader_figures.py.

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
from koordra.controller.reporting.autoscale_metrics import AutoscaleMetrics
from koordra.controller.reporting.claim_events import ALLOCATED, CONFLICTS, TOLD, ClaimEvent
from koordra.errors import ApiError
from koordra.kube.client import KubeClient
from koordra.kube.wire import encoded
from koordra.metrics import Metrics, bounded, counter, gauge, histogram

_LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


WATCH: Final = "watch"
DECIDE: Final = "decide"
ENCODE: Final = "encode"
WRITE: Final = "write"
PARTS: Final = (WATCH, DECIDE, ENCODE, WRITE)

LEADING: Final = gauge("koordra_controller_leading", "1 while this replica holds the lease")
EVENTS: Final = counter(
    "koordra_controller_events_total",
    "What was reported in Events, conflicts included",
    reason=bounded("the words of koordra's Events (docs/reference/events.md)", known=TOLD),
)
CONFLICTS_SEEN: Final = counter(
    "koordra_controller_conflicts_total",
    "What only koordra may do, done by others (docs/beside-other-stacks.md)",
    reason=CONFLICTS,
)
DIFFERENCES: Final = counter(
    "koordra_controller_index_differences_total",
    "What a full read found to differ from what changes had led to; a defect of koordra's",
    found_in=bounded("the tables and indices of the controller"),
)
PASS_SECONDS: Final = histogram("koordra_controller_pass_seconds", "One pass of the reconciler")
PLAN_SECONDS: Final = histogram("koordra_controller_plan_seconds", "The planning step of a pass")
ALLOCATION_SECONDS: Final = histogram(
    "koordra_controller_allocation_seconds",
    "From a claim's creation, known to the second, to its allocation",
    buckets=_LATENCY,
)
STAGE_SECONDS: Final = histogram(
    "koordra_controller_stage_seconds", "From a claim's arrival to its allocation, by part", part=PARTS
)
_RESOURCE: Final = bounded("what the controller writes")
WRITE_SECONDS: Final = histogram(
    "koordra_controller_write_seconds",
    "Requests to the API server that change something",
    verb=bounded("create, patch"),
    resource=_RESOURCE,
)
WRITE_ERRORS: Final = counter(
    "koordra_controller_write_errors_total",
    "Requests to the API server that change something, and failed",
    resource=_RESOURCE,
    code=bounded("the HTTP status, or none where there was no answer"),
)
WRITES: Final = (
    ("patch", "resourceclaims"),
    ("patch", "resourceclaims/status"),
    ("patch", "pods"),
    ("create", "pods/eviction"),
    ("patch", "nodes"),
)
"""What is written in the ordinary course of things, by verb and resource."""
CODES: Final = ("403", "404", "409", "422", "429", "500", "503", "none")


class ControllerMetrics:
    """The controller's instruments; itself a sink of claim events."""

    def __init__(self, metrics: Metrics) -> None:
        self.leading = metrics.gauge(LEADING)
        self.autoscale = AutoscaleMetrics(metrics)
        self._events = metrics.counter(EVENTS)
        self._conflicts = metrics.counter(CONFLICTS_SEEN)
        self.differences = metrics.counter(DIFFERENCES)
        self.passes = metrics.histogram(PASS_SECONDS)
        self.plan = metrics.histogram(PLAN_SECONDS)
        self._allocation = metrics.histogram(ALLOCATION_SECONDS)
        self._stages = metrics.histogram(STAGE_SECONDS)
        self.latency = LatencyBreakdown(clock=time.perf_counter, observe=self._observe_stages)
        self._writes = metrics.histogram(WRITE_SECONDS)
        self._errors = metrics.counter(WRITE_ERRORS)
        for verb, resource in WRITES:
            self._writes.labels(verb, resource)
            for code in CODES:
                self._errors.labels(resource, code)

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
            self._stages.labels(part).observe(spent)

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

    def list(
        self, kind: Kind, *, namespace: str | None = None, field_selector: str = ""
    ) -> tuple[list[Object], str]:
        return self._api.list(kind, namespace=namespace, field_selector=field_selector)

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

    def delete(self, kind: Kind, name: str, **where: Any) -> None:
        with self._metrics.request("delete", kind, None):
            self._api.delete(kind, name, **where)


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
