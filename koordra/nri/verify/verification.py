"""The loop that looks at running containers: after the start, when the runtime has synchronized, soon after a
container with devices was created, and every minute.

    bundles, cgroups, network namespaces ──> what runs ──┐
    ledger, prepared claims, their networks, guarded nodes ──> verify.drift_of ──> metrics, log, reporter

Before a difference is believed the container is looked for again: one that ends while it is being looked at is none. An
interface that is missing is looked for a second time, since its way into or out of the pod takes a moment. A
difference is told once, when it appears, and once more when it is gone. What the reporter could not deliver is
told again in the next round. Nothing here delays the creation of a container: the loop has a thread of its own.

    koordra_nri_drift{kind}                containers with such a difference now
    koordra_nri_drift_found_total{kind}    differences that appeared
    koordra_nri_verified_containers        containers that the last round looked at
    koordra_nri_last_verification_seconds  when it ended (Unix time)
    koordra_nri_verification_seconds       how long a round takes
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from koordra.errors import ApiError, CheckpointError
from koordra.logs import get_logger
from koordra.metrics import Metrics
from koordra.node_state.claim_network import AttachedNetwork, ClaimNetwork
from koordra.node_state.device_guard import DeviceGuard
from koordra.node_state.prepared_claim import PreparedClaim
from koordra.node_state.reader import StateReader
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.oci import Container
from koordra.nri.hook.ungranted_access import PRIVATE
from koordra.nri.verify.bundles import Bundles, Running
from koordra.nri.verify.drift import KINDS, LACKS, Drift, Interfaces, Known, drift_of, markers_of

PERIOD_S: Final = 60.0
SETTLE_S: Final = 2.0
"""From the creation of a container to the look at it: it has to be started first."""
BREATH_S: Final = 0.0005
"""Rest before each container, in which the threads that answer the runtime go first."""

Enforcing = Callable[[str], bool | None]
"""What the limiter of a claim (by uid) says of itself: it enforces, it does not, or (None) that is not known: no limiter, or
no process yet."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference, and the container that has it. `earlier`: it is older than koordra's first hook on this node."""

    container: Container
    drift: Drift
    earlier: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.container.id, self.drift.message


class Reporter(Protocol):
    """Tells others. Raises ApiError when it could not; it is then asked again."""

    def found(self, finding: Finding, /) -> None: ...

    def gone(self, finding: Finding, /) -> None: ...


class Unreported:
    """A reporter for a hook without access to the API: the log and the metrics say it all."""

    def found(self, _finding: Finding, /) -> None: ...

    def gone(self, _finding: Finding, /) -> None: ...


