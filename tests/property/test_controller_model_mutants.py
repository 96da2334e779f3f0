"""The model is not blind: a controller with one safeguard taken away is caught within a few thousand
schedules."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from types import ModuleType
from typing import Any

import pytest

from koordra.api.kinds import RESOURCE_CLAIMS, Kind
from koordra.api.objects import Object
from koordra.controller.allocation import writes
from koordra.controller.allocation.writes import Writer, WriteResult
from koordra.controller.cache import assume_cache
from koordra.controller.cache.assume_cache import AssumeCache
from koordra.controller.reconcile import leadership, reconciler
from koordra.controller.reconcile.allocation_step import AllocationStep
from koordra.controller.reconcile.leadership import LeaderLease
from koordra.errors import NotFound
from koordra.placement.index import ClusterIndex
from tests.fakes.mutated import mutated
from tests.property.test_controller_model import one_schedule

MOST = 6000 if "KOORDRA_EXAMPLES" in os.environ else 300
"""A search takes minutes, so it is for make soak; it prints what to write as `last`."""
BEYOND = "allocated beyond capacity"
UNSEEN = "was changed by who had not seen what it was"


def caught(what: str, *, last: int) -> None:
    """One schedule fails for this reason: the one that did so `last`, or else the first from the beginning
    on."""
    for seed in (last, *range(MOST)):
        try:
            one_schedule(seed)
        except AssertionError as error:
            assert what in str(error).partition("\n")[0], error
            print(f"found by schedule {seed}")
            return
    raise AssertionError(f"{MOST} schedules have not found it; KOORDRA_EXAMPLES=1 tries more of them")


Change = Mapping[str, Any]


def _allocates(change: Change) -> bool:
    return bool((change.get("status") or {}).get("allocation"))


def _gives_back(change: Change) -> bool:
    return "status" in change and not _allocates(change)


def _protects(change: Change) -> bool:
    return "finalizers" in (change.get("metadata") or {})


@pytest.mark.parametrize(("concerned", "last"), [(_allocates, 288), (_gives_back, 637), (_protects, 90)])
def test_a_write_without_a_version_is_caught(
    monkeypatch: pytest.MonkeyPatch, concerned: Callable[[Change], bool], last: int
) -> None:
    conditional = Writer._send

    def send(self: Writer, kind: Kind, obj: Object, body: Any, **how: Any) -> WriteResult:
        if kind is RESOURCE_CLAIMS and concerned(body):
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": None}}
        return conditional(self, kind, obj, body, **how)

    monkeypatch.setattr(Writer, "_send", send)
    caught(UNSEEN, last=last)


def test_a_successor_that_waits_half_the_time_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LeaderLease._wait_for
    monkeypatch.setattr(LeaderLease, "_wait_for", lambda self, lease: whole(self, lease) / 2)
    caught("had listed them", last=194)


def test_who_takes_a_deleted_lease_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_free(self: LeaderLease) -> Object:
        try:
            return self._read()
        except NotFound:
            return self._create(holderIdentity="", leaseDurationSeconds=1)

    monkeypatch.setattr(LeaderLease, "_read_or_make", made_free)
    caught("had listed them", last=8455)


def test_who_takes_a_lease_whose_holder_was_blanked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "_is_given_away", lambda lease: not leadership._holder(lease))
    caught("has listed the claims", last=95)


def test_who_trusts_its_own_name_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LeaderLease._wait_for

    def short(self: LeaderLease, lease: Object) -> float:
        return self.times.timeout if leadership._holder(lease) == self.identity else whole(self, lease)

    monkeypatch.setattr(LeaderLease, "_wait_for", short)
    caught("had listed them", last=623)


def test_who_goes_by_wall_clocks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """They jump, and strangers edit renewTime."""

    def remaining(self: LeaderLease, lease: Object) -> float:
        renewed = datetime.fromisoformat(str(lease["spec"].get("renewTime") or "1970-01-01T00:00:00Z"))
        return self.times.lease - (datetime.fromisoformat(self.now()) - renewed).total_seconds()

    whole = LeaderLease._wait_for
    monkeypatch.setattr(
        LeaderLease, "_wait_for", lambda self, lease: min(whole(self, lease), remaining(self, lease))
    )
    caught("had listed them", last=119)


def test_who_believes_the_duration_in_the_lease_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger writes a billion seconds, and nobody leads again."""
    whole = LeaderLease._wait_for

    def said(self: LeaderLease, lease: Object) -> float:
        return max(whole(self, lease), float(lease["spec"].get("leaseDurationSeconds") or 0))

    monkeypatch.setattr(LeaderLease, "_wait_for", said)
    caught("does not come to rest", last=19)


