"""The table of scheduler_feedback.py, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api import names
from koordra.controller.allocation.scheduler_feedback import (
    LONGEST_PATIENCE,
    PATIENCE,
    SETTLE,
    AwaitedAllocation,
    FeedbackTracker,
    Reading,
    SchedulerAnswer,
)
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.pod_index import PodClaims
from tests.fakes.cluster import Cluster
from tests.fakes.joint_cluster import claim, device_class, pod

WRITTEN_AT = 1000.0
ALLOCATED_AT = "2026-11-21T10:00:00Z"


def allocated(*, node: str = "n0", at: str = ALLOCATED_AT, reserved: tuple[str, ...] = ()) -> dict[str, Any]:
    found = claim("a", uid="claim-1")
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    found["status"] = {
        "allocation": {
            "allocationTimestamp": at,
            "nodeSelector": {"nodeSelectorTerms": [term]},
            "devices": {
                "results": [{"driver": names.DRIVER, "pool": node, "device": "gpu-0", "request": "gpu"}]
            },
        },
        "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in reserved],
    }
    return found


def a_pod(
    *,
    reason: str | None = None,
    message: str = "0/2 nodes are available",
    gated: bool = False,
    generation: int = 1,
    uid: str = "pod-1",
    **condition: Any,
) -> dict[str, Any]:
    found = pod("p", ["a"], gates=[names.JOINT_GATE] if gated else [])
    found["metadata"].update(uid=uid, generation=generation)
    if reason:
        found["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": reason, "message": message, **condition}
        ]
    return found


def reading(
    *,
    then: dict[str, Any],
    now: dict[str, Any] | None,
    claim_now: dict[str, Any] | None,
    seen_after: float = 0.0,
    read_after: float | None = None,
    claim_between: dict[str, Any] | None = None,
    all_allocated: bool = True,
    refusals: int = 0,
) -> SchedulerAnswer:
    """Write at WRITTEN_AT while the pod is `then`; the pod is seen as `now` after `seen_after` seconds."""
    cache = ClusterCache()
    tracker = FeedbackTracker(cache.pod_index, refusals=lambda _uid: refusals)

    def show(pod: dict[str, Any] | None, claim_now: dict[str, Any] | None) -> None:
        pods = [] if pod is None else [pod if all_allocated else with_another_claim(pod)]
        claims = [] if claim_now is None else [claim_now]
        others = [] if all_allocated else [claim("b", uid="claim-2")]
        cache.adopt(Cluster(classes=CLASSES, claims=[*claims, *others], pods=pods))

    show(then, allocated())
    tracker.remember(claim_between or allocated(), [then], now=WRITTEN_AT)
    show(now, claim_now)
    found, again = tracker.read(now=WRITTEN_AT + seen_after)
    if read_after is not None:
        show(now and {**now}, claim_now)
        found, again = tracker.read(now=WRITTEN_AT + read_after)
    if found:
        return found[0].answer
    return SchedulerAnswer(Reading.NOT_YET if tracker._grants else Reading.SETTLED, look_again=again)


def with_another_claim(pod: dict[str, Any]) -> dict[str, Any]:
    more = {"name": "b", "resourceClaimName": "b"}
    return {**pod, "spec": {**pod["spec"], "resourceClaims": [*pod["spec"]["resourceClaims"], more]}}


CLASSES = [device_class(names.CLASS_GPU, "gpu")]
OLD = a_pod(reason="Unschedulable", message="cannot allocate all claims")
ERASED = {**allocated(), "status": {}}


@pytest.mark.parametrize(
    ("case", "want"),
    [
        ({"then": OLD, "now": None, "claim_now": allocated()}, Reading.SETTLED),
        ({"then": OLD, "now": {**OLD, "status": {"phase": "Failed"}}, "claim_now": ERASED}, Reading.SETTLED),
        (
            {"then": OLD, "now": {**OLD, "spec": {**OLD["spec"], "nodeName": "n0"}}, "claim_now": ERASED},
            Reading.SETTLED,
        ),
        ({"then": OLD, "now": OLD, "claim_now": allocated(reserved=("pod-1",))}, Reading.SETTLED),
        (
            {"then": OLD, "now": OLD, "claim_now": allocated(reserved=("pod-2",)), "read_after": 999},
            Reading.SETTLED,
        ),
        ({"then": OLD, "now": OLD, "claim_now": allocated(node="n1")}, Reading.SETTLED),
        ({"then": OLD, "now": OLD, "claim_now": allocated(at="2026-11-21T10:05:00Z")}, Reading.SETTLED),
        ({"then": OLD, "now": OLD, "claim_now": None}, Reading.SETTLED),
        ({"then": OLD, "now": OLD, "claim_now": ERASED}, Reading.ERASED),
        (
            {"then": OLD, "now": OLD, "claim_now": ERASED, "claim_between": allocated(reserved=("pod-1",))},
            Reading.ERASED,
        ),
        (
            {"then": OLD, "now": OLD, "claim_now": ERASED, "claim_between": allocated(reserved=("pod-2",))},
            Reading.SETTLED,
        ),
        ({"then": a_pod(), "now": a_pod(), "claim_now": allocated(), "read_after": 999}, Reading.NOT_YET),
        (
            {
                "then": OLD,
                "now": a_pod(reason="SchedulerError", message="new"),
                "claim_now": allocated(),
                "seen_after": 999,
            },
            Reading.NOT_YET,
        ),
        (
            {
                "then": OLD,
                "now": a_pod(reason="Unschedulable", message="new"),
                "claim_now": allocated(),
                "seen_after": 999,
                "all_allocated": False,
            },
            Reading.NOT_YET,
        ),
    ],
)
def test_what_is_seen_and_how_it_reads(case: dict[str, Any], want: Reading) -> None:
    assert reading(**case).reading is want


def test_while_gated_nothing_is_an_answer_and_afterwards_every_unschedulable_is() -> None:
    gated = a_pod(reason="SchedulingGated", gated=True)
    assert reading(then=gated, now=gated, claim_now=allocated(), read_after=999).reading is Reading.NOT_YET
    lifted = a_pod(reason="Unschedulable", generation=2)
    answer = reading(then=gated, now=lifted, claim_now=allocated(), seen_after=0.1)
    assert (answer.reading, answer.why) == (Reading.REFUSED, "0/2 nodes are available")


def test_what_is_said_of_the_whole_pod_group_is_no_answer_while_there_is_patience() -> None:
    gated = a_pod(reason="SchedulingGated", gated=True)
    for words in (
        "pod group is unschedulable, waiting for minCount pods",
        "0/2 placements: pod group is unschedulable",
    ):
        lifted = a_pod(reason="Unschedulable", message=words, generation=2, observedGeneration=2)
        early = reading(then=gated, now=lifted, claim_now=allocated(), seen_after=SETTLE)
        assert early == SchedulerAnswer(Reading.NOT_YET, look_again=WRITTEN_AT + PATIENCE)
        late = reading(then=gated, now=lifted, claim_now=allocated(), read_after=PATIENCE)
        assert (late.reading, late.why) == (Reading.REFUSED, words)


@pytest.mark.parametrize("gated", [True, False])
def test_who_says_that_claims_cannot_be_allocated_has_not_seen_that_they_are(*, gated: bool) -> None:
    """Copies of pods and of claims are not of one moment: a pod's gate was seen to be lifted first."""
    then = a_pod(reason="SchedulingGated", gated=True) if gated else OLD
    words = "0/2 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims."
    new = a_pod(reason="Unschedulable", message=words, generation=2, observedGeneration=2)
    early = reading(then=then, now=new, claim_now=allocated(), seen_after=0.1)
    assert early == SchedulerAnswer(Reading.NOT_YET, look_again=WRITTEN_AT + PATIENCE)
    late = reading(then=then, now=new, claim_now=allocated(), read_after=PATIENCE)
    assert (late.reading, late.why) == (Reading.REFUSED, words)


