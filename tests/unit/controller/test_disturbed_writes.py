"""Every write is killed, lost, delayed, crossed by somebody else, or no longer allowed; the end is the
same."""

from __future__ import annotations

import pytest

from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.controller.allocation.writes import WriteOutcome
from koordra.errors import ApiUnreachable, Conflict
from tests.fakes.joint_cluster import JointCluster, explode_at
from tests.fakes.kube_api import Killed, Write


def scenario() -> JointCluster:
    cluster = JointCluster(nodes=2, gpus=2)
    cluster.claim("a")
    cluster.claim("b")
    cluster.claim("c", count=2)
    cluster.pod("p", "a", "b", gates=[names.JOINT_GATE])
    cluster.pod("q", "c")
    cluster.caches.deliver()
    return cluster


WRITES = 7
"""Of the scenario: finalizer and allocation for three claims, one gate."""


def finished(cluster: JointCluster) -> None:
    cluster.assert_no_device_twice()
    assert all(cluster.allocation(name) for name in "abc")
    assert cluster.node_of("a") == cluster.node_of("b")
    assert cluster.api.get(PODS, "p")["spec"]["schedulingGates"] == []


def test_the_scenario_takes_as_many_writes_as_the_crash_tests_count() -> None:
    cluster = scenario()
    before = len(cluster.api.writes)
    cluster.settle()
    finished(cluster)
    assert len(cluster.api.writes) - before == WRITES


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(WRITES))
def test_killed_at_any_write_the_next_controller_ends_in_the_same_state(step: int, when: str) -> None:
    cluster = scenario()
    setattr(cluster.api, when, explode_at(step, Killed))
    with pytest.raises(Killed):
        cluster.reconciler.reconcile()
    cluster.start_again()
    cluster.settle()
    finished(cluster)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(WRITES))
def test_a_lost_request_or_answer_is_made_good(step: int, when: str) -> None:
    cluster = scenario()
    setattr(cluster.api, when, explode_at(step, lambda: ApiUnreachable("connection reset")))
    with pytest.raises(ApiUnreachable):
        cluster.reconciler.reconcile()
    cluster.settle()
    finished(cluster)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_in_doubt_keeps_its_devices(when: str) -> None:
    """Also while the cache shows nothing of it, and even if another pod is more urgent now."""
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.caches.deliver()
    setattr(cluster.api, when, explode_at(1, lambda: ApiUnreachable("timed out")))
    with pytest.raises(ApiUnreachable):
        cluster.reconciler.reconcile()
    cluster.claim("b")
    cluster.pod("urgent", "b", priority=100)
    cluster.caches.deliver(PODS)
    cluster.reconciler.reconcile()
    cluster.settle()
    assert (cluster.node_of("a"), cluster.node_of("b")) == ("n0", None)


def test_a_second_write_without_an_answer_keeps_the_devices_too() -> None:
    """The write that was to end the doubt is lost as well: it is still not known whether the first one
    landed."""
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.caches.deliver()
    for step in (1, 0):
        cluster.api.before = explode_at(step, lambda: ApiUnreachable("timed out"))
        with pytest.raises(ApiUnreachable):
            cluster.reconciler.reconcile()
    cluster.claim("b")
    cluster.pod("urgent", "b", priority=100)
    cluster.caches.deliver()
    cluster.reconciler.reconcile()
    assert (cluster.node_of("a"), cluster.node_of("b")) == ("n0", None)


def test_a_give_back_takes_nothing_that_was_given_out_since() -> None:
    """It is planned on an allocation that has come to its end meanwhile; the devices are another's allocation
    now."""
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.settle()
    seen = cluster.api.get(RESOURCE_CLAIMS, "a")
    cluster.api.edit(RESOURCE_CLAIMS, "a", lambda found: found["status"].update(allocation=None))
    newer = {**seen["status"]["allocation"], "allocationTimestamp": "2026-11-21T12:00:00Z"}
    cluster.api.edit(RESOURCE_CLAIMS, "a", lambda found: found["status"].update(allocation=newer))
    assert cluster.writer.give_back(seen).outcome is WriteOutcome.CONFLICT
    assert cluster.allocation("a") == newer


def test_a_delayed_write_that_lands_after_its_timeout_is_not_a_second_use() -> None:
    """The doubt is ended by a write on the same version, so that the delayed one can only conflict."""
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.caches.deliver()
    cluster.api.before = explode_at(1, lambda: ApiUnreachable("timed out"))
    with pytest.raises(ApiUnreachable):
        cluster.reconciler.reconcile()
    version = objects.resource_version(cluster.api.get(RESOURCE_CLAIMS, "a"))
    cluster.settle()
    delayed = {
        "metadata": {"resourceVersion": version},
        "status": {"allocation": {"allocationTimestamp": "x"}},
    }
    with pytest.raises(Conflict):
        cluster.api.patch(RESOURCE_CLAIMS, "a", delayed, subresource="status")
    assert cluster.node_of("a") == "n0"


