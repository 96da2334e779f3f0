"""Who is the one writer: a coordination.k8s.io Lease, and a clock of one's own.

    candidate   looks at the Lease every `retry` seconds
                  nobody holds it (absent, or released)            -> take it
                  held by another, unchanged for lease + timeout   -> take it (since *we* first saw it so)
                  held under our own name (we were restarted)      -> take it after one request timeout
    leader      renews every `retry` seconds; each renewal counts from before it was sent
                  may write while  now < renewed + lease - timeout
                  loses            when somebody else holds the Lease, or that moment is reached

A write takes at most one request timeout, so the last one ends before the lease does; a successor begins no
earlier than lease + timeout after the last renewal it saw, and then lists everything anew. Only differences
of one's own monotonic clock are used: renewTime is written for people. Taking is conditional on the Lease's
resourceVersion, so of two candidates one gets a conflict. A leader that ends in good order, with its worker
at rest, releases the Lease; the next one need not wait.

`--identity` must be unique among living processes: under one name two of them would both believe to hold the
Lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from koordra.api import objects
from koordra.api.kinds import LEASES
from koordra.api.objects import Object
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. `lease`: how long a renewal is good for; `retry`: between two renewals, or two looks of a
    candidate; `timeout`: after which a request is given up (the client's)."""

    lease: float = 15.0
    retry: float = 2.0
    timeout: float = 5.0

    def __post_init__(self) -> None:
        if self.lease <= self.timeout + 2 * self.retry:
            raise ValueError("a lease has to outlast one request and two renewals")


class Standing(StrEnum):
    CANDIDATE = "candidate"
    LEADER = "leader"


class LeaderLease:
    """`step` is called every `retry` seconds by one thread; `may_write` by any. `clock`: monotonic; `now`:
    wall clock as RFC 3339 with microseconds."""

    def __init__(
        self,
        api: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float],
        now: Callable[[], str],
        times: LeaseTimes | None = None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._now = now
        self.times = times or LeaseTimes()
        self._renewed: float | None = None
        self._seen: tuple[str, float] | None = None
        self._lease: Object | None = None
        self.is_reached = False
        """Whether the last look at the Lease was answered."""

    def may_write(self) -> bool:
        """Whether a request that is sent now ends before the lease does."""
        renewed = self._renewed
        return renewed is not None and self._clock() < renewed + self.times.lease - self.times.timeout

    def step(self) -> Standing:
        """Renew, or try to take the Lease. Errors of the API leave things as they are: time decides."""
        started = self._clock()
        try:
            if self._renewed is None:
                self._try_to_take(started)
            else:
                self._renew(started)
            self.is_reached = True
        except ApiError as error:
            self.is_reached = False
            log.warning("lease_not_reached", identity=self._identity, error=str(error))
        if self._renewed is not None and not self.may_write():
            log.error(
                "leadership_lost", identity=self._identity, why="the lease could not be renewed in time"
            )
            self._lose()
        return Standing.CANDIDATE if self._renewed is None else Standing.LEADER

    def release(self) -> None:
        """Give the Lease away. Only call when no write is under way any more."""
        lease, self._renewed = self._lease, None
        if lease is None or _holder(lease) != self._identity:
            return
        spec = {
            **objects.spec_of(lease),
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": self._now(),
        }
        try:
            self._api.update(LEASES, {**lease, "spec": spec})
        except ApiError as error:
            log.warning("lease_not_released", identity=self._identity, error=str(error))

    def _try_to_take(self, started: float) -> None:
        try:
            lease = self._api.get(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            if self._seen is None or started >= self._seen[1] + self.times.lease + self.times.timeout:
                created = self._api.create(LEASES, self._new_lease(), namespace=self._namespace)
                self._hold(created, started)
            return
        version = objects.resource_version(lease)
        if self._seen is None or self._seen[0] != version:
            # Counted from the answer: the process may have stood still while the request was under way.
            self._seen = (version, self._clock())
        if started < self._seen[1] + self._wait_for(_holder(lease)):
            return
        try:
            taken = self._api.update(LEASES, self._held(lease, taken_from=_holder(lease)))
        except Conflict:
            return
        self._hold(taken, started)

    def _wait_for(self, holder: str) -> float:
        if not holder:
            return 0.0
        if holder == self._identity:
            return self.times.timeout
        return self.times.lease + self.times.timeout

    def _renew(self, started: float) -> None:
        assert self._lease is not None
        try:
            renewed = self._api.update(LEASES, self._held(self._lease, taken_from=None))
        except (Conflict, NotFound):
            self._look_again(started)
            return
        self._hold(renewed, started)

    def _look_again(self, started: float) -> None:
        """A renewal did not apply: our own lost answer, a stranger's edit, or a new holder."""
        try:
            lease = self._api.get(LEASES, self._name, namespace=self._namespace)
        except NotFound:
            self._hold(self._api.create(LEASES, self._new_lease(), namespace=self._namespace), started)
            return
        if _holder(lease) != self._identity:
            log.error(
                "leadership_lost",
                identity=self._identity,
                why=f"{_holder(lease) or 'nobody'} holds the lease",
            )
            self._lose()
            return
        self._hold(self._api.update(LEASES, self._held(lease, taken_from=None)), started)

    def _hold(self, lease: Object, started: float) -> None:
        if self._renewed is None:
            log.info("leadership_taken", identity=self._identity)
        self._lease, self._renewed = lease, started

    def _lose(self) -> None:
        self._renewed, self._lease, self._seen = None, None, None

    def _held(self, lease: Object, *, taken_from: str | None) -> Object:
        """The Lease as we hold it; `taken_from`: the former holder when it changes hands, None for a
        renewal."""
        spec: dict[str, Any] = {**objects.spec_of(lease), **self._our_spec()}
        if taken_from is not None:
            spec["acquireTime"] = spec["renewTime"]
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        return {**lease, "spec": spec}

    def _new_lease(self) -> Object:
        spec = {**self._our_spec(), "leaseTransitions": 0}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"namespace": self._namespace, "name": self._name},
            "spec": {**spec, "acquireTime": spec["renewTime"]},
        }

    def _our_spec(self) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(self.times.lease),
            "renewTime": self._now(),
        }


def _holder(lease: Object) -> str:
    return str(objects.spec_of(lease).get("holderIdentity") or "")