def test_a_leader_that_never_stops_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderLease, "may_write", lambda self: self._renewed is not None)
    caught("its lease may be over", last=12)


def test_a_pod_that_is_kept_off_by_what_concerns_another_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    of_part = AllocationStep.excluded
    monkeypatch.setattr(AllocationStep, "excluded", lambda self, group, part=None: of_part(self, group))
    caught("would fit and waits", last=9)


def test_a_controller_that_forgets_its_writes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AssumeCache, "assume", lambda self, claim: None)
    monkeypatch.setattr(AssumeCache, "doubt", lambda self, claim, allocation: None)
    monkeypatch.setattr(ClusterIndex, "assume", lambda self, *claim, **where: None)
    caught("allocated beyond capacity", last=0)


@pytest.mark.parametrize(
    ("module", "text", "replaced", "what", "last"),
    [
        # A leader that ends gives the Lease away although a write may still land.
        (leadership, "self.clock() <= self._settled:", "False:", "had listed them", 65),
        # One whose time is over gives away what is another's by now.
        (
            leadership,
            "self.api.update(LEASES, self._with(lease, **_GIVEN_AWAY))",
            "self.api.update(LEASES, {**self._with(lease, **_GIVEN_AWAY), 'metadata': {'name': self.name, 'namespace': self.namespace}})",
            "has listed the claims",
            1,
        ),
        # A renewal counts from its answer; the Lease is taken whoever has it by now.
        (
            leadership,
            "self._renewed = lease, started",
            "self._renewed = lease, self.clock()",
            "its lease may be over",
            89,
        ),
        (
            leadership,
            "self.api.update(LEASES, self._with(lease, **self._held(), **taken))",
            "self.api.update(LEASES, {**self._with(lease, **self._held(), **taken), 'metadata': {'name': self.name, 'namespace': self.namespace}})",
            "had listed them",
            284,
        ),
        # A candidate does not wait; a write asks nobody.
        (leadership, "if self.clock() >= self._seen[1]:", "if True:", "has listed the claims", 0),
        (writes, "if fenced and not self.may_write():", "if False:", "its lease may be over", 12),
        # What no pod uses stays on a card that a late write gave to others.
        (
            reconciler,
            "if self.allocation.conflicts.over_committed() else ()",
            "if False else ()",
            BEYOND,
            21209,
        ),
        # What was written is forgotten, or an older state of it believed; so is what nobody answered twice.
        (
            assume_cache,
            "        self._pending[objects.uid(claim)] = PendingWrite(claim, allocation)\n",
            "        if not self._pending.pop(objects.uid(claim), None):\n            self._pending[objects.uid(claim)] = PendingWrite(claim, allocation)\n",
            BEYOND,
            26,
        ),
        (assume_cache, "if before is None or not is_older(claim, before):", "if False:", BEYOND, 0),
        (assume_cache, "        if not is_older(cached, newest):", "        if True:", BEYOND, 0),
    ],
)
def test_an_error_is_caught(module: ModuleType, text: str, replaced: str, what: str, last: int) -> None:
    with mutated(module, text, replaced):
        caught(what, last=last)