@pytest.mark.parametrize("is_allocated", [True, False])
def test_of_another_drivers_claim_it_is_an_answer_while_that_has_none(*, is_allocated: bool) -> None:
    other = claim("a", uid="claim-1") if not is_allocated else allocated()
    new = a_pod(reason="Unschedulable", message="cannot allocate all claims", generation=2)
    awaited = AwaitedAllocation.of(allocated(), a_pod(gated=True), WRITTEN_AT)
    assert awaited is not None
    member = PodClaims(new, (allocated(),), (other,))
    answer = awaited.with_seen(allocated(), new, WRITTEN_AT).read(
        allocated(), member, refusals=0, now=WRITTEN_AT
    )
    assert answer.reading is (Reading.NOT_YET if is_allocated else Reading.REFUSED)


def test_a_newer_observed_generation_is_proof() -> None:
    new = a_pod(reason="Unschedulable", message="Insufficient cpu", generation=2, observedGeneration=2)
    assert reading(then=OLD, now=new, claim_now=allocated(), seen_after=0.1).reading is Reading.REFUSED
    same = a_pod(reason="Unschedulable", message="cannot allocate all claims", observedGeneration=1)
    assert reading(then=OLD, now=same, claim_now=allocated(), seen_after=0.1).reading is Reading.NOT_YET


@pytest.mark.parametrize(
    ("transition", "want"),
    [
        ("2026-11-21T10:00:00Z", Reading.NOT_YET),
        ("2026-11-21T10:00:01Z", Reading.NOT_YET),
        ("2026-11-21T10:00:02Z", Reading.REFUSED),
        ("2026-11-21T09:00:00Z", Reading.NOT_YET),
        ("not a time", Reading.NOT_YET),
    ],
)
def test_a_transition_well_after_the_allocation_is_proof(transition: str, want: Reading) -> None:
    new = a_pod(reason="Unschedulable", lastTransitionTime=transition)
    assert reading(then=a_pod(), now=new, claim_now=allocated(), seen_after=0.1).reading is want


def test_an_answer_of_a_cycle_that_ran_across_our_write_is_old_and_a_later_change_is_new() -> None:
    crossed = a_pod(reason="Unschedulable", message="cannot allocate all claims")
    early = reading(then=a_pod(), now=crossed, claim_now=allocated(), seen_after=SETTLE / 2)
    assert early == SchedulerAnswer(Reading.NOT_YET, look_again=WRITTEN_AT + PATIENCE)
    late = a_pod(reason="Unschedulable", message="Insufficient cpu")
    assert (
        reading(then=crossed, now=late, claim_now=allocated(), seen_after=SETTLE).reading is Reading.REFUSED
    )


def test_patience_ends_and_doubles_with_every_refusal() -> None:
    def after(seconds: float, refusals: int) -> Reading:
        return reading(
            then=OLD, now=OLD, claim_now=allocated(), read_after=seconds, refusals=refusals
        ).reading

    assert after(PATIENCE - 0.1, 0) is Reading.NOT_YET
    assert after(PATIENCE, 0) is Reading.REFUSED
    assert after(PATIENCE * 4 - 0.1, 2) is Reading.NOT_YET
    assert after(PATIENCE * 4, 2) is Reading.REFUSED
    assert after(LONGEST_PATIENCE, 50) is Reading.REFUSED


def test_an_allocation_that_pins_no_node_gives_nothing_to_refuse() -> None:
    anywhere = allocated()
    del anywhere["status"]["allocation"]["nodeSelector"]
    assert AwaitedAllocation.of(anywhere, OLD, 0.0) is None
