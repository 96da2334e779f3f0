"""Messages for people: which word leads, what is told, and that it fits."""

from __future__ import annotations

from koordra.allocator.explain.grouping import grouped
from koordra.allocator.reasons import Reason
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.controller.reporting.event_recorder import FIRST_PAUSE, LONGEST_PAUSE, EventDedup
from tests.fakes.joint_cluster import claim, pod


def short(device: str, node: str = "n0", figures: str = "memory 120Gi asked, 80Gi in all") -> Reason:
    return Reason(node, device, "gpu", "InsufficientCapacity", figures)


WRONG_KIND = Reason("n0", "nic-0", "gpu", "SelectorMismatch", "class gpu.koordra.io does not select it")


def test_a_message_tells_clauses_with_the_number_of_their_nodes_and_devices() -> None:
    reasons = grouped([WRONG_KIND, *(short(f"gpu-{index}") for index in range(8)), short("gpu-0", node="n1")])
    told = claim_events.waiting(claim("a"), [pod("p", ["a"])], reasons)
    assert told.message == "claim a: request gpu, 2 nodes (9 devices): memory 120Gi asked, 80Gi in all"
    assert told.reason == "InsufficientCapacity"


def test_other_clauses_carry_their_word() -> None:
    taken = Reason("n0", "gpu-1", "gpu", "AlreadyAllocated", "held by default/b")
    message = claim_events.waiting(claim("a"), [], [taken, short("gpu-0")]).message
    assert message.endswith("; request gpu, n0/gpu-1: AlreadyAllocated: held by default/b")


def test_a_message_never_exceeds_what_the_server_takes_and_says_what_is_missing() -> None:
    reasons = [short("gpu-0", figures=f"clause {index:04d} of many: \u00e4sked") for index in range(200)]
    message = claim_events.waiting(claim("a"), [], reasons).message
    assert len(message.encode()) <= claim_events.LONGEST_MESSAGE
    assert "clause 0000" in message
    assert message.endswith(" more")
    assert len(claim_events.waiting(claim("a"), [], [short("gpu-0", figures="x" * 5000)]).message) == 1024


def test_no_reasons_at_all_means_no_devices_at_all() -> None:
    assert "no node offers devices" in claim_events.waiting(claim("a"), [], []).message


def test_the_same_reason_is_told_again_only_with_new_figures_and_not_all_the_time() -> None:
    heard: list[ClaimEvent] = []
    now = 0.0
    announce = EventDedup(heard.append, clock=lambda: now)
    waits = claim("a", uid="u")

    def say(figures: str, at: float) -> int:
        nonlocal now
        now = at
        announce.waiting(waits, [], [short("gpu-0", figures=figures)])
        return len(heard)

    assert say("1 free", 0.0) == 1
    assert say("1 free", 1000.0) == 1
    assert say("2 free", 1000.0) == 2
    assert say("3 free", 1000.0 + FIRST_PAUSE - 1) == 2
    assert say("3 free", 1000.0 + FIRST_PAUSE) == 3
    announce.waiting(waits, [], [WRONG_KIND])
    assert len(heard) == 4
    announce.allocated(waits, [], level=None)
    assert say("3 free", now) == 6


def test_what_was_held_back_is_told_when_its_pause_is_over() -> None:
    """The last Event of a claim never stays wrong: nobody may come by again in a quiet cluster."""
    heard: list[ClaimEvent] = []
    now = 0.0
    announce = EventDedup(heard.append, clock=lambda: now)
    waits = claim("a", uid="u")
    for figures in ("none", "1 free", "2 free"):
        announce.waiting(waits, [], [short("gpu-0", figures=figures)])
    assert announce.flush_due() == FIRST_PAUSE
    assert len(heard) == 1
    now = FIRST_PAUSE
    assert announce.flush_due() is None
    assert len(heard) == 2
    assert "2 free" in heard[1].message
    announce.waiting(waits, [], [short("gpu-0", figures="3 free")])
    assert announce.flush_due() == now + 2 * FIRST_PAUSE
    announce.waiting(waits, [], [short("gpu-0", figures="2 free")])
    assert announce.flush_due() is None, "it is again what was told last"
    announce.waiting(waits, [], [short("gpu-0", figures="4 free")])
    announce.forget("u")
    assert announce.flush_due() is None
    assert LONGEST_PAUSE > FIRST_PAUSE


def test_an_allocation_names_devices_shares_and_level() -> None:
    given = claim("a")
    result = {"request": "gpu", "device": "gpu-0", "consumedCapacity": {"memory": "20Gi", "cores": "30"}}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}
    given["status"] = {
        "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    }
    told = claim_events.allocated(given, [], level="PIX")
    assert told.message == "claim a on n0: gpu=gpu-0 (cores 30, memory 20Gi), GPU and NIC at PIX"
    assert not told.warning
