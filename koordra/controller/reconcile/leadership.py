"""Who is the one writer: a coordination.k8s.io Lease, and a clock of one's own.

    candidate   looks at the Lease every `retry` seconds
                  its holder gave it away                        -> take it
                  anything else, unchanged for lease + timeout   -> take it (since *we* first saw it so)
                  absent                                         -> make it, held by nobody, and wait as above
    leader      renews every `retry` seconds; each renewal counts from before it was sent
                  may write while  now < renewed + lease - timeout
                  loses            when somebody else holds the Lease, or gave it away, or at that moment
                  repairs          until then, a Lease that was deleted or that a stranger edited otherwise

A write takes at most one request timeout, so the last one ends before the lease does; a successor begins no
earlier than lease + timeout after the last renewal it saw, and then lists everything anew. Only differences
of one's own clock are used, which also runs while the machine is suspended: renewTime and
leaseDurationSeconds are written for people. Taking is conditional on the Lease's resourceVersion, so of two
candidates one gets a conflict. A leader that ends in good order, with its worker at rest and every write
answered, gives the Lease away; the next one need not wait.

A machine whose clocks stood still (a virtual machine that was paused) does not know that its time is over.
When it goes on, another one may have led and given the Lease away: whoever finds it so, and did not do it
itself, leads no more, since what it lists dates from before.

A Lease that is gone, or in which somebody blanked the holder, says nothing about whether the holder has
stopped. So a candidate waits for its holder all the same; it makes the Lease first, since only a version that
does not change shows that nobody led in between. Its own name there proves nothing either: anybody who may
edit the Lease can write it.

`--identity` must be unique among living processes: under one name two of them would both believe to hold the
Lease.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any, Final

from koordra.api import objects
from koordra.api.kinds import LEASES
from koordra.api.objects import Object
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)

_GIVEN_AWAY: Final = {"holderIdentity": "", "leaseDurationSeconds": 1}
"""What a holder leaves behind, as client-go's leader election does."""


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