def test_a_claim_that_is_gone_when_its_doubt_ends_lifts_no_gate() -> None:
    """The cache still shows it, and while in doubt it counted as allocated."""
    cluster = JointCluster(nodes=1, gpus=1)
    cluster.claim("a")
    cluster.pod("p", "a", gates=[names.JOINT_GATE])
    cluster.caches.deliver()
    cluster.api.before = explode_at(1, lambda: ApiUnreachable("timed out"))
    with pytest.raises(ApiUnreachable):
        cluster.reconciler.reconcile()
    cluster.api.edit(RESOURCE_CLAIMS, "a", lambda found: found["metadata"].update(finalizers=[]))
    cluster.api.delete(RESOURCE_CLAIMS, "a")
    cluster.reconciler.reconcile()
    assert cluster.api.get(PODS, "p")["spec"]["schedulingGates"]


def test_a_storm_of_conflicts_is_outlasted() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    cluster.claim("a")
    cluster.pod("p", "a")
    storms = 6

    def disturb(write: Write) -> None:
        nonlocal storms
        if write.kind == "resourceclaims" and storms:
            storms -= 1
            cluster.api.edit(
                RESOURCE_CLAIMS, "a", lambda found: found["metadata"].update(labels={"storm": str(storms)})
            )

    cluster.api.before = disturb
    pauses = []
    cluster.caches.deliver()
    for _ in range(12):
        pause = cluster.reconciler.reconcile()
        if cluster.allocation("a"):
            break
        assert pause is not None
        assert 0 < pause <= 1.0
        pauses.append(pause)
    assert cluster.allocation("a") is not None
    assert cluster.api.get(RESOURCE_CLAIMS, "a")["metadata"]["labels"] == {"storm": "0"}
    assert pauses == sorted(pauses)


def test_an_allocation_by_somebody_else_wins() -> None:
    cluster = JointCluster(nodes=1, gpus=2)
    cluster.claim("a")
    cluster.pod("p", "a")
    theirs = {
        "allocationTimestamp": "2026-11-21T00:00:00Z",
        "devices": {"results": [{"request": "gpu", "driver": "koordra.io", "pool": "n0", "device": "gpu-1"}]},
    }

    def intrude(write: Write) -> None:
        if write.kind == "resourceclaims":
            cluster.api.before = lambda _: None
            cluster.api.edit(RESOURCE_CLAIMS, "a", lambda found: found.update(status={"allocation": theirs}))

    cluster.api.before = intrude
    cluster.settle()
    assert cluster.allocation("a") == theirs


def test_the_claim_may_vanish_between_the_two_writes() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.claim("b")
    cluster.pod("p", "a")
    cluster.pod("q", "b")

    def vanish(write: Write) -> None:
        if str(write) == "patch resourceclaims/a/status":
            cluster.api.before = lambda _: None
            cluster.api.edit(RESOURCE_CLAIMS, "a", lambda found: found["metadata"].update(finalizers=[]))
            cluster.api.delete(RESOURCE_CLAIMS, "a")

    cluster.api.before = vanish
    cluster.settle()
    assert [objects.name(entry) for entry in cluster.api.all(RESOURCE_CLAIMS)] == ["b"]
    assert cluster.allocation("b") is not None


def test_fields_that_the_server_drops_are_noticed_and_taken_back() -> None:
    cluster = JointCluster()
    cluster.api.dropped = ("shareID", "consumedCapacity")
    cluster.claim("a", memory="10Gi")
    cluster.pod("p", "a")
    cluster.settle()
    assert cluster.allocation("a") is None
    assert cluster.reasons() == ["FeatureDisabled"]
    assert "shareID" in cluster.told[0].message


def test_without_the_lease_nothing_is_written() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.leading = False
    before = len(cluster.api.writes)
    with pytest.raises(ApiUnreachable, match="lease"):
        cluster.settle()
    assert len(cluster.api.writes) == before


def test_an_allocation_that_is_answered_after_the_lease_ended_is_taken_back() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a")

    def stopped(write: Write) -> None:
        if str(write) == "patch resourceclaims/a/status":
            cluster.leading = False

    cluster.api.after = stopped
    with pytest.raises(ApiUnreachable, match="lease"):
        cluster.settle()
    assert cluster.allocation("a") is None


def test_two_leaders_on_one_claim_end_with_one_allocation() -> None:
    cluster = JointCluster()
    cluster.claim("a")
    cluster.pod("p", "a")
    cluster.caches.deliver()
    first = cluster.reconciler
    cluster.start_again()
    first.reconcile()
    given = cluster.allocation("a")
    cluster.reconciler.reconcile()
    assert given is not None
    assert cluster.allocation("a") == given
