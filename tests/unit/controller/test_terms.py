"""Terms of one process: the next one begins when the worker of the last one has ended, and what belongs to a
term that is over writes no more, also when this very process leads again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from koordra.allocator.features import Features
from koordra.api.kinds import LEASES
from koordra.controller import run as run_module
from koordra.controller.allocation.learned.claim_durations import ClaimDurations
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.reconcile.leader_figures import LeaderFigures
from koordra.controller.reconcile.leadership import LeaseTimes
from koordra.controller.reporting.capacity import ClusterCapacity
from koordra.controller.reporting.native_devices import NativeDevices
from koordra.controller.reporting.waiting_groups import WaitingGroups
from koordra.controller.run import run
from koordra.controller.settings import Settings
from koordra.metrics import Metrics
from koordra.placement.index import ClusterIndex
from koordra.process import lifecycle, progress
from tests.fakes.metric_samples import sample
from tests.fakes.streaming_api import StreamingApi
from tests.patience import PATIENCE

TIMES = LeaseTimes(lease=1.0, retry=0.05, timeout=0.3)


class Term:
    """In place of the reconciler: a pass stands still until it is let go."""

    begun: list[Term]

    def __init__(self, _source: object, writer: Any, **_more: object) -> None:
        self.may_write = writer.may_write
        self.stands, self.go = threading.Event(), threading.Event()
        self.worker = threading.current_thread()
        self.allocation = SimpleNamespace(
            placer=SimpleNamespace(order=None), imex=SimpleNamespace(changed=set()), took=0.0
        )
        self.begun.append(self)

    def reconcile(self) -> None:
        self.stands.set()
        assert self.go.wait(PATIENCE)

    def count(self, _instruments: object, figures: LeaderFigures, *, term: threading.Event) -> bool:
        with figures.shown(term) as self.shown:
            if self.shown:
                figures.set(
                    claims={"allocated": len(self.begun)},
                    gangs={},
                    waiting=WaitingGroups(),
                    seat_end=None,
                    quotas=dict,
                    refused_nodes=0,
                    native=NativeDevices(ClusterCache()),
                    capacity=ClusterCapacity(ClusterIndex(Features.of(None))),
                )
        return True


class NoTable:
    def __init__(self, *_: object, **__: object) -> None:
        """Nothing is learned."""
        self.durations = ClaimDurations(now=time.time)

    def read(self) -> None:
        return None

    def save(self, *_: object, **__: object) -> None:
        return None


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def terms(monkeypatch: pytest.MonkeyPatch) -> list[Term]:
    Term.begun = []
    monkeypatch.setattr(run_module, "Reconciler", Term)
    monkeypatch.setattr(run_module, "LeftoverStore", NoTable)
    return Term.begun


@pytest.mark.long
def test_a_worker_that_stands_still_lets_go_of_the_lease_and_writes_no_more(terms: list[Term]) -> None:
    api, stop, well, metrics = StreamingApi(), threading.Event(), [True], Metrics()
    looks = [0]

    def is_well() -> bool:
        looks[0] += 1
        return well[0]

    def shown() -> float | None:
        return sample(metrics, "koordra_controller_claims", {"state": "allocated"})

    settings = Settings("one", times=TIMES)
    main = threading.Thread(
        target=lambda: run(api, settings, stop=stop, metrics=metrics, is_well=is_well)  # type: ignore[arg-type]
    )
    main.start()
    try:
        eventually(lambda: terms and terms[0].stands.is_set())
        (first,) = terms
        assert first.may_write()
        well[0] = False
        eventually(lambda: sample(metrics, "koordra_controller_leading") == 0)
        assert not first.may_write()
        well[0] = True
        (lease,) = (one for one in progress.threads.values() if one.name == "lease")
        counted, rounds = looks[0], lease.steps + 50
        eventually(lambda: lease.steps >= rounds)
        assert looks[0] <= counted + 1, "the lease is left alone while the old worker is there"
        assert terms == [first], "no term beside it"
        first.go.set()
        eventually(lambda: len(terms) == 2 and terms[1].stands.is_set())
        assert not first.worker.is_alive()
        assert not first.shown
        assert shown() is None, "what comes back late shows nothing, and a term shows nothing before a pass"
        assert terms[1].may_write()
        assert not first.may_write(), "what comes back late is of another term"
        terms[1].go.set()
        eventually(lambda: shown() == 2)
        well[0] = False
        eventually(lambda: sample(metrics, "koordra_controller_leading") == 0)
        eventually(lambda: shown() is None)
    finally:
        for term in terms:
            term.go.set()
        stop.set()
        main.join(PATIENCE)
    assert not main.is_alive()


@pytest.mark.long
def test_a_worker_that_ends_ends_the_process_and_gives_the_lease_away(
    terms: list[Term], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, stop = StreamingApi(), threading.Event()
    monkeypatch.setattr(lifecycle, "_running", [stop])
    monkeypatch.setattr(lifecycle, "end_failed", stop.set)

    def fails(self: Term) -> None:
        raise SystemExit("a defect that no pass takes")

    monkeypatch.setattr(Term, "reconcile", fails)
    settings = Settings("one", times=TIMES)
    main = threading.Thread(target=lambda: run(api, settings, stop=stop), daemon=True)  # type: ignore[arg-type]
    main.start()
    main.join(PATIENCE)
    ended = not main.is_alive()
    stop.set()
    assert ended
    assert len(terms) == 1, "the term is not begun again in silence"
    lease = api.get(LEASES, "koordra-controller", namespace="koordra-system")
    assert lease["spec"]["holderIdentity"] == ""