@dataclass
class LeaderLease:
    """`step` is called every `retry` seconds by one thread; `may_write` by any. `clock`: monotonic; `now`:
    wall clock as RFC 3339 with microseconds. `is_well`: whether this process gets on; while it does not, it
    neither takes the Lease nor renews it. `is_reached`: whether the last look at the Lease was answered."""

    api: KubeClient
    _: KW_ONLY
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    now: Callable[[], str]
    times: LeaseTimes
    is_well: Callable[[], bool] = lambda: True
    is_reached: bool = False
    holder: str = ""
    """Who held the Lease when it was seen last."""
    _renewed: float | None = None
    _seen: tuple[str, float] | None = None
    """The version that a candidate waits on, and when it may take it."""
    _lease: Object | None = None
    _settled: float = -math.inf
    """From when on no write that nobody answered can take effect any more."""

    def may_write(self) -> bool:
        """Whether a request that is sent now ends before the lease does."""
        renewed = self._renewed
        return renewed is not None and self.clock() < renewed + self.times.lease - self.times.timeout

    def step(self) -> Standing:
        """Renew, or try to take the Lease. Errors of the API leave things as they are: time decides."""
        try:
            if self.is_well():
                self._take_or_renew()
            self.is_reached = self.is_well()
        except ApiError as error:
            self.is_reached = False
            log.warning("lease_not_reached", identity=self.identity, error=str(error))
        if self._renewed is not None and not self.may_write():
            self._lose("the lease could not be renewed in time")
        return Standing.CANDIDATE if self._renewed is None else Standing.LEADER

    def _take_or_renew(self) -> None:
        started = self.clock()
        if self._lease is None:
            self._try_to_take(started)
        else:
            self._renew(self._lease, started)

    def unanswered(self) -> None:
        """A write was sent, and nobody can say whether it took effect; for one request timeout it still
        may."""
        self._settled = self.clock() + self.times.timeout

    def release(self) -> None:
        """Give the Lease away, unless a write may still take effect: then the next one has to wait. Only call
        when no write is being sent any more."""
        lease, self._renewed, self._lease = self._lease, None, None
        if lease is None or _holder(lease) != self.identity or self.clock() <= self._settled:
            return
        try:
            self.api.update(LEASES, self._with(lease, **_GIVEN_AWAY))
        except ApiError as error:
            log.warning("lease_not_released", identity=self.identity, error=str(error))

    def _try_to_take(self, started: float) -> None:
        with suppress(Conflict):  # another candidate was first
            lease = self._read_or_make()
            self.holder = _holder(lease)
            version = objects.resource_version(lease)
            if self._seen is None or self._seen[0] != version:
                # Counted from the answer: the process may have stood still while the request was under way.
                self._seen = (version, self.clock() + self._wait_for(lease))
            if self.clock() >= self._seen[1]:
                changes = int(objects.spec_of(lease).get("leaseTransitions") or 0) + 1
                self._update(lease, started, acquireTime=self.now(), leaseTransitions=changes)

    def _read_or_make(self) -> Object:
        try:
            return self._read()
        except NotFound:
            return self._create(holderIdentity="", leaseDurationSeconds=round(self.times.lease))

    def _wait_for(self, lease: Object) -> float:
        """Seconds until this version may be taken, if it is still the newest then."""
        if _is_given_away(lease):
            return 0.0
        return self.times.lease + self.times.timeout

    def _renew(self, lease: Object, started: float) -> None:
        try:
            self._update(lease, started)
        except (Conflict, NotFound):
            if self.may_write():
                self._repair(started)

    def _repair(self, started: float) -> None:
        """A renewal did not apply: our own lost answer, a stranger's edit or deletion, or a new holder, who
        may have gone already. Only while our time runs, and nobody gave the Lease away: else another one can
        have led in between."""
        try:
            lease = self._read()
        except NotFound:
            taken = {"acquireTime": self.now(), "leaseTransitions": 0}
            self._hold(self._create(**self._held(), **taken), started)
            return
        if _is_given_away(lease):
            self._lose("another one has held the lease, and gave it away")
        elif (holder := _holder(lease)) in ("", self.identity):
            self._update(lease, started)
        else:
            self._lose(f"{holder} holds the lease")

    def _read(self) -> Object:
        return self.api.get(LEASES, self.name, namespace=self.namespace)

    def _create(self, **spec: Any) -> Object:
        place = {"namespace": self.namespace, "name": self.name}
        lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": place}
        return self.api.create(LEASES, self._with(lease, **spec), namespace=self.namespace)

    def _update(self, lease: Object, started: float, **taken: Any) -> None:
        """Hold this version of the Lease from now on; `taken`: what changes with the holder."""
        self._hold(self.api.update(LEASES, self._with(lease, **self._held(), **taken)), started)

    def _hold(self, lease: Object, started: float) -> None:
        if self._renewed is None:
            log.info("leadership_taken", identity=self.identity)
        self._lease, self._renewed = lease, started

    def _lose(self, why: str) -> None:
        log.error("leadership_lost", identity=self.identity, why=why)
        self._renewed, self._lease, self._seen = None, None, None

    def _held(self) -> dict[str, Any]:
        return {"holderIdentity": self.identity, "leaseDurationSeconds": round(self.times.lease)}

    def _with(self, lease: Object, **spec: Any) -> Object:
        """The Lease as it is to be written now."""
        return {**lease, "spec": {**objects.spec_of(lease), **spec, "renewTime": self.now()}}


def _holder(lease: Object) -> str:
    return str(objects.spec_of(lease).get("holderIdentity") or "")


def _is_given_away(lease: Object) -> bool:
    """By its holder: one whose name was blanked by somebody may still be writing."""
    spec = objects.spec_of(lease)
    return {name: spec.get(name) or "" for name in _GIVEN_AWAY} == _GIVEN_AWAY
