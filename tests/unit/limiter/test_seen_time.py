"""What the node's sampler tells claims of the time that they really had: tenants are real processes behind
the real limiter, on a card in virtual time; the sampler asks the fake NVML through nvidia-ml-py."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from koordra.kubelet_plugin.isolation.limiter import open_region, overtime, region
from koordra.kubelet_plugin.isolation.limiter.device_time import STEP, TimeLender
from koordra.kubelet_plugin.isolation.limiter.open_region import LOOKED_UP, OpenRegion
from koordra.kubelet_plugin.isolation.limiter.overtime import BURST
from koordra.kubelet_plugin.isolation.limiter.region import TimeShare
from koordra.kubelet_plugin.isolation.limiter.seen_time import SeenTimes
from koordra.kubelet_plugin.isolation.limiter.usage import read_policy
from koordra.kubelet_plugin.sampling.device_time import SeenTime
from koordra.kubelet_plugin.sampling.host_processes import HostProcesses, Process
from tests.fakes import nvml_library
from tests.fakes.nvml_library import FakeNvml
from tests.fakes.sampled_card import DEVICE_TIME, LONG_BESIDE_BUSY, SEEN_UNTIL, SHARES, node_with
from tests.fakes.shared_card import MS, UUID, SharedCard, shared_card

SECOND = 1000 * MS


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setattr(HostProcesses, "all_seen", True)
    fake = FakeNvml(tmp_path, nvml_library.build(), tmp_path)
    fake.order()
    for name, value in fake.environment.items():
        if name.startswith("KOORDRA_FAKE"):
            monkeypatch.setenv(name, value)
    return fake


def within_three_points(
    tenants: Sequence[tuple[int, str]], parts: Sequence[tuple[float, float]], *, points: int = 3
) -> bool:
    return all(
        percent - points <= least and most <= percent + points
        for (percent, _), (least, most) in zip(tenants, parts, strict=True)
    )


@pytest.mark.parametrize("sms", [1, 108, 132, 188])
@pytest.mark.parametrize("name", SHARES)
def test_shares_hold_in_any_second(built: Path, nvml: FakeNvml, name: str, sms: int) -> None:
    tenants = SHARES[name]
    with node_with(built, nvml, tenants, sms=sms) as node:
        node.run(SECOND)
        parts = node.card.parts(2 * SECOND, look=node.look)
        excess = {share.claim: each.excess for share, each in node.times._excess.items()}
    assert within_three_points(tenants, parts), parts
    assert max(excess.values()) < BURST / 10, "nobody is near to being called over its time"


def test_without_the_sampler_long_kernels_beside_a_busy_neighbour_get_less(
    built: Path, nvml: FakeNvml
) -> None:
    """What is measured around them has the neighbour's turns in it: the sampler is what puts it right."""
    with node_with(built, nvml, LONG_BESIDE_BUSY) as node:
        node.run(SECOND, look=lambda: None)
        (first, _) = node.card.parts(2 * SECOND, look=lambda: None)
    assert first[1] < 7