class Verification:
    """The loop. `exempt` are the operator's namespaces; their containers are not looked at. `since` is the Unix time from
    which on the node has had a hook."""

    def __init__(
        self,
        state: StateReader,
        *,
        ledger: Ledger,
        bundles: Bundles,
        metrics: Metrics,
        exempt: frozenset[str] = frozenset(),
        private: tuple[str, ...] = PRIVATE,
        reporter: Reporter | None = None,
        since: float = 0.0,
        enforcing: Enforcing = lambda _uid: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._since = since
        self._enforcing = enforcing
        self._state = state
        self._ledger = ledger
        self._bundles = bundles
        self._exempt = exempt
        self._private = private
        self._reporter: Reporter = reporter or Unreported()
        self._clock = clock
        self._due = threading.Event()
        self._told: dict[tuple[str, str], Finding] = {}
        self._untold: dict[tuple[str, str], Finding] = {}
        self._instruments = _Instruments(metrics)

    def soon(self) -> None:
        """Look again shortly; called when something was created or the runtime came back."""
        self._due.set()

    def run(self, stop: threading.Event, *, period: float = PERIOD_S, settle: float = SETTLE_S) -> None:
        """Look until `stop`."""
        while not stop.is_set():
            self.once()
            deadline = time.monotonic() + period
            while not stop.is_set() and not self._due.is_set() and time.monotonic() < deadline:
                self._due.wait(min(0.5, period))
            if self._due.is_set():
                stop.wait(settle)
                self._due.clear()

    def once(self) -> tuple[Finding, ...]:
        """One round: every difference there is now."""
        started = time.monotonic()
        self._since = min(self._since, self._clock())  # a clock that was set back
        guarded = self._guarded()
        findings: dict[tuple[str, str], Finding] = {}
        count = 0
        for running in self._bundles.containers():
            if running.container.namespace in self._exempt:
                continue
            count += 1
            time.sleep(BREATH_S)
            for finding in self._certain(running, guarded):
                findings[finding.key] = finding
        self._ledger.flush()
        self._tell(findings)
        self._instruments.round(
            findings, containers=count, seconds=time.monotonic() - started, at=self._clock()
        )
        return tuple(findings.values())

    def _certain(self, running: Running, guarded: DeviceGuard | None) -> tuple[Finding, ...]:
        """What one container differs in. One that cannot be looked at, whatever it has done for that, keeps no other from being
        looked at, and what was found of it before stays."""
        try:
            return tuple(self._findings(running, guarded))
        except Exception as error:
            log.exception("container_not_verified", container=running.container.id)
            before = {**self._told, **self._untold}
            why = f"{running.container}: it cannot be looked at: {type(error).__name__}"
            return (
                *(found for found in before.values() if found.container.id == running.container.id),
                Finding(running.container, Drift("Unverified", why)),
            )

    def _findings(self, running: Running, guarded: DeviceGuard | None) -> Iterator[Finding]:
        """What one container differs in; nothing if it ended meanwhile, since the ledger may have forgotten it first."""
        found = drift_of(running, self._known(running, guarded))
        if any(drift.kind in LACKS for drift in found):
            again = drift_of(running, self._known(running, guarded))
            found = tuple(drift for drift in found if drift.kind not in LACKS or drift in again)
        if not found or not self._bundles.exists(running.container.id):
            return
        created = self._bundles.since(running.container.id)
        for drift in found:
            yield Finding(running.container, drift, earlier=created is None or created < self._since)

    def _guarded(self) -> DeviceGuard | None:
        try:
            return self._state.guard()
        except CheckpointError as error:
            log.warning("verification_incomplete", error=str(error))
            return None

    def _known(self, running: Running, guarded: DeviceGuard | None) -> Known:
        granted = self._ledger.get(running.container.id)
        claims: dict[str, PreparedClaim] = {}
        unreadable: dict[str, str] = {}
        for marker in markers_of(running) if granted is None else ():
            try:
                claim = self._state.claim(marker)
            except CheckpointError as error:
                unreadable[marker] = str(error)
                continue
            if claim is not None:
                claims[marker] = claim
        held = {device.claim_uid for device in granted.devices} if granted else ()
        unlimited = frozenset(uid for uid in held if self._enforcing(uid) is False)
        with_claim = {device.claim_uid for device in granted.devices if device.claim_name} if granted else ()
        return Known(
            granted,
            claims,
            unreadable,
            guarded,
            private=self._private,
            unlimited=unlimited,
            interfaces=self._interfaces(running, with_claim or {claim.uid for claim in claims.values()}),
        )

    def _interfaces(self, running: Running, claims: Iterable[str]) -> Interfaces | None:
        """None where there is nothing to compare; only containers with a claim that has a network are looked into."""
        planned: dict[str, ClaimNetwork] = {}
        attached: dict[str, AttachedNetwork] = {}
        problems: list[str] = []
        for uid in sorted(claims):
            try:
                plan = self._state.planned(uid)
                if plan is not None:
                    planned[uid] = plan
                    where = self._state.attached(uid)
                    if where is not None:
                        attached[uid] = where
            except CheckpointError as error:
                problems.append(str(error))
        there = self._bundles.interfaces(running) if planned or problems else None
        return None if there is None else Interfaces(there, planned, attached, tuple(problems))

    def _tell(self, findings: Mapping[tuple[str, str], Finding]) -> None:
        for key, finding in findings.items():
            if key in self._told:
                continue
            if key not in self._untold:
                self._instruments.appeared(finding)
                level = log.error if finding.drift.reported else log.info
                level("container_drifted", kind=finding.drift.kind, message=finding.drift.message)
            self._untold[key] = finding
        for key in self._untold.keys() - findings.keys():
            del self._untold[key]
        for key, finding in list(self._untold.items()):
            if self._delivered(self._reporter.found, finding):
                self._told[key] = self._untold.pop(key)
        for key in self._told.keys() - findings.keys():
            if self._delivered(self._reporter.gone, _over(self._told[key], findings.values())):
                del self._told[key]

    def _delivered(self, tell: Callable[[Finding], None], finding: Finding) -> bool:
        if not finding.drift.reported:
            return True
        try:
            tell(finding)
        except ApiError as error:
            log.warning("drift_not_reported", kind=finding.drift.kind, error=str(error))
            return False
        return True


def _over(finding: Finding, others: Iterable[Finding]) -> Finding:
    """The finding, of those of its devices for which nothing else of its sort is left: a condition is one per device, and
    stays False as long as any container differs, or the same one in other words."""
    left = {
        device
        for other in others
        if other.drift.reported and other.drift.breach == finding.drift.breach
        for device in other.drift.devices
    }
    devices = tuple(device for device in finding.drift.devices if device not in left)
    return replace(finding, drift=replace(finding.drift, devices=devices))


class _Instruments:
    """The loop's metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._now = metrics.gauge(
            "koordra_nri_drift", "Differences between what containers have and should have.", ["kind"]
        )
        self._found = metrics.counter("koordra_nri_drift_found", "Differences that appeared.", ["kind"])
        self._containers = metrics.gauge(
            "koordra_nri_verified_containers", "Containers that the last round looked at."
        )
        self._at = metrics.gauge(
            "koordra_nri_last_verification_seconds", "Unix time of the end of the last round."
        )
        self._seconds = metrics.histogram("koordra_nri_verification_seconds", "How long a round takes.")
        for kind in KINDS:
            self._now.labels(kind).set(0)

    def appeared(self, finding: Finding) -> None:
        self._found.labels(finding.drift.kind).inc()

    def round(
        self, findings: Mapping[tuple[str, str], Finding], *, containers: int, seconds: float, at: float
    ) -> None:
        counts = Counter(finding.drift.kind for finding in findings.values())
        for kind in KINDS:
            self._now.labels(kind).set(counts.get(kind, 0))
        self._containers.set(containers)
        self._at.set(at)
        self._seconds.observe(seconds)
