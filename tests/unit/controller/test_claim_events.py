"""Messages for people: which word leads, what is told, and that it fits."""

from __future__ import annotations

from dataclasses import replace

from koordra.allocator.explain.grouping import grouped
from koordra.allocator.reasons import Reason
from koordra.controller.reporting import claim_events
from koordra.controller.reporting.claim_events import ClaimEvent
from koordra.controller.reporting.event_dedup import FIGURES_PAUSE, FIRST_PAUSE, RETOLD, EventDedup
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


class Announced:
    """What is told of one claim, by a clock that tests turn."""

    def __init__(self) -> None:
        self.heard: list[ClaimEvent] = []
        self.now = 0.0
        self.waits = True
        self.dedup = EventDedup(
            self.heard.append, clock=lambda: self.now, holds=lambda claim_event: self.waits
        )
        self.claim = claim("a", uid="u")

    def say(self, *reasons: Reason, at: float | None = None) -> int:
        """How much was told in all."""
        self.now = self.now if at is None else at
        self.dedup.waiting(self.claim, [], reasons)
        return len(self.heard)


def free(amount: int, *, node: str = "n0", holder: str = "train") -> Reason:
    figures = f"free {amount} of 80Gi, in use by ResourceClaim {holder}"
    clause = "memory: requested 120Gi,"
    return replace(short("gpu-0", node, figures=f"{clause} {figures}"), clause=clause, at_best=figures)


def test_figures_places_and_holders_of_a_clause_are_told_again_every_ten_minutes_at_most() -> None:
    told = Announced()
    assert told.say(free(1)) == 1
    assert told.say(free(1), at=10_000) == 1
    assert told.say(free(2), at=10_000) == 2, "the first words are long ago"
    for step, reason in enumerate((free(3), free(3, node="n1"), free(3, holder="notebook"))):
        assert told.say(reason, at=10_001 + step * FIGURES_PAUSE / 4) == 2
    assert told.dedup.flush_due() == 10_000 + FIGURES_PAUSE
    told.now = 10_000 + FIGURES_PAUSE
    assert told.dedup.flush_due() is None
    assert len(told.heard) == 3
    assert "notebook" in told.heard[2].message, "nobody may come by again in a quiet cluster"


def test_texts_without_a_clause_are_compared_without_what_has_a_digit() -> None:
    told = Announced()
    text = "node-{0}: partitions: free are {{gpu-{0} gpu-9}}"
    assert [told.say(short("gpu-0", figures=text.format(n)), at=n) for n in (0, 5)] == [1, 1]


def test_other_clauses_of_the_same_reason_are_told_soon_and_ever_less_often() -> None:
    told = Announced()
    cores = short("gpu-0", figures="cores: requested many")
    assert told.say(free(1)) == 1
    assert told.say(cores, at=FIRST_PAUSE - 1) == 1
    assert told.dedup.flush_due() == FIRST_PAUSE
    assert told.say(cores, at=FIRST_PAUSE) == 2
    assert told.say(free(1)) == 2
    assert told.dedup.flush_due() == FIRST_PAUSE + 2 * FIRST_PAUSE
    assert told.say(cores) == 2
    assert told.say(cores, at=1000) == 2, "it is again what was told last"
    told.say(free(1))
    told.dedup.forget("u")
    assert told.dedup.flush_due() is None


def test_another_reason_is_told_at_once_and_after_an_allocation_all_is_news() -> None:
    told = Announced()
    told.say(free(1))
    assert told.say(WRONG_KIND) == 2
    told.dedup.allocated(told.claim, [], level=None)
    assert told.say(free(1)) == 4


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


def test_what_holds_is_told_again_before_the_api_server_forgets_it() -> None:
    told = Announced()
    told.say(free(1))
    told.now = RETOLD - 1
    assert told.dedup.flush_due() is None, "no pass is wanted for it alone"
    assert len(told.heard) == 1
    told.now = RETOLD
    told.dedup.flush_due()
    assert len(told.heard) == 2
    assert told.heard[0] == told.heard[1]
    told.say(free(2), at=2 * RETOLD - 1)
    told.now = 2 * RETOLD
    told.dedup.flush_due()
    assert len(told.heard) == 3, "it was told a moment ago"
    told.waits, told.now = False, 4 * RETOLD
    told.dedup.flush_due()
    assert len(told.heard) == 3