@pytest.mark.parametrize("step", [30, 70, 110, 160])
def test_shares_hold_at_whatever_pace_the_node_comes_to_look(built: Path, nvml: FakeNvml, step: int) -> None:
    with node_with(built, nvml, LONG_BESIDE_BUSY) as node:
        node.run(SECOND, step=step * MS)
        parts = node.card.parts(2 * SECOND, look=node.look, step=step * MS, window=1000 // step * step * MS)
    assert within_three_points(LONG_BESIDE_BUSY, parts), parts


@dataclass
class Resized:
    """Shares whose limits are changed while they run, and the lender, which comes when it is due or woken."""

    card: SharedCard
    lender: TimeLender = field(init=False)
    due: int = 0

    def __post_init__(self) -> None:
        self.lender = TimeLender(self.card.claims, clock=lambda: BOOTED + self.card.now)

    def look(self) -> None:
        if self.card.now >= self.due:
            pause = self.lender.step()
            assert pause.at_most is not None
            self.due = self.card.now + int(pause.at_most * 1e9)

    def change(self, number: int, time: TimeShare) -> None:
        """As the resizer does it; the lender is woken, and keeps the pause that it keeps at least."""
        claim = self.card.claims / f"claim-{number}"
        region.change(claim, UUID, limit=None, cores=time.rate // 100, time=time)
        self.due = min(self.due, self.card.now + int(STEP * 1e9))

    def parts(self) -> list[float]:
        """Of the second after the next 200 ms, in percent."""
        for _ in range(20):
            self.card.pass_time(10 * MS)
            self.look()
        return [round(least) for least, _ in self.card.parts(SECOND, look=self.look)]


BOOTED = 1000 * SECOND
"""When the virtual clock begins."""


@pytest.fixture
def resized(built: Path, nvml: FakeNvml) -> Iterator[Resized]:
    with shared_card(built, nvml.folder, [(20, "PLAIN"), (20, "PLAIN")]) as card:
        found = Resized(card)
        card.parts(SECOND, look=found.look)
        yield found


def near(parts: list[float], *wanted: int) -> bool:
    return all(abs(part - each) <= 3 for part, each in zip(parts, wanted, strict=True))


def test_a_changed_policy_holds_within_200_ms(resized: Resized) -> None:
    assert near(resized.parts(), 20, 20)
    resized.change(0, TimeShare(2000, elastic=True))
    assert near(parts := resized.parts(), 80, 20), parts
    resized.change(0, TimeShare(2000))
    assert near(parts := resized.parts(), 20, 20), parts


def test_a_changed_priority_holds_within_200_ms(resized: Resized) -> None:
    resized.change(0, TimeShare(2000, elastic=True, priority=10))
    resized.change(1, TimeShare(2000, elastic=True, priority=50))
    assert near(parts := resized.parts(), 80, 20), parts
    resized.change(0, TimeShare(2000, elastic=True, priority=60))
    assert near(parts := resized.parts(), 20, 80), parts


def test_a_plugin_that_is_killed_leaves_the_shares_as_they_are(built: Path, nvml: FakeNvml) -> None:
    """While it is away the last corrections stand, as good as they were; the next one begins anew."""
    with node_with(built, nvml, LONG_BESIDE_BUSY) as node:
        node.run(SECOND)
        away = node.card.parts(2 * SECOND, look=lambda: None)
        node.start()
        back = node.card.parts(2 * SECOND, look=node.look)
    assert within_three_points(LONG_BESIDE_BUSY, away, points=5), away
    assert within_three_points(LONG_BESIDE_BUSY, back), back


def test_a_plugin_that_dies_between_two_words_misleads_nobody(
    built: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node_with(built, nvml, LONG_BESIDE_BUSY) as node:
        node.run(SECOND)
        before = node.seen(0)
        put = region.put

        def half(policy: object, at: int, value: int) -> None:
            if at == region.device_at(0) + region.SEEN_UNTIL:
                return
            put(policy, at, value)  # type: ignore[arg-type]

        with monkeypatch.context() as killed:
            killed.setattr(open_region, "put", half)
            node.run(400 * MS)
        assert node.seen(0)[0] > before[0]
        assert node.seen(0)[1] == before[1]
        node.start()
        parts = node.card.parts(2 * SECOND, look=node.look)
    assert within_three_points(LONG_BESIDE_BUSY, parts), parts


@pytest.mark.parametrize("code", [3, 15, 999])
def test_where_the_driver_tells_nothing_the_measurements_stand(
    built: Path, nvml: FakeNvml, code: int
) -> None:
    """NOT_SUPPORTED as of MIG instances and vGPUs, a lost card, an unknown error."""
    tenants = [(30, "PLAIN"), (70, "HALF")]
    with node_with(built, nvml, tenants) as node:
        nvml.order(
            f"error nvmlDeviceGetProcessUtilization {code}",
            f"error nvmlDeviceGetProcessesUtilizationInfo {code}",
        )
        node.run(SECOND)
        parts = node.card.parts(SECOND, look=node.look)
        assert node.seen(0) == (0, 0)
        nvml.order(f"error nvmlDeviceGetProcessUtilization {code}" if code == 3 else "")
        node.run(SECOND)
        assert node.seen(0)[0] > 0, "once it tells, by whichever call, the claims are told"
    assert within_three_points(tenants, parts), parts


def test_who_falsifies_its_region_gets_more_and_everybody_sees_it(
    built: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own correction is its own to write, so it may charge itself a sixteenth; what it really has is the
    driver's word: koordra_limiter_seen_device_seconds_total, and that it is over its time."""
    monkeypatch.setattr(overtime, "BURST", BURST // 20)
    with node_with(built, nvml, [(30, "PLAIN"), (30, "PLAIN")]) as node:
        usage_file = node.card.claims / "claim-0" / "usage"

        def forge() -> None:
            with usage_file.open("r+b", buffering=0) as file:
                os.pwrite(file.fileno(), struct.pack("=I", 64), region.PACES + 40)
            node.look()

        node.run(SECOND)
        before, really = node.metrics(), list(node.card.device_ns)
        node.run(2 * SECOND, look=forge)
        after, passed = node.metrics(), 2.0
        for number, name in enumerate(("claim-0", "claim-1")):
            seen = after[name] - before[name]
            assert abs(seen - (node.card.device_ns[number] - really[number]) / 1e9) < 0.1 * passed
        assert (after["claim-0"] - before["claim-0"]) / passed > 0.4, "more than its 30 %"
        assert (after["claim-1"] - before["claim-1"]) / passed > 0.25, "its neighbour has what is its own"
        assert [(claim, each.share) for claim, each in node.times.over.items()] == [("claim-0", 30.0)]


def told(claims: Path, seen: SeenTime, owners: dict[int, tuple[str, ...]], times: SeenTimes) -> None:
    times.cards()
    found = {pid: Process(pid, 1, of, pid, 0) for pid, of in owners.items()}
    times.tell(UUID, seen, found)


def share(claims: Path, name: str, rate: int = 3000) -> None:
    region.allow(
        claims / name, claim=name, uuid=UUID, limit=None, cores=30, time=TimeShare(rate) if rate else None
    )


def words(claims: Path, name: str) -> tuple[int, int]:
    (device,) = read_policy(claims / name)
    return device[DEVICE_TIME], device[SEEN_UNTIL]


def test_each_claim_is_told_of_itself_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        share(tmp_path, name)
    share(tmp_path, "counted", rate=0)
    times = SeenTimes(tmp_path)
    assert set(times.cards()) == {UUID}
    owners = {1: ("a",), 2: ("a",), 3: ("b",), 4: ("counted",), 5: ()}
    told(tmp_path, SeenTime(100, began=True), owners, times)
    told(tmp_path, SeenTime(200, {1: 5, 2: 7, 3: 11, 4: 13, 5: 17, 6: 19}), owners, times)
    assert words(tmp_path, "a") == (12, 200)
    assert words(tmp_path, "b") == (11, 200)
    assert words(tmp_path, "counted") == (0, 0)
    told(tmp_path, SeenTime(300, {3: 4}), owners, times)
    assert words(tmp_path, "a") == (12, 300), "who had nothing is told until when it was seen"
    told(tmp_path, SeenTime(400, began=True), owners, times)
    assert words(tmp_path, "b") == (0, 400), "a driver that begins anew"


def test_who_has_more_than_its_share_for_a_while_is_over_its_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        share(tmp_path, name)
    times, until = SeenTimes(tmp_path), 0

    def seconds(count: int, a: float, b: float) -> set[str]:
        nonlocal until
        for _ in range(count * 6):
            until += SECOND // 6
            told(tmp_path, SeenTime(until, {1: int(a * SECOND / 6), 2: int(b * SECOND / 6)}), OWNERS, times)
        return set(times.over)

    assert seconds(60, 0.34, 0.39) == set()
    assert seconds(60, 0.34, 0.30) == set()
    assert seconds(3, 0.34, 1.0) == set(), "a while may be anybody's"
    assert seconds(4, 0.34, 1.0) == {"b"}
    first = times.over["b"]
    assert (first.uuid, first.share, round(first.seconds)) == (UUID, 30.0, 5)
    assert str(first) == f"the driver saw its kernels on {UUID} for 100% of 5 s, the share is 30%"
    assert seconds(20, 0.34, 1.0) == {"b"}
    assert times.over["b"] == first, "and is told once"
    assert seconds(15, 0.34, 0.0) == {"b"}
    assert seconds(6, 0.34, 0.0) == set(), "until it has had as much less"
    assert seconds(7, 0.34, 1.0) == {"b"}
    told(tmp_path, SeenTime(until, began=True), OWNERS, times)
    assert times.over == {}, "a driver that begins anew"


OWNERS: dict[int, tuple[str, ...]] = {1: ("a",), 2: ("b",)}


def test_what_is_lent_or_was_allowed_a_moment_ago_is_no_overtime(tmp_path: Path) -> None:
    """The driver tells of what was a second ago."""
    share(tmp_path, "a")
    times = SeenTimes(tmp_path)
    for tick in range(600):
        is_lent = tick % 20 < 10
        OpenRegion(tmp_path / "a").write_lent(0, lent=9900 if is_lent else 0, until=2**62, neighbours=1)
        told(tmp_path, SeenTime(tick * 150 * MS, {1: 148 * MS}), {1: ("a",)}, times)
    assert times.over == {}
    for tick in range(600, 700):
        told(tmp_path, SeenTime(tick * 150 * MS, {1: 148 * MS}), {1: ("a",)}, times)
    assert set(times.over) == {"a"}, "but what was lent is given back"
    region.change(tmp_path / "a", UUID, limit=None, cores=30, time=None)
    times._regions._looked_at -= LOOKED_UP
    times.cards()
    assert times.over == {}, "who is not limited is not over"


def test_kernels_as_long_as_the_limiter_paces_are_no_overtime(tmp_path: Path) -> None:
    """At a half, one of five seconds every ten: it has had all of the card for five seconds."""
    share(tmp_path, "a", rate=5000)
    times = SeenTimes(tmp_path)
    for tick in range(1200):
        ran = 150 * MS if (tick * 150) % 10_000 < 5000 else 0
        told(tmp_path, SeenTime(tick * 150 * MS, {1: ran}), {1: ("a",)}, times)
        assert times.over == {}


def test_a_container_with_two_shares_of_a_card_misleads_neither(tmp_path: Path) -> None:
    for name in ("a", "b"):
        share(tmp_path, name)
    times = SeenTimes(tmp_path)
    for until in (100, 200):
        told(tmp_path, SeenTime(until, {1: 50}), {1: ("a", "b")}, times)
    assert (words(tmp_path, "a"), words(tmp_path, "b")) == ((0, 200), (0, 200))


def test_what_a_tenant_writes_changes_nothing_of_what_it_is_told(tmp_path: Path) -> None:
    share(tmp_path, "a")
    times = SeenTimes(tmp_path)
    told(tmp_path, SeenTime(100), {1: ("a",)}, times)
    with (tmp_path / "a" / "usage").open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), struct.pack("=8Q", *[2**63] * 8), region.PACES)
    told(tmp_path, SeenTime(200, {1: 5}), {1: ("a",)}, times)
    os.truncate(tmp_path / "a" / "usage", 0)
    told(tmp_path, SeenTime(300, {1: 5}), {1: ("a",)}, times)
    assert words(tmp_path, "a") == (10, 300)


def test_a_region_that_is_taken_away_harms_no_other(tmp_path: Path) -> None:
    for name in ("a", "b"):
        share(tmp_path, name)
    times = SeenTimes(tmp_path)
    told(tmp_path, SeenTime(100), {2: ("b",)}, times)
    (tmp_path / "a" / "policy").unlink()
    told(tmp_path, SeenTime(200, {2: 5}), {2: ("b",)}, times)
    assert words(tmp_path, "b") == (5, 200)


def test_a_claim_that_is_made_anew_is_told_in_its_new_region(tmp_path: Path) -> None:
    now = [0.0]
    share(tmp_path, "a")
    times = SeenTimes(tmp_path, clock=lambda: now[0])
    for until in (100, 200):
        told(tmp_path, SeenTime(until, {1: 5}), {1: ("a",)}, times)
    assert words(tmp_path, "a") == (5, 200)
    for name in region.FILES:
        (tmp_path / "a" / name).unlink(missing_ok=True)
    told(tmp_path, SeenTime(300, {1: 5}), {1: ("a",)}, times)
    share(tmp_path, "a")
    now[0] = LOOKED_UP
    told(tmp_path, SeenTime(400, {1: 5}), {1: ("a",)}, times)
    assert words(tmp_path, "a") == (0, 400), "and counting begins anew"
    told(tmp_path, SeenTime(500, {1: 5}), {1: ("a",)}, times)
    assert words(tmp_path, "a") == (5, 500)


@pytest.mark.parametrize("damage", ["cut", "other version", "empty"])
def test_a_region_of_another_koordra_is_left_alone(tmp_path: Path, damage: str) -> None:
    share(tmp_path, "a")
    share(tmp_path, "b")
    policy = tmp_path / "a" / "policy"
    if damage == "other version":
        policy.write_bytes(policy.read_bytes()[:8] + b"\2" + policy.read_bytes()[9:])
    else:
        os.truncate(policy, 100 if damage == "cut" else 0)
    before = policy.read_bytes()
    times = SeenTimes(tmp_path)
    told(tmp_path, SeenTime(100, began=True), {1: ("a",), 2: ("b",)}, times)
    assert policy.read_bytes() == before
    assert words(tmp_path, "b") == (0, 100)
