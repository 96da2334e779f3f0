"""Device time of shares: what the node writes of it, and what it lends of what others leave idle."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.api.opaque.parameters import CoresPolicy, GpuConfig
from koordra.kubelet_plugin.isolation.backend import Share
from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.backend import time_share
from koordra.kubelet_plugin.isolation.limiter.device_time import (
    MOST,
    QUIET,
    STEP,
    WHOLE,
    HeldTime,
    TimeLender,
    held_time,
    lent,
)
from koordra.kubelet_plugin.isolation.limiter.open_region import LOOKED_UP, OpenRegion, OpenRegions
from koordra.kubelet_plugin.isolation.limiter.region import TimeShare
from koordra.process.wakeable import Pause
from tests.fakes.descriptors import open_descriptors
from tests.unit.limiter.native_build import environment

UUID = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
GIB = 1 << 30
NOW = 10**12
ELASTIC = HeldTime("a", 0, UUID, cores=30, rate=3000, elastic=True, priority=100, active=True)
HARD = HeldTime("b", 0, UUID, cores=50, rate=5000, elastic=False, priority=100, active=True)


def test_idle_time_is_lent_and_taken_back() -> None:
    assert lent([ELASTIC, HARD]) == {("a", 0): 5000}, "20 % are nobody's"
    assert lent([ELASTIC, replace(HARD, active=False)]) == {("a", 0): MOST}
    assert lent([replace(ELASTIC, active=False), HARD]) == {}
    assert lent([HARD]) == {}


def test_who_is_counted_and_not_limited_is_never_lent_from() -> None:
    counted = replace(HARD, rate=0)
    assert lent([ELASTIC, counted]) == {("a", 0): 5000}


def test_the_most_urgent_come_first_and_share_by_their_rates() -> None:
    urgent = [
        replace(ELASTIC, claim=name, priority=1, rate=rate, cores=rate // 100)
        for name, rate in (("c", 1000), ("d", 2000))
    ]
    assert lent([ELASTIC, *urgent]) == {("c", 0): 1000 + 1333, ("d", 0): 2000 + 2666}
    assert lent([ELASTIC, *(replace(each, active=False) for each in urgent)]) == {("a", 0): MOST}


def test_cards_do_not_lend_to_each_other() -> None:
    other = replace(HARD, uuid=UUID.replace("0f10", "0f11"), active=False)
    full = replace(HARD, claim="f", cores=70, rate=7000)
    assert lent([ELASTIC, full, other]) == {}


SHARES = st.builds(
    HeldTime,
    claim=st.uuids().map(str),
    index=st.just(0),
    uuid=st.sampled_from([UUID, UUID.replace("0f10", "0f11")]),
    cores=st.just(0),
    rate=st.integers(1, 99).map(lambda percent: percent * 100),
    elastic=st.booleans(),
    priority=st.integers(0, 2),
    active=st.booleans(),
)


@given(st.lists(SHARES, max_size=12))
def test_nobody_that_is_active_is_lent_from(shares: list[HeldTime]) -> None:
    """What the active ones have and are lent is no more than the card, where their own rates are not."""
    given_ = lent(shares)
    for uuid in {share.uuid for share in shares}:
        card = [share for share in shares if share.uuid == uuid and share.active]
        own = sum(share.rate for share in card)
        used = sum(max(share.rate, given_.get((share.claim, share.index), 0)) for share in card)
        assert used <= max(own, WHOLE)
    for share in shares:
        amount = given_.get((share.claim, share.index))
        assert amount is None or (share.elastic and share.active and min(share.rate, MOST) <= amount)


@pytest.mark.parametrize(
    ("cores", "config", "wanted"),
    [
        (30, GpuConfig(), None),
        (None, GpuConfig(cores_policy=CoresPolicy.HARD), None),
        (30, GpuConfig(cores_policy=CoresPolicy.HARD), TimeShare(3000)),
        (
            1,
            GpuConfig(cores_policy=CoresPolicy.ELASTIC, priority=0),
            TimeShare(100, elastic=True, priority=0),
        ),
    ],
)
def test_only_who_says_how_is_limited(cores: int | None, config: GpuConfig, wanted: TimeShare | None) -> None:
    share = Share(claim_uid="u", index=0, device="gpu-0", uuid=UUID, memory_bytes=GIB, cores=cores)
    assert time_share(share, config) == wanted


def _claim(claims: Path, name: str, time: TimeShare | None, *, cores: int, active: int) -> None:
    region.allow(claims / name, claim=name, uuid=UUID, limit=GIB, cores=cores, time=time)
    _mark_active(claims, name, active)


def held_by(claims: Path, *, now: int) -> list[HeldTime]:
    """As somebody else sees it."""
    regions = OpenRegions(claims)
    regions.look_up()
    return held_time(regions.by_claim, now=now)


def _mark_active(claims: Path, name: str, at: int) -> None:
    with (claims / name / "usage").open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), struct.pack("=Q", at), region.PACES + region.ACTIVE)


def test_the_lender_writes_what_may_be_used_and_for_how_long(tmp_path: Path) -> None:
    now = [NOW]
    lender = TimeLender(tmp_path, clock=lambda: now[0])
    assert lender.step() == Pause(STEP, QUIET), "who changes a share wakes it"
    now[0] += int(LOOKED_UP * 1e9)
    _claim(tmp_path, "a", TimeShare(3000, elastic=True, priority=3), cores=30, active=now[0])
    _claim(tmp_path, "b", TimeShare(7000), cores=70, active=NOW - 10**10)
    assert lender.step().at_most == STEP
    first, second = held_by(tmp_path, now=now[0])
    assert (first.rate, first.lent, first.priority, first.elastic, first.neighbours) == (
        3000,
        MOST,
        3,
        True,
        1,
    )
    assert (second.rate, second.lent, second.active, second.neighbours) == (7000, 0, False, 1)
    raw = (tmp_path / "a" / "policy").read_bytes()
    until = struct.unpack_from("=Q", raw, region.device_at(0) + region.LENT_UNTIL)[0]
    assert now[0] < until <= now[0] + 10**9, "it ends by itself"
    _mark_active(tmp_path, "b", now[0])
    lender.step()
    assert [share.lent for share in held_by(tmp_path, now=now[0])] == [0, 0]


def test_a_share_that_is_prepared_again_keeps_its_rate(tmp_path: Path) -> None:
    for rate in (3000, 4000):
        _claim(tmp_path, "a", TimeShare(rate, elastic=True), cores=rate // 100, active=NOW)
        TimeLender(tmp_path, clock=lambda: NOW).step()
    (share,) = held_by(tmp_path, now=NOW)
    assert (share.rate, share.cores, share.lent) == (3000, 30, MOST), "an allocation is written once"
    region.change(tmp_path / "a", UUID, limit=GIB, cores=40, time=TimeShare(4000, elastic=True))
    (share,) = held_by(tmp_path, now=NOW)
    assert (share.rate, share.cores, share.lent) == (4000, 40, 0)
    _claim(tmp_path, "a", None, cores=30, active=NOW)
    (share,) = held_by(tmp_path, now=NOW)
    assert (share.rate, share.elastic, share.lent) == (0, False, 0)


def test_no_region_is_opened_again_while_it_is_the_same_and_only_lending_cards_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, asked, now = list[str](), list[str](), [NOW]
    really_open, really_ask = OpenRegion.__init__, OpenRegion.active

    def init(self: OpenRegion, folder: Path) -> None:
        opened.append(folder.name)
        really_open(self, folder)
        self.name = folder.name  # type: ignore[attr-defined]

    def active(self: OpenRegion, index: int) -> int | None:
        asked.append(self.name)  # type: ignore[attr-defined]
        return really_ask(self, index)

    monkeypatch.setattr(OpenRegion, "__init__", init)
    monkeypatch.setattr(OpenRegion, "active", active)
    other = UUID.replace("0f10", "0f11")
    _claim(tmp_path, "a", TimeShare(3000, elastic=True), cores=30, active=NOW)
    _claim(tmp_path, "b", TimeShare(7000), cores=70, active=NOW)
    _claim(tmp_path, "counted", None, cores=0, active=NOW)
    region.allow(tmp_path / "c", claim="c", uuid=other, limit=GIB, cores=50, time=TimeShare(5000))
    lender = TimeLender(tmp_path, clock=lambda: now[0])
    for _ in range(20):
        lender.step()
        now[0] += int(STEP * 1e9)
    assert opened == ["a", "b", "c", "counted"]
    assert asked == ["a", "b"] * 20, "not of a card on which nobody may be lent anything"
    for name in region.FILES:
        (tmp_path / "a" / name).unlink(missing_ok=True)
    _claim(tmp_path, "a", TimeShare(2000), cores=20, active=NOW)
    now[0] += int(LOOKED_UP * 1e9)
    assert lender.step().at_most == QUIET
    assert opened[4:] == ["a"], "another region of that name"
    assert asked[40:] == []


def test_no_file_stays_open_of_a_claim_that_ended_or_for_a_lender_that_is_gone(tmp_path: Path) -> None:
    before, now = open_descriptors(), [NOW]
    lender = TimeLender(tmp_path, clock=lambda: now[0])
    for turn in range(3):
        for name in ("a", "b"):
            _claim(tmp_path, name, TimeShare(3000), cores=30, active=NOW)
        now[0] += int(LOOKED_UP * 1e9)
        lender.step()
        assert open_descriptors() == before + 4, turn
        for name in ("a", "b") if turn < 2 else ():
            shutil.rmtree(tmp_path / name)
        now[0] += int(LOOKED_UP * 1e9)
        lender.step()
        assert open_descriptors() == before + (4 if turn == 2 else 0), turn
    del lender
    assert open_descriptors() == before


@pytest.mark.parametrize("damage", ["usage", "policy"])
def test_a_region_that_is_damaged_harms_no_other(tmp_path: Path, damage: str) -> None:
    _claim(tmp_path, "a", TimeShare(3000, elastic=True), cores=30, active=NOW)
    _claim(tmp_path, "b", TimeShare(5000), cores=50, active=NOW - 10**10)
    os.truncate(tmp_path / "b" / damage, 100)
    TimeLender(tmp_path, clock=lambda: NOW).step()
    first, *rest = held_by(tmp_path, now=NOW)
    assert first.lent == (5000 if damage == "usage" else MOST), "who cannot be asked is active"
    assert [share.active for share in rest] == ([True] if damage == "usage" else [])


@pytest.mark.parametrize("rate", [0, 5000])
def test_a_process_is_held_to_the_rate_that_the_node_writes(built: Path, tmp_path: Path, rate: int) -> None:
    """What Python writes is what the limiter paces by; what it says of itself is what the node reads."""
    claims, tenant = tmp_path / "regions", str(built / "test" / "tenant")
    _claim(claims, "a", TimeShare(rate, elastic=True) if rate else None, cores=50, active=0)
    subprocess.run([tenant, "--world", str(tmp_path), UUID, str(8 * GIB)], check=True)
    around = environment(built, regions=claims, world=tmp_path)
    began = time.monotonic_ns()
    subprocess.run([tenant, "4096", "launch", "1000000"], env=around, check=True, stdout=subprocess.DEVNULL)
    with (claims / "a" / "usage").open("rb") as file:
        file.seek(region.PACES)
        _, charged, *_, active = region.PACE.unpack(file.read(region.PACE.size))
    assert (charged > 0) is bool(rate)
    assert (active >= began) is bool(rate)
    (share,) = held_by(claims, now=time.monotonic_ns() + 10**10)
    assert share.active is not bool(rate), (
        "who is not limited does not say when it computes, and counts as busy"
    )
