"""The bytes beyond the ledger: what one reading of NVML and the regions says, and what three of them
settle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordra.kubelet_plugin.isolation.limiter.region import KINDS
from koordra.kubelet_plugin.isolation.limiter.unaccounted_memory import (
    Interval,
    changes,
    known_unseen,
    reading,
    settled,
)
from koordra.kubelet_plugin.isolation.limiter.usage import CardUse, ClaimUse, ProcessUse
from koordra.kubelet_plugin.sampling.host_processes import Process
from koordra.kubelet_plugin.sampling.nvml_cards import CardProcesses

GPU = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
MIB = 1 << 20


def slot(number: int, *, pid: int, held: int, context: int = 0, host_pid: int | None = None) -> ProcessUse:
    kinds = {kind: context if kind == "context" else 0 for kind in KINDS}
    return ProcessUse(
        slot=number,
        generation=1,
        pid=pid,
        pid_namespace=77,
        host_pid=1000 + pid if host_pid is None else host_pid,
        name="p",
        enforcing=True,
        held=(held,),
        kinds=(kinds,),
    )


def claim(*slots: ProcessUse, unseen: int = 0, context_bytes: int = 0) -> ClaimUse:
    device = CardUse(
        uuid=GPU,
        limit=1 << 40,
        used=sum(each.held[0] for each in slots) + unseen,
        unseen=unseen,
        denied=0,
        context_bytes=context_bytes,
    )
    return ClaimUse("c", (device,), slots, started=len(slots), turned_away=0)


def process(pid: int, *claims: str, ending: bool = False) -> Process:
    """Process `pid` of the host, which knows itself by a number 1000 less."""
    return Process(
        pid=pid, started=5, claims=claims or ("c",), inner_pid=pid - 1000, namespace=77, ending=ending
    )


def card(used: dict[int, int | None], *, drawing: tuple[int, ...] = ()) -> dict[str, CardProcesses]:
    return {GPU: CardProcesses(used, frozenset(set(used) - set(drawing)))}


def test_what_the_driver_sees_beyond_the_ledger_is_unseen() -> None:
    use = {"c": claim(slot(0, pid=1, held=100 * MIB))}
    found = reading(use, card({1001: 700 * MIB}), {1001: process(1001)}, use)
    assert found.unseen == {("c", GPU): Interval(600 * MIB, 600 * MIB)}
    assert not found.outside


def test_what_was_granted_and_not_taken_does_not_hide_anothers_context() -> None:
    use = {"c": claim(slot(0, pid=1, held=900 * MIB), slot(1, pid=2, held=0))}
    found = reading(
        use, card({1001: 100 * MIB, 1002: 300 * MIB}), {pid: process(pid) for pid in (1001, 1002)}, use
    )
    assert found.unseen["c", GPU] == Interval(300 * MIB, 300 * MIB)


def test_memory_on_its_way_gives_room_not_a_figure() -> None:
    before, after = ({"c": claim(slot(0, pid=1, held=held * MIB))} for held in (100, 400))
    found = reading(before, card({1001: 700 * MIB}), {1001: process(1001)}, after)
    assert found.unseen["c", GPU] == Interval(300 * MIB, 600 * MIB)


@pytest.mark.parametrize("host_pid", [None, 0])
def test_a_slot_is_found_by_the_brokers_pid_or_by_its_own(host_pid: int | None) -> None:
    use = {"c": claim(slot(0, pid=1, held=100 * MIB, host_pid=host_pid))}
    found = reading(use, card({1001: 150 * MIB}), {1001: process(1001)}, use)
    assert found.unseen["c", GPU].low == 50 * MIB
    assert not found.outside


def test_who_computes_without_a_slot_is_outside_and_counts_in_full() -> None:
    use = {"c": claim(slot(0, pid=1, held=0))}
    used: dict[int, int | None] = {1001: 10 * MIB, 1009: 500 * MIB, 1010: 40 * MIB, 4242: 900 * MIB}
    mine = {pid: process(pid) for pid in (1001, 1009, 1010)}
    found = reading(use, card(used, drawing=(1010,)), mine, use)
    assert found.unseen["c", GPU] == Interval(550 * MIB, 550 * MIB)
    assert found.outside == {("c", 1009, 5)}, "who only draws is counted, and not told"


def test_a_process_that_is_ending_is_not_counted_twice_nor_told() -> None:
    """Its lock went with its memory; the driver takes seconds to clean up, and the limiter counts its slot
    until then."""
    dead = slot(0, pid=1, held=900 * MIB)
    use = {"c": replace(claim(), ended=(dead,))}
    found = reading(use, card({1001: 900 * MIB}), {1001: process(1001, ending=True)}, use)
    assert found.unseen["c", GPU] == Interval(0, 0)
    assert not found.outside
    given_back = {"c": claim()}
    found = reading(given_back, card({1001: 900 * MIB}), {1001: process(1001, ending=True)}, given_back)
    assert found.unseen["c", GPU] == Interval(900 * MIB, 900 * MIB), "the card has it still"
    assert not found.outside
    assert found.in_use["c", GPU] == 0, "nobody is evicted for what nobody can give back"


def test_nobody_is_told_while_a_slot_does_not_say_whose_it_is() -> None:
    nameless = replace(slot(0, pid=4, held=0, host_pid=0), pid_namespace=0)
    use = {"c": claim(nameless)}
    found = reading(use, card({1001: 5 * MIB}), {1001: process(1001)}, use)
    assert found.unseen["c", GPU] == Interval(5 * MIB, 5 * MIB)
    assert not found.outside


def test_outside_the_hosts_pid_namespace_only_slots_are_believed() -> None:
    use = {"c": claim(slot(0, pid=1, held=0))}
    pids = {pid: process(pid) for pid in (1001, 1009)}
    found = reading(use, card({1001: 5 * MIB, 1009: 700 * MIB}), pids, use, sure=False)
    assert found.unseen["c", GPU] == Interval(5 * MIB, 5 * MIB)
    assert not found.outside


def test_what_the_driver_does_not_tell_leaves_the_figure() -> None:
    use = {"c": claim(slot(0, pid=1, held=0), unseen=7), "d": claim(slot(0, pid=2, held=0))}
    processes = {1001: process(1001), 1002: process(1002, "d")}
    found = reading(use, card({1001: None, 1002: 5}), processes, use)
    assert dict(found.unseen) == {("d", GPU): Interval(5, 5)}
    assert settled(7, []) == 7


def test_a_claim_without_processes_has_nothing_unseen() -> None:
    use = {"c": claim(unseen=600 * MIB)}
    found = reading(use, card({}), {}, use)
    assert found.unseen == {("c", GPU): Interval(0, 0)}
    assert changes(known_unseen(use), found)


def test_a_card_that_does_not_answer_changes_nothing() -> None:
    use = {"c": claim(unseen=600 * MIB)}
    found = reading(use, {}, {}, use)
    assert not found.unseen
    assert not changes(known_unseen(use), found)


def test_two_claims_of_one_container_share_its_processes() -> None:
    use = {"c": claim(slot(0, pid=1, held=100 * MIB)), "d": claim(slot(3, pid=1, held=50 * MIB))}
    found = reading(use, card({1001: 200 * MIB}), {1001: process(1001, "c", "d")}, use)
    assert found.unseen == {("c", GPU): Interval(50 * MIB, 50 * MIB), ("d", GPU): Interval(0, 0)}


def test_one_wrong_reading_of_three_does_no_harm() -> None:
    right, wrong = Interval(600, 600), Interval(5000, 5000)
    assert settled(600, [right, wrong, right]) == 600
    assert settled(0, [wrong, right, right]) == 600
    assert settled(600, [Interval(500, 700)]) == 600, "there is room for what was known"


def test_the_overhead_of_one_context_is_told_apart() -> None:
    use = {"c": claim(slot(0, pid=1, held=740 * MIB, context=640 * MIB), context_bytes=640 * MIB)}
    found = reading(use, card({1001: 512 * MIB}), {1001: process(1001)}, use)
    assert found.overheads == ((GPU, 1001, 5, 412 * MIB),)
    several = {"c": claim(slot(0, pid=1, held=1280 * MIB, context=1280 * MIB), context_bytes=640 * MIB)}
    assert not reading(several, card({1001: 999 * MIB}), {1001: process(1001)}, several).overheads
