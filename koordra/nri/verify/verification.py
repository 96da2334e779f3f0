"""The loop that verifies running containers: at start, when the runtime has synchronized, soon after a
container with devices was created, and every minute.

    bundles, cgroups, network namespaces ──> running containers ──┐
    ledger, prepared claims, their networks, guarded nodes ──> drift.drift_of ──> metrics, log, reporter

A difference counts only if the container still exists afterwards. A missing interface is checked twice, since
its move into or out of the pod takes a moment. A difference is reported once when it appears and once when it
is gone; a report that fails is retried in the next round. The loop has a thread of its own, so it never
delays the creation of a container.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import Final

from koordra.errors import ApiError, CheckpointError
from koordra.logs import get_logger
from koordra.metrics import Metrics, counter, gauge, histogram
from koordra.node_state.claim_network import AttachedNetwork, ClaimNetwork
from koordra.node_state.prepared_claim import DeviceGuard
from koordra.node_state.reader import StateReader
from koordra.nri.hook.grants import claim_markers
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.system_pods import SystemPods
from koordra.nri.hook.ungranted_access import PRIVATE, is_privileged
from koordra.nri.verify.api_reporter import ApiReporter
from koordra.nri.verify.bundles import Bundles, Running
from koordra.nri.verify.drift import (
    KINDS,
    LACKS,
    NOTICES,
    Drift,
    Expected,
    Finding,
    Interfaces,
    drift_of,
    unconfined,
)
from koordra.process.backoff import Backoff
from koordra.process.lifecycle import count_failure
from koordra.process.progress import step, watched

PERIOD_S: Final = 60.0
SETTLE_S: Final = 2.0
"""Seconds from the creation of a container to its verification: it has to start first."""
YIELD_S: Final = 0.0005
"""Seconds of sleep before each container, in which threads that answer the runtime go first."""

_SPARED: Final = frozenset({"ForeignDevice", "ForeignMount"})
"""Kinds that a privileged container of a critical pod may have."""

Enforcing = Callable[[str], bool | None]
"""Whether the limiter of a claim (by uid) enforces its limits; None if unknown: no limiter, or no process
yet."""

DRIFT: Final = gauge(
    "koordra_nri_drift",
    "Differences between what containers have and should have, now (docs/nri.md)",
    kind=KINDS,
)
DRIFT_FOUND: Final = counter(
    "koordra_nri_drift_found_total", "Differences that appeared (docs/nri.md)", kind=KINDS
)
VERIFIED: Final = gauge("koordra_nri_verified_containers", "Containers that the last verification looked at")
LAST_VERIFICATION: Final = gauge(
    "koordra_nri_last_verification_timestamp_seconds",
    "When the last verification of the containers ended, in Unix time; 0 before the first",
)
VERIFICATION_SECONDS: Final = histogram(
    "koordra_nri_verification_seconds", "How long one verification of the containers took"
)

log = get_logger(__name__)


@dataclass(eq=False)
class Verification:
    """The loop. Of exempt containers (`system`) only what they can open is noted. `since` is
    the Unix time from which on the node has had a hook; `rules_apply` whether its runtime can deny devices,
    None while that is not known."""

    state: StateReader
    ledger: Ledger
    bundles: Bundles
    metrics: InitVar[Metrics]
    system: SystemPods = field(default_factory=SystemPods)
    private: tuple[str, ...] = PRIVATE
    reporter: ApiReporter | None = None
    since: float = 0.0
    enforcing: Enforcing = lambda _uid: None
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    rules_apply: Callable[[], bool | None] = lambda: None

    def __post_init__(self, metrics: Metrics) -> None:
        self._due = threading.Event()
        self._listed = False
        self._reported: dict[tuple[str, str], Finding] = {}
        self._pending: dict[tuple[str, str], Finding] = {}
        self._backoff, self._deliver_at = Backoff(), self.monotonic()
        self._now = metrics.gauge(DRIFT)
        self._found = metrics.counter(DRIFT_FOUND)
        self._containers = metrics.gauge(VERIFIED)
        self._at = metrics.gauge(LAST_VERIFICATION)
        self._seconds = metrics.histogram(VERIFICATION_SECONDS)
        self._count({})

    def wake(self) -> None:
        """Verify soon: a container was created, or the runtime came back."""
        self._due.set()

    @watched()
    def run(self, stop: threading.Event, *, period: float = PERIOD_S, settle: float = SETTLE_S) -> None:
        while not stop.is_set():
            try:
                self.sync()
            except Exception as defect:  # in one round, which must not end the hook
                count_failure(defect)
                log.exception("verification_failed")
            deadline = time.monotonic() + period
            while not stop.is_set() and not self._due.is_set() and time.monotonic() < deadline:
                step()
                self._due.wait(min(0.5, period))
            if self._due.is_set():
                stop.wait(settle)
                self._due.clear()

    def sync(self) -> tuple[Finding, ...]:
        """One round; returns every difference."""
        started = time.monotonic()
        self.since = min(self.since, self.clock())  # a clock that was set back
        guarded = None
        try:
            guarded = self.state.guard()
        except CheckpointError as error:
            log.warning("verification_incomplete", error=str(error))
        findings: dict[tuple[str, str], Finding] = {}
        count = 0
        for running in self.bundles.containers():
            step()
            exempt = self.system.exempt(running.container)
            if exempt:
                noted = Expected(self.ledger.get(running.container.id), guarded=guarded, belongs=exempt)
                drift = unconfined(running, noted)
                if drift is not None:
                    findings[running.container.id, drift.message] = Finding(running.container, drift)
                continue
            count += 1
            time.sleep(YIELD_S)
            for finding in self._verify(running, guarded):
                findings[finding.key] = finding
        self.ledger.flush()
        self._list_privileged(findings.values())
        self._report(findings)
        self._count(Counter(finding.drift.kind for finding in findings.values()))
        self._containers.set(count)
        self._at.set(self.clock())
        self._seconds.observe(time.monotonic() - started)
        return tuple(findings.values())

    def _count(self, by_kind: Mapping[str, int]) -> None:
        for kind in KINDS:
            self._now.labels(kind).set(by_kind.get(kind, 0))

    def _verify(self, running: Running, guarded: DeviceGuard | None) -> tuple[Finding, ...]:
        """The differences of one container; none if it ended meanwhile, since the ledger may have dropped it
        first. A container that cannot be verified, whatever its tenant did, does not stop the others, and its
        earlier findings stay."""
        try:
            found = drift_of(running, self._expected(running, guarded))
            if is_privileged(running.container) and _SPARED & {drift.kind for drift in found}:
                found = self._spared(running, guarded, found)
            if any(drift.kind in LACKS for drift in found):
                again = drift_of(running, self._expected(running, guarded))
                found = tuple(drift for drift in found if drift.kind not in LACKS or drift in again)
            created = self.bundles.since(running.container.id) if found else None
            if created is None:
                return ()
            old = created < self.since
            return tuple(Finding(running.container, drift, predates_hook=old) for drift in found)
        except Exception as error:
            log.exception("container_not_verified", container=running.container.id)
            before = {**self._reported, **self._pending}
            why = f"{running.container}: it cannot be verified: {type(error).__name__}"
            return (
                *(each for each in before.values() if each.container.id == running.container.id),
                Finding(running.container, Drift("Unverified", why)),
            )

    def _spared(
        self, running: Running, guarded: DeviceGuard | None, found: tuple[Drift, ...]
    ) -> tuple[Drift, ...]:
        """Without what a privileged container of a critical pod may open and mount, which is noted."""
        try:
            why = self.system.critical(running.container)
        except ApiError as error:
            why = f"whether its pod is critical to the node is not known: {error}"
        if not why:
            return found
        expected = Expected(self.ledger.get(running.container.id), guarded=guarded, belongs=why)
        noted = unconfined(running, expected)
        others = tuple(drift for drift in found if drift.kind not in _SPARED)
        return others if noted is None else (*others, noted)

    def _list_privileged(self, findings: Iterable[Finding]) -> None:
        """Once, when the runtime is known: the privileged pods that run, and what becomes of them when they
        are created anew."""
        rules_apply = self.rules_apply()
        if self._listed or rules_apply is None:
            return
        self._listed = True
        pods: dict[bool, set[str]] = {True: set(), False: set()}
        for finding in findings:
            container = finding.container
            if is_privileged(container) and finding.drift.kind in ("NotConfined", "ForeignDevice"):
                pods[finding.drift.kind == "NotConfined"].add(f"{container.namespace}/{container.pod}")
        others = sorted(pods[False] - pods[True])
        say = log.warning if others and not rules_apply else log.info
        say(
            "privileged_pods",
            start_and_are_reported=sorted(pods[True]),
            others=others,
            others_are="denied GPUs and NICs" if rules_apply else "refused when they are created anew",
        )

    def _expected(self, running: Running, guarded: DeviceGuard | None) -> Expected:
        granted = self.ledger.get(running.container.id)
        markers = claim_markers(running.container) if granted is None else ()
        claims, unreadable = self.state.claims(markers)
        if granted is None and (problem := self.ledger.problem(running.container.id)):
            unreadable[running.container.id] = problem
        held = {device.claim_uid for device in granted.devices} if granted else ()
        unlimited = frozenset(uid for uid in held if self.enforcing(uid) is False)
        with_claim = {device.claim_uid for device in granted.devices if device.claim_name} if granted else ()
        return Expected(
            granted,
            claims,
            unreadable,
            guarded,
            private=self.private,
            unlimited=unlimited,
            interfaces=self._interfaces(running, with_claim or {claim.ref.uid for claim in claims.values()}),
        )

    def _interfaces(self, running: Running, claims: Iterable[str]) -> Interfaces | None:
        """The container's interfaces; None for a container without a claim that has a network."""
        planned: dict[str, ClaimNetwork] = {}
        attached: dict[str, AttachedNetwork] = {}
        problems: list[str] = []
        for uid in sorted(claims):
            try:
                plan = self.state.planned(uid)
                if plan is not None:
                    planned[uid] = plan
                    where = self.state.attached(uid)
                    if where is not None:
                        attached[uid] = where
            except CheckpointError as error:
                problems.append(str(error))
        there = self.bundles.interfaces(running) if planned or problems else None
        return None if there is None else Interfaces(there, planned, attached, tuple(problems))

    def _report(self, findings: Mapping[tuple[str, str], Finding]) -> None:
        for key, finding in findings.items():
            if key in self._reported:
                continue
            if key not in self._pending:
                self._found.labels(finding.drift.kind).inc()
                quiet = finding.drift.kind in NOTICES or not finding.drift.subject
                level = log.info if quiet else log.error
                level("container_drifted", kind=finding.drift.kind, message=finding.drift.message)
            self._pending[key] = finding
        for key in self._pending.keys() - findings.keys():
            del self._pending[key]
        if self.monotonic() < self._deliver_at:
            return  # a container was created meanwhile, and the API server is still away
        for key, finding in list(self._pending.items()):
            if self._delivered(finding):
                self._reported[key] = self._pending.pop(key)
        over = self._reported.keys() - findings.keys()
        for key in over:
            if self._delivered(_resolved(self._reported[key], findings.values()), gone=True):
                del self._reported[key]
        if self._asked_for_evictions() and not (self._pending or over & self._reported.keys()):
            self._backoff.reset()
        else:
            self._deliver_at = self.monotonic() + self._backoff.next()

    def _asked_for_evictions(self) -> bool:
        if self.reporter is None:
            return True
        try:
            self.reporter.ask_for_evictions()
        except ApiError as error:
            log.warning("evictions_not_requested", error=str(error))
            return False
        return True

    def _delivered(self, finding: Finding, *, gone: bool = False) -> bool:
        if self.reporter is None or not finding.drift.subject:
            return True
        try:
            (self.reporter.gone if gone else self.reporter.found)(finding)
        except ApiError as error:
            log.warning("drift_not_reported", kind=finding.drift.kind, error=str(error))
            return False
        return True


def _resolved(finding: Finding, others: Iterable[Finding]) -> Finding:
    """The finding without devices that another finding of its subject still names: there is one condition per
    device, and it stays False as long as any container differs."""
    left = {
        device
        for other in others
        if other.drift.subject == finding.drift.subject
        for device in other.drift.devices
    }
    devices = tuple(device for device in finding.drift.devices if device not in left)
    return replace(finding, drift=replace(finding.drift, devices=devices))
