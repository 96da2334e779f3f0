"""When a claim counts as using more than its share."""

from __future__ import annotations

from koordra.kubelet_plugin.isolation.limiter.overuse import Overuse, OveruseSamples, over_limit
from koordra.kubelet_plugin.isolation.limiter.usage import CardUse, ClaimUse

GIB = 1 << 30
MIB = 1 << 20
GPU = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
OVER = {("c", GPU): Overuse("c", GPU, 5 * GIB, 4 * GIB, 600 * MIB)}


def use(limit: int | None) -> dict[str, ClaimUse]:
    card = CardUse(GPU, limit=limit, used=0, unseen=0, denied=0, context_bytes=600 * MIB)
    return {"c": ClaimUse("c", (card,), (), started=1, turned_away=0)}


def test_more_than_the_share_and_a_context_is_over() -> None:
    assert not over_limit(use(4 * GIB), {("c", GPU): 4 * GIB + 600 * MIB})
    found = over_limit(use(4 * GIB), {("c", GPU): 4 * GIB + 601 * MIB})
    assert (
        str(found["c", GPU])
        == f"its processes have 4697Mi of {GPU}, the share is 4096Mi and a context takes 600Mi"
    )
    assert not over_limit(use(None), {("c", GPU): 80 * GIB})
    assert not over_limit(use(4 * GIB), {}), "NVML does not tell"


def test_three_samples_in_a_row_within_ten_seconds() -> None:
    samples = OveruseSamples()
    answers = [bool(samples.add(OVER, now=tenth / 10)) for tenth in range(100)]
    assert answers.index(True) == 40
    assert all(answers[40:])


def test_a_claim_that_takes_more_and_more_keeps_its_first_figures() -> None:
    samples = OveruseSamples()
    told = {
        str(samples.add({("c", GPU): Overuse("c", GPU, (5 + at) * GIB, 4 * GIB, 0)}, now=2.0 * at).get("c"))
        for at in range(3, 9)
    }
    assert len(told) == 2, "nothing, and one text"


def test_readings_close_together_are_one_sample() -> None:
    samples = OveruseSamples()
    assert not any(samples.add(OVER, now=1.0 + hundredth / 100) for hundredth in range(199))


def test_memory_that_comes_and_goes_is_no_overuse() -> None:
    samples = OveruseSamples()
    for second in range(30):
        assert samples.add(OVER if second % 4 else {}, now=float(second)) == {}


def test_a_slow_node_needs_no_more_than_three_readings() -> None:
    samples = OveruseSamples()
    assert [bool(samples.add(OVER, now=4.5 * number)) for number in range(3)] == [False, False, True]
